"""A provider, and applications with one tool of it, for the engines."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.children import Nursery
from tests.scenarios.contracts import Changes, write_file

from doubtless import BlockingDoubtless, Doubtless
from doubtless.testing.provider import ProviderProcess, spawn_provider

LONG: Changes = {"timeout": "20s", "recovery_deadline": "90s"}


@pytest.fixture(scope="session")
def running_provider() -> Iterator[ProviderProcess]:
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(running_provider: ProviderProcess) -> ProviderProcess:
    running_provider.configure({})
    running_provider.reset()
    return running_provider


class Shop:
    """A contract file with the tool `refund`, and a ledger for it."""

    def __init__(self, provider: ProviderProcess, folder: Path) -> None:
        self.provider, self.folder = provider, folder
        self.ledger = f"sqlite:///{folder / 'ledger.db'}"
        self.contracts = folder / "contracts.toml"
        self.declare({})

    def declare(self, changes: Changes) -> None:
        write_file(self.folder, self.provider.url, changes)

    @contextmanager
    def open(self, **options: Any) -> Iterator[BlockingDoubtless]:
        with Doubtless.sync(self.ledger, contracts=self.contracts, **options) as app:
            yield app

    def effects(self, amount: int) -> int:
        """How often that amount was refunded, as the provider counted."""
        return sum(each.amount == amount for each in self.provider.effects())

    def sends(self) -> int:
        return sum(each.method == "POST" for each in self.provider.arrivals())


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """Where child processes come from; it is started by the first who wants one."""
    found = Nursery()
    yield found
    found.close()


@pytest.fixture
def shop(provider, tmp_path) -> Shop:
    return Shop(provider, tmp_path)


@pytest.fixture
def opened(shop) -> Iterator[Callable[..., BlockingDoubtless]]:
    """Open applications on the shop's ledger that are closed with the test."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(shop.open(**options))
