"""What operators do over HTTP: decide, look into what happened."""

from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from doubtless.core.model import Json
from doubtless.errors import DecisionRefused
from doubtless.service.api_operations import NOT_FOUND
from doubtless.service.models import Resolve
from doubtless.service.problems import Refused
from doubtless.service.routing import OPERATOR, Asked, Row, code_of, reply


async def resolve(asked: Asked) -> Response:
    """Record an operator's decision, and carry it out."""
    said, operation_id = asked.body(Resolve), asked.path["operation_id"]
    try:
        outcome = await asked.actor.resolve(
            operation_id,
            said.decision.value,
            operator=asked.principal.name,
            note=said.note,
            version=said.version,
            provider_operation_id=said.provider_operation_id,
            mark_duplicate=said.mark_duplicate,
        )
    except DecisionRefused as error:
        raise await refused(asked, operation_id, error) from error
    asked.note(decision=said.decision.value, outcome=outcome.status)
    return reply(outcome.to_json())


async def refused(asked: Asked, operation_id: str, error: DecisionRefused) -> Refused:
    """Say why a decision isn't taken, with how things stand and what was decided before."""
    current = await asked.actor.outcome(operation_id)
    members: dict[str, Json] = {
        "outcome": current.to_json(),
        "decision": last_decision(await asked.actor.timeline(operation_id)),
    }
    return Refused(409, code_of(error), str(error), members=members)


def last_decision(timeline: Sequence[Mapping[str, Json]]) -> Json:
    """Return what a person decided last, with who and when; None if nobody did."""
    for entry in reversed(timeline):
        inputs = entry.get("inputs")
        if isinstance(inputs, Mapping) and inputs.get("decision") is not None:
            return {
                "decision": inputs["decision"],
                "note": inputs.get("note"),
                "by": entry["principal"],
                "at": entry["at"],
            }
    return None


DECIDED_BEFORE: Final = (
    "It is not legal here, or somebody decided, or something happened, meanwhile:"
    " `decision` is the last one, `outcome` how it stands."
)

ROWS: Final = (
    Row(
        method="POST",
        path="/v1/operations/{operation_id}/resolve",
        name="resolve",
        summary="Record an operator's decision, and carry it out.",
        roles=OPERATOR,
        answer=resolve,
        body=Resolve,
        answers={
            200: "The outcome; of `again` that of the new operation.",
            404: NOT_FOUND,
            409: DECIDED_BEFORE,
            503: "The service is being stopped, or the ledger can't be used.",
        },
        returns="Outcome",
        starts_work=True,
    ),
)
