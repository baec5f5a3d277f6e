"""Stubborn models at the MCP gateway: the same scripts, through the SDK's own client."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from tests.integrations import stubborn
from tests.integrations.mcp_kit import ERAS, over_http
from tests.integrations.stubborn import FIRST, SCRIPTS, Tools, asks_and_goes_on, splits
from tests.integrations.test_stubborn_models import LOST, contract, said_honestly

from doubtless.cli_gateway import whose
from doubtless.core.model import Role
from doubtless.integrations import telling
from doubtless.integrations.mcp_building import GatewayApp, plan
from doubtless.integrations.mcp_http import serve_http
from doubtless.integrations.mcp_place import GatewaySettings
from doubtless.service import auth


class Running:
    """A gateway over HTTP, and its address."""

    def __init__(self, app: GatewayApp, url: str) -> None:
        self.app, self.url = app, url
        self._tokens = {
            name: auth.issue(app.ledger, name, Role.AGENT).secret for name in ("agent", "agent-2")
        }

    async def clients(self, stack: AsyncExitStack, era: str) -> dict[str, Client]:
        """Connect a client for each session: over HTTP that is one for each principal."""
        return {
            name: await stack.enter_async_context(over_http(self.url, token, era))
            for name, token in self._tokens.items()
        }


@pytest.fixture(scope="module")
async def gateway(running_provider, tmp_path_factory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("stubborn")
    (folder / "contracts.toml").write_text(contract(running_provider.url))
    settings = GatewaySettings(
        ledger=f"sqlite:///{folder / 'ledger.db'}",
        scope=None,
        folder=str(folder),
        contracts=str(folder / "contracts.toml"),
    )
    found: asyncio.Future[Running] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_http(
            plan(settings),
            ("127.0.0.1", 0),
            hosts=(),
            verify=whose,
            listening=lambda app, url: found.set_result(Running(app, url)),
        )
    )
    waited_for: set[asyncio.Future[Any]] = {serving, found}
    await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
    yield await found
    serving.cancel()
    await asyncio.wait({serving})


def served(clients: Mapping[str, Client]) -> Tools:
    """Return the tools as a model at an MCP client has them."""

    def tool(name: str) -> Callable[[Mapping[str, Any], str], Awaitable[str]]:
        async def called(arguments: Mapping[str, Any], session: str) -> str:
            result = await clients[session].call_tool(name, dict(arguments))
            words = [each.text for each in result.content if isinstance(each, types.TextContent)]
            return "\n".join(words)

        return called

    return {
        name: tool(name) for name in ("refund", "credit", "operation_status", "list_unresolved")
    }


@pytest.mark.proves("STUBBORN-5")
@pytest.mark.parametrize(
    ("script", "era"),
    [(script, ERAS[1]) for script in SCRIPTS]
    + [(script, ERAS[0]) for script in (splits, asks_and_goes_on)],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_stubborn_model_makes_one_effect_through_the_gateway(
    gateway, provider, script, era
):
    provider.configure(LOST)
    first = FIRST.but(charge=f"ch_{script.__name__}_{era}")
    async with AsyncExitStack() as stack:
        clients = await gateway.clients(stack, era)
        heard = await stubborn.run(script, served(clients), first)
        listed = await clients["agent"].list_tools()
    assert [each.amount for each in provider.effects()] == [500]
    said_honestly(heard)
    described = {tool.name: tool.description or "" for tool in listed.tools}
    for name in ("refund", "credit"):
        assert described[name].count(telling.CAUTION) == 1


@pytest.mark.proves("STUBBORN-3")
async def test_what_a_person_settled_meanwhile_is_told_through_the_gateway_first(gateway, provider):
    provider.configure(LOST)
    first = FIRST.but(charge="ch_settled")
    async with AsyncExitStack() as stack:
        tools = served(await gateway.clients(stack, ERAS[1]))
        named = stubborn.named_in(await tools["refund"](first.arguments, "agent"))
        await gateway.app.resolve(named, "done", operator="ann", note="It is in their books.")
        variant = await tools["refund"](first.but(amount=250).arguments, "agent")
        again = await tools["refund"](first.arguments, "agent")
    assert variant.startswith("[rejected_by_policy] refund was refused: an earlier operation")
    assert again.startswith("[succeeded] refund had already been done")
    assert named in variant
    assert named in again
    assert len(provider.effects()) == 1
