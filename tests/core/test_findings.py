"""Stories in which the core and the model disagreed once."""

from dataclasses import replace

import pytest
from tests.core.samples import (
    EVENTS,
    HOUR,
    INTERVAL,
    KEY,
    PROVES,
    T0,
    absences,
    adding,
    attempt,
    contract,
    ends,
    event,
    evidence,
    looks,
    now,
    record,
    recovers,
    sends,
    settled,
    tried,
    witnessed,
)

from doubtless.core import answers
from doubtless.core.answers import Answer, classify
from doubtless.core.contract import ApprovalRules, OnAbsent
from doubtless.core.decisions import Word, rule
from doubtless.core.evidence import weigh
from doubtless.core.lifecycle import Need
from doubtless.core.model import (
    Approval,
    Cause,
    Effect,
    Record,
    Seen,
    Shows,
    Source,
    Stage,
    State,
    Strength,
    Verdict,
)
from doubtless.core.outcome import Extras, Outcome, instant, outcome_of
from doubtless.core.permission import Pass, gate, may_repeat
from doubtless.core.policy import decide
from doubtless.core.progress import Liveness
from doubtless.core.schedule import next_look_ms
from doubtless.core.settling import settle
from doubtless.core.steps import Escalate, LookUp, Settle

LATER = T0 + 2 * HOUR


def wrong(reason: str):
    return pytest.mark.xfail(strict=True, reason=reason)


def decided(before: Record, rules, at: int, word: Word) -> Record:
    ruling = rule(before, rules, now(at), word, operator="operator-1", note="looked")
    after = before if ruling.change is None else replace(before, operation=ruling.change.after)
    return after if ruling.evidence is None else adding(after, ruling.evidence)


def reviewed(cause: Cause) -> Record:
    """Return an operation in review for `cause`, with the evidence that brought it there."""
    items = {
        Cause.OVERDUE: (evidence(Shows.IN_PROGRESS, at=T0 + 30_000),),
        Cause.CONTRADICTION: (evidence(Shows.CONFLICT, at=T0 + 30_000),),
        Cause.NOT_ATTRIBUTED: (evidence(Shows.PRESENT, at=T0 + 30_000),),
        Cause.ABSENT_REVIEW: absences(PROVES, PROVES + INTERVAL),
    }
    accepted = {"accepted_ms": T0, "completes_by_ms": T0 + HOUR} if cause is Cause.OVERDUE else {}
    before = tried(attempt(), state=State.MANUAL_REVIEW, cause=cause, **accepted)
    return adding(before, *items.get(cause, ()))


def told(before: Record, rules, at: int) -> Outcome:
    return outcome_of(before, rules, now(at), Extras())


REVIEWS = (
    Cause.DEADLINE,
    Cause.NOTHING_LEFT,
    Cause.OVERDUE,
    Cause.NOT_ATTRIBUTED,
    Cause.CONTRADICTION,
    Cause.ABSENT_REVIEW,
)
DECISIONS = {Word.DONE: State.SUCCEEDED, Word.NOT_DONE: State.FAILED}


@pytest.mark.parametrize("word", DECISIONS)
@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(
            cause,
            marks=[wrong("review ignores the person")] if cause is Cause.CONTRADICTION else [],
        )
        for cause in REVIEWS
        if cause is not Cause.ABSENT_REVIEW
    ],
)
def test_a_persons_decision_settles_a_review_whatever_its_cause(cause, word):
    after = settled(decided(reviewed(cause), contract(), LATER, word), contract(), LATER)
    assert after.operation.state is DECISIONS[word]


@wrong("review of an absence ignores the person")
def test_a_persons_not_done_settles_a_review_of_a_confirmed_absence():
    rules = contract(on_absent=OnAbsent.REVIEW)
    after = settled(
        decided(reviewed(Cause.ABSENT_REVIEW), rules, LATER, Word.NOT_DONE), rules, LATER
    )
    assert (after.operation.state, after.operation.cause) == (
        State.FAILED,
        Cause.OPERATOR_NOT_DONE,
    )


def accepted_without_news(state: State, cause: Cause | None, deadline: int | None) -> Record:
    return tried(
        attempt(seen=Seen.ACCEPTED),
        state=state,
        cause=cause,
        accepted_ms=T0,
        completes_by_ms=T0 + HOUR,
        deadline_ms=deadline,
    )


@wrong("review → accepted → unknown → review without end")
@pytest.mark.parametrize("state", [State.UNKNOWN, State.MANUAL_REVIEW])
def test_accepted_work_without_news_comes_to_rest_in_review(state):
    cause = Cause.DEADLINE if state is State.MANUAL_REVIEW else Cause.NO_NEWS_AFTER_ACCEPTED
    before = accepted_without_news(state, cause, LATER)
    after = settled(before, contract(), LATER + 1)
    assert after.operation.state is State.MANUAL_REVIEW
    assert settle(after, contract(), now(LATER + 1)) == ()


@wrong("by way of a review")
def test_accepted_work_whose_last_look_got_no_answer_becomes_unknown_without_a_review():
    before = accepted_without_news(State.ACCEPTED, None, None)
    asked = looks(before, contract(), T0 + HOUR - 1)
    assert asked.operation.state is State.ACCEPTED
    from_look = replace(asked, operation=replace(asked.operation, state=State.RECONCILING))
    states = [step.after.state for step in settle(from_look, contract(), now(T0 + HOUR))]
    assert states == [State.UNKNOWN]


@pytest.mark.parametrize(
    "cause",
    [
        pytest.param(cause, marks=[] if cause is Cause.DEADLINE else [wrong("it never looks")])
        for cause in REVIEWS
        if cause is not Cause.NOTHING_LEFT
    ],
)
def test_looking_again_looks_whatever_the_review_was_about(cause):
    rules = contract(on_absent=OnAbsent.REVIEW)
    after = decided(reviewed(cause), rules, LATER, Word.LOOK_AGAIN)
    assert isinstance(decide(after, rules, now(LATER)).step, LookUp)


@wrong("waits for the worker's lease")
def test_a_persons_decision_settles_at_once_even_while_a_worker_is_looking():
    before = tried(attempt(), state=State.RECONCILING, owner="w", lease_end_ms=T0 + 60_000)
    after = settled(decided(before, contract(), T0 + 30_000, Word.DONE), contract(), T0 + 30_000)
    assert after.operation.state is State.SUCCEEDED


@wrong("IllegalTransition")
def test_a_late_proof_that_nothing_was_sent_lets_a_void_intent_be_rejected():
    rules = contract()
    crashed = recovers(sends(record(), rules, T0), rules, T0 + 30_000, Liveness.DEAD)
    proven = adding(crashed, witnessed(1, Shows.NOT_SENT, at=T0 + 31_000))
    again = sends(settled(proven, rules, T0 + 31_000), rules, T0 + 40_000)
    waiting = ends(again, rules, T0 + 41_000, Seen.NOT_SENT)
    assert waiting.operation.state is State.PREPARED
    after = settled(waiting, rules, waiting.operation.valid_until_ms)
    assert after.operation.state is State.REJECTED


def absent_and_closed() -> Record:
    before = tried(attempt(), state=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
    return adding(before, *absences(PROVES, PROVES + INTERVAL))


@wrong("only `applied` contradicts it")
def test_news_that_the_work_goes_on_contradicts_a_confirmed_absence():
    rules = contract(events=EVENTS)
    before = adding(absent_and_closed(), event(Shows.IN_PROGRESS, at=PROVES + 8_000))
    assert settled(before, rules, PROVES + 9_000).operation.state is State.MANUAL_REVIEW


@wrong("judged by the stored cause alone")
@pytest.mark.parametrize("shows", [Shows.IN_PROGRESS, Shows.PRESENT, Shows.SIGHTED])
def test_an_absence_that_no_longer_stands_permits_no_repeat(shows):
    rules = contract(events=EVENTS)
    before = adding(absent_and_closed(), event(shows, at=PROVES + 8_000))
    assert not may_repeat(before, rules, now(PROVES + 9_000)).allowed


@wrong("in progress")
def test_an_event_that_the_work_goes_on_contradicts_attempts_that_never_left():
    before = adding(
        tried(attempt(seen=Seen.NOT_SENT), state=State.EXECUTING),
        event(Shows.IN_PROGRESS, at=T0 + 5_000),
    )
    rules = contract(events=EVENTS)
    assert weigh(before, rules, now(T0 + 20_000)).verdict is Verdict.CONTRADICTION


@wrong("failed, safe to retry")
def test_news_of_the_work_between_two_attempts_that_never_left_goes_to_a_person():
    before = adding(
        tried(attempt(seen=Seen.NOT_SENT), state=State.PREPARED, cause=Cause.NOT_SENT),
        event(Shows.IN_PROGRESS, at=T0 + 15_000),
    )
    after = settled(before, contract(events=EVENTS), T0 + 20_000)
    assert after.operation.state is State.MANUAL_REVIEW


@wrong("contradiction, whatever the object says")
@pytest.mark.parametrize(
    ("shows", "verdict"),
    [(Shows.APPLIED, Verdict.APPLIED), (Shows.NOT_APPLIED, Verdict.NOT_APPLIED)],
)
def test_a_tie_of_events_is_settled_by_the_object_once_it_is_read(shows, verdict):
    tied = adding(
        tried(attempt()),
        event(Shows.APPLIED, at=T0 + 20_000),
        event(Shows.NOT_APPLIED, at=T0 + 20_000),
    )
    read = adding(tied, evidence(shows, at=T0 + 90_000))
    assert weigh(read, contract(events=EVENTS), now(T0 + 90_000)).verdict is verdict


@wrong("nobody hears of it")
def test_a_tie_that_comes_to_light_after_a_success_is_not_lost():
    before = adding(
        tried(attempt(), state=State.SUCCEEDED),
        event(Shows.APPLIED, at=T0 + 20_000),
        event(Shows.NOT_APPLIED, at=T0 + 20_000),
    )
    after = settled(before, contract(events=EVENTS), T0 + 30_000)
    assert after.operation.state is State.MANUAL_REVIEW


@wrong("the strength of an absence is not asked for")
def test_advisory_absences_prove_nothing():
    items = [
        replace(item, strength=Strength.ADVISORY) for item in absences(PROVES, PROVES + INTERVAL)
    ]
    found = weigh(adding(tried(attempt()), *items), contract(), now(PROVES + HOUR))
    assert found.verdict is Verdict.UNKNOWN


@wrong("tolerance is known only with declared events")
def test_an_old_event_is_advisory_where_the_tool_declares_no_events_too():
    before = adding(tried(attempt()), event(Shows.APPLIED, at=T0 + 20_000, occurred=T0 - HOUR))
    assert weigh(before, contract(), now(T0 + 30_000)).verdict is Verdict.UNKNOWN


def approval(by: str) -> Approval:
    return Approval(by=by, at_ms=T0, expires_ms=T0 + HOUR, digest="d")


@wrong("one approval is enough")
@pytest.mark.parametrize("people", [("p",), ("p", "p")])
def test_four_eyes_need_two_people(people):
    rules = contract(approval=ApprovalRules(people=2))
    before = replace(
        record(State.AWAITING_APPROVAL, needs_approval=True),
        approvals=tuple(approval(name) for name in people),
    )
    after = settled(before, rules, T0 + 1_000)
    assert after.operation.state is State.AWAITING_APPROVAL


@wrong("failed, safe to retry")
def test_an_absence_confirmed_during_a_review_is_left_to_the_person_where_the_contract_says_so():
    rules = contract(on_absent=OnAbsent.REVIEW)
    before = adding(reviewed(Cause.DEADLINE), *absences(PROVES, PROVES + INTERVAL))
    assert not isinstance(decide(before, rules, now(LATER)).step, Settle)


@wrong("people are asked all the same")
def test_overdue_work_asks_no_person_where_the_contract_wants_none():
    before = adding(
        accepted_without_news(State.ACCEPTED, None, None),
        evidence(Shows.IN_PROGRESS, at=T0 + 50_000),
    )
    step = decide(before, contract(review=False), now(T0 + HOUR)).step
    assert not isinstance(step, Escalate)


@wrong("the first acceptance's end stays")
def test_work_accepted_after_an_operators_retry_has_its_own_time_to_complete():
    rules = contract()
    again = sends(reviewed(Cause.OVERDUE), rules, LATER, resend=True, by=Need.OPERATOR)
    after = ends(again, rules, LATER + 5_000, Seen.ACCEPTED).operation
    assert after.state is State.ACCEPTED
    assert after.completes_by_ms == LATER + 5_000 + rules.completes_within_ms


@wrong("the key hides it")
def test_the_time_of_arrival_is_shown_even_where_the_key_is_forgotten():
    rules = contract(key=replace(KEY, ttl_ms=None))
    before = tried(attempt())
    after = settled(decided(before, rules, T0 + 20_000, Word.NOT_DONE), rules, T0 + 20_000)
    outcome = told(after, rules, T0 + 21_000)
    assert outcome.acts["by"] == instant(T0 + 1_000 + rules.timeout_ms + rules.horizon_ms)


@wrong("`will not`")
@pytest.mark.parametrize("forgotten", [True, False])
def test_no_message_says_never_while_something_may_still_arrive(forgotten):
    rules = contract(key=replace(KEY, ttl_ms=None)) if forgotten else contract()
    before = tried(attempt() if forgotten else attempt(closed_ms=None))
    after = settled(decided(before, rules, T0 + 20_000, Word.NOT_DONE), rules, T0 + 20_000)
    assert "will not" not in told(after, rules, T0 + 21_000).message


@wrong("first + n × interval, however late the last look began")
def test_two_absences_that_are_asked_for_when_due_always_both_count():
    begun = PROVES - INTERVAL + 700
    before = adding(tried(attempt(), looks=10), *absences(begun))
    found = weigh(before, contract(), now(begun))
    assert next_look_ms(before, contract(), found) >= begun + INTERVAL


@wrong("the id wins")
@pytest.mark.parametrize(
    "answer",
    [
        Answer(stage=Stage.READ, status=200, complete=True, failed=True),
        Answer(stage=Stage.READ, status=402, complete=True),
    ],
)
def test_a_transaction_id_does_not_outweigh_an_answer_that_says_no(answer):
    rules = contract(Effect.TIME_SENSITIVE, lookups=(), response=answers.default_rules())
    seen = classify(replace(answer, provider_operation_id="tx_1"), rules).seen
    assert seen is not Seen.SUCCEEDED


@wrong("refused")
def test_the_gate_believes_the_same_last_instant_of_the_key_as_the_decision():
    rules = contract(Effect.IDEMPOTENT_CALL, key=KEY, lookups=())
    last = T0 + (KEY.ttl_ms or 0) - 5_000 - rules.timeout_ms - rules.horizon_ms - KEY.margin_ms
    before = tried(attempt(), valid_until_ms=T0 + 48 * HOUR)
    opened = sends(before, rules, last, resend=True)
    passed = gate(opened, rules, now(last), attempt=2, fence=opened.operation.fence)
    assert passed == Pass(write_by_ms=last)


@wrong("an advisory item closes it")
def test_an_advisory_item_does_not_close_the_gate():
    rules = contract(events=replace(EVENTS, authoritative=False))
    opened = sends(record(), rules, T0)
    item = event(Shows.APPLIED, at=T0 + 10, strength=Strength.ADVISORY)
    passed = gate(
        adding(opened, item), rules, now(T0 + 20), attempt=1, fence=opened.operation.fence
    )
    assert isinstance(passed, Pass)


def test_an_operators_word_of_not_done_is_evidence_by_its_name():
    found = rule(tried(attempt()), contract(), now(T0), Word.NOT_DONE, operator="o", note="n")
    assert found.evidence is not None
    assert found.evidence.source is Source.OPERATOR
