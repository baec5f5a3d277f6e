"""Structured logs: one JSON object a line, on standard error. Never a payload, a token or a secret.

A request's line has its method, its route's template (not the path, which is the client's), status,
duration, principal and operation.
"""

import json
import logging
import time
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from doubtless.core.model import Json
from doubtless.core.outcome import instant

NOTES: Final = "doubtless.notes"
"""Where a request's handlers leave what its line says, in the scope."""
FIELDS: Final = "doubtless_fields"
TEXT_CHARS_MAX: Final = 2_000

access: Final = logging.getLogger("doubtless.access")


class JsonLines(logging.Formatter):
    """Writes each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Write it."""
        line: dict[str, Json] = {
            "at": instant(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        fields = getattr(record, FIELDS, None)
        if isinstance(fields, dict):
            line |= fields
        else:
            line["message"] = record.getMessage()[:TEXT_CHARS_MAX]
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = type(record.exc_info[1]).__name__
            line["stack"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def configure() -> None:
    """Write the logs of this process as JSON lines."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    for name, level in (("doubtless", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level)
        logger.propagate = False


def note(scope: Scope, **said: Json) -> None:
    """Add to the line of a request."""
    scope.setdefault(NOTES, {}).update(said)


class AccessLog:
    """Logs each request once it is answered."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status = time.perf_counter(), 0
        scope[NOTES] = {}

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        finally:
            fields: dict[str, Json] = {
                "method": scope["method"][:16],
                "route": getattr(scope.get("route"), "path", None),
                "status": status,
                "ms": round((time.perf_counter() - began_s) * 1000, 1),
                "principal": None,
                "operation_id": None,
                **scope[NOTES],
            }
            access.info("request", extra={FIELDS: fields})
