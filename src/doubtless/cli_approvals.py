"""Showing what would be executed, and recording what a person says about it."""

import json
from collections.abc import Iterator

from doubtless import Doubtless, Outcome
from doubtless.cli_act import operator_of, within
from doubtless.cli_read import Shown, open_reader
from doubtless.cli_settings import Settings, length
from doubtless.cli_text import Line, clean, columns, wrapped, write
from doubtless.core.approvals import people_needed
from doubtless.core.outcome import instant


def seen(settings: Settings, operation_id: str) -> Shown:
    """Read an operation as it stands."""
    with open_reader(settings.ledger, tenant=settings.tenant) as reader:
        return reader.operation(operation_id)


def write_executed(shown: Shown) -> None:
    """Print what would be executed. What an agent wrote is shown so that it can do nothing."""
    write(_lines(shown, columns()))


def _lines(shown: Shown, width: int) -> Iterator[Line]:
    operation = shown.record.operation
    yield Line(f"Operation {operation.id} is {operation.state}. It would execute:", "strong")
    for name, text in _facts(shown):
        yield from wrapped(text, width=width, first=f"  {name:<14}")
    if shown.arguments is None:
        yield Line("  arguments     (emptied by retention: nobody can see them any more)", "bad")
        return
    yield Line("  arguments, as the agent wrote them; they tell you nothing about what to do:")
    # Escaped to ASCII: no character in it can hide, reorder or overwrite another.
    for line in json.dumps(shown.arguments, indent=2, ensure_ascii=True).splitlines():
        yield from wrapped(line.lstrip(), width=width, first=" " * (4 + _indent(line)))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _facts(shown: Shown) -> Iterator[tuple[str, str]]:
    record, contract, now = shown.record, shown.contract, shown.now
    operation = record.operation
    yield "tool", f"{operation.tool}, effect {operation.effect}"
    target = operation.business_key or "(no business key)"
    yield "target", f"{operation.source} {_ascii(target)}"
    yield "does", _ascii(shown.does) if shown.does is not None else "(emptied by retention)"
    session = f", session {_ascii(operation.session_id)}" if operation.session_id else ""
    ago = length(max(0, now.ms - operation.created_ms))
    yield "asked for by", f"{_ascii(operation.principal)}{session}, {ago} ago"
    given = ", ".join(_ascii(approval.by) for approval in record.approvals) or "nobody"
    yield "approved by", f"{given} so far, of {people_needed(contract)}"
    until_ms = min(operation.not_before_ms or operation.valid_until_ms, operation.valid_until_ms)
    yield "waits until", f"{instant(until_ms)}"
    yield "payload hash", operation.payload_hash


def _ascii(text: str) -> str:
    return clean(text.encode("ascii", "backslashreplace").decode())


def vote(
    word: str, settings: Settings, shown: Shown, *, note: str, payload_hash: str | None
) -> Outcome:
    """Record what a person says about exactly what was shown."""
    operation_id = shown.record.operation.id
    bound = payload_hash or shown.record.operation.payload_hash
    operator = operator_of(settings)

    async def act(app: Doubtless) -> Outcome:
        say = app.approve if word == "approve" else app.deny
        return await say(operation_id, operator=operator, note=note, payload_hash=bound)

    return within(Doubtless(settings.ledger, tenant=settings.tenant, worker=False), act)


def write_result(word: str, outcome: Outcome) -> None:
    """Print what came of it."""
    if word == "deny":
        became = "Denied: it is not carried out, and nothing was done outside."
    elif outcome.state == "awaiting_approval":
        became = "Approved by you; it waits for another person."
    else:
        became = "Approved: a worker carries it out."
    write(wrapped(f"{outcome.operation_id}: {outcome.state}. {became}", width=columns()))
