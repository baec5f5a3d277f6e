"""The scale measurement: what it loads looks as if the engine had written it."""

import anyio
import pytest

from doubtless.ledger import journal, migrate, operations
from doubtless.ledger.journal import replay
from doubtless.ledger.store import open_ledger
from doubtless.testing import scale, scale_load

SHAPE = """
    select kind, count(*), min(length(id)), max(length(id)), min(length(ref)), max(length(key))
      from (select tool || state as kind, id, ref, key from operation where tenant = 'main') as all_
  group by kind
  order by kind
"""


@pytest.mark.proves("SCALE-8")
@pytest.mark.long
def test_loaded_operations_are_shaped_as_the_engines_own(postgres):
    url = postgres.fresh()
    open_ledger(url).close()
    anyio.run(scale_load.carry_out_patterns, url)
    with open_ledger(url, inline=True) as ledger:
        own = ledger.read(lambda tx: tx.tuples(SHAPE))
    scale_load.fill(url, 60, told=lambda _: None)
    anyio.run(scale_load.leave_open, url, 4)
    with open_ledger(url, inline=True) as ledger:
        made = {row[0]: row[1:] for row in ledger.read(lambda tx: tx.tuples(SHAPE))}
        for kind, _, *lengths in own:
            assert made[kind][1:] == tuple(lengths)
        counts = [made[kind][0] for kind, *_ in own]
        assert counts == [51, 3, 6]  # refunds, refusals, tickets
        listed = ledger.read(lambda tx: operations.load(tx, "main", sample(tx)))
        assert listed is not None
        entries = ledger.read(lambda tx: journal.journal_of(tx, "main", listed.operation.id))
        again = replay(entries).operation
        assert (again.id, again.ref, again.key) == (
            listed.operation.id, listed.operation.ref, listed.operation.key,
        )  # fmt: skip
        assert [attempt.number for attempt in listed.attempts] == [1]
        assert len(listed.evidence) == 1
    taken = anyio.run(scale.measure, url, url, 1)
    assert {"call", "claim", "dashboard"} < {each.name for each in taken}
    table = scale.table(taken, 60)
    assert len(table) == len(taken) + 4
    connection = migrate.open_connection(migrate.parse(url))
    assert connection.execute("select count(*) from pg_index where not indisvalid", {}) == [(0,)]
    connection.close()


def sample(tx) -> str:
    rows = tx.tuples("select id from operation where tenant = 'main' and position = 7")
    return str(rows[0][0])
