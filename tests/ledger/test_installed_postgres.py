"""What is promised of ledgers once more, on the PostgreSQL that Debian installed, where it did.

The wheel's is a newer one: between them they span what is supported.
"""

import pytest
from tests.ledger import samples, test_operations, test_store
from tests.postgres import Installed

from doubtless.testing import postgres_server

PROGRAMS = postgres_server.from_debian()


@pytest.fixture(scope="module")
def postgres():
    """The installed server, in place of the wheel's."""
    assert PROGRAMS is not None
    with postgres_server.scratch() as folder:
        server = Installed(folder / "installed", PROGRAMS)
        yield server
        server.stop()


@pytest.fixture
def database() -> str:
    return "postgres"


@pytest.fixture
def made(memory):
    return memory.write(lambda tx: samples.begin(tx, samples.operation("op")))


def _is_general(test: object) -> bool:
    """Whether a test is about ledgers of every kind."""
    marks = getattr(test, "pytestmark", [])
    return all(mark.args[:1] != ("database",) for mark in marks)


if PROGRAMS is not None:
    for module in (test_operations, test_store):
        tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
        globals().update({name: test for name, test in tests.items() if _is_general(test)})
