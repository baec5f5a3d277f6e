"""What every request passes first: bounds on size and time, and an answer to any failure."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from doubtless.errors import LedgerUnavailable
from doubtless.service import logs
from doubtless.service.problems import problem
from doubtless.service.settings import Limits

CLOSE: Final[Mapping[str, str]] = {"Connection": "close"}  # what follows it can't be told apart
HEARD_OUT: Final = 4  # times the longest body that is taken
HEARD_OUT_S: Final = 2.0
CLIENT_GONE: Final = 499  # nobody reads it; the log does
CODES: Final = {404: "no_such_route", 405: "method_not_allowed", 408: "too_slow", 413: "too_large"}
DETAILS: Final = {
    404: "there is no such route: /openapi.json lists them",
    405: "the route does not answer to this method",
}

_log: Final = logging.getLogger("doubtless.service")


class Intake:
    """Bounds a request, and answers whatever goes wrong in it with a problem document."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app, self._limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on within its bounds."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            if (refusal := self._refused(scope)) is not None:
                await self._hear_out(receive)
                await refusal(scope, receive, sending)
            else:
                await self._app(scope, self._bounded(receive), sending)
        except ClientDisconnect:
            await Response(status_code=CLIENT_GONE)(scope, receive, sending)
        except Exception as error:  # noqa: BLE001 - one request that fails must not look like a crash
            response = failed(error)
            if not begun:
                await response(scope, receive, sending)

    def _refused(self, scope: Scope) -> Response | None:
        limits = self._limits
        if sum(len(name) + len(value) for name, value in scope["headers"]) > limits.head_bytes_max:
            detail = f"the headers are longer than {limits.head_bytes_max} bytes"
            return problem(431, "head_too_long", detail, headers=CLOSE)
        if len(scope["path"]) > limits.path_chars_max:
            detail = f"the path is longer than {limits.path_chars_max} characters"
            return problem(414, "path_too_long", detail, headers=CLOSE)
        if len(scope["query_string"]) > limits.query_bytes_max:
            detail = f"the query is longer than {limits.query_bytes_max} bytes"
            return problem(414, "query_too_long", detail, headers=CLOSE)
        for name, value in scope["headers"]:
            if name == b"content-length" and int(value or b"0") > limits.body_bytes_max:
                return too_large(limits)
        return None

    async def _hear_out(self, receive: Receive) -> None:
        """Read what a refused client goes on sending, and throw it away; within bounds.

        A client that is cut off in the middle of its body sees a broken pipe, and no answer.
        """
        left = self._limits.body_bytes_max * HEARD_OUT
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARD_OUT_S):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if not message.get("more_body", False):
                        return

    def _bounded(self, receive: Receive) -> Receive:
        """Return `receive` with a limit on the body's size and on the time that it takes."""
        limits, got, complete = self._limits, 0, False
        end_s = asyncio.get_running_loop().time() + limits.body_timeout_s

        async def receiving() -> Message:
            nonlocal got, complete
            if complete:  # whoever listens further waits for the client to go
                return await receive()
            try:
                async with asyncio.timeout_at(end_s):
                    message = await receive()
            except TimeoutError:
                detail = f"the body did not come within {limits.body_timeout_s:g} s"
                raise HTTPException(408, detail, dict(CLOSE)) from None
            if message["type"] == "http.request":
                got += len(message.get("body", b""))
                complete = not message.get("more_body", False)
                if got > limits.body_bytes_max:
                    raise HTTPException(413, _size(limits), dict(CLOSE))
            return message

        return receiving


def _size(limits: Limits) -> str:
    return f"the body is longer than {limits.body_bytes_max} bytes"


def too_large(limits: Limits) -> Response:
    """Answer a body that is too long. The rest of it isn't read."""
    return problem(413, "too_large", _size(limits), headers=CLOSE)


def failed(error: Exception) -> Response:
    """Return what a client is told of a failure. Nothing of our own inside is."""
    match error:
        case LedgerUnavailable():
            _log.warning("the ledger failed: %s", error)
            detail = "the ledger can't be used now; nothing was sent that it doesn't hold"
            return problem(503, "ledger_unavailable", detail, headers={"Retry-After": "1"})
        case _:
            _log.error("a request failed", exc_info=error)
            return problem(500, "internal", "a fault of the service; its log has it")


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Turn what the router and the bounds raise into a problem document."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for this class alone
    status = error.status_code
    detail = DETAILS.get(status) or str(error.detail)
    code = CODES.get(status, "refused")
    logs.note(request.scope, refused=code)
    return problem(status, code, detail, headers=error.headers)
