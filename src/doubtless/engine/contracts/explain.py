"""What `contracts explain` says of a tool: its way, and what happens on an unknown, and why."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from doubtless.core.contract import (
    FOREIGN_OWNER_MS,
    Contract,
    OnAbsent,
    Stores,
)
from doubtless.core.decisions import Word
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.model import Json
from doubtless.engine.contracts.answers import answers_of, repeats, target_of
from doubtless.engine.contracts.boundary import Boundary, Way
from doubtless.engine.contracts.explain_steps import Told, resends_after_proof, steps_of
from doubtless.engine.contracts.explain_words import EFFECTS, IRREVERSIBLE, RESENDS, spoken
from doubtless.engine.contracts.ways import way_of

DECISIONS: Final = (
    Told("done", "you found that it was done"),
    Told("not-done", "you are sure that it was not done, and will not be"),
    Told("unsure", "you looked, and can't tell: it stays with you, with your note"),
    Told("look-again", "the look-ups are asked once more, with a new deadline"),
    Told(
        "retry",
        "carry it out once more, as the same operation{key}; within {valid} of the call",
    ),
    Told("again", "close it as not done, and begin a new operation with a new id"),
    Told(
        "again --mark-duplicate", "the same where you are unsure: it may be done twice, and says so"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All that is said of one tool."""

    tool: str
    description: str
    does: str  # what it does, and where
    effect: str
    means: str  # what that class of effect means
    fully_automatic: bool
    path: Sequence[Boundary]
    if_we_die: str
    on_unknown: Sequence[Told]  # step by step
    decisions: Sequence[Told]  # what a person may say
    why: Sequence[str]
    more_automatic: Sequence[str]  # what would make it so

    def to_json(self) -> dict[str, Json]:
        """Return it for programs."""
        return asdict(self)


def explain(contract: Contract) -> Explanation:
    """Explain one tool. Pure: it asks nobody."""
    way = way_of(contract)
    return Explanation(
        tool=contract.tool,
        description=contract.description,
        does=target_of(contract),
        effect=contract.effect.value,
        means=_means(contract),
        fully_automatic=answers_of(contract).automatic,
        path=way.path,
        if_we_die=_if_we_die(contract),
        on_unknown=tuple(steps_of(contract, way)),
        decisions=tuple(_decisions(contract)),
        why=tuple(_why(contract)),
        more_automatic=tuple(_more(contract, way)),
    )


def _means(contract: Contract) -> str:
    rule = RULES[contract.effect]
    parts = [EFFECTS[contract.effect], RESENDS[rule.resend]]
    if rule.irreversible:
        parts.insert(1, IRREVERSIBLE)
    return "; ".join(parts)


def _if_we_die(contract: Contract) -> str:
    if contract.effect in NO_EFFECT:
        return "Whoever works on goes on with it: nothing outside has changed."
    lease, later = spoken(contract.lease_ms), spoken(FOREIGN_OWNER_MS)
    noticed = (
        "A worker that starts on this host notices it at once; others do when the attempt's "
        f"lease is over, {lease} after it began."
    )
    if RULES[contract.effect].looks_up and contract.lookups:
        noticed += f" On another host no absence counts for {later} more."
    if contract.record_sending:
        return (
            "Where the ledger does not say that the gate opened, nothing was sent; where it does, "
            f"it is unknown. {noticed}"
        )
    return f"Wherever that is after the ledger, it is unknown: nobody saw how far it got. {noticed}"


def _decisions(contract: Contract) -> Iterator[Told]:
    if contract.effect in NO_EFFECT:
        return
    key = ", under the same key" if contract.key is not None else ""
    for each in DECISIONS:
        if each.name != Word.LOOK_AGAIN.replace("_", "-") or contract.lookups:
            text = each.text.format(key=key, valid=spoken(contract.valid_for_ms))
            yield Told(each.name, text)


# --- why -----------------------------------------------------------------------------------------


def _why(contract: Contract) -> Iterator[str]:
    rule = RULES[contract.effect]
    yield f"The effect is {contract.effect}: {RESENDS[rule.resend]}."
    if contract.effect in NO_EFFECT:
        return
    ties = "; ".join(answers_of(contract).ties) or "nothing"
    yield f"What ties all attempts to one operation: {ties}."
    if rule.looks_up:
        yield from _why_looks(contract)
        yield from _why_key(contract)
    elif contract.lookups:
        yield "Its look-ups are not asked: this effect is settled by people, or by an event."
    if not contract.review:
        yield 'No person is asked: its contract says review = "none".'
    if contract.duplicates_acceptable:
        yield 'A second effect does no harm: its contract says duplicates = "acceptable".'


def _why_looks(contract: Contract) -> Iterator[str]:
    if not contract.lookups:
        if not repeats(contract):
            yield "It declares no look-up: nobody can be asked what became of it."
        return
    if not contract.proving_lookups:
        yield "No look-up says authoritative = true: that nothing is found proves nothing."
        return
    names = ", ".join(look.name for look in contract.proving_lookups)
    yield f"What is not there is proof, once it counts: {names} is authoritative."
    usual = contract.on_absent is RULES[contract.effect].on_absent
    whose = "the default of this effect" if usual else "as its contract says"
    yield f'What follows on such a proof: on_absent = "{contract.on_absent}", {whose}.'


def _why_key(contract: Contract) -> Iterator[str]:
    resend, key = RULES[contract.effect].resend, contract.key
    if resend not in (Resend.AFTER_ABSENCE_WITH_KEY, Resend.REPLAYED):
        return
    if key is None:
        yield "No key of the provider's makes a repeat harmless, so that none is sent by itself."
    elif key.ttl_ms is None:
        yield "How long the provider keeps its key is not said, so that nothing is sent again."
    elif resend is Resend.REPLAYED and key.stores not in (Stores.ALL, Stores.CURRENT_STATE):
        yield f'Its key stores "{key.stores}": a repeat may act, so that proof is needed first.'


# --- what would make it more automatic ------------------------------------------------------------


def _more(contract: Contract, way: Way) -> Iterator[str]:
    if contract.effect in NO_EFFECT or repeats(contract):
        return
    if not RULES[contract.effect].looks_up:
        yield way.missing or "nothing but an event of the provider's, declared as [tools.X.events]"
        return
    answers = answers_of(contract)
    if way.missing:
        yield way.missing
    if not answers.ties and contract.action is None:
        yield "put {operation.ref} into the request, or declare the provider's key"
    if not contract.lookups and not way.missing:
        yield "declare a look-up: where the provider can be asked what became of it"
    if contract.lookups and not contract.proving_lookups and not way.missing:
        yield "say authoritative = true and lag in the look-up, if the provider's word is complete"
    yield from _more_after_proof(contract)


def _more_after_proof(contract: Contract) -> Iterator[str]:
    """Yield what could follow a proof that it was not done."""
    if not contract.proving_lookups:
        return
    if contract.on_absent is OnAbsent.REVIEW:
        yield 'on_absent = "report" lets the agent try again after such a proof'
    elif contract.on_absent is OnAbsent.REPORT and resends_after_proof(contract):
        yield 'on_absent = "resend" sends it again by itself after such a proof'
    elif contract.on_absent is OnAbsent.REPORT and contract.action is None:
        yield 'a key of the provider\'s with its life (ttl), and on_absent = "resend"'
