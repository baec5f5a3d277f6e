"""One provider and one service for the tests that only talk to it."""

from collections.abc import Iterator

import pytest
from tests.service.serving import Stage, staged

from doubtless.testing.demo_stage import contracts as demo_contracts
from doubtless.testing.provider import ProviderProcess, spawn_provider


@pytest.fixture(scope="session")
def running_provider() -> Iterator[ProviderProcess]:
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(running_provider: ProviderProcess) -> ProviderProcess:
    running_provider.configure({})
    running_provider.reset()
    return running_provider


@pytest.fixture(scope="session")
def contracts(running_provider: ProviderProcess) -> str:
    return demo_contracts(running_provider.url, timeout_ms=1000)


@pytest.fixture(scope="session")
def running_stage(contracts: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with staged(tmp_path_factory.mktemp("service"), contracts) as found:
        yield found


@pytest.fixture
def stage(running_stage: Stage, provider: ProviderProcess) -> Stage:
    return running_stage
