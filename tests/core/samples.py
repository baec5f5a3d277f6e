"""Contracts, operations and stories to test the core with. Every instant counts from `T0`."""

from dataclasses import replace

from doubtless.core import progress
from doubtless.core.approvals import digest_of
from doubtless.core.contract import (
    Contract,
    EventRules,
    KeyRules,
    Kind,
    LookupRules,
    OnAbsent,
    RetryRules,
    SourceRules,
    Stores,
)
from doubtless.core.decisions import Word, rule
from doubtless.core.effects import RULES
from doubtless.core.model import (
    Approval,
    Attempt,
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
from doubtless.core.outcome import Extras, Outcome, outcome_of
from doubtless.core.progress import Liveness
from doubtless.core.settling import settle

T0 = 1_000_000_000
TIMEOUT = 10_000
HORIZON = 120_000
LAG = 30_000
INTERVAL = 5_000
HOUR = 3_600_000
DAY = 24 * HOUR
LATER = T0 + 2 * HOUR  # past the deadline of the sample stories

LOOKUP = LookupRules(
    name="lookup",
    authoritative=True,
    lag_ms=LAG,
    confirmations=2,
    in_flight_horizon_ms=HORIZON,
    interval_ms=INTERVAL,
)
KEY = KeyRules(place="header", name="Idempotency-Key", ttl_ms=DAY, stores=Stores.ALL)
EVENTS = EventRules(types=("refund.updated",))


def contract(effect: Effect = Effect.WRITE, **changes) -> Contract:
    """Make a contract with one authoritative look-up and a timeout of ten seconds."""
    base = Contract(
        tool="create_refund",
        effect=effect,
        source=SourceRules(name="payments"),
        kind=Kind.HTTP,
        timeout_ms=TIMEOUT,
        in_flight_horizon_ms=HORIZON,
        lookups=(LOOKUP,),
        on_absent=RULES[effect].on_absent,
    )
    return replace(base, **changes)


def resending(effect: Effect = Effect.WRITE, **changes) -> Contract:
    """Make a contract that orders a resend after confirmed absence."""
    return contract(effect, **{"on_absent": OnAbsent.RESEND, "key": KEY, **changes})


def operation(state: State = State.PREPARED, **changes) -> Operation:
    """Make an operation that was prepared at `T0` and is valid for a day."""
    base = Operation(
        id="refund_1",
        tenant="main",
        tool="create_refund",
        effect=Effect.WRITE,
        source="payments",
        principal="agent-1",
        session_id="session-1",
        correlation_id=None,
        contract_digest="c" * 64,
        payload_hash="sha256:" + "0" * 64,
        request_digest="sha256:" + "1" * 64,
        ref="dos1o" + "0" * 21,
        key="6f1c0c6e-0000-4000-8000-000000000000",
        state=state,
        version=1,
        fence=0,
        created_ms=T0,
        updated_ms=T0,
        due_ms=None if state.ends else T0,
        valid_until_ms=T0 + DAY,
    )
    return replace(base, **changes)


def record(state: State = State.PREPARED, **changes) -> Record:
    return Record(operation=operation(state, **changes))


def attempt(number: int = 1, *, seen: Seen | None = Seen.UNKNOWN, at: int = T0, **changes):
    """Make an attempt that was opened at `at`, sent a second later and ended at its timeout."""
    observation = None if seen is None else observed(seen)
    base = Attempt(
        number=number,
        correlation_id=f"c{number}",
        fence=number,
        owner="worker-1",
        opened_ms=at,
        lease_end_ms=at + TIMEOUT + 10_000,
        resend=False,
        sent_by_ms=at + 1_000,
        ended_ms=None if seen is None else at + TIMEOUT,
        closed_ms=None if seen is None else at + TIMEOUT,
        observation=observation,
    )
    return replace(base, **changes)


def observed(seen: Seen, **changes) -> Observation:
    stage = Stage.CONNECTING if seen is Seen.NOT_SENT else Stage.SENT
    cause = Cause.TIMEOUT if seen is Seen.UNKNOWN else None
    status = {Seen.SUCCEEDED: 200, Seen.ACCEPTED: 202, Seen.REJECTED: 402, Seen.NOT_PROCESSED: 429}
    base = Observation(
        seen=seen, stage=stage, cause=cause, detail="as it was seen", status=status.get(seen)
    )
    return replace(base, **changes)


def evidence(shows: Shows, source: Source = Source.LOOKUP, *, at: int = T0, **changes) -> Evidence:
    base = Evidence(
        number=1,
        source=source,
        shows=shows,
        strength=Strength.AUTHORITATIVE,
        at_ms=at,
        begun_ms=at,
        by="lookup" if source is Source.LOOKUP else "payments",
    )
    return replace(base, **changes)


def event(shows: Shows, *, at: int, occurred: int | None = None, **changes) -> Evidence:
    when = at if occurred is None else occurred
    return evidence(shows, Source.WEBHOOK, at=at, occurred_ms=when, **changes)


def witnessed(number: int, shows: Shows, *, at: int = T0 + TIMEOUT, **changes) -> Evidence:
    """Make the evidence that an attempt's own end is."""
    source = Source.RESPONSE if shows in (Shows.REFUSED, Shows.NOT_PROCESSED) else Source.TRANSPORT
    return evidence(shows, changes.pop("source", source), at=at, attempt=number, **changes)


def numbered(*items: Evidence) -> tuple[Evidence, ...]:
    return tuple(replace(item, number=index) for index, item in enumerate(items, start=1))


def adding(before: Record, *items: Evidence) -> Record:
    """Record more evidence, in the order in which it came."""
    return replace(before, evidence=numbered(*before.evidence, *items))


def tried(*attempts: Attempt, state: State = State.UNKNOWN, **changes) -> Record:
    """Make a record whose attempts ended as they say, with the evidence of each end."""
    items = [
        witnessed(a.number, SHOWS[a.seen], at=a.ended_ms)
        for a in attempts
        if a.ended_ms is not None
    ]
    settings = {"deadline_ms": T0 + HOUR, "fence": len(attempts), **changes}
    after = Record(operation=operation(state, **settings), attempts=attempts)
    return adding(after, *items)


SHOWS = {
    Seen.NOT_SENT: Shows.NOT_SENT,
    Seen.NOT_PROCESSED: Shows.NOT_PROCESSED,
    Seen.REJECTED: Shows.REFUSED,
    Seen.ACCEPTED: Shows.IN_PROGRESS,
    Seen.SUCCEEDED: Shows.APPLIED,
    Seen.UNKNOWN: Shows.NOTHING,
}


def absences(*instants: int, by: str = "lookup") -> tuple[Evidence, ...]:
    return tuple(evidence(Shows.ABSENT, at=instant, by=by) for instant in instants)


SETTLED = T0 + 1_000 + TIMEOUT + HORIZON
"""Nothing of the sample attempt can arrive after this."""

PROVES = SETTLED + LAG
"""From then on an absence that the sample look-up sees proves something."""


def now(ms: int, break_ms: int = 0) -> Now:
    return Now(ms=ms, break_ms=break_ms)


def settled(before: Record, rules: Contract, at: int) -> Record:
    """Apply what policy chooses at `at`."""
    changes = settle(before, rules, now(at))
    return replace(before, operation=changes[-1].after) if changes else before


def sends(before: Record, rules: Contract, at: int, *, resend: bool = False, **how) -> Record:
    """Open the next attempt at `at`."""
    after, opened = progress.begin(
        before, rules, now(at), owner="worker-1", correlation_id="c", resend=resend, **how
    )
    return replace(before, operation=after, attempts=(*before.attempts, opened))


def ends(before: Record, rules: Contract, at: int, seen: Seen, **changes) -> Record:
    """End the open attempt at `at` with what it saw, and settle."""
    sent = None if seen is Seen.NOT_SENT else before.attempts[-1].opened_ms
    after, _, _ = progress.end(
        before, rules, now(at), observed(seen, **changes), sent_by_ms=sent, closed_ms=at
    )
    return settled(after, rules, at)


def recovers(before: Record, rules: Contract, at: int, liveness: Liveness) -> Record:
    after, _, _ = progress.recover(before, rules, now(at), liveness)
    return settled(after, rules, at)


def looks(before: Record, rules: Contract, at: int, *items: Evidence) -> Record:
    """Ask the look-ups at `at`, with these answers, and settle."""
    asking = replace(before, operation=progress.look(before, rules, now(at), owner="worker-1"))
    return settled(answered(asking, *items), rules, at)


def answered(before: Record, *items: Evidence) -> Record:
    first = len(before.evidence) + 1
    given = tuple(replace(item, number=first + index) for index, item in enumerate(items))
    return progress.looked(before, given)


def retrying(attempts: int = 3, resend: int = 1) -> RetryRules:
    return RetryRules(attempts=attempts, resend=resend)


# --- a person, and what the caller is told -------------------------------------------------------


def decided(before: Record, rules: Contract, at: int, word: Word, **how) -> Record:
    """Let an operator decide at `at`; nothing is settled yet."""
    ruling = rule(before, rules, now(at), word, operator="operator-1", note="looked", **how)
    after = before if ruling.change is None else replace(before, operation=ruling.change.after)
    return after if ruling.evidence is None else adding(after, ruling.evidence)


def rules_on(before: Record, rules: Contract, at: int, word: Word, **how) -> Record:
    """Let an operator decide at `at`, and settle."""
    return settled(decided(before, rules, at, word, **how), rules, at)


def reviewed(cause: Cause) -> Record:
    """Make an operation in review for `cause`, with the evidence that brought it there."""
    items = {
        Cause.OVERDUE: (evidence(Shows.IN_PROGRESS, at=T0 + 30_000),),
        Cause.CONTRADICTION: (evidence(Shows.CONFLICT, at=T0 + 30_000),),
        Cause.NOT_ATTRIBUTED: (evidence(Shows.PRESENT, at=T0 + 30_000),),
        Cause.ABSENT_REVIEW: absences(PROVES, PROVES + INTERVAL),
    }
    accepted = {"accepted_ms": T0, "completes_by_ms": T0 + HOUR} if cause is Cause.OVERDUE else {}
    before = tried(attempt(), state=State.MANUAL_REVIEW, cause=cause, **accepted)
    return adding(before, *items.get(cause, ()))


REVIEWS = (
    Cause.DEADLINE,
    Cause.NOTHING_LEFT,
    Cause.OVERDUE,
    Cause.NOT_ATTRIBUTED,
    Cause.CONTRADICTION,
    Cause.ABSENT_REVIEW,
)
"""Why a person can be asked."""


def accepted_without_news(
    state: State = State.ACCEPTED, cause: Cause | None = None, deadline: int | None = None
) -> Record:
    """Make accepted work that is to be complete an hour after `T0`."""
    return tried(
        attempt(seen=Seen.ACCEPTED),
        state=state,
        cause=cause,
        accepted_ms=T0,
        completes_by_ms=T0 + HOUR,
        deadline_ms=deadline,
    )


def approval(by: str = "operator-1", *, until: int = T0 + HOUR) -> Approval:
    digest = digest_of(operation(), until)
    return Approval(by=by, at_ms=T0, expires_ms=until, digest=digest)


def told(before: Record, rules: Contract, at: int, **extras) -> Outcome:
    """Say what the caller is told at `at`."""
    return outcome_of(before, rules, now(at), Extras(**extras))
