"""What a handler gets of its key: `operation(request)`, and in its transaction `record(db, …)`."""

from collections.abc import Mapping
from typing import Final, cast

from doubtless.core.model import Json
from doubtless.integrations.idempotency_drivers import Connection, Steps, run, run_async
from doubtless.integrations.idempotency_requests import kept_headers
from doubtless.integrations.idempotency_rules import Answer, Asked, State, json_answer, state_of
from doubtless.integrations.idempotency_store import NotYours, Store

PLACE: Final = "doubtless.idempotency"  # in an ASGI scope or a WSGI environment


class Once:
    """The execution that a handler is part of.

    Attributes:
        key: The caller's key; None on a route where it may be missing, and is.
        caller: Whose key it is.
        status_url: Where the caller asks what became of it; None without a key.
        recorded: The answer that was recorded, if the transaction was committed.
    """

    def __init__(
        self,
        *,
        store: Store,
        asked: Asked | None,
        token: str,
        status_url: str | None,
        caller: str,
    ) -> None:
        self._store, self._asked, self._token = store, asked, token
        self.key = asked.key if asked else None
        self.caller = caller
        self.status_url = status_url
        self.recorded: Answer | None = None

    def record(
        self,
        connection: Connection,
        body: Json,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Record the answer in the connection's transaction, and return `body`.

        Commit it with the change: then both are there, or neither. The caller, and everybody who
        repeats the request, is told this answer, whatever the handler returns afterwards. If the
        transaction is rolled back, what the handler returns is told, and nothing is recorded.
        Without a key it does nothing.

        Raises:
            NotYours: The execution took too long and has lost the key. Let the exception through,
                so that the transaction is rolled back.
            TypeError: The connection is asynchronous: await `record_async`.
        """
        answer = _answer(status, body, headers)
        if self._asked is not None:
            self._note(run(connection, self._finish(answer)), answer)
        return body

    async def record_async(
        self,
        connection: Connection,
        body: Json,
        *,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Json:
        """Do as `record` does, on an asynchronous connection."""
        answer = _answer(status, body, headers)
        if self._asked is not None:
            self._note(await run_async(connection, self._finish(answer)), answer)
        return body

    def accept(self, connection: Connection) -> dict[str, Json]:
        """Record that the work was accepted and goes on; the caller is told 202, and where to ask.

        Commit it with the entry in the owner's queue. At its end call `Store.settle`, in the
        transaction of the work.

        Raises:
            NotYours: As `record` does.
            ValueError: There is no key, so nobody could ask: declare the route with `required`.
        """
        body, headers = self._accepted()
        self.record(connection, body, status=202, headers=headers)
        return body

    async def accept_async(self, connection: Connection) -> dict[str, Json]:
        """Do as `accept` does, on an asynchronous connection."""
        body, headers = self._accepted()
        await self.record_async(connection, body, status=202, headers=headers)
        return body

    def _accepted(self) -> tuple[dict[str, Json], dict[str, str]]:
        if self.key is None or self.status_url is None:
            raise ValueError("accepted work needs a key: declare the route with required=True")
        body: dict[str, Json] = {
            "operation_id": self.key,
            "state": State.ACCEPTED.value,
            "status_url": self.status_url,
        }
        return body, {"location": self.status_url}

    def _finish(self, answer: Answer) -> Steps[bool]:
        assert self._asked is not None  # noqa: S101 - callers have seen it
        state = state_of(answer.status, rolled_back=True)
        return self._store.finish(self._asked, self._token, answer, state)

    def _note(self, was_recorded: bool, answer: Answer) -> None:
        if not was_recorded:
            raise NotYours(
                f"the key {self.key!r} is no longer this execution's: it was recorded already, or"
                " took longer than run_limit_s. Roll back"
            )
        self.recorded = answer


def _answer(status: int, body: Json, headers: Mapping[str, str] | None) -> Answer:
    plain = json_answer(status, body, headers)
    return Answer(status=status, headers=kept_headers(plain.headers), body=plain.body)


def operation(request: object) -> Once:
    """Return the handle of the execution that `request` belongs to.

    Args:
        request: A request of Starlette, FastAPI, Litestar or Django; an ASGI scope or a WSGI
            environment.

    Raises:
        LookupError: The route is not among those of the middleware, or it isn't installed.
    """
    if isinstance(request, Mapping):
        place = cast("Mapping[str, object]", request)
    else:
        found = getattr(request, "scope", None) or getattr(request, "environ", None)
        place = cast("Mapping[str, object]", found or {})
    once = place.get(PLACE)
    if not isinstance(once, Once):
        raise LookupError(  # noqa: TRY004 - it is about the route, not about a type
            "no key is kept for this request: is its route among the middleware's?"
        )
    return once
