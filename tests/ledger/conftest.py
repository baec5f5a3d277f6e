"""Ledgers to test with."""

from collections.abc import Iterator

import pytest

from doubtless.ledger.store import Ledger, open_ledger


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def url(path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def ledger(url) -> Iterator[Ledger]:
    """A ledger on disk, with its thread."""
    with open_ledger(url) as found:
        yield found


@pytest.fixture
def memory() -> Iterator[Ledger]:
    """A ledger in memory, without a thread: for what needs neither disk nor concurrency."""
    with open_ledger("sqlite://", inline=True) as found:
        yield found
