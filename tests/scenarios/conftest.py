"""A provider that lives for many stories, and a clean story for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import lru_cache

import pytest
from tests.scenarios.processes import Nursery
from tests.scenarios.stories import Story

from doubtless.testing.provider import ProviderProcess, spawn_provider


@pytest.fixture(scope="session")
def running_provider() -> Iterator[ProviderProcess]:
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(running_provider: ProviderProcess) -> ProviderProcess:
    """The provider, as if it had just begun. Stories wait for whatever they leave in it."""
    running_provider.configure({})
    running_provider.reset()
    return running_provider


@pytest.fixture(scope="session")
def nursery() -> Iterator[Callable[[], Nursery]]:
    """Where children come from; it is there from the first child on."""
    with ExitStack() as stack:

        @lru_cache(maxsize=1)
        def opened() -> Nursery:
            found = Nursery()
            stack.callback(found.close)
            return found

        yield opened


@pytest.fixture
def story(provider, nursery, tmp_path) -> Iterator[Story]:
    found = Story(provider, tmp_path, nursery)
    yield found
    found.check_the_ledger()
