"""Tasks through the gateway: in both eras, over HTTP and pipes, with what goes wrong in between.

The SDK's own client asks and polls. Only a call that asks for a task is written by hand: the client
takes no other answer to `tools/call` than an ordinary result where 2025-11-25 is spoken.
"""

import asyncio
import itertools
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim, advertise
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict
from tests.integrations.children import eventually
from tests.integrations.mcp_kit import POLL_S, WITHIN_S, Shop, over_http

from doubtless import Doubtless
from doubtless.cli_gateway import whose
from doubtless.core.model import Principal, Role
from doubtless.integrations.mcp_building import GatewayApp, application, plan
from doubtless.integrations.mcp_building import gateway as made
from doubtless.integrations.mcp_calls import Caller
from doubtless.integrations.mcp_http import serve_http
from doubtless.integrations.mcp_place import FOLDER, GatewaySettings
from doubtless.integrations.mcp_tasks import EXTENSION
from doubtless.service import auth

AMOUNTS = itertools.count(1)
MODERN = "2026-07-28"
SLOW = "pay.out"  # has no contract: it may take 30 s, and what is unknown goes to a person

pytestmark = pytest.mark.anyio


# --- a client that knows tasks -------------------------------------------------------------------


class Created(types.Result):
    """What answers a call in the modern era that became a task."""

    result_type: Literal["task"]
    task_id: str
    status: str
    status_message: str


class Ask(types.Request[types.GetTaskRequestParams, str]):
    """Asks something about a task. Where the head of a request says its name, it is the task's."""

    name_param = "taskId"


class Answer(types.Result):
    """Any answer, as it came."""

    model_config = ConfigDict(extra="allow")


class Taking(ClientExtension):
    """The client's half of the extension: a task is polled until it has ended."""

    identifier = EXTENSION

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, context: ClaimContext) -> types.CallToolResult:
        with anyio.fail_after(WITHIN_S):
            task = await asked(context.session, "get", created.task_id)
            while task["status"] == "working":
                await anyio.sleep(POLL_S)
                task = await asked(context.session, "get", created.task_id)
        return types.CallToolResult.model_validate(task["result"], by_name=False)


async def asked(session: Any, what: str, task_id: str) -> dict[str, Any]:
    """Ask about a task, by the client's own means."""
    request = Ask(method=f"tasks/{what}", params=types.GetTaskRequestParams(task_id=task_id))
    found = await session.send_request(request, Answer)
    return dict(found.model_extra or {})


async def by_hand(client: Client, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Send a request, and take whatever comes."""
    found = await client.session._dispatcher.send_raw_request(method, params, {})  # noqa: SLF001
    return dict(found)


async def task_of(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool as a task, as 2025-11-25 has it."""
    params = {"name": name, "arguments": arguments, "task": {"ttl": 60_000}}
    answer = await by_hand(client, "tools/call", params)
    types.CreateTaskResult.model_validate(answer, by_name=False)
    return dict(answer["task"])


async def get(client: Client, task_id: str) -> types.GetTaskResult:
    request = types.GetTaskRequest(params=types.GetTaskRequestParams(task_id=task_id))
    return await client.session.send_request(request, types.GetTaskResult)


async def result_of(client: Client, task_id: str) -> types.CallToolResult:
    """Wait for the result of a task, as 2025-11-25 has it."""
    params = types.GetTaskPayloadRequestParams(task_id=task_id)
    request = types.GetTaskPayloadRequest(params=params)
    with anyio.fail_after(WITHIN_S):
        return await client.session.send_request(request, types.CallToolResult)


async def until_words(client: Client, task_id: str, words: str) -> types.GetTaskResult:
    """Poll a task until its message has those words."""
    with anyio.fail_after(WITHIN_S):
        task = await get(client, task_id)
        while words not in (task.status_message or ""):
            await anyio.sleep(POLL_S)
            task = await get(client, task_id)
    return task


def text(result: types.CallToolResult) -> str:
    return "\n".join(each.text for each in result.content if isinstance(each, types.TextContent))


# --- the gateway ---------------------------------------------------------------------------------


class Running:
    """A gateway over HTTP, and what is behind it."""

    def __init__(self, shop: Shop, app: GatewayApp, url: str) -> None:
        self.shop, self.app, self.url = shop, app, url
        self.agent = app.actor(Principal(name="agent-7", role=Role.AGENT))

    def client(self, mode: str = "legacy", *, whose: str = "agent-7", **options: Any):
        token = auth.issue(self.app.ledger, whose, Role.AGENT).secret
        return over_http(self.url, token, mode, **options)

    async def decide(self, task_id: str, *, approve: bool) -> None:
        shown = (await self.agent.outcome(task_id)).payload_hash
        vote = self.app.approve if approve else self.app.deny
        await vote(task_id, operator="mira", note="so be it", payload_hash=shown)


def settings_of(shop: Shop, scope: str | None) -> GatewaySettings:
    return GatewaySettings(
        ledger=shop.ledger, scope=scope, folder=str(shop.folder), contracts=str(shop.contracts)
    )


@pytest.fixture(scope="module")
async def gateway(tmp_path_factory) -> AsyncIterator[Running]:
    shop = Shop(tmp_path_factory.mktemp("gateway"))
    found: asyncio.Future[tuple[GatewayApp, str]] = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(
        serve_http(
            plan(settings_of(shop, None)),
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


@asynccontextmanager
async def in_memory(
    shop: Shop, scope: str = "agent-7", *, is_gone: bool = False
) -> AsyncIterator[tuple[GatewayApp, Client]]:
    """Start a gateway and a client of it in this process."""

    async def has_gone() -> bool:
        return is_gone

    of = plan(settings_of(shop, scope))
    async with application(of) as app:
        actor = app.actor(Principal(name="agent-7", role=Role.AGENT))
        caller = Caller(actor=actor, principal="agent-7", session_id=scope, is_gone=has_gone)
        front = made(app, of, lambda _: caller).front()
        async with Client(front, mode="legacy") as client:
            yield app, client


# --- a long call ---------------------------------------------------------------------------------


@pytest.mark.proves("GATEWAY-TASKS-1")
async def test_a_call_as_a_task_is_answered_at_once_and_its_result_is_the_servers_own(gateway):
    amount = next(AMOUNTS)
    async with gateway.client() as client:
        task = await task_of(client, SLOW, amount=amount, how="slow")
        assert (task["status"], task["ttl"]) == ("working", None)
        assert gateway.shop.effects(amount) == 0
        # Its id is that of the operation, and the same call joins it.
        assert (await gateway.agent.outcome(task["taskId"])).outcome == "pending"
        again = await task_of(client, SLOW, amount=amount, how="slow")
        assert again["taskId"] == task["taskId"]
        seen = await get(client, task["taskId"])
        assert (seen.status, seen.poll_interval) == ("working", 1_000)
        gateway.shop.let_go(amount)
        result = await result_of(client, task["taskId"])
        assert (await get(client, task["taskId"])).status == "completed"
        # It was told: the same call is a new intent.
        third = await task_of(client, SLOW, amount=amount)
        assert third["taskId"] != task["taskId"]
        await result_of(client, third["taskId"])
    assert (text(result), result.is_error) == (f"charged {amount}", False)
    assert result.structured_content == {"id": f"ch_{amount}"}
    assert result.meta is not None
    assert result.meta["pay.example/receipt"] == amount
    related = result.meta["io.modelcontextprotocol/related-task"]
    assert related == {"taskId": task["taskId"]}
    assert gateway.shop.effects(amount) == 2


@pytest.mark.proves("GATEWAY-TASKS-1")
async def test_a_long_call_becomes_a_task_of_the_extension_and_a_short_one_does_not(gateway):
    amount, short = next(AMOUNTS), next(AMOUNTS)
    async with gateway.client(MODERN, extensions=[Taking()]) as client:
        quick = await client.session.call_tool(SLOW, {"amount": short}, allow_claimed=True)
        assert isinstance(quick, types.CallToolResult)
        created = await client.session.call_tool(
            SLOW, {"amount": amount, "how": "slow"}, allow_claimed=True
        )
        assert isinstance(created, Created)
        assert created.status == "working"
        assert "is being carried out" in created.status_message
        assert (await asked(client.session, "update", created.task_id)).keys() <= {"resultType"}
        assert (await asked(client.session, "get", created.task_id))["ttlMs"] is None
        gateway.shop.let_go(amount)
        # The SDK's client polls by itself: its caller never hears of a task.
        result = await client.call_tool(SLOW, {"amount": amount, "how": "slow"})
    assert text(result) == f"charged {amount}"
    assert result.meta["doubtless.dev/operation-id"] == created.task_id
    assert (gateway.shop.effects(amount), gateway.shop.effects(short)) == (1, 1)


@pytest.mark.proves("GATEWAY-TASKS-1")
async def test_a_task_under_an_identity_of_the_clients_own_is_made_once(gateway):
    amount, name = next(AMOUNTS), "doubtless.dev/operation-id"
    asked = {"name": SLOW, "arguments": {"amount": amount}, "task": {}, "_meta": {name: "mine-1"}}
    async with gateway.client() as client, gateway.client() as second:
        both = await asyncio.gather(
            *(by_hand(each, "tools/call", asked) for each in (client, second))
        )
        assert {each["task"]["taskId"] for each in both} == {"mine-1"}
        assert text(await result_of(client, "mine-1")) == f"charged {amount}"
        third = await by_hand(second, "tools/call", asked)
        assert third["task"]["status"] == "completed"
        with pytest.raises(MCPError, match="other arguments"):
            await by_hand(client, "tools/call", {**asked, "arguments": {"amount": 0}})
    # In another session it is known, and no task: nobody could ask for it there.
    async with in_memory(gateway.shop, "elsewhere") as (_, client):
        with pytest.raises(MCPError, match="operation mine-1 of another session"):
            await by_hand(client, "tools/call", asked)
    assert gateway.shop.effects(amount) == 1


# --- what is not known ---------------------------------------------------------------------------


@pytest.mark.proves("GATEWAY-TASKS-2", "GATEWAY-TASKS-3")
async def test_an_unknown_task_is_said_in_words_over_a_restart_and_ends_by_a_person(tmp_path):
    shop, amount = Shop(tmp_path), next(AMOUNTS)
    async with in_memory(shop) as (app, client):
        task_id = (await task_of(client, SLOW, amount=amount, how="die"))["taskId"]
        seen = await until_words(client, task_id, "It is not known whether")
        assert seen.status == "working"
        assert shop.effects(amount) == 1
    async with in_memory(shop) as (app, client):
        seen = await get(client, task_id)
        assert seen.status == "working"
        assert "It is not known whether" in (seen.status_message or "")
        assert f'operation_status(operation_id="{task_id}")' in (seen.status_message or "")
        await app.resolve(task_id, "done", operator="mira", note="it is in the list")
        assert (await get(client, task_id)).status == "completed"
        result = await result_of(client, task_id)
        assert "took effect" in text(result)
        assert not result.is_error
    assert shop.effects(amount) == 1


@pytest.mark.proves("GATEWAY-TASKS-2")
async def test_what_is_unknown_soon_is_told_at_once_and_later_in_the_task(gateway):
    amount, deadly = next(AMOUNTS), next(AMOUNTS)
    async with gateway.client(MODERN, extensions=[Taking()]) as client:
        call = client.session.call_tool
        created = await call(SLOW, {"amount": amount, "how": "hang"}, allow_claimed=True)
        assert isinstance(created, Created)
        # The server dies in this call, and takes the other one along.
        told = await call(SLOW, {"amount": deadly, "how": "die"}, allow_claimed=True)
        assert isinstance(told, types.CallToolResult)
        assert "It is not known whether" in text(told)
        seen = await asked(client.session, "get", created.task_id)
        assert seen["status"] == "working"
        assert "It is not known whether" in seen["statusMessage"]
        await gateway.app.resolve(created.task_id, "done", operator="mira", note="seen")
        seen = await asked(client.session, "get", created.task_id)
    assert seen["status"] == "completed"
    assert "took effect" in seen["result"]["content"][0]["text"]
    assert (gateway.shop.effects(amount), gateway.shop.effects(deadly)) == (1, 1)


# --- who survives, and whose it is ---------------------------------------------------------------


class Desk:
    """A client's configuration of the gateway over pipes, and the service behind it."""

    def __init__(self, folder: Path) -> None:
        self.shop = Shop(folder)
        self.runtime = folder / "run"

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        said = ["mcp", "--scope", "agent-7", "--ledger", self.shop.ledger, "--"]
        link = StdioServerParameters(
            command=sys.executable,
            args=["-m", "doubtless.cli", *said, *self.shop.command],
            env={FOLDER: str(self.runtime)},
            cwd=self.shop.folder,
        )
        async with Client(link, mode="legacy") as client:
            yield client

    def kill(self) -> None:
        for state in self.runtime.glob("*.json"):
            process = Path("/proc", str(json.loads(state.read_text())["pid"]))
            os.kill(int(process.name), signal.SIGKILL)
            eventually(partial(_is_gone, process))


def _is_gone(process: Path) -> bool:
    return not process.exists()


@pytest.fixture
def desk(tmp_path):
    found = Desk(tmp_path)
    found.shop.contracts.unlink()
    yield found
    found.kill()


@pytest.mark.proves("GATEWAY-TASKS-3")
async def test_a_task_outlives_its_client_and_a_service_killed_in_its_call(desk):
    amount = next(AMOUNTS)
    async with desk.client() as client:
        task_id = (await task_of(client, "charge", amount=amount, how="hang"))["taskId"]
        await asyncio.to_thread(eventually, lambda: desk.shop.effects(amount) == 1)
    async with desk.client() as client:
        assert (await get(client, task_id)).status == "working"
        desk.kill()
    async with desk.client() as client:
        seen = await until_words(client, task_id, "It is not known whether")
        assert seen.status == "working"
        async with Doubtless(desk.shop.ledger) as app:
            await app.resolve(task_id, "done", operator="mira", note="it is in the list")
        assert (await get(client, task_id)).status == "completed"
        assert "took effect" in text(await result_of(client, task_id))
    assert desk.shop.effects(amount) == 1


@pytest.mark.proves("GATEWAY-TASKS-3")
async def test_a_task_of_another_principal_or_session_is_not_found(gateway):
    async def is_not_found(client: Client) -> None:
        for method in ("get", "result", "cancel"):
            with pytest.raises(MCPError, match="Task not found") as refused:
                await by_hand(client, f"tasks/{method}", {"taskId": task["taskId"]})
            assert refused.value.error.code == types.INVALID_PARAMS
        assert await by_hand(client, "tasks/list", {}) == {"tasks": []}

    amount = next(AMOUNTS)
    async with gateway.client() as client:
        task = await task_of(client, "charge", amount=amount)
        await result_of(client, task["taskId"])
        listed = (await by_hand(client, "tasks/list", {}))["tasks"]
        assert listed[0]["taskId"] == task["taskId"]
    async with gateway.client(whose="agent-8") as client:
        await is_not_found(client)
    async with in_memory(gateway.shop, "elsewhere") as (_, client):
        await is_not_found(client)
    assert gateway.shop.effects(amount) == 1


@pytest.mark.proves("GATEWAY-TASKS-3")
async def test_tasks_are_listed_in_pages(tmp_path, monkeypatch):
    monkeypatch.setattr("doubtless.integrations.mcp_tasks.PAGE", 2)
    amounts = [next(AMOUNTS) for _ in range(3)]
    async with in_memory(Shop(tmp_path)) as (_, client):
        made = [(await task_of(client, "charge", amount=each))["taskId"] for each in amounts]
        first = await by_hand(client, "tasks/list", {})
        rest = await by_hand(client, "tasks/list", {"cursor": first["nextCursor"]})
        with pytest.raises(MCPError, match="no cursor"):
            await by_hand(client, "tasks/list", {"cursor": "nonsense"})
        for each in made:
            await result_of(client, each)
    assert [each["taskId"] for each in (*first["tasks"], *rest["tasks"])] == made[::-1]
    assert "nextCursor" not in rest


# --- people, and calling off ---------------------------------------------------------------------


async def accept(_: object, __: object) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={})


@pytest.mark.proves("GATEWAY-TASKS-4")
async def test_a_task_that_waits_for_approval_says_where_and_asks_its_client_nothing(gateway):
    amount = next(AMOUNTS)
    async with gateway.client(elicitation_callback=accept) as client:
        task = await task_of(client, "wire", amount=amount)
        seen = await get(client, task["taskId"])
        assert seen.status == "working"
        assert f"doubtless approve {task['taskId']}" in (seen.status_message or "")
        assert gateway.shop.effects(amount) == 0
        await gateway.decide(task["taskId"], approve=True)
        assert text(await result_of(client, task["taskId"])) == f"charged {amount}"
    assert gateway.shop.effects(amount) == 1


@pytest.mark.proves("GATEWAY-TASKS-4")
async def test_a_client_of_the_extension_shows_the_place_to_approve_and_then_polls(gateway):
    amount, shown = next(AMOUNTS), anyio.Event()

    async def show(_: object, __: object) -> types.ElicitResult:
        shown.set()
        return types.ElicitResult(action="accept", content={})

    options = {"extensions": [Taking()], "elicitation_callback": show}
    async with gateway.client(MODERN, **options) as client:
        calling = asyncio.create_task(client.call_tool("wire", {"amount": amount}))
        await shown.wait()
        unresolved = (await gateway.agent.session("agent-7")).unresolved
        (waiting,) = (each for each in unresolved if each.state == "awaiting_approval")
        assert gateway.shop.effects(amount) == 0
        await gateway.decide(waiting.operation_id, approve=True)
        assert text(await calling) == f"charged {amount}"
    assert gateway.shop.effects(amount) == 1


@pytest.mark.proves("GATEWAY-TASKS-4")
async def test_nobody_waits_for_a_result_whose_client_is_gone_or_whose_gateway_ends(tmp_path):
    shop, amount = Shop(tmp_path), next(AMOUNTS)
    async with in_memory(shop, is_gone=True) as (_, client):
        task_id = (await task_of(client, "wire", amount=amount))["taskId"]
        with pytest.raises(MCPError, match="waits for a person"):
            await result_of(client, task_id)
    async with in_memory(shop) as (app, client):
        waiting = asyncio.create_task(result_of(client, task_id))
        await get(client, task_id)
        await app.drain(grace_s=WITHIN_S)
        with pytest.raises(MCPError, match="waits for a person"):
            await waiting
    assert shop.effects(amount) == 0


@pytest.mark.proves("GATEWAY-TASKS-4")
async def test_what_was_denied_ends_a_task_in_our_words_in_both_eras(gateway):
    first, second = next(AMOUNTS), next(AMOUNTS)
    async with gateway.client() as client:
        task = await task_of(client, "wire", amount=first)
        await gateway.decide(task["taskId"], approve=False)
        assert (await get(client, task["taskId"])).status == "failed"
        result = await result_of(client, task["taskId"])
        assert result.is_error
        assert text(result).startswith("[rejected_by_policy]")
    async with gateway.client(MODERN, extensions=[Taking()]) as client:
        created = await client.session.call_tool("wire", {"amount": second}, allow_claimed=True)
        assert isinstance(created, Created)
        assert "doubtless approve" in created.status_message
        await gateway.decide(created.task_id, approve=False)
        seen = await asked(client.session, "get", created.task_id)
        # The extension keeps `failed` for errors of the protocol.
        assert (seen["status"], seen["result"]["isError"]) == ("completed", True)
        assert seen["result"]["structuredContent"]["outcome"] == "rejected"
    assert (gateway.shop.effects(first), gateway.shop.effects(second)) == (0, 0)


@pytest.mark.proves("GATEWAY-TASKS-4")
async def test_a_task_is_called_off_only_before_anything_was_sent(gateway):
    waiting, sent = next(AMOUNTS), next(AMOUNTS)
    async with gateway.client() as client:
        task = await task_of(client, "wire", amount=waiting)
        off = await by_hand(client, "tasks/cancel", {"taskId": task["taskId"]})
        assert off["status"] == "cancelled"
        assert (await result_of(client, task["taskId"])).is_error
        with pytest.raises(MCPError, match="It has ended") as refused:
            await by_hand(client, "tasks/cancel", {"taskId": task["taskId"]})
        assert refused.value.error.code == types.INVALID_PARAMS
        task = await task_of(client, SLOW, amount=sent, how="slow")
        goes_on = await by_hand(client, "tasks/cancel", {"taskId": task["taskId"]})
        assert goes_on["status"] == "working"
        assert goes_on["statusMessage"].startswith("It was not cancelled")
        gateway.shop.let_go(sent)
        assert text(await result_of(client, task["taskId"])) == f"charged {sent}"
    assert (gateway.shop.effects(waiting), gateway.shop.effects(sent)) == (0, 1)
    assert not gateway.shop.was_cancelled


@pytest.mark.proves("GATEWAY-TASKS-4")
async def test_calling_off_a_task_of_the_extension_is_acknowledged_and_promises_nothing(gateway):
    waiting, sent = next(AMOUNTS), next(AMOUNTS)
    async with gateway.client(MODERN, extensions=[Taking()]) as client:
        for name, arguments, ends in (
            ("wire", {"amount": waiting}, "cancelled"),
            (SLOW, {"amount": sent, "how": "slow"}, "working"),
        ):
            created = await client.session.call_tool(name, arguments, allow_claimed=True)
            assert isinstance(created, Created)
            await asked(client.session, "cancel", created.task_id)
            assert (await asked(client.session, "get", created.task_id))["status"] == ends
        gateway.shop.let_go(sent)
        assert text(await client.call_tool(SLOW, {"amount": sent, "how": "slow"}))
    assert (gateway.shop.effects(waiting), gateway.shop.effects(sent)) == (0, 1)


# --- what has no task ----------------------------------------------------------------------------


@pytest.mark.proves("GATEWAY-TASKS-5")
async def test_what_was_not_recorded_has_no_task_and_an_error_tells_our_words(gateway):
    amount = next(AMOUNTS)
    async with gateway.client() as client:
        with pytest.raises(MCPError, match="Nothing was recorded and nothing was done") as refused:
            await task_of(client, "charge", amount="much")
        assert refused.value.error.data["error"] == {"code": "bad_arguments"}
        with pytest.raises(MCPError) as refused:
            await task_of(client, "operation_status", operation_id="any")
        assert refused.value.error.code == types.METHOD_NOT_FOUND
        # A refusal that a server proves has been recorded: it is a task, and its words are told.
        task = await task_of(client, "refusing", amount=amount, how="refuse")
        result = await result_of(client, task["taskId"])
        assert (await get(client, task["taskId"])).status == "failed"
    assert "amount too small" in text(result)
    assert gateway.shop.effects(amount) == 0


@pytest.mark.proves("GATEWAY-TASKS-5")
async def test_tasks_are_declared_and_served_only_where_the_protocol_has_them(gateway):
    async with gateway.client() as client:
        tasks = client.server_capabilities.tasks
        assert tasks.list is not None
        assert tasks.cancel is not None
        assert tasks.requests.tools.call is not None
        assert client.server_capabilities.extensions is None
        shown = {each.name: each.execution for each in (await client.list_tools()).tools}
        assert shown["charge"].task_support == "optional"
        assert shown["operation_status"] is None
        with pytest.raises(MCPError, match="Method not found"):
            await by_hand(client, "tasks/update", {"taskId": "any", "inputResponses": {}})
    async with gateway.client("auto", extensions=[advertise(EXTENSION)]) as client:
        declared = client.server_capabilities
        assert (declared.tasks, declared.extensions) == (None, {EXTENSION: {}})
        assert all(each.execution is None for each in (await client.list_tools()).tools)
        for method in ("result", "list"):
            with pytest.raises(MCPError, match="Method not found"):
                await asked(client.session, method, "any")
    async with gateway.client(MODERN) as client:
        with pytest.raises(MCPError, match=EXTENSION) as refused:
            await asked(client.session, "get", "any")
        assert refused.value.error.code == -32021


@pytest.mark.proves("GATEWAY-TASKS-5")
async def test_a_client_of_an_earlier_protocol_gets_results_and_no_tasks(gateway):
    amount = next(AMOUNTS)
    token = auth.issue(gateway.app.ledger, "agent-7", Role.AGENT).secret
    head = {"authorization": f"Bearer {token}", "accept": "application/json, text/event-stream"}

    async def ask(method: str, **params: Any) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await http.post(gateway.url, json=body)
        http.headers["mcp-session-id"] = answer.headers.get("mcp-session-id", "")
        return dict(json.loads(answer.text.partition("data: ")[2]))

    async with httpx2.AsyncClient(headers=head) as http:
        client = {"name": "old", "version": "1"}
        said = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        assert "tasks" not in (await ask("initialize", **said))["result"]["capabilities"]
        http.headers["mcp-protocol-version"] = "2025-06-18"
        listed = (await ask("tools/list"))["result"]["tools"]
        assert not any("execution" in each for each in listed)
        called = await ask("tools/call", name=SLOW, arguments={"amount": amount}, task={"ttl": 1})
        assert called["result"]["structuredContent"] == {"id": f"ch_{amount}"}
        assert (await ask("tasks/list"))["error"]["code"] == types.METHOD_NOT_FOUND
    assert gateway.shop.effects(amount) == 1
