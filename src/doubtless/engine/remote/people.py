"""What people do through a service: decide, approve, and look after the inbox.

Who acts is told by the token, whatever name is said here. A decision whose answer is lost is not
repeated: whether it was taken is to be looked at, and `ServiceUnavailable` says so.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import Final, TypeVar, cast

from doubtless.core.decisions import Word
from doubtless.core.model import Grant, Json
from doubtless.core.outcome import Outcome
from doubtless.engine.event_reading import body_of
from doubtless.engine.events import EventPage, InboxEvent, Ingested
from doubtless.engine.people import word_of
from doubtless.engine.remote.asking import PAGE_MAX, Remote, checked, members, part
from doubtless.engine.remote.wire import Ask
from doubtless.engine.stream import read_outcome
from doubtless.errors import BadEvent, DecisionRefused, SettingsError, StaleVersion

T = TypeVar("T")
RESOLVE_TRIES: Final = 10


class RemotePeople(Remote):
    """Decisions of people, through a service."""

    async def resolve(
        self,
        operation_id: str,
        decision: str,
        *,
        operator: str,
        note: str,
        version: int | None = None,
        provider_operation_id: str | None = None,
        mark_duplicate: bool = False,
    ) -> Outcome:
        """Do as `People.resolve` says. The operator is the token's, whatever `operator` says."""
        word: Word = word_of(decision)
        body: dict[str, Json] = {
            "decision": word.value,
            "note": note,
            "provider_operation_id": provider_operation_id,
            "mark_duplicate": mark_duplicate,
        }
        tries_left = RESOLVE_TRIES if version is None else 1
        while True:
            # Where none was said, what is decided on is what stands there now.
            on = version or (await self.outcome(operation_id)).version
            said = {**body, "version": on}
            tries_left -= 1
            try:
                told = await self._decide(operation_id, "resolve", said, expected=on)
                return read_outcome(told)
            except StaleVersion:  # a look-up came in between; nothing was done
                if not tries_left:
                    raise

    async def approve(
        self, operation_id: str, *, operator: str, note: str, payload_hash: str | None
    ) -> Outcome:
        """Do as `Approving.approve` says. The operator is the token's."""
        return await self._vote("approve", operation_id, note, payload_hash)

    async def deny(
        self, operation_id: str, *, operator: str, note: str, payload_hash: str | None
    ) -> Outcome:
        """Do as `Approving.deny` says. The operator is the token's."""
        return await self._vote("deny", operation_id, note, payload_hash)

    async def _vote(
        self, word: str, operation_id: str, note: str, payload_hash: str | None
    ) -> Outcome:
        shown = payload_hash or (await self.outcome(operation_id)).payload_hash
        body: dict[str, Json] = {"note": note, "payload_hash": shown}
        return read_outcome(await self._decide(operation_id, word, body))

    async def _decide(
        self, operation_id: str, word: str, body: Mapping[str, Json], **known: object
    ) -> Json:
        path = f"/v1/operations/{part(operation_id)}/{word}"
        return await self._wire.post(
            path, body, repeatable=False, operation_id=operation_id, **known
        )

    async def stop(self, operation_id: str, *, operator: str, note: str) -> Outcome:
        """Refuse: processes are ended on the host where they run."""
        why = "processes are ended on the host where they run: doubtless operations stop"
        raise DecisionRefused(operation_id, why)

    async def cancel(self, operation_id: str) -> Outcome:
        """Do as `People.cancel` says."""
        path = f"/v1/operations/{part(operation_id)}/cancel"
        answer = await self._wire.ask(Ask(method="POST", path=path, body={}))
        if answer.code == "already_cancelled":
            if answer.repeated:  # by the try whose answer was lost
                return read_outcome(answer.body["outcome"])
            why = answer.detail.removeprefix(f"{operation_id}: ")
            raise DecisionRefused(operation_id, why)
        return read_outcome(checked(answer, operation_id=operation_id).body)

    # --- approvals of a whole session ------------------------------------------------------------

    async def grant(
        self,
        session_id: str,
        *,
        tool: str,
        principal: str,
        expires_s: float,
        operator: str,
        note: str,
    ) -> Grant:
        """Do as `Approving.grant` says. The operator is the token's."""
        body: dict[str, Json] = {
            "tool": tool,
            "principal": principal,
            "expires": f"{round(expires_s * 1000)}ms",
            "note": note,
        }
        path = f"/v1/sessions/{_session(session_id)}/approvals"
        return _grant(await self._wire.post(path, body, repeatable=False, tool=tool))

    async def revoke_grant(self, session_id: str, approval_id: str, *, operator: str) -> Grant:
        """Do as `Approving.revoke_grant` says. The operator is the token's."""
        path = f"/v1/sessions/{_session(session_id)}/approvals/{part(approval_id)}"
        answer = await self._wire.ask(Ask(method="DELETE", path=path))
        return _grant(checked(answer).body)

    async def grants(self, session_id: str) -> list[Grant]:
        """Do as `Approving.grants` says."""
        found = await self._wire.get(f"/v1/sessions/{_session(session_id)}/approvals")
        return [_grant(each) for each in members(found, "approvals")]

    # --- the inbox -------------------------------------------------------------------------------

    async def ingest(
        self,
        source: str,
        event: Mapping[str, Json] | bytes,
        *,
        event_id: str | None = None,
        occurred_at: datetime | str | float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Ingested:
        """Do as `Events.ingest` says. Headers can't be handed on.

        Raises:
            SettingsError: Headers were given.
        """
        if headers is not None:
            raise SettingsError("headers of an event can't be handed on: ingest it at the ledger")
        body = body_of(event) if isinstance(event, bytes) else event
        if not isinstance(body, Mapping):
            raise BadEvent("an event must be a JSON object")
        said: dict[str, Json] = {
            "source": source,
            "event": body,
            "event_id": event_id,
            "occurred_at": _instant(occurred_at),
        }
        found = await self._wire.post("/v1/events", said, repeatable=True)
        return _read(Ingested, found)

    async def events(
        self,
        *,
        matched: bool | None = None,
        source: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> EventPage:
        """Do as `Events.events` says, 200 at most on a page."""
        query: dict[str, Json] = {
            "matched": matched,
            "source": source,
            "limit": min(max(limit, 1), PAGE_MAX),
            "cursor": cursor,
        }
        found = await self._wire.get("/v1/events", query)
        return EventPage(
            events=tuple(_read(InboxEvent, each) for each in members(found, "events")),
            cursor=cast("Mapping[str, str | None]", found)["cursor"],
        )

    async def match(self, event: str, operation_id: str, *, operator: str, note: str) -> Outcome:
        """Do as `Events.match` says. The operator is the token's."""
        body: dict[str, Json] = {"operation_id": operation_id, "note": note}
        path = f"/v1/events/{part(event)}/match"
        told = await self._wire.post(path, body, repeatable=False, operation_id=operation_id)
        return read_outcome(told)


def _session(session_id: str) -> str:
    if not session_id:
        raise SettingsError("the implicit session has no name that a service could be asked by")
    return part(session_id)


def _grant(told: Json) -> Grant:
    found = cast("Mapping[str, str]", told)
    return Grant(
        id=found["id"],
        session_id=found["session_id"],
        tool=found["tool"],
        contract_digest=found["contract_digest"],
        principal=found["principal"],
        by=found["by"],
        at_ms=_ms(found["at"]) or 0,
        expires_ms=_ms(found["expires_at"]) or 0,
        digest="",  # it is the ledger's own
        note=found["note"],
        revoked_ms=_ms(found["revoked_at"]),
        revoked_by=found["revoked_by"],
    )


def _ms(instant: str | None) -> int | None:
    return None if instant is None else round(datetime.fromisoformat(instant).timestamp() * 1000)


def _instant(when: datetime | str | float | None) -> str | None:
    """Write an instant as the service takes it: RFC 3339."""
    if when is None or isinstance(when, str):
        return when
    moment = when if isinstance(when, datetime) else datetime.fromtimestamp(when, tz=UTC)
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _read(kind: type[T], told: Json) -> T:
    """Read a value of the class `kind`; what a newer release adds is left out."""
    names = {each.name for each in fields(cast("type[InboxEvent]", kind))}
    found = cast("Mapping[str, Json]", told)
    make = cast("Callable[..., T]", kind)
    return make(**{name: value for name, value in found.items() if name in names})
