"""Lists of operations, and a session's record, as tables."""

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from doubtless.cli_read import Listed
from doubtless.cli_settings import length
from doubtless.cli_text import (
    Line,
    Style,
    clean,
    clock,
    coloured,
    columns,
    state_style,
    wrapped,
    write,
)
from doubtless.core.model import State
from doubtless.core.outcome import Outcome
from doubtless.engine.reports import SessionRecord

RICH: Final[Mapping[Style, str]] = {"good": "green", "bad": "bold red", "waits": "yellow"}
ID_CHARS: Final = 32  # a longer id is folded
COLUMNS_ANY: Final = 1_000


def write_list(found: Sequence[Listed], *, limit: int) -> None:
    """Print operations, newest first, and what there is to say about the list."""
    if not found:
        write([Line("No operations.")])
        return
    console = _console()
    table = _wide(found)
    needed = console.measure(table, options=console.options.update(width=COLUMNS_ANY)).maximum
    if needed > console.width:
        table = _narrow(found)
    console.print(table)
    reviews = sum(each.operation.state is State.MANUAL_REVIEW for each in found)
    notes = [f"{len(found)} operation{'' if len(found) == 1 else 's'}"]
    if len(found) == limit:
        notes = [f"the newest {limit} operations; --limit shows more"]
    if reviews:
        notes.append(f"{reviews} for an operator to decide: doubtless operations show ID")
    write([Line(f"{'; '.join(notes)}.", "quiet")])


def _wide(found: Sequence[Listed]) -> Table:
    table = _table("id", "tool", "state", "age", "cause", "acts", "by")
    for each in found:
        _, who, by = _waits(each)
        operation = each.operation
        state = _state(operation.state.value)
        cells = (operation.tool, state, length(each.age_ms), operation.cause or "", who, by)
        table.add_row(_id(operation.id), *cells)
    return table


def _narrow(found: Sequence[Listed]) -> Table:
    """Two lines for each operation: the cause under the state, the time under who acts."""
    table = _table("id", "tool", "state", "age", "acts")
    for each in found:
        ended, who, by = _waits(each)
        operation = each.operation
        state = _state(operation.state.value)
        if operation.cause:
            state.append(f"\n{operation.cause}", style="default")
        acts = "" if ended else f"{who}\n{by}"
        table.add_row(_id(operation.id), operation.tool, state, length(each.age_ms), acts)
    return table


def _waits(each: Listed) -> tuple[bool, str, str]:
    """Return whether it has ended; if not, who acts, and by when."""
    if each.operation.state.ends:
        return True, "", ""
    acts = each.outcome.acts
    return False, str(acts["who"]), clock(acts["by"])


def write_session(record: SessionRecord) -> None:
    """Print a session's record: first what is open."""
    name = f"session {clean(record.session_id)!r}" if record.session_id else "the implicit session"
    write([Line(f"{name} of {record.principal}", "strong")])
    write(wrapped(record.message, width=columns()))
    for title, outcomes in (("Not settled", record.unresolved), ("Finished", record.recent)):
        if not outcomes:
            continue
        write([Line(""), Line(title, "strong")])
        table = _table("id", "tool", "state", "acts", "last confirmed", "object")
        for outcome in outcomes:
            table.add_row(_id(outcome.operation_id), *_session_cells(outcome))
        _console().print(table)


def _session_cells(outcome: Outcome) -> list[Text]:
    confirmed, key = outcome.last_confirmed, outcome.target.get("business_key")
    named = ""
    if isinstance(key, Mapping):
        named = ", ".join(f"{name} {value}" for name, value in key.items())
    return [
        Text(outcome.tool),
        _state(outcome.state),
        Text("" if State(outcome.state).ends else str(outcome.acts["who"])),
        Text(f"{confirmed['state'] or '-'} ({confirmed['source'] or '-'})"),
        Text(clean(named or str(outcome.target["source"]))),
    ]


def _table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for head in heads:
        if head == "id":
            table.add_column(head, no_wrap=True, overflow="fold")
        else:
            table.add_column(head, no_wrap=head in ("age", "by"), overflow="fold")
    return table


def _id(operation_id: str) -> Text:
    starts = range(0, len(operation_id), ID_CHARS)
    return Text("\n".join(operation_id[start : start + ID_CHARS] for start in starts))


def _state(state: str) -> Text:
    return Text(state, style=RICH.get(state_style(state), ""))


def _console() -> Console:
    colour = coloured()
    return Console(
        file=sys.stdout,
        width=columns(),
        highlight=False,
        markup=False,
        no_color=not colour,
        force_terminal=colour,
    )
