"""What the gateway serves: names, several servers, servers that are away, and its own checks."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import mcp_types as types
import pytest
from click.testing import CliRunner
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from tests.integrations.mcp_kit import ERAS, Shop

from doubtless.cli import cli
from doubtless.core.model import Principal, Role
from doubtless.engine.actor import Actor
from doubtless.errors import ContractError, SettingsError
from doubtless.integrations import mcp_shim
from doubtless.integrations.mcp_building import GatewayApp, application, gateway, plan
from doubtless.integrations.mcp_calls import Caller
from doubtless.integrations.mcp_place import GatewaySettings
from doubtless.integrations.mcp_wire import Front

ROOT = Path(__file__).parents[2]
AMOUNTS = itertools.count(1)

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def fronting(settings: GatewaySettings) -> AsyncIterator[tuple[GatewayApp, Front]]:
    """Open a gateway in this process, and give its front to clients."""
    of = plan(settings)
    async with application(of) as app:
        actor = app.actor(Principal(name="local", role=Role.AGENT))
        caller = Caller(actor=actor, principal="local", session_id="s", is_gone=stays)
        yield app, gateway(app, of, lambda _: caller).front()


async def stays() -> bool:
    return False


def settings_of(shop: Shop, **said: object) -> GatewaySettings:
    named = {"ledger": shop.ledger, "scope": "s", "folder": str(shop.folder), **said}
    return GatewaySettings(**named)  # type: ignore[arg-type]


def said(result: types.CallToolResult) -> dict[str, Any]:
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def named(operation_id: str) -> types.RequestParamsMeta:
    return cast("types.RequestParamsMeta", {"doubtless.dev/operation-id": operation_id})


@pytest.fixture
def shop(tmp_path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.proves("GATEWAY-2")
async def test_a_server_that_is_away_is_proven_not_sent_to_and_started_when_it_is_back(shop):
    settings = settings_of(shop, contracts=str(shop.contracts))
    async with fronting(settings) as (_, front), Client(front) as client:
        await client.list_tools()
        hidden = shop.program.rename(shop.folder / "hidden")
        lost, amount = next(AMOUNTS), next(AMOUNTS)
        await client.call_tool("charge", {"amount": lost, "how": "die"})
        away = await client.call_tool("charge", {"amount": amount})
        assert said(away)["status"] == "failed_safe_to_retry"
        assert shop.effects(amount) == 0
        hidden.rename(shop.program)
        back = await client.call_tool("charge", {"amount": amount})
        assert back.structured_content == {"id": f"ch_{amount}"}
    assert shop.effects(amount) == 1
    assert shop.effects(lost) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-2")
async def test_without_the_gateway_a_client_is_told_of_an_error_and_acts_twice(shop, era):
    asked = {"amount": 1, "how": "raise"}
    direct = StdioServerParameters(command=shop.command[0], args=list(shop.command[1:]))
    async with Client(direct, mode="auto") as client:
        for _ in range(2):
            told = await client.call_tool("charge", asked)
            assert told.is_error
            assert "db gone" in str(told.content)
    assert shop.effects(1) == 2
    settings = settings_of(shop, command=shop.command)
    async with fronting(settings) as (_, front), Client(front, mode=era) as client:
        for _ in range(2):
            told = await client.call_tool("charge", {**asked, "amount": 2})
            assert said(told)["outcome"] == "unknown"
    assert shop.effects(2) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-4")
async def test_what_a_person_found_done_is_no_error_of_a_tool_without_a_schema(shop, era):
    settings = settings_of(shop, command=shop.command)
    async with fronting(settings) as (app, front), Client(front, mode=era) as client:
        amount = next(AMOUNTS)
        meta = named("op-1")
        asked = {"amount": amount, "how": "raise"}
        await client.call_tool("pay.out", asked, meta=meta)
        await app.resolve("op-1", "done", operator="mira", note="seen in the bank")
        again = await client.call_tool("pay.out", asked, meta=meta)
        assert not again.is_error
        assert said(again)["status"] == "succeeded"
        other = named("op-2")
        await client.call_tool("charge", asked, meta=other)
        await app.resolve("op-2", "done", operator="mira", note="seen in the bank")
        schema = await client.call_tool("charge", asked, meta=other)
        assert schema.is_error  # its schema promises what nobody has
        assert said(schema)["status"] == "succeeded"
    assert shop.effects(amount) == 2


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-6")
async def test_the_error_of_a_read_is_its_answer(shop, era):
    settings = settings_of(shop, command=shop.command)
    async with fronting(settings) as (_, front), Client(front, mode=era) as client:
        found = await client.call_tool("charges", {"of": "nobody"})
    assert found.is_error
    assert [each.text for each in found.content if isinstance(each, types.TextContent)] == [
        "nobody is that"
    ]
    assert found.structured_content is None


@pytest.mark.proves("GATEWAY-7")
async def test_tools_of_several_servers_have_their_names_in_front(shop, tmp_path):
    config = tmp_path / "gateway.toml"
    config.write_text(
        f"""
        scope = "s"
        [servers.pay]
        command = ["{shop.command[0]}", "pay_server.py", "effects"]
        errors = "definitive"
        [servers.bank]
        command = ["{shop.command[0]}", "pay_server.py", "others"]
        [servers.away]
        command = ["{tmp_path}/nowhere"]
        """
    )
    settings = settings_of(shop, config=str(config))
    async with fronting(settings) as (_, front), Client(front) as client:
        names = {each.name for each in (await client.list_tools()).tools}
        assert {"pay_charge", "bank_charge", "bank_pay.out", "operation_status"} <= names
        refused = await client.call_tool("pay_charge", {"amount": 1, "how": "refuse"})
        assert said(refused)["outcome"] == "failure"
        doubtful = await client.call_tool("bank_charge", {"amount": 1, "how": "refuse"})
        assert said(doubtful)["outcome"] == "unknown"
        prompts = {each.name for each in (await client.list_prompts()).prompts}
        assert prompts == {"pay_dun", "bank_dun"}
        assert "Mira" in str((await client.get_prompt("bank_dun", {"who": "Mira"})).messages)
        listed = {each.uri for each in (await client.list_resources()).resources}
        assert listed == {"pay://effects", "pay://others"}
        assert (await client.read_resource("pay://others")).contents


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-7")
async def test_our_own_tools_give_way_to_those_of_a_server(shop, era):
    settings = settings_of(shop, command=(*shop.command, "clash"))
    async with fronting(settings) as (_, front), Client(front, mode=era) as client:
        listed = (await client.list_tools()).tools
        tools = {each.name: each.description or "" for each in listed}
        assert tools["operation_status"].startswith("Mine.")
        assert "doubtless_operation_status" in tools
        assert "list_unresolved" in tools
        doubtful = await client.call_tool("charge", {"amount": 1, "how": "raise"})
        asked = {"operation_id": said(doubtful)["operation_id"]}
        assert "doubtless_operation_status(" in str(doubtful.content)
        status = await client.call_tool("doubtless_operation_status", asked)
        assert said(status)["state"] == "manual_review"


@pytest.mark.proves("GATEWAY-7")
async def test_a_contract_that_is_called_as_another_tool_of_its_server_stays(shop):
    text = shop.contracts.read_text().replace('tool = "wire"', 'tool = "charge"')
    shop.contracts.write_text(text.replace('tool = "charge"', 'tool = "pay.out"', 1))
    settings = settings_of(shop, contracts=str(shop.contracts))
    async with fronting(settings) as (app, front), Client(front) as client:
        listed = {each.name: each.description or "" for each in (await client.list_tools()).tools}
        # `charge` is a contract for pay.out now, and `wire` one for charge.
        assert listed["charge"].startswith("Pays out.")
        assert listed["wire"].startswith("Sends money, if a person agrees.")
        assert listed["pay_wire"].startswith("Wires.")
        assert app.registry.tool("wire").contract.approval is not None
        assert app.registry.tool("pay_wire").contract.approval is None


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-6")
async def test_a_fault_of_ours_is_no_error_that_invites_a_repeat(shop, era, monkeypatch):
    async def fails(*_: object) -> bytes:
        raise RuntimeError("a fault")

    settings = settings_of(shop, command=shop.command)
    async with fronting(settings) as (_, front), Client(front, mode=era) as client:
        with monkeypatch.context() as faulty:
            faulty.setattr(Actor, "exhibit", fails)
            first = await client.call_tool("charge", {"amount": 1})
        assert said(first)["outcome"] == "unknown"
        again = await client.call_tool("charge", {"amount": 1})
        assert again.structured_content == {"id": "ch_1"}
    assert shop.effects(1) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-5")
async def test_eight_callers_of_two_gateways_on_one_ledger_make_one_effect(shop, era):
    settings = settings_of(shop, command=shop.command)
    async with (
        fronting(settings) as (_, one),
        fronting(settings) as (_, two),
        Client(one, mode=era) as here,
        Client(two, mode=era) as there,
    ):
        asked, meta = {"amount": 1}, named("order-1")
        answers = await asyncio.gather(
            *(each.call_tool("charge", asked, meta=meta) for each in (here, there) * 4)
        )
    assert {str(each.structured_content) for each in answers} == {str({"id": "ch_1"})}
    assert shop.effects(1) == 1


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-8")
async def test_a_client_is_shown_the_url_where_a_person_approves(shop, era):
    settings = settings_of(
        shop, contracts=str(shop.contracts), approve_at="https://ops.example.com/{id}"
    )
    seen: list[types.ElicitRequestParams] = []

    async def accept(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        seen.append(params)
        return types.ElicitResult(action="accept")

    async with (
        fronting(settings) as (_, front),
        Client(front, mode=era, elicitation_callback=accept) as client,
    ):
        result = await client.call_tool("wire", {"amount": 1})
    assert said(result)["state"] == "awaiting_approval"
    place = f"https://ops.example.com/{said(result)['operation_id']}"
    assert isinstance(seen[0], types.ElicitRequestURLParams)
    assert seen[0].url == place
    assert place in str(result.content)
    assert shop.effects(1) == 0


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-8")
async def test_a_request_state_that_is_somebody_elses_tells_and_approves_nothing(shop, era):
    settings = settings_of(shop, contracts=str(shop.contracts))
    async with fronting(settings) as (app, front), Client(front, mode=era) as client:
        other = app.actor(Principal(name="other", role=Role.AGENT))
        theirs = await other.call("wire", {"amount": 7})
        state = f"operation:{theirs.operation_id}"
        result = await client.session.call_tool("wire", {"amount": 7}, request_state=state)
        assert isinstance(result, types.CallToolResult)
        assert "no operation" in str(result.content)
        assert (await other.outcome(theirs.operation_id)).state == "awaiting_approval"
    assert shop.effects(7) == 0


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-7")
async def test_resources_and_prompts_are_handed_on(shop, era):
    settings = settings_of(shop, command=shop.command)
    async with fronting(settings) as (_, front), Client(front, mode=era) as client:
        assert [each.uri for each in (await client.list_resources()).resources] == ["pay://effects"]
        templates = (await client.list_resource_templates()).resource_templates
        assert [each.uri_template for each in templates] == ["pay://{name}"]
        await client.call_tool("charge", {"amount": 1})
        read = await client.read_resource("pay://effects")
        assert '"amount": 1' in str(read.contents)
        assert [each.name for each in (await client.list_prompts()).prompts] == ["dun"]
        dun = await client.get_prompt("dun", {"who": "Mira"})
        assert "Pay, Mira!" in str(dun.messages)
        with pytest.raises(MCPError, match="Unknown prompt: due"):
            await client.get_prompt("due")


@pytest.mark.proves("GATEWAY-7")
async def test_a_server_that_is_away_from_the_start_is_told_as_that(shop):
    settings = settings_of(shop, command=("/nowhere",))
    async with fronting(settings) as (_, front), Client(front) as client:
        with pytest.raises(MCPError, match="can't be started"):
            await client.list_tools()
        unlisted = await client.call_tool("charge", {"amount": 1})
        assert unlisted.is_error
        assert "Nothing was recorded and nothing was done" in str(unlisted.content)


@pytest.mark.proves("GATEWAY-13")
async def test_what_each_tool_lacks_is_told_at_start(shop, caplog):
    settings = settings_of(shop, command=shop.command)
    async with fronting(settings) as (_, front), Client(front) as client:
        await client.list_tools()
        await client.list_tools()
    told = [each.getMessage() for each in caplog.records if each.name == "doubtless.gateway"]
    assert [line.split(":")[0] for line in told] == ["charge", "pay.out", "refusing", "wire"]
    assert 'no `errors = "definitive"`' in told[0]


@pytest.mark.proves("GATEWAY-13")
def test_check_says_how_each_tool_is_served_and_prints_no_protocol(shop):
    said = ["mcp", "--check", "--ledger", shop.ledger, "--", *shop.command]
    found = CliRunner().invoke(cli, said, obj={})
    assert found.stdout == ""
    assert "charge: time_sensitive, not declared" in found.stderr
    assert "charge: no `errors" in found.stderr
    assert not (shop.folder / "ledger.db").exists()


@pytest.mark.proves("GATEWAY-13")
def test_the_examples_of_the_page_are_configurations_that_load(shop):
    page = (ROOT / "docs" / "mcp.md").read_text()
    client = json.loads(page.partition("```json\n")[2].partition("```")[0])
    said = client["mcpServers"]["pay"]["args"]
    assert CliRunner().invoke(cli, [*said[: said.index("--")], "--help"], obj={}).exit_code == 0
    (shop.folder / "gateway.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    found = plan(settings_of(shop, config=str(shop.folder / "gateway.toml")))
    assert [each.prefix for each in found.servers] == ["pay_", "bank_"]
    assert [each.errors_definitive for each in found.servers] == [True, False]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("scop = 's'", "no key 'scop'"),
        ("scope = 1", "scope must be text"),
        ("[servers.pay]\nurl = 'https://x.example/mcp'\ncommand = ['x']", "one of both"),
        ("[servers.pay]\nurll = 'x'", "urll"),
        ("scope =", "this is not TOML"),
        ("scope = 's'", "there is nothing to serve"),
    ],
)
@pytest.mark.proves("GATEWAY-13")
def test_what_is_wrong_in_a_gateway_file_is_told_with_its_place(shop, text, wrong):
    config = shop.folder / "gateway.toml"
    config.write_text(text)
    with pytest.raises((SettingsError, ContractError), match=wrong):
        plan(settings_of(shop, config=str(config)))


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (["--", "x"], "--scope is missing"),
        (["--scope", "a", "--config", "g.toml", "--", "x"], "say --config or COMMAND"),
        (["--scope", "a", "--errors", "definitive"], "--errors is COMMAND's"),
        (["--scope", "a", "--allow-host", "b", "--", "x"], "--allow-host belongs to --http"),
        (["--http", "127.0.0.1:many", "--", "x"], "write HOST:PORT"),
    ],
)
@pytest.mark.proves("GATEWAY-13")
def test_what_is_said_wrongly_is_refused_with_its_mend(said, wrong):
    found = CliRunner().invoke(cli, ["mcp", *said], obj={})
    assert found.exit_code == 2
    assert found.stdout == ""
    assert wrong in found.stderr


@pytest.mark.proves("GATEWAY-13")
def test_flags_and_variables_come_before_the_gateways_file_and_its_paths_begin_there(
    shop, tmp_path, monkeypatch
):
    seen: list[GatewaySettings] = []

    def run(settings: GatewaySettings, _: object) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setattr(mcp_shim, "run", run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOUBTLESS_PRINCIPAL", "by-variable")
    (tmp_path / "doubtless.toml").write_text('tenant = "ours"\nprincipal = "by-file"\n')
    folder = tmp_path / "there"
    folder.mkdir()
    (folder / "gateway.toml").write_text(
        'scope = "of-file"\nledger = "sqlite:///of-file.db"\nsecrets = "keys"\nidle = "1m"\n'
    )
    said = ["mcp", "--config", "there/gateway.toml"]
    CliRunner().invoke(cli, said, obj={})
    CliRunner().invoke(cli, [*said, "--scope", "flag", "--ledger", "sqlite:///flag.db"], obj={})
    by_file, by_flag = seen
    assert by_file.ledger == f"sqlite:///{folder}/of-file.db"
    assert by_file.secrets == str(folder / "keys")
    assert (by_file.scope, by_file.idle_ms, by_file.folder) == ("of-file", 60_000, str(folder))
    assert (by_file.tenant, by_file.principal) == ("ours", "by-variable")
    assert (by_flag.scope, by_flag.ledger) == ("flag", f"sqlite:///{tmp_path}/flag.db")
    assert GatewaySettings.from_text(by_flag.to_text()) == by_flag
    assert by_flag.digest() != by_file.digest()
