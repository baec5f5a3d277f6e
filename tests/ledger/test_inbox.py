"""The inbox's table: each event once, found without walking over the others."""

from collections.abc import Iterator

import pytest

from doubtless.core.model import Principal, Role
from doubtless.errors import LedgerError
from doubtless.ledger import inbox, metrics
from doubtless.ledger.inbox import Event, Unmatched
from doubtless.ledger.store import Ledger, Transaction, open_ledger

OPERATOR = Principal(name="ops", role=Role.OPERATOR)


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with open_ledger("sqlite://", inline=True) as found:
        yield found


def insert(tx: Transaction, event_id: str = "e1", **changes) -> Event:
    said = {
        "source": "payments",
        "event_id": event_id,
        "type": "paid",
        "delivered_by": "payments",
        "occurred_ms": 7,
        "digest": "d" * 64,
        "content": b"{}",
    }
    return inbox.insert(tx, "main", **{**said, **changes})


def test_what_was_inserted_is_found_by_id_and_by_place(ledger):
    event = ledger.write(insert)
    assert event.reason is Unmatched.NO_OPERATION
    for found in (
        ledger.read(lambda tx: inbox.by_event_id(tx, "main", "payments", "e1")),
        ledger.read(lambda tx: inbox.at(tx, "main", event.position)),
    ):
        assert found == event
    assert ledger.read(lambda tx: inbox.content(tx, "main", event.position)) == b"{}"
    assert ledger.read(lambda tx: inbox.at(tx, "main", 99)) is None
    assert ledger.read(lambda tx: inbox.content(tx, "main", 99)) is None


@pytest.mark.proves("INBOX-4")
def test_a_source_has_each_event_id_once_and_another_source_its_own(ledger):
    ledger.write(insert)
    with pytest.raises(LedgerError):
        ledger.write(insert)
    ledger.write(lambda tx: insert(tx, source="elsewhere"))
    assert len(ledger.read(lambda tx: inbox.named(tx, "main", "e1"))) == 2


def test_an_event_is_found_by_its_values_until_it_is_matched(ledger: Ledger) -> None:
    def unit(tx: Transaction) -> Event:
        event = insert(tx)
        values = {"refund": {"ref": "r", "provider_operation_id": "p"}, "charge": {"ref": "r"}}
        return inbox.wait(tx, "main", event, Unmatched.NO_OPERATION, values)

    event = ledger.write(unit)

    def found(tool: str, **values: str) -> list[Event]:
        return ledger.read(lambda tx: inbox.waiting_for(tx, "main", "payments", tool, values))

    assert found("refund", ref="r", provider_operation_id="p") == [event]
    assert found("charge", ref="r") == [event]
    assert found("charge", provider_operation_id="p") == []
    assert found("refund", ref="p") == []
    ledger.write(lambda tx: tx.run("delete from event_value where tenant = 'main'"))
    assert found("refund", ref="r") == []


def test_a_copy_and_an_operation_that_is_not_there_are_not_matched(ledger: Ledger) -> None:
    first = ledger.write(insert)
    copy = ledger.write(lambda tx: insert(tx, "e2", copy_of=first.position))
    assert (copy.reason, copy.copy_of) == (None, first.position)

    def match(event: Event) -> Event | None:
        return ledger.write(lambda tx: inbox.match(tx, "main", event, "o1", principal=OPERATOR))

    assert match(copy) is None
    with pytest.raises(LedgerError):
        match(first)
    assert ledger.read(lambda tx: inbox.unmatched_counts(tx, "main")) == {Unmatched.NO_OPERATION: 1}


@pytest.mark.proves("INBOX-14")
@pytest.mark.parametrize(
    ("sql", "index"),
    [
        (inbox.BY_ID, "sqlite_autoindex_event_1 (tenant=? AND source=? AND event_id=?)"),
        (inbox.BY_POSITION, "INTEGER PRIMARY KEY"),
        (inbox.NEWS, "PRIMARY KEY (tenant=? AND source=? AND tool=? AND news=?)"),
        (inbox.WAITING_FOR, "INTEGER PRIMARY KEY"),
        (inbox.UNTOLD, "event_untold (tenant=? AND source=? AND type=?)"),
        (inbox.MATCH, "INTEGER PRIMARY KEY"),
        (inbox.FORGET_VALUES, "event_value_event"),
        (inbox.OF_OPERATION, "event_operation"),
        (inbox.LIST.replace("{conditions}", inbox.UNMATCHED), "event_unmatched"),
        (inbox.LIST.replace("{conditions}", "and source = :source"), "event_source"),
        (metrics.UNMATCHED, "event_waiting"),
    ],
)
def test_a_million_events_stand_in_nobodys_way(ledger, sql, index):
    names = ("tenant", "source", "event_id", "position", "tool", "name", "value", "news", "type")
    more = ("limit", "operation_id", "matched_ms", "matched_by", "event")
    params = {name: None for name in (*names, *more) if f":{name}" in sql}
    plan = ledger.read(lambda tx: tx.tuples(f"explain query plan {sql}", **params))
    text = "\n".join(str(row[3]) for row in plan)
    assert "SCAN" not in text, text
    assert f"event USING INDEX {index}" in text or index in text, text
    assert "event USING INDEX sqlite_autoindex_event_1 (tenant=?)" not in text, text
