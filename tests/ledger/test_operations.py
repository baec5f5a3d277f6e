"""Operations: stored as given, changed by compare-and-set alone, never lost."""

import threading
from dataclasses import fields, replace

import pytest
from tests.ledger import samples

from doubtless.core.model import (
    Blocker,
    Cause,
    Effect,
    Observation,
    Seen,
    Stage,
    State,
)
from doubtless.errors import IllegalTransition, LedgerError, OperationNotFound, StaleVersion
from doubtless.ledger import attempts, bodies, claims, journal, listing, meta, operations

FULL = samples.operation(
    "full",
    effect=Effect.BOOKING,
    correlation_id="call-1",
    owner="worker-1",
    lease_end_ms=5,
    cause=Cause.TIMEOUT,
    origin=State.ACCEPTED,
    state=State.RECONCILING,
    deadline_ms=6,
    accepted_ms=7,
    completes_by_ms=8,
    not_before_ms=9,
    looks=1,
    budget_from=3,
    provider_operation_id="pr-ø",
    status_url="https://example.test/1",
    confirmed_state="accepted",
    confirmed_ms=10,
    confirmed_source="webhook",
    supersedes="a",
    superseded_by="b",
    duplicate_of="c",
    on_unknown="continue",
    needs_approval=True,
)


def load(ledger, operation_id: str, **options):
    return ledger.read(lambda tx: operations.load(tx, "main", operation_id, **options))


def get(ledger, operation_id: str):
    return ledger.read(lambda tx: operations.get(tx, "main", operation_id))


def entries(ledger, operation_id: str):
    return ledger.read(lambda tx: journal.journal_of(tx, "main", operation_id))


@pytest.fixture
def made(memory):
    return memory.write(lambda tx: samples.begin(tx, samples.operation("op")))


@pytest.mark.parametrize("operation", [FULL, samples.operation("plain")])
def test_an_operation_comes_back_equal(memory, operation):
    assert None not in [getattr(FULL, field.name) for field in fields(FULL)]
    memory.write(lambda tx: samples.insert(tx, operation))
    assert get(memory, operation.id) == operation


def test_an_operation_of_another_tenant_is_not_seen(memory):
    memory.write(lambda tx: samples.insert(tx, samples.operation("op", tenant="other")))
    assert get(memory, "op") is None
    assert entries(memory, "op") == []
    assert memory.read(lambda tx: listing.find(tx, "main")).operations == ()
    assert memory.read(lambda tx: operations.due(tx, "main", 10**13, 9, list(State))) == []
    assert memory.read(lambda tx: operations.get(tx, "other", "op")) is not None


def test_an_id_is_taken_once_in_each_tenant(memory, made):
    with pytest.raises(LedgerError, match="UNIQUE"):
        memory.write(lambda tx: samples.insert(tx, made))
    memory.write(lambda tx: samples.insert(tx, replace(made, tenant="other")))


def test_bodies_stand_apart_and_the_journal_holds_their_digests(memory, made):
    body = memory.read(lambda tx: bodies.body(tx, "main", "op", "request"))
    assert body == b"POST /refunds HTTP/1.1"
    first = entries(memory, "op")[0]
    assert first.kind is journal.Kind.PREPARED
    assert set(first.data["bodies"]) == {"payload", "request"}
    assert "POST" not in str(first.data)
    assert memory.read(lambda tx: bodies.contract(tx, "main", "c" * 64)) == "{}"
    assert memory.read(lambda tx: bodies.body(tx, "main", "op", "reply", 1)) is None
    for content in (b"one", b"two"):
        memory.write(lambda tx, c=content: bodies.put_body(tx, "main", "op", "reply", 1, c))
    assert memory.read(lambda tx: bodies.body(tx, "main", "op", "reply", 1)) == b"two"


def test_saving_raises_the_version_sets_the_time_and_journals_what_changed(memory, made):
    saved = memory.write(lambda tx: samples.save(tx, made, state=State.UNKNOWN, fence=2))
    assert saved == get(memory, "op")
    assert saved.version == made.version + 1
    last = entries(memory, "op")[-1]
    assert last.kind is journal.Kind.TRANSITION
    assert last.principal == samples.WORKER
    assert last.at_ms == saved.updated_ms
    assert last.data["from"] == "executing"
    assert last.data["reason"] == "because"
    assert last.data["inputs"] == {"stage": "sent"}
    assert set(last.data["operation"]) - {"updated_ms"} == {"state", "fence", "version"}


def test_a_change_of_something_else_than_the_state_is_a_decision(memory, made):
    memory.write(lambda tx: samples.save(tx, made, looks=3))
    assert entries(memory, "op")[-1].kind is journal.Kind.DECISION


def test_of_two_writers_exactly_one_wins(ledger):
    made = ledger.write(lambda tx: samples.begin(tx, samples.operation("op")))
    outcomes, lost = [], []

    def write(looks: int) -> None:
        try:
            ledger.write(lambda tx: samples.save(tx, made, looks=looks))
            outcomes.append(looks)
        except StaleVersion as stale:
            lost.append((stale.expected, stale.version))

    threads = [threading.Thread(target=write, args=(looks,)) for looks in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [get(ledger, "op").looks] == outcomes
    assert lost == [(made.version, made.version + 1)] * 2
    assert len(entries(ledger, "op")) == 4


def test_saving_what_does_not_exist_says_so(memory):
    nobody = samples.operation("nobody")
    with pytest.raises(OperationNotFound):
        memory.write(lambda tx: samples.save(tx, nobody, looks=1))


@pytest.mark.parametrize(
    "change",
    [
        {"fence": 0},
        {"due_ms": None},
        {"state": State.UNKNOWN, "due_ms": None},
        {"key": "another"},
        {"payload_hash": "another"},
        {"request_digest": "another"},
        {"id": "another"},
        {"tenant": "another"},
        {"created_ms": 1},
    ],
)
def test_a_step_that_would_break_every_steps_rules_is_refused(memory, made, change):
    with pytest.raises(IllegalTransition):
        memory.write(lambda tx: samples.save(tx, made, **change))
    assert get(memory, "op") == made


def test_a_lease_raises_the_fence_and_is_due_at_its_end(memory, made):
    assert (made.fence, made.owner, made.due_ms) == (1, "worker-1", made.lease_end_ms)


def test_each_end_of_an_operation_is_one_settlement(memory, made):
    def settle(tx) -> None:
        ended = samples.end(tx, "op")
        review = samples.save(tx, ended, state=State.MANUAL_REVIEW, due_ms=99)
        samples.save(tx, review, state=State.FAILED, due_ms=None)
        samples.insert(tx, samples.operation("no", state=State.REJECTED, due_ms=None))

    memory.write(settle)
    every = memory.read(lambda tx: listing.settlements(tx, "main"))
    assert [(item.operation_id, item.state) for item in every] == [
        ("op", State.SUCCEEDED),
        ("op", State.FAILED),
        ("no", State.REJECTED),
    ]
    after = memory.read(lambda tx: listing.settlements(tx, "main", after=every[0].seq, limit=1))
    assert after == [every[1]]
    assert memory.read(lambda tx: listing.settlements(tx, "main", principal="another")) == []


def test_a_record_holds_all_that_was_seen(memory, made):
    def fill(tx) -> None:
        samples.end(tx, "op")
        samples.insert(tx, samples.operation("next"), after=("op",))
        attempts.add_approval(tx, "main", "op", samples.approval(), principal=samples.OPERATOR)

    memory.write(fill)
    record = load(memory, "op")
    assert [item.observation for item in record.attempts] == [samples.SEEN_SUCCEEDED]
    assert [item.number for item in record.evidence] == [1]
    assert record.approvals == (samples.approval(),)
    assert load(memory, "next").blockers == (Blocker(operation_id="op", state=State.SUCCEEDED),)
    assert load(memory, "nobody") is None


def test_a_record_says_who_holds_its_object(memory, made):
    memory.write(lambda tx: samples.insert(tx, samples.operation("late", claim=made.claim)))
    assert load(memory, "op").object_taken_by is None
    assert load(memory, "late").object_taken_by == "op"


def test_where_the_latest_wins_siblings_are_told_by_the_order_of_creation(memory, made):
    def more(tx) -> None:
        for name in ("second", "third"):
            samples.insert(tx, samples.operation(name, claim=made.claim))

    memory.write(more)
    facts = {
        name: (record.waits_for, record.overtaken_by)
        for name in ("op", "second", "third")
        if (record := load(memory, name, latest_wins=True))
    }
    assert facts == {"op": (None, "third"), "second": ("op", "third"), "third": ("op", None)}
    assert load(memory, "second").overtaken_by is None


def test_where_the_latest_wins_an_ended_sibling_is_waited_for_while_its_claim_holds(memory, made):
    def work(tx) -> None:
        samples.save(tx, made, state=State.FAILED, due_ms=None)
        claims.release_claim(
            tx, "main", made.source, made.claim, "op", release_ms=tx.now_ms + 60_000
        )
        samples.insert(tx, samples.operation("second", claim=made.claim))

    memory.write(work)
    assert load(memory, "second", latest_wins=True).waits_for == "op"


def test_a_failed_operation_knows_the_first_later_one_of_equal_content(memory, made):
    def more(tx) -> None:
        samples.save(tx, made, state=State.FAILED, due_ms=None)
        same = {"claim": made.claim, "payload_hash": made.payload_hash}
        samples.insert(tx, samples.operation("other", claim=made.claim))
        for name in ("first", "second"):
            samples.insert(tx, samples.operation(name, **same))

    memory.write(more)
    assert load(memory, "op").newer_twin == "first"
    assert load(memory, "first").newer_twin is None


def test_an_attempt_ends_once(memory, made):
    late = Observation(seen=Seen.UNKNOWN, stage=Stage.SENT, cause=Cause.CRASH)

    def end(tx, observation: Observation) -> bool:
        return attempts.end_attempt(
            tx,
            "main",
            "op",
            1,
            observation=observation,
            sent_by_ms=None,
            ended_ms=5,
            closed_ms=None,
            principal=samples.WORKER,
        )

    assert memory.write(lambda tx: end(tx, samples.SEEN_SUCCEEDED))
    before = len(entries(memory, "op"))
    assert not memory.write(lambda tx: end(tx, late))
    assert len(entries(memory, "op")) == before
    assert load(memory, "op").attempts[0].observation == samples.SEEN_SUCCEEDED


def test_an_attempt_is_closed_once(memory, made):
    def close(tx) -> bool:
        return attempts.close_attempt(tx, "main", "op", 1, closed_ms=7, principal=samples.WORKER)

    assert memory.write(close)
    assert not memory.write(close)
    assert load(memory, "op").attempts[0].closed_ms == 7


@pytest.mark.parametrize("fence", [0, 1, 2])
def test_only_the_holder_of_the_fence_may_mark_an_attempt_as_sending(memory, made, fence):
    allowed = memory.write(
        lambda tx: attempts.mark_sending(
            tx, "main", "op", 1, fence=fence, sent_by_ms=6, principal=samples.WORKER
        )
    )
    assert allowed is (fence == made.fence)
    assert load(memory, "op").attempts[0].sent_by_ms == (6 if allowed else None)


def test_nothing_is_marked_as_sending_once_the_operation_left_executing(memory, made):
    memory.write(lambda tx: samples.save(tx, made, state=State.UNKNOWN))
    assert not memory.write(
        lambda tx: attempts.mark_sending(
            tx, "main", "op", 1, fence=made.fence, sent_by_ms=6, principal=samples.WORKER
        )
    )


def test_evidence_is_numbered_in_the_order_of_recording(memory, made):
    def add(tx) -> int:
        item = samples.evidence(number=77)
        return attempts.add_evidence(tx, "main", "op", item, principal=samples.WORKER).number

    assert [memory.write(add) for _ in range(3)] == [1, 2, 3]


def test_a_refusal_is_journalled_and_changes_nothing(memory, made):
    memory.write(
        lambda tx: journal.refuse(
            tx,
            "main",
            "op",
            Cause.PAYLOAD_MISMATCH,
            principal=samples.AGENT,
            data={"digest": "e" * 64},
        )
    )
    last = entries(memory, "op")[-1]
    assert (last.kind, last.data["code"]) == (journal.Kind.REFUSAL, "payload_mismatch")
    assert get(memory, "op") == made


def test_due_operations_come_longest_overdue_first_and_only_in_the_states_asked_for(memory):
    def fill(tx) -> None:
        for name, due_ms in (("c", 3), ("a", 1), ("b", 2), ("later", 9)):
            samples.insert(tx, samples.operation(name, due_ms=due_ms))
        samples.insert(tx, samples.operation("unknown", due_ms=1, state=State.UNKNOWN))
        samples.insert(tx, samples.operation("over", due_ms=1, state=State.FAILED))

    memory.write(fill)

    def due(limit: int, *states: State) -> list[str]:
        found = memory.read(lambda tx: operations.due(tx, "main", 5, limit, states))
        return [operation.id for operation in found]

    assert due(9, State.PREPARED) == ["a", "b", "c"]
    assert due(2, State.PREPARED) == ["a", "b"]
    assert due(9, State.UNKNOWN, State.FAILED) == ["unknown"]


def test_an_object_is_claimed_by_one_operation_at_a_time(memory):
    def take(operation_id: str, now_ms: int = 100):
        return memory.write(
            lambda tx: claims.take_claim(tx, "main", "payments", "key", operation_id, now_ms)
        )

    def release(operation_id: str, release_ms: int | None = None):
        return memory.write(
            lambda tx: claims.release_claim(
                tx, "main", "payments", "key", operation_id, release_ms=release_ms
            )
        )

    for name in ("a", "b"):
        memory.write(lambda tx, name=name: samples.insert(tx, samples.operation(name)))
    assert take("a") is None
    assert take("a") is None
    assert take("b") == "a"
    assert not release("b")
    assert release("a", release_ms=200)
    assert take("b", now_ms=199) == "a"
    assert take("b", now_ms=200) is None
    assert take("a", now_ms=300) == "b"
    assert release("b")
    assert take("a") is None


def test_lists_go_on_where_the_last_page_ended(memory):
    def fill(tx) -> None:
        for number in range(7):
            tool = "refund" if number % 2 else "ticket"
            samples.insert(tx, samples.operation(f"op-{number}", tool=tool))

    memory.write(fill)
    found, cursor = [], None
    for _ in range(4):
        page = memory.read(lambda tx, c=cursor: listing.find(tx, "main", limit=3, cursor=c))
        found += [operation.id for operation in page.operations]
        if (cursor := page.cursor) is None:
            break
    assert found == [f"op-{number}" for number in reversed(range(7))]
    some = memory.read(
        lambda tx: listing.find(
            tx, "main", states=[State.PREPARED], filters={"tool": "refund", "source": "payments"}
        )
    )
    assert [operation.id for operation in some.operations] == ["op-5", "op-3", "op-1"]
    with pytest.raises(KeyError):
        memory.read(lambda tx: listing.find(tx, "main", filters={"detail": "x"}))


def test_a_session_tells_its_open_operations_and_its_newest(memory):
    def fill(tx) -> None:
        samples.insert(tx, samples.operation("old-and-open"))
        for number in range(3):
            samples.begin(tx, samples.operation(f"done-{number}"))
            samples.end(tx, f"done-{number}")
        samples.insert(tx, samples.operation("theirs", principal="agent-2"))
        samples.insert(tx, samples.operation("elsewhere", session_id="session-2"))

    memory.write(fill)

    def session(principal: str) -> list[str]:
        found = memory.read(
            lambda tx: listing.session(tx, "main", principal, "session-1", recent_max=2)
        )
        return [operation.id for operation in found]

    assert session("agent-1") == ["done-2", "done-1", "old-and-open"]
    assert session("agent-2") == ["theirs"]
    found = memory.read(lambda tx: listing.session_principals(tx, "main", "session-1"))
    assert found == {"agent-1", "agent-2"}
    found = memory.read(lambda tx: listing.session_principals(tx, "main", "session-2"))
    assert found == {"agent-1"}
    assert memory.read(lambda tx: listing.open_counts(tx, "main")) == {State.PREPARED: 3}


def test_a_succeeded_twin_is_found_by_content_within_a_session(memory):
    made = samples.operation("first")
    twin = {
        "source": made.source,
        "claim": made.claim,
        "principal": made.principal,
        "session_id": made.session_id,
        "tool": made.tool,
        "payload_hash": made.payload_hash,
    }

    def done_twin(since_ms: int, **changes):
        same = {**twin, **changes}
        found = memory.read(
            lambda tx: listing.latest_succeeded_twin(tx, "main", since_ms=since_ms, **same)
        )
        return found and found.id

    memory.write(lambda tx: samples.begin(tx, made))
    assert done_twin(0) is None
    settled = memory.write(lambda tx: samples.end(tx, "first"))
    assert done_twin(settled.updated_ms) == "first"
    assert done_twin(settled.updated_ms, session_id="session-2") is None
    assert done_twin(settled.updated_ms, tool="another") is None
    assert done_twin(settled.updated_ms + 1) is None


def test_an_operation_is_found_by_key_reference_and_the_providers_id(memory, made):
    settled = memory.write(lambda tx: samples.end(tx, "op"))
    assert memory.read(lambda tx: listing.by_key(tx, "main", made.key)) == [settled]
    assert memory.read(lambda tx: listing.by_ref(tx, "main", made.ref)) == settled
    found = memory.read(
        lambda tx: listing.by_provider_operation_id(tx, "main", "payments", "re_123")
    )
    assert found == [settled]
    assert memory.read(lambda tx: listing.by_ref(tx, "main", "nobody")) is None


def test_a_break_of_the_clock_is_kept_and_only_moves_forwards(memory):
    assert memory.read(meta.clock_break) == 0
    for at_ms in (50, 20):
        memory.write(lambda tx, at_ms=at_ms: meta.set_clock_break(tx, at_ms))
    assert memory.read(meta.clock_break) == 50
