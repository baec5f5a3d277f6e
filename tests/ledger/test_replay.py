"""Invariant 6: replaying the journal gives exactly the stored state."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ledger import samples

from doubtless.core.model import (
    TERMINAL,
    Approval,
    Attempt,
    Cause,
    Evidence,
    Observation,
    Seen,
    Shows,
    Source,
    Stage,
    State,
    Strength,
)
from doubtless.ledger import attempts, journal, operations
from doubtless.ledger.store import open_ledger

words = st.text(max_size=12).filter(lambda text: text.isprintable())
instants = st.integers(0, 2**53 - 1)
maybe = st.none() | instants
observations = st.builds(
    Observation,
    seen=st.sampled_from(Seen),
    stage=st.sampled_from(Stage),
    cause=st.none() | st.sampled_from(Cause),
    detail=words,
    status=st.none() | st.integers(100, 599),
    provider_operation_id=st.none() | words,
    status_url=st.none() | words,
    retry_after_ms=maybe,
    replayed=st.booleans(),
    key_in_progress=st.booleans(),
)
evidence = st.builds(
    Evidence,
    number=st.just(0),
    source=st.sampled_from(Source),
    shows=st.sampled_from(Shows),
    strength=st.sampled_from(Strength),
    at_ms=instants,
    begun_ms=instants,
    by=words,
    attempt=st.none() | st.integers(1, 10),
    occurred_ms=maybe,
    provider_operation_id=st.none() | words,
    detail=words,
    digest=st.none() | words,
)
approvals = st.builds(Approval, by=words, at_ms=instants, expires_ms=instants, digest=words)
changes = st.fixed_dictionaries(
    {},
    optional={
        "state": st.sampled_from(State),
        "owner": st.none() | words,
        "lease_end_ms": maybe,
        "cause": st.none() | st.sampled_from(Cause),
        "origin": st.none() | st.sampled_from(State),
        "deadline_ms": maybe,
        "not_before_ms": maybe,
        "looks": st.integers(0, 99),
        "provider_operation_id": st.none() | words,
        "confirmed_state": st.none() | words,
        "superseded_by": st.none() | words,
        "needs_approval": st.booleans(),
    },
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("save"), changes, st.integers(0, 2), instants),
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("mark"), st.booleans(), instants),
        st.tuples(st.just("end"), observations, maybe, instants, maybe),
        st.tuples(st.just("close"), instants),
        st.tuples(st.just("evidence"), evidence),
        st.tuples(st.just("approve"), approvals),
        st.tuples(st.just("refuse"), st.sampled_from(Cause)),
    ),
    max_size=12,
)


def carry_out(tx, step) -> None:
    """Do one step of a history to the operation "op"."""
    now = operations.get(tx, "main", "op")
    assert now is not None
    count = len(attempts.attempts_of(tx, "main", "op"))
    me = {"principal": samples.WORKER}
    match step:
        case ("save", changed, raised, due_ms):
            after = replace(now, **changed, fence=now.fence + raised)
            after = replace(after, due_ms=None if after.state in TERMINAL else due_ms)
            operations.save(tx, now, after, reason="drawn", inputs={"a": [1, None]}, **me)
        case ("open", resend):
            opened: Attempt = samples.attempt(count + 1, resend=resend)
            attempts.open_attempt(tx, "main", "op", opened, **me)
        case ("mark", ours, at_ms):
            fence = now.fence if ours else now.fence + 1
            attempts.mark_sending(tx, "main", "op", count, fence=fence, sent_by_ms=at_ms, **me)
        case ("end", observation, sent_by_ms, ended_ms, closed_ms):
            attempts.end_attempt(
                tx,
                "main",
                "op",
                count,
                observation=observation,
                sent_by_ms=sent_by_ms,
                ended_ms=ended_ms,
                closed_ms=closed_ms,
                **me,
            )
        case ("close", at_ms):
            attempts.close_attempt(tx, "main", "op", count, closed_ms=at_ms, **me)
        case ("evidence", item):
            attempts.add_evidence(tx, "main", "op", item, **me)
        case ("approve", approval):
            attempts.add_approval(tx, "main", "op", approval, principal=samples.WORKER)
        case ("refuse", code):
            journal.refuse(tx, "main", "op", code, data={"operation": "other"}, **me)
        case _:
            raise AssertionError(step)


@settings(max_examples=120)
@given(steps, st.booleans())
def test_replaying_the_journal_gives_exactly_the_stored_state(history, approval_needed):
    check("sqlite://", history, approval_needed=approval_needed)


@settings(max_examples=10)
@given(steps, st.booleans())
def test_replaying_the_journal_of_a_server_gives_the_same(postgres, history, approval_needed):
    check(postgres.empty(), history, approval_needed=approval_needed)


def check(url, history, *, approval_needed: bool) -> None:
    with open_ledger(url, inline=True) as ledger:
        made = samples.operation("op", needs_approval=approval_needed)
        ledger.write(lambda tx: samples.insert(tx, samples.operation("before")))
        ledger.write(lambda tx: samples.insert(tx, made, after=("before",)))
        for step in history:
            ledger.write(partial(carry_out, step=step))
        record = ledger.read(lambda tx: operations.load(tx, "main", "op"))
        replayed = ledger.read(lambda tx: journal.replay(journal.journal_of(tx, "main", "op")))
    assert record is not None
    assert replayed.operation == record.operation
    assert replayed.attempts == record.attempts
    assert replayed.evidence == record.evidence
    assert replayed.approvals == record.approvals
    assert replayed.after == ("before",)


def test_a_journal_without_its_beginning_is_refused(memory):
    memory.write(
        lambda tx: journal.refuse(
            tx, "main", "nobody", Cause.POLICY, principal=samples.AGENT, data={}
        )
    )
    with pytest.raises(ValueError, match="preparation"):
        memory.read(lambda tx: journal.replay(journal.journal_of(tx, "main", "nobody")))
