"""Ledgers to test with. What is promised of ledgers holds of both kinds: each test runs on both."""

import uuid
from collections.abc import Iterator

import pytest
from tests.postgres import Postgres, folder_of_run

from doubtless.ledger.store import Ledger, open_ledger


@pytest.fixture(params=["sqlite", "postgres"])
def database(request) -> str:
    """The kind of ledger. `samples.ON_SQLITE` is for tests about SQLite's files."""
    return str(request.param)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def url(request, database, path) -> str:
    """The address of a ledger that nobody has opened yet; on PostgreSQL it is there, and empty."""
    if database == "postgres":
        return str(request.getfixturevalue("postgres").empty())
    return f"sqlite:///{path}"


@pytest.fixture
def absent(request, database, path) -> str:
    """The address of a ledger that doesn't exist."""
    if database == "postgres":
        return str(request.getfixturevalue("postgres").fresh())
    return f"sqlite:///{path}"


@pytest.fixture
def ledger(url) -> Iterator[Ledger]:
    """A ledger on disk, with its thread."""
    with open_ledger(url) as found:
        yield found


@pytest.fixture
def memory(request, database) -> Iterator[Ledger]:
    """A ledger without a thread, for what needs no concurrency; on SQLite it is in memory."""
    url = request.getfixturevalue("postgres").empty() if database == "postgres" else "sqlite://"
    with open_ledger(url, inline=True) as found:
        yield found


@pytest.fixture(scope="session")
def own() -> Iterator[Postgres]:
    """A server for what no other test may see: crashes, and settings of the whole server."""
    server = Postgres(folder_of_run(uuid.uuid4().hex[:12]), "own")
    yield server
    server.stop()
