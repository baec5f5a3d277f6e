"""The three questions that are asked of every tool, answered from its contract.

What ties retries to one operation? Where can the caller ask for the result? What proof remains
when the connection breaks? Where one has no answer, the tool is not fully automatic.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from doubtless.core.contract import Contract, Kind, LookupRules, OnAbsent, Stores
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Source
from doubtless.engine.contracts.blocks import BLOCKS
from doubtless.engine.contracts.build import TYING_NAMES
from doubtless.engine.contracts.values import duration_text
from doubtless.engine.templates import names_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """The answers, each a list of sentences; an empty list is no answer."""

    ties: tuple[str, ...]
    asks: tuple[str, ...]
    proofs: tuple[str, ...]
    automatic: bool
    unknown: str  # what happens with an unknown


def answers_of(contract: Contract) -> Answers:
    """Answer the three questions for one contract."""
    ties, asks = tuple(_ties(contract)), tuple(_asks(contract))
    proofs = tuple(_proofs(contract))
    return Answers(
        ties=ties,
        asks=asks,
        proofs=proofs,
        automatic=contract.effect in NO_EFFECT
        or bool(ties and asks and proofs and _ends_without_people(contract)),
        unknown=_unknown(contract),
    )


def _ends_without_people(contract: Contract) -> bool:
    """Whether even a request that never arrived can be settled."""
    rule = RULES[contract.effect]
    proves_absence = rule.looks_up and bool(contract.proving_lookups)
    settles = contract.on_absent is not OnAbsent.REVIEW
    again = (replays, meets_same_object, changes_nothing)
    return (proves_absence and settles) or any(each(contract) for each in again)


def resends_of(contract: Contract) -> int:
    """Return how many sends may follow an unknown, where they are permitted and ordered."""
    at_most = RULES[contract.effect].resends_max
    return contract.retry.resend if at_most is None else min(contract.retry.resend, at_most)


def _ordered(contract: Contract) -> bool:
    """Whether a repeat is ordered, and no key that may have been forgotten forbids it."""
    ordered = contract.on_absent is OnAbsent.RESEND or contract.duplicates_acceptable
    lives = contract.key is None or bool(contract.key.ttl_ms)
    return ordered and lives and resends_of(contract) > 0


def replays(contract: Contract) -> bool:
    """Whether the same request is sent again and gets the first answer: documented by key."""
    key = contract.key
    if RULES[contract.effect].resend is not Resend.REPLAYED or not _ordered(contract):
        return False
    return key is not None and key.stores in {Stores.ALL, Stores.CURRENT_STATE}


def meets_same_object(contract: Contract) -> bool:
    """Whether it is sent again, and meets the object that the first send may have made."""
    return RULES[contract.effect].resend is Resend.SAME_OBJECT and _ordered(contract)


def changes_nothing(contract: Contract) -> bool:
    """Whether it is simply run again: it only reads."""
    return RULES[contract.effect].resend is Resend.ONCE and _ordered(contract)


def repeats(contract: Contract) -> bool:
    """Whether it is sent again by itself without a proof that it was not done."""
    condition = contract.condition
    versioned = RULES[contract.effect].resend is Resend.VERSIONED and _ordered(contract)
    if versioned and condition is not None and not condition.version_reuse:
        return True
    if contract.duplicates_acceptable and _ordered(contract):
        return True
    return replays(contract) or meets_same_object(contract) or changes_nothing(contract)


def _ties(contract: Contract) -> Iterator[str]:
    key, condition, request = contract.key, contract.condition, contract.request
    if key is not None:
        handed = "in the call's _meta" if contract.kind is Kind.MCP else "handed to the function"
        place = {"code": handed}.get(key.place, f"in the {key.place} {key.name}")
        life = f"for {duration_text(key.ttl_ms)}" if key.ttl_ms else "for an unknown time"
        yield f"a key {place}, kept {life} after the first send"
    if condition is not None and condition.id is not None:
        yield f"the object's own id, {condition.id}, chosen before it is sent"
    if condition is not None and condition.value is not None:
        place = f"in {condition.header}" if condition.header else "in the request"
        yield f"the version that it is conditional on, {place}"
    if request is not None:
        parts = [request.path, request.query, dict(request.headers), request.json, request.form]
        for name in sorted(TYING_NAMES & names_in(parts)):
            yield f"{{{name}}}, carried in the request"
    elif contract.action is not None:
        if tie := BLOCKS[contract.kind].way(contract.action).tie:
            yield tie
        elif changes_nothing(contract):
            yield "nothing needs to: it changes nothing"
    elif key is None and any(look.python for look in contract.lookups):
        yield "what the look-up's own code recognises the operation by"


def _asks(contract: Contract) -> Iterator[str]:
    if RULES[contract.effect].looks_up:
        for look in contract.lookups:
            yield question_of(look, contract)
    if contract.events is not None:
        yield f"events: {', '.join(contract.events.types)}"
    if replays(contract):
        yield "the same request once more: the provider replays its first answer"
    if meets_same_object(contract):
        yield "the same request once more: it meets the same object"
    if changes_nothing(contract):
        yield "the same command once more"


def question_of(look: LookupRules, contract: Contract) -> str:
    """Say what a look-up asks, and for which place it speaks."""
    if look.speaks is not Source.LOOKUP:
        return BLOCKS[contract.kind].question(contract.action or {})
    asked = look.python or ""
    if look.request is not None:
        asked = f"{look.request.method} {look.request.path}"
    return f"{asked} at {contract.source.name} ({look.boundary})"


def target_of(contract: Contract) -> str:
    """Say in a line what is done, and where."""
    request = contract.request
    if contract.action is not None:
        return BLOCKS[contract.kind].target(contract.action)
    if request is None:
        return f"Python, at {contract.source.name}"
    return f"{request.method} {contract.source.base_url}{request.path}"


def _proofs(contract: Contract) -> Iterator[str]:
    if RULES[contract.effect].looks_up:
        for look in contract.lookups:
            yield from _proofs_of(look, contract)
    if contract.events is not None and contract.events.authoritative:
        yield "a signed event proves what it says"
    if replays(contract) and contract.key is not None:
        life = duration_text(contract.key.ttl_ms or 0)
        yield f"the replayed answer, while the key lives ({life})"
    if meets_same_object(contract):
        yield "the repeat's answer speaks of the same object"
    if changes_nothing(contract):
        yield "the answer of the repeat"


def _proofs_of(look: LookupRules, contract: Contract) -> Iterator[str]:
    if look.speaks is not Source.LOOKUP:
        yield f"{look.name}: {BLOCKS[contract.kind].way(contract.action or {}).recognises}"
    elif look.attributes:
        by = ", ".join(look.where) or (look.python and "what its code returns") or "its id"
        yield f"{look.name}: a match by {by} proves presence"
    if look.authoritative:
        horizon, lag = duration_text(look.in_flight_horizon_ms), duration_text(look.lag_ms)
        counted = "1 absence proves"
        if look.confirmations > 1:
            apart = duration_text(look.interval_ms)
            counted = f"{look.confirmations} absences, {apart} apart, prove"
        yield f"{look.name}: {counted} absence after {horizon} in flight and {lag} of lag"


_ON_ABSENT = {
    OnAbsent.RESEND: "a confirmed absence sends it again",
    OnAbsent.REPORT: "a confirmed absence makes it failed, safe to retry",
    OnAbsent.REVIEW: "a confirmed absence goes to a person",
}


def _unknown(contract: Contract) -> str:
    """Say what happens with an unknown, in one sentence."""
    end = "a person decides" if contract.review else "it stays unknown, alerted and never sent"
    within = f"within {duration_text(contract.recovery_deadline_ms)}"
    if contract.effect in NO_EFFECT:
        tries = contract.retry.attempts
        return f"it is never unknown: tried up to {tries} times, then failed, safe to retry"
    looked = contract.lookups and RULES[contract.effect].looks_up
    steps = []
    if looked:
        steps.append(f"it is looked up {within}")
    if looked and contract.proving_lookups:
        steps.append(_ON_ABSENT[contract.on_absent])
    elif looked:
        steps.append("no absence can be proven")
    if repeats(contract):
        order = "then it" if looked else "it"
        count = resends_of(contract)
        times = "once" if count == 1 else f"up to {count} times"
        steps.append(f"{order} is sent again, {times}")
    if contract.events is not None:
        steps.append(f"an event {within} settles it")
    if not steps:
        return f"nothing is left to ask: {end} at once"
    return "; ".join([*steps, f"if nothing settles it, {end}"])
