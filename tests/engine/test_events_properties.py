"""Whatever order events come in, and however often: one truth, and each news counted once."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.core.model import (
    Cause,
    Json,
    Observation,
    Operation,
    Principal,
    Role,
    Seen,
    Source,
    Stage,
    State,
)
from doubtless.engine import drafting, ingest, intake, steps
from doubtless.engine.book import Begun, Book
from doubtless.engine.contracts import build_contract
from doubtless.engine.events import arrived_event
from doubtless.engine.registry import Registry, Tool
from doubtless.engine.surroundings import Surroundings
from doubtless.ledger import inbox, operations
from doubtless.ledger.attempts import evidence_of
from doubtless.ledger.store import open_ledger

T0 = 1_700_000_000_000
AGENT = Principal(name="agent", role=Role.AGENT)
QUEUE = Principal(name="queue", role=Role.WORKER)
CONTRACT = build_contract(
    "act",
    arguments_schema={"type": "object"},
    effect="write",
    source="payments",
    timeout="2s",
    events={
        "types": ["moved"],
        "match": {"operation_id": "name", "provider_operation_id": "id"},
        "object": ["id", "version"],
        "applied": "status == 'done'",
        "failed": "status == 'failed'",
    },
)

News = tuple[str, int]  # status and version; a version happened at a time of its own, 0 at none
Sent = tuple[News, int]  # and under which event id of its several

STATUSES = ("done", "failed", "pending")
news = st.tuples(st.sampled_from(STATUSES), st.integers(0, 3))


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[list[Sent], list[Sent]]:
    """Draw news and what is sent of it, in two orders: doubled, under several ids, shuffled."""
    told = draw(st.lists(news, min_size=1, max_size=5, unique=True))
    once = [(each, 0) for each in told]
    more = draw(st.lists(st.tuples(st.sampled_from(told), st.integers(0, 2)), max_size=8))
    return once, draw(st.permutations([*once, *more]))


class Telling:
    """One operation on a ledger of its own, and what is told of it."""

    def __init__(self) -> None:
        registry = Registry()
        self.tool = Tool(contract=CONTRACT)
        registry.add(self.tool)
        self._clock = count(T0)
        self._ledger = open_ledger("sqlite://", clock=lambda: next(self._clock), inline=True)
        self.book = Book(registry, Surroundings(), self._ledger.id)

    def tell(self, sent: Sent) -> ingest.Taken:
        (status, version), copy = sent
        event: dict[str, Json] = {
            "type": "moved",
            "name": "o1",
            "id": "p1",
            "version": version,
            "status": status,
        }
        arrived = arrived_event(
            self.book.registry,
            "payments",
            event,
            event_id=f"{status} {version} {copy}",
            occurred_at=(T0 / 1000 + version) if version else None,
        )
        return self._ledger.write(
            lambda tx: ingest.take_in(self.book, tx, arrived, delivered_by=QUEUE)
        )

    def call(self) -> Begun:
        ask = drafting.draft(self.book, self.tool, {}, principal=AGENT, operation_id="o1")
        begun = self._ledger.write(lambda tx: intake.prepare(self.book, tx, ask)).begun
        assert begun is not None, "an early event doesn't stop the send"
        opened = self._ledger.write(lambda tx: steps.open_gate(self.book, tx, begun, mark=True))
        assert isinstance(opened, steps.Opened), opened
        return begun

    def lose(self, begun: Begun) -> None:
        """End the attempt without an answer."""
        seen = Observation(seen=Seen.UNKNOWN, stage=Stage.SENT, cause=Cause.TIMEOUT)
        ending = steps.Ending(observation=seen, sent_by_ms=next(self._clock))
        self._ledger.write(lambda tx: steps.finish(self.book, tx, begun, ending))

    def operation(self) -> Operation:
        found = self._ledger.read(lambda tx: operations.get(tx, "main", "o1"))
        assert found is not None
        return found

    def counted(self) -> list[tuple[str, int | None]]:
        """Return what webhooks showed, and of when."""
        items = self._ledger.read(lambda tx: evidence_of(tx, "main", "o1"))
        told = [item for item in items if item.source is Source.WEBHOOK]
        return sorted((item.shows.value, item.occurred_ms or 0) for item in told)

    def waiting(self) -> list[inbox.Event]:
        return self._ledger.read(lambda tx: inbox.listed(tx, "main", matched=False, limit=99))

    def close(self) -> None:
        self._ledger.close()


def expected(told: Sequence[News]) -> State:
    """Say what all news together means, by the words of the model and not by our code."""
    done = [version for status, version in told if status == "done"]
    failed = [
        version
        for status, version in told
        if status == "failed" and not (version and any(other > version for other in done))
    ]
    if done and failed:
        return State.MANUAL_REVIEW
    if done or failed:
        return State.SUCCEEDED if done else State.FAILED
    return State.ACCEPTED


def names(told: Sequence[News]) -> list[tuple[str, int]]:
    shows = {"done": "applied", "failed": "not_applied", "pending": "in_progress"}
    return sorted(
        (shows[status], T0 + version * 1000 if version else 0) for status, version in told
    )


@pytest.mark.proves("INBOX-11")
@settings(max_examples=40)
@given(sent=deliveries(), early=st.integers(0, 13))
def test_events_before_the_end_of_an_attempt_mean_the_same_in_any_order(sent, early):
    once, order = sent
    telling = Telling()
    for each in order[:early]:
        telling.tell(each)
    begun = telling.call()
    for each in order[early:]:
        telling.tell(each)
    assert telling.operation().state is State.EXECUTING
    telling.lose(begun)
    told = [each for each, _ in once]
    assert telling.operation().state is expected(told)
    assert telling.counted() == names(told)
    assert telling.waiting() == []
    telling.close()


@pytest.mark.proves("INBOX-11")
@settings(max_examples=40)
@given(sent=deliveries())
def test_events_one_by_one_end_the_same_unless_a_failure_had_counted_meanwhile(sent):
    once, order = sent
    telling = Telling()
    telling.lose(telling.call())
    failure_counted = False
    for each in order:
        telling.tell(each)
        failure_counted |= telling.operation().state in (State.FAILED, State.MANUAL_REVIEW)
    told = [each for each, _ in once]
    state = telling.operation().state
    if failure_counted and expected(told) is State.SUCCEEDED:
        # Its caller was told that it failed, or a person was asked already: a person decides.
        assert state is State.MANUAL_REVIEW
    else:
        assert state is expected(told)
    assert telling.counted() == names(told)
    telling.close()


@pytest.mark.proves("INBOX-11")
@given(sent=deliveries(), again=st.data())
def test_events_again_change_nothing_however_it_stands(sent, again):
    _, order = sent
    telling = Telling()
    telling.lose(telling.call())
    for each in order:
        telling.tell(each)
    before, counted = telling.operation(), telling.counted()
    for each in again.draw(st.permutations(order)):
        taken = telling.tell(each)
        assert not taken.new
    assert (telling.operation(), telling.counted()) == (before, counted)
    telling.close()


def test_a_copy_that_comes_first_is_the_news_and_the_other_the_copy():
    telling = Telling()
    first: Any = telling.tell((("done", 1), 2))
    second: Any = telling.tell((("done", 1), 0))
    assert second.event.copy_of == first.event.position
    telling.close()
