"""What an agent does over HTTP: calls, their outcomes, and taking one back."""

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from doubtless.core.model import Cause, Json, State
from doubtless.core.outcome import Outcome
from doubtless.errors import DecisionRefused
from doubtless.service.intake import CLIENT_GONE
from doubtless.service.models import Empty, Filters, Submit, duration_ms
from doubtless.service.problems import Refused
from doubtless.service.routing import AGENT, OPERATOR, Asked, Row, reply

TAKEN: Final = (Cause.PAYLOAD_MISMATCH.value, Cause.OPERATION_ID_TAKEN.value)
"""Refusals that concern the id itself: errors over HTTP, where all others are outcomes."""
KEY_HEADER: Final = "Idempotency-Key"

_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\["\\])*)"')


async def submit(asked: Asked) -> Response:
    """Carry out one intent at most once, and answer as soon as there is something to say."""
    said = asked.body(Submit)
    operation_id = said.operation_id or _key(asked.request)
    wait_ms = None if said.wait is None else duration_ms(said.wait)
    longest_ms = asked.service.settings.limits.wait_max_ms
    if wait_ms is not None and wait_ms > longest_ms:
        raise Refused(422, "bad_body", f"wait: at most {longest_ms // 1000}s; ask again after it")
    call = asked.actor.call(
        said.tool,
        said.arguments,
        operation_id=operation_id,
        request_id=said.request_id,
        session_id=said.session_id,
        correlation_id=said.correlation_id,
        after=said.after,
        on_unknown=said.on_unknown,
        supersedes=said.supersedes,
        wait_s=None if wait_ms is None else wait_ms / 1000,
    )
    asked.note(operation_id=operation_id)
    outcome = await _while_there(asked.request, call)
    if outcome is None:
        return Response(status_code=CLIENT_GONE)
    asked.note(operation_id=outcome.operation_id, outcome=outcome.status)
    if outcome.error is not None and outcome.error.get("code") in TAKEN:
        raise await _taken(asked, outcome)
    return answer(outcome)


def answer(outcome: Outcome) -> Response:
    """Return an outcome: 200 where there is an answer, 202 and where to ask while there is none."""
    if outcome.outcome != "pending":
        return reply(outcome.to_json())
    url = f"/v1/operations/{outcome.operation_id}"
    return reply({**outcome.to_json(), "status_url": url}, 202, {"Location": url})


def _key(request: Request) -> str | None:
    """Return the Idempotency-Key: bare, or as a structured field's string (RFC 9651)."""
    said = request.headers.getlist(KEY_HEADER)
    if not said:
        return None
    if len(said) > 1:
        raise Refused(422, "bad_operation_id", f"{KEY_HEADER} is said {len(said)} times")
    quoted = _QUOTED.fullmatch(said[0].strip())
    return re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else said[0].strip()


async def _taken(asked: Asked, refusal: Outcome) -> Refused:
    """Say that the id means something else. What it means is told to its owner alone."""
    assert refusal.error is not None  # noqa: S101 - the caller has seen it
    code = str(refusal.error["code"])
    members: dict[str, Json] = {"refusal": refusal.to_json()}
    if code == Cause.PAYLOAD_MISMATCH.value:
        own = await asked.actor.outcome(refusal.operation_id)
        members["outcome"] = own.to_json()
    return Refused(409, code, refusal.message, members=members)


@dataclass(slots=True)
class _Box:
    outcome: Outcome | None = None
    error: Exception | None = None


async def _while_there(request: Request, call: Awaitable[Outcome]) -> Outcome | None:
    """Wait for a call as long as its client does; None once the client has gone.

    The attempt goes on all the same: who gives up stops nothing.
    """
    box = _Box()
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            box.outcome = await call
        except Exception as error:  # noqa: BLE001 - raised below; the group would wrap it
            box.error = error
        tasks.cancel_scope.cancel()
    if box.error is not None:
        raise box.error
    return box.outcome


async def show(asked: Asked) -> Response:
    """Return the outcome as it stands. Reads the ledger alone."""
    outcome = await asked.actor.outcome(asked.path["operation_id"])
    return reply(outcome.to_json())


async def find(asked: Asked) -> Response:
    """Return a page of outcomes, newest first."""
    said = asked.query(Filters)
    page = await asked.actor.page(
        states=said.states, filters=said.equal, limit=said.limit, cursor=said.cursor
    )
    found = [outcome.to_json() for outcome in page.outcomes]
    return reply({"operations": found, "cursor": page.cursor})


async def cancel(asked: Asked) -> Response:
    """Withdraw an operation of which nothing was sent."""
    operation_id = asked.path["operation_id"]
    try:
        outcome = await asked.actor.cancel(operation_id)
    except DecisionRefused as error:
        current = await asked.actor.outcome(operation_id)
        members: dict[str, Json] = {"outcome": current.to_json()}
        code = "already_cancelled" if current.state == State.CANCELLED else "decision_refused"
        raise Refused(409, code, str(error), members=members) from error
    return reply(outcome.to_json())


NOT_FOUND: Final = "There is no such operation, or it is another principal's."
CALLED: Final = {
    200: "It is settled, refused by policy, or unknown: the outcome.",
    202: "It is under way: the outcome, and where to ask for it.",
    404: "There is no such tool.",
    409: "The id means another payload, or is taken. `code` says which; one's own is shown.",
    503: "Nothing could be recorded, or the service is being stopped: nothing was sent.",
}
BOTH: Final = AGENT | OPERATOR

ROWS: Final = (
    Row(
        method="POST",
        path="/v1/operations",
        name="submit",
        summary="Carry out one intent, at most once.",
        roles=AGENT,
        answer=submit,
        body=Submit,
        answers=CALLED,
        returns="Outcome",
        starts_work=True,
        headers={KEY_HEADER: "Taken as `operation_id` where the body has none; bare or quoted."},
    ),
    Row(
        method="GET",
        path="/v1/operations",
        name="find",
        summary="Find operations, newest first: an agent its own.",
        roles=BOTH,
        answer=find,
        query=Filters,
        answers={200: "A page of outcomes."},
        returns="Page",
    ),
    Row(
        method="GET",
        path="/v1/operations/{operation_id}",
        name="show",
        summary="Say what is known of an operation. Asks nobody and changes nothing.",
        roles=BOTH,
        answer=show,
        answers={200: "The outcome.", 404: NOT_FOUND},
        returns="Outcome",
    ),
    Row(
        method="GET",
        path="/operations/by-id/{operation_id}",
        name="reconcile",
        summary="The same, at the path that outcomes name.",
        roles=BOTH,
        answer=show,
        answers={200: "The outcome.", 404: NOT_FOUND},
        returns="Outcome",
    ),
    Row(
        method="POST",
        path="/v1/operations/{operation_id}/cancel",
        name="cancel",
        summary="Withdraw an operation of which nothing was sent.",
        roles=BOTH,
        answer=cancel,
        body=Empty,
        answers={
            200: "The outcome.",
            404: NOT_FOUND,
            409: "Something was sent, or it has ended; `outcome` is how it stands.",
        },
        returns="Outcome",
    ),
)
