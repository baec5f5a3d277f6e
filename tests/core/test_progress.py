"""Begin, end, recover, look: what each happening does to an operation."""

from dataclasses import replace

import pytest
from tests.core.life import every_life
from tests.core.samples import (
    HOUR,
    INTERVAL,
    KEY,
    LATER,
    LOOKUP,
    PROVES,
    T0,
    TIMEOUT,
    absences,
    answered,
    attempt,
    contract,
    ends,
    evidence,
    looks,
    now,
    observed,
    record,
    recovers,
    sends,
    tried,
)

from doubtless.core import progress
from doubtless.core.contract import FOREIGN_OWNER_MS
from doubtless.core.lifecycle import Need
from doubtless.core.model import Cause, Effect, Seen, Shows, Source, Stage, State
from doubtless.core.permission import gate
from doubtless.core.progress import Liveness, reclosed, witnessed
from doubtless.errors import IllegalTransition
from doubtless.testing.strategies import Life

RULES = contract()
LEASE_END = T0 + TIMEOUT + 10_000
CRASHED = LEASE_END + 1


# --- begin ---------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-2", "INV-3")
def test_beginning_opens_the_next_attempt_under_a_new_lease_and_fence():
    opened = sends(record(), RULES, T0)
    operation, first = opened.operation, opened.attempts[-1]
    assert (operation.state, operation.fence, operation.owner) == (State.EXECUTING, 1, "worker-1")
    assert (operation.lease_end_ms, operation.due_ms) == (LEASE_END, LEASE_END)
    assert (first.number, first.fence, first.opened_ms) == (1, 1, T0)
    assert (first.ended_ms, first.sent_by_ms, first.closed_ms) == (None, None, None)
    assert opened.open_attempt == first


@pytest.mark.parametrize(
    "state", [State.AWAITING_APPROVAL, State.EXECUTING, State.ACCEPTED, State.SUCCEEDED]
)
def test_nothing_begins_where_the_table_knows_no_send(state):
    with pytest.raises(IllegalTransition):
        sends(record(state), RULES, T0)


def test_a_review_is_sent_again_only_by_an_operator():
    review = tried(attempt(), state=State.MANUAL_REVIEW)
    with pytest.raises(IllegalTransition):
        sends(review, RULES, LATER)
    assert sends(review, RULES, LATER, by=Need.OPERATOR).operation.state is State.EXECUTING


@pytest.mark.parametrize("state", [State.FAILED, State.MANUAL_REVIEW])
def test_a_send_by_intent_renews_every_budget(state):
    before = tried(attempt(), state=state, accepted_ms=T0, completes_by_ms=T0 + HOUR)
    by = Need.OPERATOR if state is State.MANUAL_REVIEW else Need.PERMITTED
    after = sends(before, RULES, LATER, by=by).operation
    assert (after.budget_from, after.deadline_ms) == (1, None)
    assert (after.accepted_ms, after.completes_by_ms) == (None, None)


def test_an_automatic_resend_renews_no_budget():
    after = sends(tried(attempt()), RULES, T0 + 60_000, resend=True).operation
    assert (after.budget_from, after.deadline_ms) == (0, T0 + HOUR)


# --- end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen", Seen)
def test_the_end_of_an_attempt_is_recorded_with_its_evidence(seen):
    opened = sends(record(), RULES, T0)
    after, ended, item = progress.end(
        opened, RULES, now(T0 + 5), observed(seen), sent_by_ms=T0 + 1, closed_ms=T0 + 5
    )
    assert (ended.seen, ended.sent_by_ms, ended.ended_ms, ended.closed_ms) == (
        seen,
        T0 + 1,
        T0 + 5,
        T0 + 5,
    )
    assert (item.attempt, item.number, item.at_ms) == (1, 1, T0 + 5)
    assert (after.attempts, after.evidence) == ((ended,), (item,))


def test_a_recorded_sending_is_not_forgotten_at_the_end():
    opened = sends(record(), RULES, T0)
    sent = replace(opened, attempts=(replace(opened.attempts[0], sent_by_ms=T0 + 7),))
    _, ended, _ = progress.end(
        sent, RULES, now(T0 + 9), observed(Seen.UNKNOWN), sent_by_ms=None, closed_ms=None
    )
    assert ended.sent_by_ms == T0 + 7


def test_the_providers_names_for_the_work_are_kept():
    taken = ends(
        sends(record(), RULES, T0),
        RULES,
        T0 + 5,
        Seen.ACCEPTED,
        provider_operation_id="job_1",
        status_url="/jobs/1",
    ).operation
    assert (taken.provider_operation_id, taken.status_url) == ("job_1", "/jobs/1")
    assert (taken.confirmed_state, taken.confirmed_source) == ("in_progress", "response")


@pytest.mark.parametrize("shows", [Shows.PRESENT, Shows.ABSENT, Shows.CONFLICT])
def test_a_name_that_is_not_surely_ours_is_not_kept(shows):
    item = evidence(shows, at=T0 + 20_000, provider_operation_id="other")
    after = looks(tried(attempt()), RULES, T0 + 20_000, item).operation
    assert after.provider_operation_id is None


@pytest.mark.parametrize(
    ("seen", "confirmed"),
    [(Seen.UNKNOWN, "executing"), (Seen.NOT_SENT, None), (Seen.NOT_PROCESSED, None)],
)
def test_what_may_have_left_is_the_last_thing_that_was_confirmed(seen, confirmed):
    after = ends(sends(record(), RULES, T0), RULES, T0 + 5_000, seen).operation
    assert after.confirmed_state == confirmed


@pytest.mark.proves("INV-5")
def test_a_late_answer_is_the_same_evidence_and_settles_the_operation():
    crashed = recovers(sends(record(), RULES, T0), RULES, CRASHED, Liveness.ALIVE)
    late = witnessed(crashed, RULES, now(CRASHED + 1), observed(Seen.SUCCEEDED), attempt=1)
    assert (late.shows, late.source, late.number) == (Shows.APPLIED, Source.RESPONSE, 2)
    settled = looks(crashed, RULES, CRASHED + 1, late).operation
    assert settled.state is State.SUCCEEDED


# --- recover -------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-61")
@pytest.mark.parametrize(
    ("liveness", "closed"),
    [
        (Liveness.DEAD, CRASHED),
        (Liveness.FOREIGN, LEASE_END + FOREIGN_OWNER_MS),
        (Liveness.ALIVE, None),
    ],
)
def test_recovery_makes_it_unknown_and_closes_the_attempt_as_its_owner_allows(liveness, closed):
    after = recovers(sends(record(), RULES, T0), RULES, CRASHED, liveness)
    assert (after.operation.state, after.operation.cause) == (State.UNKNOWN, Cause.CRASH)
    assert after.attempts[-1].closed_ms == closed
    assert after.operation.fence == 2


@pytest.mark.proves("CORE-61")
@pytest.mark.parametrize("effect", [Effect.READ, Effect.COMPUTE])
@pytest.mark.parametrize("liveness", Liveness)
def test_a_crash_leads_a_read_to_prepared(effect, liveness):
    rules = contract(effect, lookups=())
    after = recovers(sends(record(), rules, T0), rules, CRASHED, liveness)
    assert after.operation.state is State.PREPARED


@pytest.mark.proves("CORE-62")
@pytest.mark.parametrize("liveness", Liveness)
def test_where_sending_is_recorded_its_missing_record_proves_that_nothing_was_sent(liveness):
    rules = contract(record_sending=True)
    opened = sends(record(), rules, T0)
    after = recovers(opened, rules, CRASHED, liveness)
    assert (after.attempts[-1].seen, after.operation.state) == (Seen.NOT_SENT, State.PREPARED)
    refused = gate(after, rules, now(CRASHED), attempt=1, fence=opened.operation.fence)
    assert isinstance(refused, str)


@pytest.mark.proves("CORE-62")
def test_where_sending_is_recorded_its_record_leaves_the_crash_unknown():
    rules = contract(record_sending=True)
    opened = sends(record(), rules, T0)
    sent = replace(opened, attempts=(replace(opened.attempts[0], sent_by_ms=T0 + 7),))
    after = recovers(sent, rules, CRASHED, Liveness.DEAD)
    observation = after.attempts[-1].observation
    assert observation is not None
    assert (observation.seen, observation.stage) == (Seen.UNKNOWN, Stage.SENT)
    assert after.operation.state is State.UNKNOWN


def test_a_silent_attempt_is_closed_once_its_owner_is_known_to_be_dead():
    silent = attempt(closed_ms=None)
    assert reclosed(silent, now(LATER), Liveness.DEAD).closed_ms == LATER
    assert reclosed(silent, now(LATER), Liveness.ALIVE) == silent
    assert reclosed(attempt(), now(LATER), Liveness.DEAD) == attempt()
    under_way = attempt(seen=None)
    assert reclosed(under_way, now(LATER), Liveness.DEAD) == under_way


# --- look ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.UNKNOWN, State.RECONCILING, State.ACCEPTED])
def test_a_look_takes_a_lease_that_covers_all_look_ups_and_raises_the_fence(state):
    before = tried(attempt(), state=state, cause=Cause.TIMEOUT, lease_end_ms=T0)
    rules = contract(lookups=(LOOKUP, replace(LOOKUP, name="second")))
    after = progress.look(before, rules, now(LATER), owner="worker-2")
    assert (after.state, after.cause, after.owner) == (
        State.RECONCILING,
        Cause.TIMEOUT,
        "worker-2",
    )
    assert after.lease_end_ms == after.due_ms == LATER + 10_000 + 2 * LOOKUP.timeout_ms
    assert after.fence == before.operation.fence + 1
    assert after.origin is (State.ACCEPTED if state is State.ACCEPTED else None)


def test_a_review_stays_one_while_it_is_looked_at():
    before = tried(attempt(), state=State.MANUAL_REVIEW, cause=Cause.DEADLINE)
    after = progress.look(before, RULES, now(LATER), owner="worker-2")
    assert after == replace(before.operation, due_ms=LATER + 10_000 + LOOKUP.timeout_ms)


def test_what_a_look_saw_is_appended_and_its_lease_given_back():
    asking = tried(attempt(), state=State.RECONCILING, owner="w", lease_end_ms=LATER)
    after = answered(asking, *absences(T0 + 20_000), evidence(Shows.COULD_NOT_ASK))
    assert (after.operation.looks, after.operation.owner, after.operation.lease_end_ms) == (
        1,
        None,
        None,
    )
    assert [item.number for item in after.evidence] == [1, 2, 3]


# --- whole stories -------------------------------------------------------------------------------


def test_a_lost_answer_is_found_by_the_look_up():
    unknown = ends(sends(record(), RULES, T0), RULES, T0 + TIMEOUT, Seen.UNKNOWN)
    found = evidence(Shows.APPLIED, at=T0 + 20_000, provider_operation_id="re_1")
    after = looks(unknown, RULES, T0 + 20_000, found).operation
    assert (after.state, after.cause, after.provider_operation_id) == (
        State.SUCCEEDED,
        Cause.PROVEN,
        "re_1",
    )
    assert (after.confirmed_state, after.confirmed_source) == ("succeeded", "lookup")


def test_a_lost_request_is_reported_once_its_absence_is_confirmed():
    unknown = ends(sends(record(), RULES, T0), RULES, T0 + TIMEOUT, Seen.UNKNOWN)
    once = looks(unknown, RULES, PROVES - INTERVAL, *absences(PROVES - INTERVAL))
    assert once.operation.state is State.UNKNOWN
    after = looks(once, RULES, PROVES, *absences(PROVES)).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.CONFIRMED_ABSENT)


@pytest.mark.proves("INV-7")
@every_life
def test_the_identity_of_an_operation_never_changes(life: Life):
    names = (
        *("id", "tenant", "tool", "effect", "source", "principal", "session_id", "key", "ref"),
        *("payload_hash", "request_digest", "contract_digest", "created_ms", "valid_until_ms"),
    )
    identities = {
        tuple(getattr(record.operation, name) for name in names) for record in life.records
    }
    assert len(identities) == 1


@pytest.mark.proves("INV-3")
@every_life
def test_attempts_are_numbered_and_only_the_last_is_ever_open(life: Life):
    for before in life.records:
        assert [a.number for a in before.attempts] == list(range(1, len(before.attempts) + 1))
        assert all(a.ended_ms is not None for a in before.attempts[:-1])
        executing = before.operation.state is State.EXECUTING
        assert (before.open_attempt is not None) is executing


def test_a_keyed_provider_replays_the_first_refusal_and_it_ends_there():
    rules = contract(Effect.IDEMPOTENT_CALL, key=KEY, lookups=())
    unknown = ends(sends(record(), rules, T0), rules, T0 + TIMEOUT, Seen.UNKNOWN)
    again = sends(unknown, rules, T0 + 20_000, resend=True)
    after = ends(again, rules, T0 + 21_000, Seen.REJECTED, replayed=True).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.REFUSED)
