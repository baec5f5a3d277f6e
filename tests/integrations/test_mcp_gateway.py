"""The gateway over HTTP, with the SDK's own client and an upstream that does what goes wrong."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from tests.integrations.mcp_kit import ERAS, WITHIN_S, Shop, over_http, until

from doubtless.cli_gateway import whose
from doubtless.core.model import Principal, Role, State
from doubtless.integrations.mcp_building import GatewayApp, plan
from doubtless.integrations.mcp_http import serve_http
from doubtless.integrations.mcp_place import GatewaySettings
from doubtless.service import auth

AMOUNTS = itertools.count(1)

pytestmark = pytest.mark.anyio


class Running:
    """A gateway over HTTP, and what is behind it."""

    def __init__(self, shop: Shop, app: GatewayApp, url: str) -> None:
        self.shop, self.app, self.url = shop, app, url
        self.token = self.token_of("agent-7")
        self.agent = app.actor(Principal(name="agent-7", role=Role.AGENT))

    def token_of(self, name: str, role: Role = Role.AGENT) -> str:
        return auth.issue(self.app.ledger, name, role).secret

    def client(self, mode: str, **options: object):
        return over_http(self.url, self.token, mode, **options)

    async def approve(self, operation_id: str) -> None:
        shown = (await self.agent.outcome(operation_id)).payload_hash
        await self.app.approve(operation_id, operator="mira", note="so be it", payload_hash=shown)

    async def is_over(self, amount: int) -> bool:
        unresolved = (await self.agent.session("agent-7")).unresolved
        return self.shop.effects(amount) > 0 and not any(
            each.state == State.EXECUTING for each in unresolved
        )

    async def is_asked(self) -> bool:
        unresolved = (await self.agent.session("agent-7")).unresolved
        return any(each.state == State.EXECUTING for each in unresolved)

    async def settled(self, operation_id: str) -> str:
        with anyio.fail_after(WITHIN_S):
            return (await self.agent.wait(operation_id, timeout=WITHIN_S)).state


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory) -> AsyncIterator[Running]:
    shop = Shop(tmp_path_factory.mktemp("gateway"))
    settings = GatewaySettings(
        ledger=shop.ledger, scope=None, folder=str(shop.folder), contracts=str(shop.contracts)
    )
    found: asyncio.Future[tuple[GatewayApp, str]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_http(
            plan(settings),
            ("127.0.0.1", 0),
            hosts=(),
            verify=whose,
            listening=lambda app, url: found.set_result((app, url)),
        )
    )
    serving.add_done_callback(lambda _: found.done() or found.cancel())
    app, url = await found
    yield Running(shop, app, url)
    serving.cancel()
    await asyncio.wait({serving})


def said(result: types.CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def text(result: types.CallToolResult) -> str:
    return "\n".join(each.text for each in result.content if isinstance(each, types.TextContent))


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-1")
async def test_a_success_is_the_upstreams_own_result(gateway, era):
    amount = next(AMOUNTS)
    async with gateway.client(era) as client:
        result = await client.call_tool("charge", {"amount": amount})
    assert not result.is_error
    assert result.structured_content == {"id": f"ch_{amount}"}
    assert text(result) == f"charged {amount}"
    assert result.meta["pay.example/receipt"] == amount
    assert (await gateway.agent.outcome(result.meta["doubtless.dev/operation-id"])).tool == "charge"
    assert gateway.shop.effects(amount) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-1")
async def test_a_call_asks_its_server_for_nothing_else(gateway, era):
    async with gateway.client(era) as client:
        await client.call_tool("charge", {"amount": next(AMOUNTS)})
        before = gateway.shop.lists()
        await client.call_tool("charge", {"amount": next(AMOUNTS)})
    assert gateway.shop.lists() == before


@pytest.mark.proves("GATEWAY-2")
async def test_a_call_that_acted_and_was_not_answered_is_unknown_then_found(gateway):
    async def doubtful(era: str, how: str) -> tuple[str, int, str]:
        amount = next(AMOUNTS)
        async with gateway.client(era) as client:
            result = await client.call_tool("charge", {"amount": amount, "how": how})
        assert result.is_error
        assert said(result)["status"] == "unknown_reconciliation_required"
        assert "not known" in text(result)
        assert "operation_status" in text(result)
        return era, amount, said(result)["operation_id"]

    async def found(era: str, amount: int, operation_id: str) -> None:
        assert await gateway.settled(operation_id) == "succeeded"
        async with gateway.client(era) as client:
            status = await client.call_tool("operation_status", {"operation_id": operation_id})
        assert said(status)["state"] == "succeeded"
        assert gateway.shop.effects(amount) == 1

    # What dies takes all calls along that are under way, so it dies first.
    dead = [await doubtful(era, "die") for era in ERAS]
    others = [doubtful(era, how) for era in ERAS for how in ("raise", "garbage")]
    await asyncio.gather(*(found(*each) for each in (*dead, *await asyncio.gather(*others))))


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-2")
async def test_a_late_answer_is_unknown_at_first_and_counts(gateway, era):
    amount = next(AMOUNTS)
    async with gateway.client(era) as client:
        result = await client.call_tool("charge", {"amount": amount, "how": "hang"})
        operation_id = said(result)["operation_id"]
        assert said(result)["status"] == "unknown_reconciliation_required"
        gateway.shop.let_go(amount)
        assert await gateway.settled(operation_id) == "succeeded"
        # The model never heard of it, so its repeat is told, and nothing is sent.
        again = await client.call_tool("charge", {"amount": amount, "how": "hang"})
        assert again.structured_content == {"id": f"ch_{amount}"}
        assert again.meta["doubtless.dev/already-done"] is True
    assert gateway.shop.effects(amount) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-3")
async def test_a_client_that_gives_up_interrupts_nothing_and_its_repeat_joins(gateway, era):
    amount = next(AMOUNTS)
    asked = {"amount": amount, "how": "slow"}
    async with gateway.client(era) as client:
        with pytest.raises(MCPError):
            await client.call_tool("charge", asked, read_timeout_seconds=0.1)
        gateway.shop.let_go(amount)
        again = await client.call_tool("charge", asked)
    assert again.structured_content == {"id": f"ch_{amount}"}
    assert gateway.shop.effects(amount) == 1
    assert not gateway.shop.was_cancelled


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-3")
async def test_a_call_whose_answer_reached_nobody_is_told_to_the_same_call(gateway, era):
    amount = next(AMOUNTS)
    asked = {"amount": amount, "how": "slow"}
    async with gateway.client(era) as client:
        with anyio.move_on_after(0.1):
            await client.call_tool("charge", asked)
        gateway.shop.let_go(amount)
        await until(lambda: gateway.is_over(amount))
        again = await client.call_tool("charge", asked)
        assert again.structured_content == {"id": f"ch_{amount}"}
        assert gateway.shop.effects(amount) == 1
        # Once told, the same call is a new intent.
        await client.call_tool("charge", asked)
    assert gateway.shop.effects(amount) == 2


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-4")
async def test_what_is_settled_by_a_person_is_read_by_the_model(gateway, era):
    amount = next(AMOUNTS)
    asked = {"amount": amount, "how": "raise"}
    async with gateway.client(era) as client:
        operation_id = said(await client.call_tool("pay.out", asked))["operation_id"]
        again = await client.call_tool("pay.out", asked)
        assert said(again)["operation_id"] == operation_id
        listed = said(await client.call_tool("list_unresolved", {}))["operations"]
        assert operation_id in [each["operation_id"] for each in listed]
        await gateway.app.resolve(operation_id, "done", operator="mira", note="seen in the bank")
        status = said(await client.call_tool("operation_status", {"operation_id": operation_id}))
        assert status["state"] == "succeeded"
    assert gateway.shop.effects(amount) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-5")
async def test_an_id_of_the_clients_is_one_intent_and_takes_no_other_payload(gateway, era):
    amount = next(AMOUNTS)
    meta = {"doubtless.dev/operation-id": f"order-{era}"}
    async with gateway.client(era) as one, gateway.client(era) as two:
        answers = await asyncio.gather(
            *(each.call_tool("charge", {"amount": amount}, meta=meta) for each in (one, two) * 4)
        )
        assert [each.structured_content for each in answers] == [{"id": f"ch_{amount}"}] * 8
        other = await one.call_tool("charge", {"amount": amount + 1_000_000}, meta=meta)
    assert said(other)["error"]["code"] == "payload_mismatch"
    assert gateway.shop.effects(amount) == 1
    assert gateway.shop.effects(amount + 1_000_000) == 0


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-5")
async def test_two_clients_that_make_the_same_call_at_once_make_one(gateway, era):
    amount = next(AMOUNTS)
    asked = {"amount": amount, "how": "slow"}
    async with gateway.client(era) as one, gateway.client(era) as two:
        calls = [asyncio.create_task(each.call_tool("charge", asked)) for each in (one, two)]
        await until(gateway.is_asked)
        gateway.shop.let_go(amount)
        answers = await asyncio.gather(*calls)
    ids = {each.meta["doubtless.dev/operation-id"] for each in answers}
    assert len(ids) == 1
    assert gateway.shop.effects(amount) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-6")
async def test_what_was_not_even_recorded_is_told_as_that(gateway, era):
    async with gateway.client(era) as client:
        wrong = await client.call_tool("charge", {"amount": "much"})
        assert wrong.is_error
        assert said(wrong)["error"]["code"] == "bad_arguments"
        assert "Nothing was recorded and nothing was done" in text(wrong)
        bad = await client.call_tool(
            "charge", {"amount": 1}, meta={"doubtless.dev/operation-id": "not an id"}
        )
        assert said(bad)["error"]["code"] == "bad_operation_id"
        with pytest.raises(MCPError, match="Unknown tool: refund"):
            await client.call_tool("refund", {})
        nobody = said(await client.call_tool("operation_status", {"operation_id": "nobody"}))
        assert "no operation 'nobody'" in nobody["error"]


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-6")
async def test_a_declared_error_is_a_refusal_with_the_upstreams_own_words(gateway, era):
    """`wire` says that its errors are definitive, and the upstream knows no such amount."""
    async with gateway.client(era) as client:
        result = await client.call_tool("refusing", {"amount": next(AMOUNTS), "how": "refuse"})
    assert said(result)["outcome"] == "failure"
    assert text(result).endswith("amount too small")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-7")
async def test_tools_are_listed_with_schemas_annotations_and_what_their_caller_must_know(
    gateway, era
):
    async with gateway.client(era) as client:
        tools = {each.name: each for each in (await client.list_tools()).tools}
    charge = tools["charge"]
    assert charge.annotations.title == "Charge"
    assert charge.output_schema["required"] == ["id"]
    assert charge.description.startswith("Charges a card.")
    assert "a repeat is no check" in charge.description
    assert tools["charges"].description == "Lists charges."
    assert tools["shipment"].annotations.read_only_hint is True  # of the contract file, by HTTP
    assert tools["operation_status"].annotations.read_only_hint is True
    assert tools["list_unresolved"].annotations.read_only_hint is True


# --- approvals -----------------------------------------------------------------------------------


def shown_to(seen: list[types.ElicitRequestParams]):
    async def accept(_, params: types.ElicitRequestParams) -> types.ElicitResult:
        seen.append(params)
        return types.ElicitResult(action="accept", content={})

    return accept


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-8")
async def test_a_client_that_accepts_approves_nothing(gateway, era):
    amount = next(AMOUNTS)
    seen: list[types.ElicitRequestParams] = []
    async with gateway.client(era, elicitation_callback=shown_to(seen)) as client:
        result = await client.call_tool("wire", {"amount": amount})
        assert said(result)["state"] == "awaiting_approval"
        operation_id = said(result)["operation_id"]
        assert f"doubtless approve {operation_id}" in text(result)
        assert f"doubtless approve {operation_id}" in seen[0].message
        assert gateway.shop.effects(amount) == 0
        await gateway.approve(operation_id)
        assert await gateway.settled(operation_id) == "succeeded"
        again = await client.call_tool("wire", {"amount": amount})
        assert again.structured_content == {"id": f"ch_{amount}"}
    assert len(seen) == 1
    assert gateway.shop.effects(amount) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-8")
async def test_what_is_approved_while_its_place_is_shown_is_answered_with_its_result(gateway, era):
    amount = next(AMOUNTS)

    async def meanwhile(_, params: types.ElicitRequestParams) -> types.ElicitResult:
        operation_id = params.message.partition("doubtless approve ")[2].split()[0]
        await gateway.approve(operation_id)
        return types.ElicitResult(action="decline")

    async with gateway.client(era, elicitation_callback=meanwhile) as client:
        result = await client.call_tool("wire", {"amount": amount})
    assert result.structured_content == {"id": f"ch_{amount}"}
    assert gateway.shop.effects(amount) == 1


# --- who may call --------------------------------------------------------------------------------


@pytest.mark.proves("GATEWAY-9")
async def test_only_an_agents_token_at_a_known_host_gets_in(gateway):
    ask = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    head = {"accept": "application/json, text/event-stream"}
    operator = gateway.token_of("mira", Role.OPERATOR)

    def bearer(token: str) -> dict[str, str]:
        return {**head, "authorization": f"Bearer {token}"}

    async with httpx2.AsyncClient() as http:
        post = partial(http.post, gateway.url, json=ask)
        assert (await post(headers=head)).status_code == 401
        assert (await post(headers=bearer("dbt_made_up"))).status_code == 401
        assert (await post(headers=bearer(operator))).status_code == 403
        known = bearer(gateway.token)
        assert (await post(headers={**known, "host": "evil.example"})).status_code == 421
        page = {**known, "origin": "https://evil.example"}
        assert (await post(headers=page)).status_code == 403


@pytest.mark.proves("GATEWAY-9")
async def test_another_principal_sees_nothing_of_an_operation_and_has_its_own_session(gateway):
    amount = next(AMOUNTS)
    async with gateway.client("auto") as client:
        asked = {"amount": amount, "how": "raise"}
        operation_id = said(await client.call_tool("pay.out", asked))["operation_id"]
    token = gateway.token_of("agent-8")
    async with over_http(gateway.url, token, "auto") as other:
        found = said(await other.call_tool("operation_status", {"operation_id": operation_id}))
        assert "state" not in found
        assert said(await other.call_tool("list_unresolved", {}))["operations"] == []


@pytest.mark.proves("GATEWAY-3")
async def test_an_answer_to_a_dead_client_of_the_earlier_era_is_kept_for_the_same_call(gateway):
    """Such a client can't cancel by closing its link, and a dead one says nothing any more."""
    amount = next(AMOUNTS)
    head = {
        "authorization": f"Bearer {gateway.token}",
        "accept": "application/json, text/event-stream",
    }
    asked = {"amount": amount, "how": "slow"}
    async with httpx2.AsyncClient(headers=head) as http:

        async def say(method: str, params: dict[str, Any], **more: Any) -> httpx2.Response:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return await http.post(gateway.url, json=body, **more)

        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "x", "version": "1"},
        }
        session = (await say("initialize", hello)).headers["mcp-session-id"]
        with pytest.raises(httpx2.ReadTimeout):
            await say(
                "tools/call",
                {"name": "charge", "arguments": asked},
                headers={"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"},
                timeout=0.3,
            )
    gateway.shop.let_go(amount)
    await until(lambda: gateway.is_over(amount))
    async with gateway.client("legacy") as client:
        again = await client.call_tool("charge", asked)
    assert again.structured_content == {"id": f"ch_{amount}"}
    assert gateway.shop.effects(amount) == 1
