"""Migrate a ledger, killed at every point in turn: `python -m tests.ledger.migrating URL`.

Each time the next run goes on, and then all is taken back for the next point. The number of points
is printed at the end.
"""

import os
import signal
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from tests.ledger import made_up, tables

from doubtless.ledger import migrate
from doubtless.ledger.steps import OUTGROWN
from doubtless.ledger.store import open_ledger

BACK = (
    "drop table made_up",
    "alter table operation drop column made_up",
    "delete from migration where tenant = 'main' and number > {last}",
)


def main(url: str) -> int:
    database = url.partition(":")[0].removesuffix("ql")
    last = made_up.released(database)[-1].number
    known = (*made_up.released(database), *made_up.steps(database))
    open_ledger(url).close()
    # A server's points are many and dear; a death after one is much like one before the next.
    stride = 1 if database == "sqlite" else 2
    points = 0
    with mock.patch.object(migrate, "known", return_value=known):
        while killed(url, 1 + points * stride):
            migrate.migrate(url, post=True)
            check(url)
            back(url, last)
            points += 1
        check(url)
    print(points)
    return 0


def killed(url: str, point: int) -> bool:
    """Migrate in another process, which dies before its call of that number to the database."""
    child = os.fork()
    if child == 0:
        connection = migrate.open_connection(migrate.parse(url))
        count(type(connection), point)
        connection.close()
        migrate.migrate(url, post=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert status == 0
    return False


def count(connection: type, point: int) -> None:
    left = point

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*given)

        return run

    for name in ("execute", "script", "commit"):
        setattr(connection, name, counted(getattr(connection, name)))


def check(url: str) -> None:
    """See that all is there, once."""
    connection = migrate.open_connection(migrate.parse(url))
    try:
        assert migrate.pending(url) == []
        rows = "select count(*) from made_up where tenant = 'main'"
        assert connection.execute(rows, {}) == [(1,)]
        assert {"made_up_a", "made_up_b"} <= tables.others(connection)
        assert "made_up" in tables.columns(connection)["operation"]
        assert connection.execute(OUTGROWN, {"known": 0})
    finally:
        connection.close()


def back(url: str, last: int) -> None:
    connection = migrate.open_connection(migrate.parse(url))
    for statement in BACK:
        connection.script(statement.format(last=last))
    connection.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
