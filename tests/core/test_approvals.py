"""What a person has authorised: whom it binds, how long it stands, and where it is asked again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.samples import (
    DAY,
    HOUR,
    PROVES,
    T0,
    absences,
    adding,
    approval,
    attempt,
    contract,
    ends,
    now,
    operation,
    record,
    resending,
    sends,
    settled,
    tried,
)

from doubtless.core import approvals
from doubtless.core.contract import ApprovalRules
from doubtless.core.decisions import Word, rule
from doubtless.core.model import Blocker, Cause, Effect, Grant, Seen, State
from doubtless.core.permission import UNAPPROVED, Pass, gate, may_repeat, may_resend
from doubtless.core.policy import decide
from doubtless.core.steps import Move, Send, Settle
from doubtless.errors import DecisionRefused

RULES = contract(approval=ApprovalRules(expires_ms=HOUR))
FOUR_EYES = contract(approval=ApprovalRules(expires_ms=HOUR, people=2))
NEEDS = record(needs_approval=True)


def approved(before, rules=RULES, at=T0):
    return approvals.approved(before, rules, now(at))


def with_approvals(before, *given):
    return replace(before, approvals=given)


def granted(before=NEEDS, *, until=T0 + HOUR, **changes) -> Grant:
    made = before.operation
    grant = Grant(
        id="g1",
        session_id=made.session_id,
        tool=made.tool,
        contract_digest=made.contract_digest,
        principal=made.principal,
        by="operator-1",
        at_ms=T0,
        expires_ms=until,
        digest="",
    )
    grant = replace(grant, **changes)
    return replace(grant, digest=changes.get("digest", approvals.grant_digest(grant)))


# --- what an approval is bound to ----------------------------------------------------------------


@pytest.mark.proves("APPROVAL-1")
@pytest.mark.parametrize(
    "changes",
    [
        {"tool": "other"},
        {"contract_digest": "d" * 64},
        {"payload_hash": "sha256:" + "9" * 64},
        {"request_digest": "sha256:" + "9" * 64},
        {"source": "elsewhere"},
        {"business_key": '{"charge":"ch_2"}'},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_an_approval_is_void_when_anything_that_is_executed_changes(changes):
    assert approved(with_approvals(NEEDS, approval()))
    other = replace(NEEDS, operation=operation(needs_approval=True, **changes))
    assert not approved(with_approvals(other, approval()))


@pytest.mark.proves("APPROVAL-1")
def test_an_approval_that_was_made_to_last_longer_is_void():
    stretched = replace(approval(until=T0 + HOUR), expires_ms=T0 + DAY)
    assert not approved(with_approvals(NEEDS, stretched))


@given(note=st.text(), at=st.integers(T0, T0 + HOUR - 1))
def test_free_text_and_the_time_of_approval_are_not_part_of_what_it_binds(note, at):
    assert approved(with_approvals(NEEDS, replace(approval(), at_ms=at)), at=at)
    assert approvals.grant_digest(granted(note=note)) == approvals.grant_digest(granted())


@pytest.mark.proves("APPROVAL-2")
@pytest.mark.parametrize("spelled", ["agent-1", "AGENT-1", " agent-1 "])
def test_who_asked_for_it_never_approves_it(spelled):
    assert not approved(with_approvals(NEEDS, approval(spelled)))
    assert not approved(with_approvals(NEEDS, approval(spelled), approval("p")), FOUR_EYES)
    assert not approved(replace(NEEDS, grants=(granted(by=spelled),)))


@pytest.mark.proves("APPROVAL-2")
def test_capitals_make_nobody_a_second_person():
    assert not approved(with_approvals(NEEDS, approval("Ann"), approval("ann ")), FOUR_EYES)
    assert approved(with_approvals(NEEDS, approval("Ann"), approval("bob")), FOUR_EYES)


@pytest.mark.proves("APPROVAL-2")
def test_four_eyes_stand_only_as_long_as_both():
    both = with_approvals(NEEDS, approval("p", until=T0 + 5), approval("q", until=T0 + HOUR))
    assert approved(both, FOUR_EYES, T0 + 4)
    assert not approved(both, FOUR_EYES, T0 + 5)


def test_what_needs_no_approval_is_approved_for_ever():
    assert approved(record(), at=T0 + 100 * DAY)


# --- of a whole session --------------------------------------------------------------------------


@pytest.mark.proves("APPROVAL-3")
@pytest.mark.parametrize(
    "changes",
    [
        {"tool": "other"},
        {"contract_digest": "d" * 64},
        {"principal": "agent-2"},
        {"session_id": "session-2"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_session_wide_approval_binds_tool_contract_principal_and_session(changes):
    assert approved(replace(NEEDS, grants=(granted(),)))
    other = replace(NEEDS, operation=operation(needs_approval=True, **changes))
    assert not approved(replace(other, grants=(granted(),)))


@pytest.mark.proves("APPROVAL-3")
def test_a_session_wide_approval_leaves_the_payload_out():
    other = operation(needs_approval=True, payload_hash="sha256:" + "9" * 64, business_key="{}")
    assert approved(replace(NEEDS, operation=other, grants=(granted(),)))


@pytest.mark.proves("APPROVAL-3")
@pytest.mark.parametrize(
    "grant",
    [
        granted(until=T0),
        granted(revoked_ms=T0, revoked_by="operator-2"),
        replace(granted(), expires_ms=T0 + DAY),
    ],
    ids=["expired", "revoked", "stretched"],
)
def test_one_that_is_over_covers_nothing(grant):
    assert not approved(replace(NEEDS, grants=(grant,)))


@pytest.mark.proves("APPROVAL-3")
def test_it_never_covers_what_needs_four_eyes():
    assert not approved(replace(NEEDS, grants=(granted(),)), FOUR_EYES)
    one = replace(with_approvals(NEEDS, approval("p")), grants=(granted(),))
    assert not approved(one, FOUR_EYES)


def test_it_is_named_only_where_nothing_else_permits():
    covered = replace(NEEDS, grants=(granted(),))
    assert approvals.relies_on(covered, RULES, now(T0)) == granted()
    alone = with_approvals(covered, approval())
    assert approvals.relies_on(alone, RULES, now(T0)) is None
    assert approvals.relies_on(replace(record(), grants=(granted(),)), RULES, now(T0)) is None


# --- where it is asked again ---------------------------------------------------------------------


def opened(rules=RULES, until=T0 + HOUR):
    return sends(with_approvals(NEEDS, approval(until=until)), rules, T0)


def asks(before, at, rules=RULES):
    last = before.attempts[-1]
    return gate(before, rules, now(at), attempt=last.number, fence=last.fence)


@pytest.mark.proves("APPROVAL-4")
def test_the_gate_asks_again_whether_the_approval_stands():
    assert isinstance(asks(opened(), T0 + 10), Pass)
    assert asks(opened(until=T0 + 10), T0 + 10) == UNAPPROVED
    assert asks(replace(opened(), approvals=()), T0 + 10) == UNAPPROVED


@pytest.mark.proves("APPROVAL-4")
def test_the_first_byte_is_written_before_the_approval_runs_out():
    assert asks(opened(until=T0 + 50), T0 + 10) == Pass(write_by_ms=T0 + 50)


@pytest.mark.proves("APPROVAL-4")
def test_a_revoked_session_wide_approval_closes_the_gate():
    under = sends(replace(NEEDS, grants=(granted(),)), RULES, T0)
    assert isinstance(asks(under, T0 + 10), Pass)
    gone = granted(revoked_ms=T0 + 5, revoked_by="p")
    assert asks(replace(under, grants=(gone,)), T0 + 10) == UNAPPROVED


@pytest.mark.proves("APPROVAL-5")
def test_one_approval_covers_the_attempts_of_one_operation():
    first = ends(opened(), RULES, T0 + 1_000, Seen.NOT_SENT)
    assert first.operation.state is State.PREPARED
    at = first.operation.not_before_ms or 0
    assert isinstance(decide(first, RULES, now(at)).step, Send)
    assert isinstance(asks(sends(first, RULES, at), at + 10), Pass)


@pytest.mark.proves("APPROVAL-5")
def test_an_attempt_that_was_never_sent_waits_for_a_new_approval_once_the_first_is_over():
    tries = ends(opened(until=T0 + 500), RULES, T0 + 1_000, Seen.NOT_SENT)
    assert tries.operation.state is State.AWAITING_APPROVAL
    fresh = with_approvals(tries, approval("p", until=T0 + HOUR))
    after = settled(fresh, RULES, T0 + 1_001).operation
    assert (after.state, after.not_before_ms is not None) == (State.PREPARED, True)


ABSENT = adding(
    tried(attempt(), state=State.PREPARED, needs_approval=True),
    *absences(PROVES - 5_000, PROVES),
)


@pytest.mark.proves("APPROVAL-5")
def test_what_was_sent_once_and_is_proven_absent_fails_when_its_approval_is_over():
    rules = resending(approval=ApprovalRules(expires_ms=HOUR))
    step = decide(ABSENT, rules, now(PROVES)).step
    assert step == Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
    after = settled(ABSENT, rules, PROVES).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.CONFIRMED_ABSENT)
    stands = with_approvals(ABSENT, approval(until=PROVES + HOUR))
    assert decide(stands, rules, now(PROVES)).step == Send(resend=True, why=Cause.CONFIRMED_ABSENT)


@pytest.mark.proves("APPROVAL-4")
def test_nothing_is_resent_without_a_standing_approval():
    rules = resending(Effect.IDEMPOTENT_CALL, approval=ApprovalRules())
    before = tried(attempt(), needs_approval=True)
    at = now(T0 + 20_000)
    assert may_resend(with_approvals(before, approval()), rules, at, absent=True)
    assert not may_resend(before, rules, at, absent=True)


@pytest.mark.proves("APPROVAL-4")
def test_a_late_proof_that_nothing_was_sent_sends_nothing_without_an_approval():
    before = tried(attempt(seen=Seen.NOT_SENT), needs_approval=True)
    step = decide(before, RULES, now(T0 + 60_000)).step
    assert step == Settle(to=State.FAILED, cause=Cause.NOT_SENT)
    stands = with_approvals(before, approval())
    assert isinstance(decide(stands, RULES, now(T0 + 60_000)).step, Send)


@pytest.mark.proves("APPROVAL-4")
def test_a_repeat_of_a_failed_operation_asks_again():
    failed = tried(
        attempt(seen=Seen.NOT_SENT),
        state=State.FAILED,
        cause=Cause.NOT_SENT,
        needs_approval=True,
    )
    at = now(T0 + 60_000)
    assert may_repeat(with_approvals(failed, approval()), RULES, at).allowed
    told = may_repeat(failed, RULES, at)
    assert (told.allowed, told.why) == (False, UNAPPROVED)
    assert may_repeat(failed, RULES, at, authorised=True).allowed


# --- an operator's retry -------------------------------------------------------------------------


REVIEWED = tried(attempt(), state=State.MANUAL_REVIEW, cause=Cause.DEADLINE, needs_approval=True)


def retries(before, operator):
    return rule(before, RULES, now(T0 + HOUR), Word.RETRY, operator=operator, note="seen")


@pytest.mark.proves("APPROVAL-6")
def test_an_operators_retry_is_its_own_authorisation():
    assert retries(REVIEWED, "operator-1").sends
    given = replace(approval("operator-1", until=T0 + 2 * HOUR), retry=True)
    assert approved(with_approvals(REVIEWED, given), FOUR_EYES, T0 + HOUR)


@pytest.mark.proves("APPROVAL-6")
def test_the_retry_of_who_asked_for_it_authorises_nothing():
    with pytest.raises(DecisionRefused, match="does not stand"):
        retries(REVIEWED, "agent-1")
    stands = with_approvals(REVIEWED, approval("operator-2", until=T0 + 2 * HOUR))
    assert retries(stands, "agent-1").sends
    own = replace(approval("agent-1", until=T0 + 2 * HOUR), retry=True)
    assert not approved(with_approvals(REVIEWED, own), RULES, T0 + HOUR)


# --- while it waits ------------------------------------------------------------------------------


@pytest.mark.proves("APPROVAL-7")
@pytest.mark.parametrize("approved_by", [(), (approval(),)], ids=["waits", "approved"])
def test_nobody_is_asked_about_what_can_no_longer_be_carried_out(approved_by):
    waiting = replace(record(State.AWAITING_APPROVAL, needs_approval=True), approvals=approved_by)
    overtaken = replace(waiting, overtaken_by="newer")
    after = settled(overtaken, RULES, T0 + 1).operation
    assert (after.state, after.cause) == (State.REJECTED, Cause.OVERTAKEN)
    failed = Blocker(operation_id="b", state=State.FAILED)
    after = settled(replace(waiting, blockers=(failed,)), RULES, T0 + 1).operation
    assert (after.state, after.cause) == (State.REJECTED, Cause.AFTER_FAILED)


def test_an_approval_is_waited_for_before_anything_else():
    blocked = replace(NEEDS, blockers=(Blocker(operation_id="b", state=State.PREPARED),))
    step = decide(blocked, RULES, now(T0)).step
    assert step == Move(to=State.AWAITING_APPROVAL, cause=None)
