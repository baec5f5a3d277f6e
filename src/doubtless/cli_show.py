"""One operation for a person: what is known, why, what led there, and what may be decided now."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from doubtless.cli_read import Choice, Shown
from doubtless.cli_settings import Settings, length
from doubtless.cli_text import (
    Line,
    Style,
    clock,
    columns,
    command,
    state_style,
    where,
    why,
    wrapped,
    write,
)
from doubtless.core.decisions import Word
from doubtless.core.model import Json
from doubtless.core.outcome import instant

LABEL: Final = 11  # columns of the names of facts
AT: Final = 14  # columns of a time in the timeline, with the indent

MEANS: Final[Mapping[Word, str]] = {
    Word.DONE: "you found the effect at the provider",
    Word.NOT_DONE: "you are sure that the effect does not exist, and will not",
    Word.UNSURE: "you looked, and can't tell: it stays with you, with your note",
    Word.RETRY: "send the same request once more, under the same key",
    Word.LOOK_AGAIN: "ask the look-ups once more, with a new deadline",
    Word.AGAIN: "close this one as not done, and start a new operation with a new key",
}
"""What each decision says or does, for whoever takes it."""

RUNS_DOWN: Final = frozenset({"time left", "key life left"})
"""Inputs that change by themselves: told together with others only."""

SEEN: Final[Mapping[str, str]] = {
    "not_sent": "nothing was sent",
    "not_processed": "the provider did nothing with it",
    "rejected": "the provider refused it",
    "accepted": "the provider took it, and goes on with it",
    "succeeded": "the provider says that it is done",
    "unknown": "not known",
}
SHOWS: Final[Mapping[str, str]] = {
    "applied": "the effect exists",
    "not_applied": "it failed for good",
    "in_progress": "it is going on",
    "sighted": "the first request under this key still runs",
    "present": "something is there, not tied to this operation",
    "absent": "nothing is there",
    "conflict": "what is there does not fit",
    "could_not_ask": "it could not be asked",
    "not_sent": "nothing was sent",
    "not_processed": "nothing was done with it",
    "refused": "refused",
    "nothing": "no proof either way",
}


def write_operation(shown: Shown, settings: Settings) -> None:
    """Print all of it."""
    width = columns()
    write(_head(shown, width))
    write([Line(""), Line("What happened (UTC)", "strong")])
    write(timeline_lines(shown.timeline, width))
    write(_decisions(shown, settings, width))


def write_timeline(shown: Shown) -> None:
    """Print only what happened, without what each step was decided from."""
    operation = shown.record.operation
    write([Line(f"{operation.id}  {operation.tool}  {operation.state}", "strong")])
    write(timeline_lines(shown.timeline, columns(), inputs=False))


# --- where it stands -----------------------------------------------------------------------------


def _head(shown: Shown, width: int) -> Iterator[Line]:
    operation, outcome = shown.record.operation, shown.outcome
    yield Line(f"{operation.id}  {operation.tool}", "strong")
    yield Line(operation.state.value.upper().replace("_", " "), state_style(operation.state))
    yield from wrapped(outcome.message, width=width)
    yield Line("")
    for name, fact in _facts(shown):
        if fact:
            yield from wrapped(fact, width=width, first=f"{name:<{LABEL}}")


def _facts(shown: Shown) -> Iterator[tuple[str, str]]:
    operation, outcome, now = shown.record.operation, shown.outcome, shown.now
    if operation.cause is not None:
        yield "because", f"{why(operation.cause)} ({operation.cause})"
    yield "seen", outcome.transport_observation or ""
    yield "acts next", _acts(shown)
    yield "asked for", _written(shown.arguments) if shown.arguments is not None else "(emptied)"
    asked = f"{instant(operation.created_ms)}, {length(now.ms - operation.created_ms)} ago"
    session = f", session {operation.session_id}" if operation.session_id else ""
    yield "", f"by {operation.principal}{session}, at {asked}"
    yield "effect", f"{operation.effect} at {operation.source}"
    yield "does", shown.does or ""
    request = (outcome.reconcile or {}).get("request")
    yield "look-up", str(request) if request else _no_lookup(shown)
    yield "find it by", _handles(shown)
    yield "linked to", _links(shown)


def _acts(shown: Shown) -> str:
    operation, acts = shown.record.operation, shown.outcome.acts
    if operation.state.ends:
        again = "the caller: the same call with this id may act now"
        return again if shown.outcome.retry_allowed else "nobody: it has ended"
    by = acts["by"]
    due = operation.due_ms
    looks = ""
    if acts["who"] == "worker" and due is not None:
        looks = f"; due at {clock(instant(due))}"
    return f"{acts['who']}, by {clock(by)}{looks}" if by else f"{acts['who']}{looks}"


def _no_lookup(shown: Shown) -> str:
    return str((shown.outcome.reconcile or {}).get("none", ""))


def _handles(shown: Shown) -> str:
    """Say by what it can be found at the provider."""
    operation, contract = shown.record.operation, shown.contract
    parts = [f"reference {operation.ref}"]
    if operation.business_key is not None:
        parts.insert(0, operation.business_key)
    if contract.key is not None:
        parts.append(f"key {operation.key}")
    if operation.provider_operation_id is not None:
        parts.insert(0, f"the provider's id {operation.provider_operation_id}")
    return ", ".join(parts)


def _links(shown: Shown) -> str:
    operation = shown.record.operation
    links = {
        "replaced by": operation.superseded_by,
        "replaces": operation.supersedes,
        "may duplicate": operation.duplicate_of,
        "overtaken by": shown.record.overtaken_by,
        "comes after": " ".join(each.operation_id for each in shown.record.blockers) or None,
    }
    return ", ".join(f"{how} {other}" for how, other in links.items() if other is not None)


def _written(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- what happened -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Told:
    """What of a decision's inputs the reader has seen already."""

    inputs: dict[str, str] = field(default_factory=dict)

    def news(self, inputs: Mapping[str, Json]) -> str:
        """Name the inputs; after the first time only those that changed."""
        found = dict(_inputs(inputs))
        changed = {name for name, text in found.items() if self.inputs.get(name) != text}
        if not changed - RUNS_DOWN:
            return ""
        self.inputs |= found
        return ", ".join(f"{name} {text}" for name, text in found.items() if name in changed)


def timeline_lines(
    entries: Sequence[Mapping[str, Json]], width: int, *, inputs: bool = True
) -> Iterator[Line]:
    """Write the timeline, one paragraph for each entry; the steps around a look say no more."""
    told, day = _Told(), ""
    for entry in entries:
        if _around_a_look(entry):
            continue
        at = str(entry["at"])
        if at[:10] != day:
            day = at[:10]
            yield Line(f"  {day}", "quiet")
        style: Style = ""
        if entry["kind"] == "transition":
            style = state_style(str(_part(entry, "operation")["state"]))
        text = _entry(entry)
        yield from wrapped(text, width=width, first=f"  {at[11:23]}  ", style=style)
        news = told.news(_part(entry, "inputs")) if inputs and entry["kind"] != "prepared" else ""
        if news:
            first = " " * (AT + 2) + "from: "
            yield from (
                Line(line.text, "quiet") for line in wrapped(news, width=width, first=first)
            )


def _around_a_look(entry: Mapping[str, Json]) -> bool:
    """Whether an entry only begins a look, or ends one that changed nothing."""
    reason, after = str(entry.get("reason")), _part(entry, "operation").get("state")
    back = entry.get("from") == "reconciling" and after == "unknown"
    return entry["kind"] == "transition" and (reason == "look" or (back and "look" in reason))


def _part(entry: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    found = entry.get(name)
    return found if isinstance(found, Mapping) else {}


def _entry(entry: Mapping[str, Json]) -> str:
    """Say one entry in words."""
    who = f"{entry['principal']} ({entry['role']})"
    match entry["kind"]:
        case "prepared":
            return f"prepared, asked for by {who}"
        case "transition":
            return _transition(entry, who)
        case "attempt":
            return _attempt(_part(entry, "attempt"))
        case "observation":
            return _observation(_part(entry, "attempt"))
        case "evidence":
            return _evidence(_part(entry, "evidence"))
        case "refusal":
            return f"refused a call of {who}: {why(str(entry.get('code')))}"
        case "approval":
            return _approval(entry, who)
        case _:
            return _decision(entry, who)


def _approval(entry: Mapping[str, Json], who: str) -> str:
    note = f": {entry['note']}" if entry.get("note") else ""
    granted = _part(entry, "grant")
    if granted:
        given = f"approval {granted.get('id')} of the whole session, by {granted.get('by')}{note}"
        return f"goes on under {given}; it binds no payload"
    if _part(entry, "approval").get("retry"):
        return f"authorised by the retry of {who}{note}"
    return f"approved by {who}{note}"


def _transition(entry: Mapping[str, Json], who: str) -> str:
    after = _part(entry, "operation")
    moved = f"{entry.get('from')} → {after.get('state')}"
    if entry["role"] == "operator":
        return f"{moved}: {_said(entry, who)}"
    cause = after.get("cause")
    if isinstance(cause, str):
        return f"{moved}: {why(cause)} ({cause})"
    reason = str(entry.get("reason", ""))
    return moved if reason == "send" else f"{moved}: {reason}"


def _said(entry: Mapping[str, Json], who: str) -> str:
    inputs = _part(entry, "inputs")
    word, note = inputs.get("decision"), inputs.get("note")
    if word is None:
        return f"by the word of {who}"
    return f"{who} decided {word}: {note}"


def _attempt(attempt: Mapping[str, Json]) -> str:
    number = attempt.get("number")
    if "opened_ms" in attempt:
        again = ", a repeat of one that is not proven" if attempt.get("resend") else ""
        return f"attempt {number} opened{again}"
    if attempt.get("sent_by_ms") is not None:
        return f"attempt {number} is about to send its first byte"
    return f"attempt {number} can't start anything any more"


def _observation(attempt: Mapping[str, Json]) -> str:
    seen = _part(attempt, "observation")
    words = SEEN.get(str(seen.get("seen")), "")
    detail = seen.get("detail") or words
    return f"attempt {attempt.get('number')} ended at stage {seen.get('stage')}: {detail}"


def _evidence(item: Mapping[str, Json]) -> str:
    words = SHOWS.get(str(item.get("shows")), str(item.get("shows")))
    known = (item.get("source"), f"attempt {item.get('attempt')}")
    named = "" if item.get("by") in known else f" {item.get('by')}"
    advisory = "" if item.get("strength") == "authoritative" else ", advisory only"
    text = f"evidence {item.get('number')}, {item.get('source')}{named}{advisory}: {words}"
    # What a transport saw was told when its attempt ended.
    told = item.get("source") == "transport" and not str(item.get("detail")).startswith("late:")
    return text if told or not item.get("detail") else f"{text} – {item['detail']}"


def _decision(entry: Mapping[str, Json], who: str) -> str:
    if entry["role"] == "operator":
        return _said(entry, who)
    reason = str(entry.get("reason", ""))
    due = _part(entry, "operation").get("due_ms")
    later = isinstance(due, int) and _time(due) != str(entry["at"])[11:19]
    at = f" at {_time(due)}" if later and isinstance(due, int) else ""
    words = {"lookup": "policy: ask the look-ups", "wait": "policy: wait, and judge again"}
    return f"{words.get(reason, f'policy: {reason}')}{at}"


def _inputs(inputs: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    """Name what a decision was made from, in short."""
    for name, value in inputs.items():
        if value is None or value == [] or name in ("decision", "note"):
            continue
        words = name.removesuffix("_ms").replace("_", " ")
        match value:
            case bool():
                yield words, "yes" if value else "no"
            case int() if name.endswith("_from_ms"):
                if inputs.get("absence_provable"):
                    yield words, _time(value)
            case int() if name.endswith("_ms"):
                yield words, length(max(0, value) // 1000 * 1000)
            case list():
                yield words, " ".join(map(str, value))
            case _:
                yield words, str(value)


def _time(ms: int) -> str:
    return (instant(ms) or "never")[11:19]


# --- what may be decided -------------------------------------------------------------------------


def resolve_words(shown: Shown, word: Word, settings: Settings) -> list[str]:
    """Return the command that takes a decision, word by word, ready for a shell."""
    operation = shown.record.operation
    words = ["doubtless", "resolve", operation.id, word.replace("_", "-")]
    words += [f"--version {operation.version}", "--note 'what you saw, and where'"]
    if word is Word.DONE:
        words.append("--provider-operation-id ID")
    return [*words, *where(settings)]


def _votes(shown: Shown, settings: Settings, width: int) -> Iterator[Line]:
    """Name the commands for what waits for a person's approval."""
    operation = shown.record.operation
    if operation.state != "awaiting_approval":
        return
    yield from (Line(""), Line("It waits for a person's approval", "strong"))
    seen = ["--note 'why'", f"--payload-hash {operation.payload_hash}", *where(settings)]
    for word in ("approve", "deny"):
        yield from command(["doubtless", word, operation.id, *seen], width=width, indent="  ")


def _decisions(shown: Shown, settings: Settings, width: int) -> Iterator[Line]:
    yield from _votes(shown, settings, width)
    if not shown.choices:
        return
    possible = [choice for choice in shown.choices if choice.why_not is None]
    title = "What you can decide now" if possible else "Nothing can be decided now"
    yield Line("")
    yield Line(title, "strong")
    for choice in shown.choices:
        yield from _choice(choice, shown, settings, width)


def _choice(choice: Choice, shown: Shown, settings: Settings, width: int) -> Iterator[Line]:
    name = choice.word.replace("_", "-")
    first = f"  {name:<11}"
    if choice.why_not is not None:
        text = f"not possible: {choice.why_not}"
        yield from wrapped(text, width=width, first=first, style="quiet")
        return
    yield from wrapped(MEANS[choice.word], width=width, first=first)
    words = resolve_words(shown, choice.word, settings)
    yield from command(words, width=width, indent=" " * len(first))


def shown_data(shown: Shown, settings: Settings) -> dict[str, Json]:
    """Return it for programs."""
    choices = [
        {
            "decision": choice.word.value,
            "possible": choice.why_not is None,
            "why_not": choice.why_not,
            "command": " ".join(resolve_words(shown, choice.word, settings)),
        }
        for choice in shown.choices
    ]
    return {
        "outcome": shown.outcome.to_json(),
        "arguments": shown.arguments,
        "timeline": cast("Json", shown.timeline),
        "decisions": cast("Json", choices),
    }
