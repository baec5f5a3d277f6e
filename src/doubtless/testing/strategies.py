"""Hypothesis strategies: contracts that load, evidence, and the lives of operations.

    @given(contracts().flatmap(lives))
    def test_what_always_holds(life): ...

A life is drawn by playing the core's own steps against a world that answers anything: every record
in it is one that a ledger could hold. Needs the package `hypothesis`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from doubtless.core import progress
from doubtless.core.contract import (
    ConditionRules,
    Contract,
    EventRules,
    KeyFormat,
    KeyRules,
    Kind,
    LookupRules,
    OnAbsent,
    RetryRules,
    SourceRules,
    Stores,
)
from doubtless.core.decisions import LEGAL, Word, rule
from doubtless.core.effects import NO_EFFECT, RULES, Resend
from doubtless.core.identity import derive, encode_key, payload_hash, reference
from doubtless.core.lifecycle import Need
from doubtless.core.model import (
    Cause,
    Effect,
    Evidence,
    Now,
    Observation,
    Operation,
    Record,
    Seen,
    Shows,
    Source,
    Stage,
    State,
    Strength,
)
from doubtless.core.policy import decide
from doubtless.core.progress import Liveness
from doubtless.core.settling import settle
from doubtless.core.steps import LookUp, Send, Wait
from doubtless.errors import DecisionRefused

START_MS = 1_700_000_000_000
HOUR_MS = 3_600_000

LOOKED_UP = (
    Shows.APPLIED,
    Shows.NOT_APPLIED,
    Shows.IN_PROGRESS,
    Shows.PRESENT,
    Shows.ABSENT,
    Shows.CONFLICT,
    Shows.COULD_NOT_ASK,
)
"""What a look-up may say."""

TOLD = (Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS, Shows.PRESENT)
"""What an event may say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One operation from its preparation on: `records[i]` is how it stood at `times[i]`."""

    contract: Contract
    records: tuple[Record, ...]
    times: tuple[Now, ...]

    @property
    def last(self) -> Record:
        """How it stands at the end."""
        return self.records[-1]

    @property
    def now(self) -> Now:
        """The instant of the last step."""
        return self.times[-1]


# --- contracts -----------------------------------------------------------------------------------


@st.composite
def contracts(draw: st.DrawFn, effects: Iterable[Effect] = tuple(Effect)) -> Contract:
    """Draw a contract that is nowhere looser than the row of its effect."""
    effect = draw(st.sampled_from(tuple(effects)))
    row = RULES[effect]
    lookups = draw(_lookups(row.confirmations)) if row.looks_up else ()
    needs_key = row.resend is Resend.REPLAYED
    key = draw(keys()) if needs_key or draw(st.booleans()) else None
    proves = any(look.authoritative for look in lookups)
    reusable = row.resend is Resend.VERSIONED and draw(st.booleans())
    orders = proves and not (reusable or (row.resend is Resend.AFTER_ABSENCE_WITH_KEY and not key))
    choices = tuple(OnAbsent) if orders else (OnAbsent.REPORT, OnAbsent.REVIEW)
    return Contract(
        tool="act",
        effect=effect,
        source=SourceRules(name="provider"),
        kind=Kind.HTTP,
        timeout_ms=draw(st.sampled_from((1_000, 10_000, 30_000))),
        in_flight_horizon_ms=draw(st.sampled_from((10_000, 120_000))),
        recovery_deadline_ms=draw(st.sampled_from((900_000, HOUR_MS))),
        completes_within_ms=draw(st.sampled_from((600_000, 24 * HOUR_MS))),
        on_absent=draw(st.sampled_from(choices)),
        review=draw(st.booleans()),
        record_sending=draw(st.booleans()),
        duplicates_acceptable=not row.irreversible and draw(st.integers(0, 9)) == 0,
        key=key,
        condition=_condition(row.resend, reusable=reusable),
        lookups=lookups,
        events=draw(st.none() | st.just(EventRules(types=("changed",)))),
        retry=RetryRules(
            attempts=draw(st.integers(1, 4)), resend=draw(st.integers(0, row.resends))
        ),
    )


def _condition(resend: Resend, *, reusable: bool) -> ConditionRules | None:
    if resend is Resend.VERSIONED:
        return ConditionRules(header="If-Match", value="{args.etag}", version_reuse=reusable)
    if resend is Resend.SAME_OBJECT:
        return ConditionRules(id="{operation.ref}")
    return None


@st.composite
def keys(draw: st.DrawFn) -> KeyRules:
    """Draw how a provider ties repeats together."""
    return KeyRules(
        place="header",
        name="Idempotency-Key",
        ttl_ms=draw(st.sampled_from((None, HOUR_MS, 24 * HOUR_MS))),
        stores=draw(st.sampled_from(Stores)),
    )


@st.composite
def _lookups(draw: st.DrawFn, confirmations: int) -> tuple[LookupRules, ...]:
    names = draw(st.sampled_from(((), ("first",), ("first",), ("first", "second"))))
    return tuple(
        LookupRules(
            name=name,
            authoritative=draw(st.integers(0, 3)) > 0,
            lag_ms=draw(st.sampled_from((0, 30_000))),
            confirmations=confirmations,
            in_flight_horizon_ms=draw(st.sampled_from((10_000, 120_000))),
        )
        for name in names
    )


# --- evidence ------------------------------------------------------------------------------------


@st.composite
def events(draw: st.DrawFn, number: int, at_ms: int) -> Evidence:
    """Draw what a webhook says that came at `at_ms`, about some earlier instant."""
    return Evidence(
        number=number,
        source=Source.WEBHOOK,
        shows=draw(st.sampled_from(TOLD)),
        strength=draw(st.sampled_from((Strength.AUTHORITATIVE, Strength.ADVISORY))),
        at_ms=at_ms,
        begun_ms=at_ms,
        by="provider",
        occurred_ms=draw(st.none() | st.integers(at_ms - HOUR_MS, at_ms)),
    )


@st.composite
def answers(draw: st.DrawFn, contract: Contract, number: int, at_ms: int) -> tuple[Evidence, ...]:
    """Draw what each declared look-up says when it is asked at `at_ms`."""
    return tuple(
        Evidence(
            number=number + index,
            source=Source.LOOKUP,
            shows=draw(st.sampled_from((*LOOKED_UP, *[Shows.ABSENT] * 8))),
            strength=Strength.AUTHORITATIVE,
            at_ms=at_ms,
            begun_ms=at_ms,
            by=look.name,
        )
        for index, look in enumerate(contract.lookups)
    )


@st.composite
def observations(draw: st.DrawFn) -> Observation:
    """Draw what an attempt saw; unknown more often than anything else."""
    seen = draw(st.sampled_from((*Seen, Seen.UNKNOWN, Seen.UNKNOWN)))
    unknown = seen is Seen.UNKNOWN
    silent = seen is Seen.NOT_SENT or (unknown and draw(st.booleans()))
    return Observation(
        seen=seen,
        stage=Stage.CONNECTING if seen is Seen.NOT_SENT else Stage.SENT,
        cause=Cause.TIMEOUT if unknown else None,
        detail="as it was seen",
        status=None if silent else 500,
        retry_after_ms=draw(st.none() | st.just(60_000)) if seen is Seen.NOT_PROCESSED else None,
        replayed=not silent and draw(st.booleans()),
        key_in_progress=unknown and not silent and draw(st.booleans()),
    )


# --- lives ---------------------------------------------------------------------------------------


def prepared(contract: Contract, operation_id: str = "act_1") -> Record:
    """Return a fresh operation under `contract`, as it is before anything was sent."""
    bits = derive(bytes(16), operation_id)
    digest = payload_hash(contract.tool, {})
    return Record(
        operation=Operation(
            id=operation_id,
            tenant="main",
            tool=contract.tool,
            effect=contract.effect,
            source=contract.source.name,
            principal="agent-1",
            session_id="session-1",
            correlation_id=None,
            contract_digest=digest,
            payload_hash=digest,
            request_digest=digest,
            ref=reference(bits),
            key=encode_key(bits, contract.key.format if contract.key else KeyFormat.UUID),
            state=State.PREPARED,
            version=1,
            fence=0,
            created_ms=START_MS,
            updated_ms=START_MS,
            due_ms=START_MS,
            valid_until_ms=START_MS + contract.valid_for_ms,
        )
    )


@st.composite
def lives(draw: st.DrawFn, contract: Contract, *, steps_max: int = 14) -> Life:
    """Draw a life of one operation, in a world that may answer, break or lie at every step."""
    now = Now(ms=START_MS)
    record = settled(prepared(contract), contract, now)
    records, times = [record], [now]
    for _ in range(draw(st.integers(0, steps_max))):
        now = draw(_later(record, contract, now))
        record = settled(draw(_happening(record, contract, now)), contract, now)
        records.append(record)
        times.append(now)
    return Life(contract=contract, records=tuple(records), times=tuple(times))


def settled(record: Record, contract: Contract, now: Now) -> Record:
    """Return the record after policy did all that it does by itself."""
    changes = settle(record, contract, now)
    return replace(record, operation=changes[-1].after) if changes else record


@st.composite
def _later(draw: st.DrawFn, record: Record, contract: Contract, now: Now) -> Now:
    """Draw the next instant: soon, when it is due, or much later; at times the clock breaks."""
    match decide(record, contract, now).step:
        case LookUp(at_ms=due_ms) | Wait(until_ms=due_ms):
            ahead_ms = min(max(due_ms - now.ms, 0), 24 * HOUR_MS)
        case _:
            ahead_ms = 0
    passed_ms = draw(st.sampled_from((1, 1_000, ahead_ms, ahead_ms, ahead_ms, 400_000)))
    broke = draw(st.integers(0, 19)) == 0
    at_ms = now.ms + passed_ms
    return Now(ms=at_ms, break_ms=at_ms if broke else now.break_ms)


@st.composite
def _happening(draw: st.DrawFn, record: Record, contract: Contract, now: Now) -> Record:
    chance = draw(st.integers(0, 9))
    if chance == 0 and contract.events is not None:
        item = draw(events(len(record.evidence) + 1, now.ms))
        return replace(record, evidence=(*record.evidence, item))
    if chance == 1:
        return _ruled(record, contract, now, draw(st.sampled_from(Word)))
    if record.open_attempt is not None:
        return draw(_ending(record, contract, now))
    match decide(record, contract, now).step:
        case Send(resend=resend):
            return _sending(record, contract, now, resend=resend, by=Need.PERMITTED)
        case LookUp(at_ms=at_ms) if at_ms <= now.ms:
            return draw(_looking(record, contract, now))
        case _:
            return record


@st.composite
def _ending(draw: st.DrawFn, record: Record, contract: Contract, now: Now) -> Record:
    lease_end_ms = record.attempts[-1].lease_end_ms
    if now.ms >= lease_end_ms:
        return progress.recover(record, contract, now, draw(st.sampled_from(Liveness)))[0]
    saw = draw(observations())
    sent_ms = None if saw.seen is Seen.NOT_SENT else record.attempts[-1].opened_ms
    after, _, _ = progress.end(record, contract, now, saw, sent_by_ms=sent_ms, closed_ms=now.ms)
    return after


@st.composite
def _looking(draw: st.DrawFn, record: Record, contract: Contract, now: Now) -> Record:
    asking = replace(record, operation=progress.look(record, contract, now, owner="worker-1"))
    return progress.looked(asking, draw(answers(contract, len(record.evidence) + 1, now.ms)))


def _sending(record: Record, contract: Contract, now: Now, *, resend: bool, by: Need) -> Record:
    after, attempt = progress.begin(
        record, contract, now, owner="worker-1", correlation_id="c-1", resend=resend, by=by
    )
    return replace(record, operation=after, attempts=(*record.attempts, attempt))


def _ruled(record: Record, contract: Contract, now: Now, word: Word) -> Record:
    """Let an operator decide, where that is legal."""
    if record.operation.state not in LEGAL[word] or contract.effect in NO_EFFECT:
        return record
    try:
        ruling = rule(record, contract, now, word, operator="operator-1", note="looked")
    except DecisionRefused:
        return record
    if ruling.evidence is not None:
        record = replace(record, evidence=(*record.evidence, ruling.evidence))
    if ruling.change is not None:
        record = replace(record, operation=ruling.change.after)
    if ruling.sends:
        failed = record.operation.state is State.FAILED
        by = Need.PERMITTED if failed else Need.OPERATOR
        return _sending(record, contract, now, resend=True, by=by)
    return record
