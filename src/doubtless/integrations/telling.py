"""What a model is told: about a tool before it calls it, and about an operation afterwards.

One place for the words, so that every gateway and adapter says the same. They never say "error" of
what is unknown, and never invite a repeat that the ledger doesn't permit.
"""

import json
from typing import Final

from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Effect, Json
from doubtless.core.outcome import Outcome

STATUS_TOOL: Final = "operation_status"
UNRESOLVED_TOOL: Final = "list_unresolved"

CAUTION: Final = (
    "This tool acts outside. Its answer may be that it is unknown whether it took effect. Then"
    " neither call it again nor try a variant: a repeat is no check. Ask "
    f"{STATUS_TOOL} with the operation_id of the answer; other work may go on meanwhile."
)
STATUS_DESCRIPTION: Final = (
    "Tells what is known of an operation: whether it took effect, did not, or is still unknown, and"
    " who settles it. It only reads: it repeats nothing, and may be asked at any time."
)
UNRESOLVED_DESCRIPTION: Final = (
    "Lists the operations of this session that are not settled yet: unknown ones, those under way,"
    " and those that wait for a person. It only reads. Ask it before starting over."
)


def described(description: str, effect: Effect) -> str:
    """Return a tool's description with what its caller must know, once.

    That of a read stays as it is.
    """
    if effect in NO_EFFECT or CAUTION in description:
        return description
    return f"{description.rstrip()}\n\n{CAUTION}" if description.strip() else CAUTION


def is_good(outcome: Outcome) -> bool:
    """Whether the outcome is what a framework may hand on as an ordinary result."""
    return outcome.outcome == "success"


def told(outcome: Outcome) -> str:
    """Say in plain words what is known of an operation and what to do about it.

    It starts with the status, so that no reader takes an unknown for a failure.
    """
    return f"[{outcome.status}] {_words(outcome)}"


def _words(outcome: Outcome) -> str:
    """Word an outcome for a caller who has no id of its own to repeat a call under."""
    code, by = (str((outcome.error or {}).get(key) or "") for key in ("code", "operation_id"))
    if outcome.outcome in ("unknown", "pending"):
        return f"{outcome.message} {_ask(outcome.operation_id)}"
    if outcome.retry_allowed:
        return (
            f"{outcome.tool} did not take effect, which is proven (operation "
            f"{outcome.operation_id}). If it is still wanted, it may be called again."
        )
    if code == "payload_mismatch" and by:
        return (
            f"{outcome.tool} was refused: this very call was made before with other arguments, as "
            f"operation {by}. Nothing was sent now. {_ask(by)}"
        )
    if by:
        return f"{outcome.message} {_ask(by)}"
    named = outcome.operation_id in outcome.message
    return outcome.message if named else f"{outcome.message} (Operation {outcome.operation_id}.)"


def _ask(operation_id: str) -> str:
    return f'To learn the result: {STATUS_TOOL}(operation_id="{operation_id}").'


def in_full(outcome: Outcome) -> str:
    """Return words and object as one text, for frameworks whose tools answer in text alone."""
    members = {name: value for name, value in outcome.to_json().items() if name != "message"}
    return f"{told(outcome)}\n{json.dumps(members, ensure_ascii=False)}"


def not_done(why: str) -> str:
    """Say that a call was not even recorded, so that nothing was done, and why."""
    return f"[not_done] Nothing was recorded and nothing was done: {why}"


def unheard(request_id: str, why: str) -> str:
    """Say that no answer came to a call, so that it may have been taken or not."""
    ask = f'{STATUS_TOOL}(operation_id="{request_id}")'
    return (
        f"[unknown] No answer came, and the call may have been taken: {why} Do not repeat it and do"
        f" not try a variant. To learn whether it was: {ask}."
    )


def brief(outcome: Outcome) -> dict[str, Json]:
    """Return one line of a list: what it is, how it stands, and who acts next."""
    return {
        "operation_id": outcome.operation_id,
        "tool": outcome.tool,
        "status": outcome.status,
        "state": outcome.state,
        "acts": dict(outcome.acts),
        "created_at": outcome.created_at,
        "message": told(outcome),
    }
