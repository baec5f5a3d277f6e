"""A provider and a folder for commands; and a ledger with a history, which nobody changes."""

from collections.abc import Iterator

import anyio
import pytest
from tests.cli.shell import Shell

from doubtless import Doubtless
from doubtless.testing.provider import ProviderProcess, spawn_provider

LONG_ID = "x" * 128
RULES = [
    {"match": {"path_prefix": "/v1/bids"}, "then": {"action": "commit_then_rst"}},
    {"match": {"method": "POST", "nth": 1}, "then": {"action": "commit_then_rst"}},
    {"match": {"method": "POST", "nth": 2}, "then": {"action": "status", "status": 402}},
]


@pytest.fixture(scope="session")
def running_provider() -> Iterator[ProviderProcess]:
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(running_provider: ProviderProcess) -> ProviderProcess:
    running_provider.configure({})
    running_provider.reset()
    return running_provider


@pytest.fixture
def shell(provider, tmp_path) -> Shell:
    found = Shell(tmp_path)
    found.declare(provider)
    return found


@pytest.fixture(scope="session")
def history(running_provider, tmp_path_factory) -> Shell:
    """A succeeded, a failed and an unknown refund, and two bids in review, in session s1."""
    shell = Shell(tmp_path_factory.mktemp("history"))
    running_provider.configure(RULES)
    running_provider.reset()
    shell.declare(running_provider)
    contracts = shell.folder / "contracts.toml"

    async def agent() -> None:
        async with Doubtless(shell.ledger, contracts=contracts) as app:
            for number in (1, 2):
                await app.call(
                    "refund",
                    {"charge": f"ch_{number}", "amount": 500},
                    operation_id=f"refund-{number}",
                    session_id="s1",
                )
            for name in ("bid-1", LONG_ID):
                lot = f"lot {name[:5]} \x1b[31m red"
                await app.call(
                    "place_bid", {"lot": lot, "amount": 7}, operation_id=name, session_id="s1"
                )
            await app.wait("refund-1", timeout=20)
            await app.resolve(
                "bid-1", "unsure", operator="night-shift", note="nobody \x1b[2J there"
            )

    anyio.run(agent)
    return shell
