"""What operators permit over HTTP: one operation, or a tool's operations in a session."""

from collections.abc import Awaitable, Callable

from starlette.responses import Response

from doubtless.core.outcome import Outcome
from doubtless.engine.approving import grant_data
from doubtless.errors import DecisionRefused
from doubtless.service.api_operations import NOT_FOUND
from doubtless.service.api_people import refused
from doubtless.service.models import Authorise, Grant, duration_ms
from doubtless.service.routing import OPERATOR, Asked, Row, reply


async def approve(asked: Asked) -> Response:
    """Approve what waits for it."""
    return await _vote(asked, asked.actor.approve)


async def deny(asked: Asked) -> Response:
    """Deny what waits for approval."""
    return await _vote(asked, asked.actor.deny)


async def _vote(asked: Asked, vote: Callable[..., Awaitable[Outcome]]) -> Response:
    said, operation_id = asked.body(Authorise), asked.path["operation_id"]
    try:
        outcome = await vote(
            operation_id,
            operator=asked.principal.name,
            note=said.note,
            payload_hash=said.payload_hash,
        )
    except DecisionRefused as error:
        raise await refused(asked, operation_id, error) from error
    asked.note(outcome=outcome.status)
    return reply(outcome.to_json())


async def grant(asked: Asked) -> Response:
    """Approve a tool's calls by a principal in a session."""
    said = asked.body(Grant)
    granted = await asked.actor.grant(
        asked.path["session_id"],
        tool=said.tool,
        principal=said.principal,
        expires_s=duration_ms(said.expires) / 1000,
        operator=asked.principal.name,
        note=said.note,
    )
    return reply(grant_data(granted))


async def revoke(asked: Asked) -> Response:
    """Take a session-wide approval back."""
    path = asked.path
    taken = await asked.actor.revoke_grant(
        path["session_id"], path["approval_id"], operator=asked.principal.name
    )
    return reply(grant_data(taken))


async def listed(asked: Asked) -> Response:
    """Return the approvals of a session."""
    found = await asked.actor.grants(asked.path["session_id"])
    return reply({"approvals": [grant_data(each) for each in found]})


def _vote_row(name: str, summary: str, answer: Callable[[Asked], Awaitable[Response]]) -> Row:
    return Row(
        method="POST",
        path=f"/v1/operations/{{operation_id}}/{name}",
        name=name,
        summary=summary,
        roles=OPERATOR,
        answer=answer,
        body=Authorise,
        answers={
            200: "The outcome.",
            404: NOT_FOUND,
            409: "It is not what was shown, or it waits for no approval, or not for this person's.",
        },
        returns="Outcome",
        starts_work=True,
    )


ROWS = (
    _vote_row("approve", "Approve an operation, as it was shown.", approve),
    _vote_row("deny", "Deny an operation: it is rejected.", deny),
    Row(
        method="POST",
        path="/v1/sessions/{session_id}/approvals",
        name="grant",
        summary="Approve a tool's calls by a principal in a session, until it expires.",
        roles=OPERATOR,
        answer=grant,
        body=Grant,
        answers={
            200: "The approval.",
            404: "There is no such tool.",
            409: "The tool needs none, or two people's, or it would be for oneself.",
        },
        returns="Approval",
        starts_work=True,
    ),
    Row(
        method="GET",
        path="/v1/sessions/{session_id}/approvals",
        name="approvals",
        summary="The approvals of a session, expired and revoked ones too.",
        roles=OPERATOR,
        answer=listed,
        answers={200: "The approvals, oldest first."},
        returns="Approvals",
    ),
    Row(
        method="DELETE",
        path="/v1/sessions/{session_id}/approvals/{approval_id}",
        name="revoke_approval",
        summary="Take a session-wide approval back.",
        roles=OPERATOR,
        answer=revoke,
        answers={200: "The approval, revoked.", 404: "There is none of that id in that session."},
        returns="Approval",
    ),
)
