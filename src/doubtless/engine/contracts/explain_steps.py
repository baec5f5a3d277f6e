"""What happens on an unknown, step by step, with a contract's own numbers."""

from collections.abc import Iterator
from dataclasses import dataclass

from doubtless.core.contract import STALL_MARGIN_MS, Contract, LookupRules, OnAbsent
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Source
from doubtless.core.schedule import REVIEW_PACE_MAX_MS, REVIEW_PACE_MS
from doubtless.engine.contracts.answers import question_of, repeats, resends_of
from doubtless.engine.contracts.boundary import Way
from doubtless.engine.contracts.explain_words import spoken, times


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that is said, under its name."""

    name: str
    text: str


def steps_of(contract: Contract, way: Way) -> Iterator[Told]:
    """Yield the steps, in order."""
    if contract.effect in NO_EFFECT:
        yield _never_unknown(contract)
        return
    yield Told(
        "meanwhile",
        "The agent is told unknown_reconciliation_required: nobody knows. It must not repeat it "
        "nor try a variant. It may ask for the outcome, and do what does not depend on it. The "
        "same call with the same id joins this operation, and sends nothing.",
    )
    if looks := _looks(contract):
        yield Told("looked up", _looked_up(contract, looks))
        yield Told("found", _found(looks, way))
        yield Told("not done", _not_done(contract, way))
    if repeats(contract):
        yield Told("sent again", _sent_again(contract))
    if contract.events is not None:
        yield Told("an event", _event(contract))
    if _may_go_on(contract):
        limit = spoken(contract.completes_within_ms)
        yield Told(
            "still at work", f"Where that is seen, the agent is told pending, for {limit} at most."
        )
    yield Told("a person", _a_person(contract))


def resends_after_proof(contract: Contract) -> bool:
    """Whether it may be sent again once it is proven that it was not done."""
    resend, key = RULES[contract.effect].resend, contract.key
    if resends_of(contract) < 1 or (key is not None and not key.ttl_ms):
        return False
    needs_key = resend in (Resend.AFTER_ABSENCE_WITH_KEY, Resend.REPLAYED)
    return resend is not Resend.NEVER and (key is not None or not needs_key)


def _looks(contract: Contract) -> tuple[LookupRules, ...]:
    return contract.lookups if RULES[contract.effect].looks_up else ()


def _never_unknown(contract: Contract) -> Told:
    retry = contract.retry
    return Told(
        "never",
        f"It is never unknown. It is tried {times(retry.attempts)} at most, first "
        f"{spoken(retry.backoff_ms)} apart, and within {spoken(contract.valid_for_ms)} of the "
        "call; then it is failed_safe_to_retry, and the agent may call it again with the same id.",
    )


def _looked_up(contract: Contract, looks: tuple[LookupRules, ...]) -> str:
    asked = "; then ".join(question_of(look, contract) for look in looks)
    first = spoken(min(look.interval_ms for look in looks))
    grown = spoken(min(look.interval_max_ms for look in looks))
    pauses = "" if first == grown else f", then less and less often, up to {grown} apart"
    return (
        f"{asked}. First about {first} after the attempt ended{pauses}, and at "
        f"the instants that count as proof; for {spoken(contract.recovery_deadline_ms)}."
    )


def _found(looks: tuple[LookupRules, ...], way: Way) -> str:
    own = [look for look in looks if look.speaks is not Source.LOOKUP]
    declared = [look for look in looks if look.speaks is Source.LOOKUP]
    said = [f"Where {way.recognises}: succeeded."] if own and way.recognises else []
    if any(look.attributes for look in declared):
        said.append("What carries this operation's mark: succeeded.")
    if any(not look.attributes for look in declared):
        said.append("What does not carry its mark may be another's: a person is asked.")
    return f"{' '.join(said)} What contradicts it: a person is asked at once."


def _not_done(contract: Contract, way: Way) -> str:
    proving = contract.proving_lookups
    missing = way.absent or "nothing is found"
    if not proving:
        return f"Where {missing}: that proves nothing, since it may be there all the same."
    lag, total = contract.lag_ms, contract.timeout_ms + contract.horizon_ms + contract.lag_ms
    parts = [
        f"{spoken(contract.timeout_ms)} for the attempt",
        f"{spoken(contract.horizon_ms)} in which it may still arrive",
    ]
    if lag:
        parts.append(f"{spoken(lag)} until it would show")
    confirmations = max(look.confirmations for look in proving)
    apart = spoken(max(look.interval_ms for look in proving))
    seen = f"{times(confirmations)}, {apart} apart," if confirmations > 1 else "once"
    every = " by every look-up that proves" if len(proving) > 1 else ""
    return (
        f"Where {missing}: that counts from {spoken(total)} after it was sent, which is "
        f"{', '.join(parts)}. Seen {seen}{every} it is proof. {_after_proof(contract)}"
    )


def _after_proof(contract: Contract) -> str:
    repeat = (
        "it is failed_safe_to_retry (recovery: safe_retry): the agent may call it again, with the "
        "same id"
    )
    match contract.on_absent:
        case OnAbsent.REVIEW:
            return "Then a person is asked."
        case OnAbsent.REPORT:
            return f"Then {repeat}. It is not sent again by itself."
        case OnAbsent.RESEND if not resends_after_proof(contract):
            return f"Then {repeat}."
    often = times(resends_of(contract))
    return f"Then it is sent again by itself, the same as before{_key(contract)}, {often} at most."


def _key(contract: Contract) -> str:
    return " and under the same key" if contract.key is not None else ""


def _sent_again(contract: Contract) -> str:
    retry, key = contract.retry, contract.key
    first = " Only once every look-up has answered." if _looks(contract) else ""
    life = ""
    if key is not None and key.ttl_ms:
        takes_ms = STALL_MARGIN_MS + contract.timeout_ms + contract.horizon_ms + key.margin_ms
        life = (
            f" The key lives {spoken(key.ttl_ms)}: the last send begins "
            f"{spoken(max(0, key.ttl_ms - takes_ms))} after the first."
        )
    return (
        f"The same as before{_key(contract)}, without waiting for proof: "
        f"{times(resends_of(contract))} at most, first {spoken(retry.backoff_ms)} after the "
        f"attempt.{first}{life}"
    )


def _event(contract: Contract) -> str:
    events = contract.events
    assert events is not None  # noqa: S101 - whoever calls has looked
    types = " or ".join(events.types)
    late = f" Missing after {spoken(events.expect_ms)}, it is overdue." if events.expect_ms else ""
    word = "settles it" if events.authoritative else "is a reason to look it up at once"
    return f"A signed {types} {word}, whenever it comes.{late}"


def _may_go_on(contract: Contract) -> bool:
    """Whether it can be seen at work."""
    response = contract.response
    told = response.accepted is not None or response.status_url is not None
    marked = any(
        look.speaks is Source.MARKER or look.in_progress is not None for look in _looks(contract)
    )
    return told or marked


def _a_person(contract: Contract) -> str:
    deadline = spoken(contract.recovery_deadline_ms)
    if _looks(contract) or contract.events is not None:
        when = f"If nothing has settled it {deadline} after it became unknown"
    elif repeats(contract):
        when = "If that does not settle it either"
    else:
        when = "At once, because nothing is left that could settle it"
    if not contract.review:
        return f"{when}, it stays unknown: alerted, and never sent again. No person is asked."
    looked = ""
    if _looks(contract):
        pace, slow = spoken(REVIEW_PACE_MS), spoken(REVIEW_PACE_MAX_MS)
        looked = f" It is still looked up, {pace} apart and later {slow}; late proof settles it."
    return f"{when}, a person is asked (manual_review; recovery: needs_operator).{looked}"
