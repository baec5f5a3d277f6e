"""Tools of a fastmcp server: its default beside ours, over its own client in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastmcp import Client, Context, FastMCP
from fastmcp.exceptions import ToolError, ValidationError
from fastmcp.server.middleware import Middleware
from fastmcp.server.middleware.error_handling import RetryMiddleware
from fastmcp.tools import ToolResult
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.shared.exceptions import MCPError
from mcp_types import (
    ElicitRequest,
    ElicitRequestFormParams,
    InputRequiredResult,
    ToolAnnotations,
)
from pydantic import AfterValidator
from tests.integrations import examples
from tests.integrations.children import Nursery, eventually
from tests.integrations.fastmcp_child import shop

from doubtless import Doubtless
from doubtless.engine.contracts import ToolKeys
from doubtless.integrations import telling
from doubtless.integrations.fastmcp import Guarded, opened
from doubtless.transports.mcp_servers import OPERATION_ID

SLOW_S = 0.3  # how long a slow tool takes
UNKNOWN = "unknown_reconciliation_required"


@pytest.fixture
async def app(tmp_path: Path) -> AsyncIterator[Doubtless]:
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as found:
        yield found


class Till:
    """The far side: what was charged, by a tool that answers, fails, hangs or refuses."""

    def __init__(self) -> None:
        self.charged: list[int] = []
        self.ended: list[str] = []
        self.then: Callable[[], Any] = lambda: {"id": "ch_1"}

    def server(self, *middleware: Middleware, **options: Any) -> FastMCP[Any]:
        mcp: FastMCP[Any] = FastMCP("shop", middleware=list(middleware))

        @mcp.tool(**options)
        async def charge(amount: int) -> Any:
            """Charge an amount."""
            self.charged.append(amount)
            found = self.then()
            return await found if asyncio.iscoroutine(found) else found

        return mcp

    async def slowly(self) -> str:
        try:
            await asyncio.sleep(SLOW_S)
        except asyncio.CancelledError:
            self.ended.append("interrupted")
            raise
        self.ended.append("done")
        return "charged"


@pytest.fixture
def till() -> Till:
    return Till()


def even(amount: int) -> int:
    if amount % 2:
        raise ValueError("it must be even")
    return amount


def lost() -> Any:
    raise ConnectionError("the answer was lost")


def retry() -> RetryMiddleware:
    return RetryMiddleware(max_retries=2, base_delay=0)


async def asked(server: Any, *amounts: int, name: str = "charge", **options: Any) -> list[Any]:
    """Call the tool as a stubborn model does, and return the results."""
    async with Client(server) as client:
        return [
            await client.call_tool(name, {"amount": each}, raise_on_error=False, **options)
            for each in amounts
        ]


def statuses(found: list[Any]) -> list[Any]:
    return [(each.is_error, (each.structured_content or {}).get("status")) for each in found]


@pytest.mark.proves("AGENTS-FASTMCP-1")
async def test_a_lost_answer_is_unknown_and_a_person_settles_it_later(app, till):
    till.then = lost
    (default, _) = await asked(till.server(), 5, 5)
    assert "Error calling tool 'charge'" in default.content[0].text
    assert till.charged == [5, 5]
    till.charged.clear()
    server = till.server(Guarded(app, scope="agent-7"))
    ours = await asked(server, 5, 5)
    assert (till.charged, statuses(ours)) == ([5], [(True, UNKNOWN)] * 2)
    name = ours[0].structured_content["operation_id"]
    async with Client(server) as client:
        listed = {each.name: each for each in await client.list_tools()}
        assert list(listed) == ["charge", telling.STATUS_TOOL, telling.UNRESOLVED_TOOL]
        assert listed["charge"].description == f"Charge an amount.\n\n{telling.CAUTION}"
        waiting = await client.call_tool(telling.UNRESOLVED_TOOL, {})
        assert [each["operation_id"] for each in waiting.data] == [name]
        await app.resolve(name, "done", operator="night-shift", note="seen in the till")
        settled = await client.call_tool(telling.STATUS_TOOL, {"operation_id": name})
        assert settled.data["status"] == "succeeded"


@pytest.mark.proves("AGENTS-FASTMCP-2")
async def test_no_retry_middleware_leads_to_a_second_effect_wherever_it_stands(app, till):
    till.then = lost
    await asked(till.server(retry()), 5)
    assert till.charged == [5, 5, 5]
    for amount, order in enumerate(((retry(), Guarded(app)), (Guarded(app), retry())), 6):
        till.charged.clear()
        ours = await asked(till.server(*order), amount)
        assert (till.charged, statuses(ours)) == ([amount], [(True, UNKNOWN)])


@pytest.mark.proves("AGENTS-FASTMCP-2")
async def test_the_retry_middleware_of_a_mounted_server_acts_once_too(app, till):
    till.then = lost
    for amount, definitive in ((6, False), (7, True)):
        till.charged.clear()
        inner: FastMCP[Any] = FastMCP("between")
        inner.mount(till.server(retry()), namespace="till")
        outer: FastMCP[Any] = FastMCP("shop")
        outer.mount(inner, namespace="main")
        await asked(outer, 5, name="main_till_charge")
        assert till.charged == [5, 5, 5]
        till.charged.clear()
        outer.add_middleware(Guarded(app, definitive=definitive))
        ours = await asked(outer, amount, name="main_till_charge")
        assert (till.charged, statuses(ours)) == (([amount], [(True, UNKNOWN)]))


@pytest.mark.proves("AGENTS-FASTMCP-2")
async def test_a_tool_is_not_interrupted_by_its_own_timeout_and_its_late_answer_counts(app, till):
    till.then = till.slowly
    await asked(till.server(timeout=0.05), 5)
    assert till.ended == ["interrupted"]
    ours = await asked(till.server(Guarded(app), timeout=0.05), 6, 6)
    assert (till.charged, statuses(ours)) == ([5, 6], [(True, UNKNOWN)] * 2)
    late = await app.wait(ours[0].structured_content["operation_id"], timeout=5)
    assert (late.status, till.ended) == ("succeeded", ["interrupted", "done"])


@pytest.mark.proves("AGENTS-FASTMCP-2")
async def test_a_client_that_gives_up_interrupts_nothing_and_a_repeat_joins(app, till):
    till.then = till.slowly
    with pytest.raises(MCPError):
        await asked(till.server(), 5, timeout=0.1)
    assert till.ended == ["interrupted"]
    server = till.server(Guarded(app))
    with pytest.raises(MCPError):
        await asked(server, 6, timeout=0.1)
    (ours,) = await asked(server, 6)
    assert (till.charged, till.ended) == ([5, 6], ["interrupted", "done"])
    assert ours.is_error is False
    assert "already" in ours.content[0].text


@pytest.mark.proves("AGENTS-FASTMCP-2")
async def test_a_client_that_gave_up_is_told_of_what_succeeded_since(app, till):
    till.then = till.slowly
    server = till.server(Guarded(app, scope="agent-7"))
    with pytest.raises(MCPError):
        await asked(server, 5, timeout=0.1)
    await app.wait((await app.operations())[0].operation_id, timeout=5)
    (first, second) = await asked(server, 5, 5)
    assert "already" in first.content[0].text
    assert second.content[0].text == "charged"  # now it knows, and means another one
    assert till.charged == [5, 5]


@pytest.mark.proves("AGENTS-FASTMCP-2")
async def test_a_caller_that_names_its_operation_means_one_by_it_for_ever(app, till):
    server = till.server(Guarded(app))
    meta = {OPERATION_ID: "op-1"}
    first, again = await asked(server, 5, 5, meta=meta)
    assert (first.data, again.data) == ({"id": "ch_1"}, {"id": "ch_1"})
    (other,) = await asked(server, 6, meta=meta)
    assert statuses([other]) == [(True, "rejected_by_policy")]
    await asked(server, 5)  # without its name it is another one
    assert till.charged == [5, 5]


@pytest.mark.proves("AGENTS-FASTMCP-3")
@pytest.mark.timeout(150)  # a process imports the framework
async def test_a_server_that_died_in_a_tool_repeats_nothing(tmp_path: Path, nursery: Nursery):
    for is_ours in (False, True):
        effects = f"effects_{is_ours}"
        child = nursery.bear(
            "fastmcp_child", effects=effects, folder=str(tmp_path), is_ours=is_ours
        )
        await asyncio.to_thread(eventually, lambda: not Path(f"/proc/{child.pid}").exists())  # noqa: B023
    async with Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}") as app:
        (plain,) = await asked(shop(tmp_path / "effects_False", None), 5, name="pay")
        (ours,) = await asked(shop(tmp_path / "effects_True", app), 5, name="pay")
    assert plain.data == "paid 5"
    assert statuses([ours]) == [(True, UNKNOWN)]
    lines = [(tmp_path / f"effects_{each}").read_text().split() for each in (False, True)]
    assert lines == [["5", "5"], ["5"]]


@pytest.mark.proves("AGENTS-FASTMCP-1")
async def test_results_and_reads_are_as_before_and_wrong_arguments_reach_nobody(app, till):
    server = till.server(Guarded(app))

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def balance(amount: int) -> ToolResult:
        return ToolResult(content="no such account", is_error=True)

    good, wrong = await asked(server, 5, "much")  # type: ignore[arg-type]
    assert good.data == {"id": "ch_1"}
    assert wrong.content[0].text.startswith("[not_done]")
    read = await asked(server, 1, name="balance")
    assert [each.text for each in read[0].content] == ["no such account"]
    assert till.charged == [5]


@pytest.mark.proves("AGENTS-FASTMCP-1")
async def test_a_server_opens_its_application_and_tools_may_ask_their_caller_for_more(tmp_path):
    app = Doubtless(f"sqlite:///{tmp_path / 'ledger.db'}")
    mcp: FastMCP[Any] = FastMCP("shop", lifespan=opened(app), middleware=[Guarded(app)])
    question = ElicitRequestFormParams(
        message="really?",
        requested_schema={"type": "object", "properties": {"ok": {"type": "boolean"}}},
    )

    @mcp.tool
    async def charge(amount: int, context: Context) -> Any:
        if not context.input_responses:
            return InputRequiredResult(input_requests={"ok": ElicitRequest(params=question)})
        return {"amount": amount}

    async def says(*_: Any) -> dict[str, bool]:
        return {"ok": True}

    for amount in (5, 6):  # it is opened anew for each
        async with Client(mcp, elicitation_handler=says) as client:
            found = await client.call_tool("charge", {"amount": amount})
            assert found.structured_content == {"amount": amount}
    async with app:
        states = [each.state for each in await app.operations()]
    assert states == ["succeeded", "failed"] * 2  # what only asked has done nothing


@pytest.mark.proves("AGENTS-FASTMCP-1")
async def test_callers_that_are_authenticated_have_sessions_of_their_own(app, till):
    till.then = lost
    server = till.server(Guarded(app))
    names: list[str] = []
    told: list[Any] = []
    for who in ("ann", "bob"):
        token = AccessToken(token="t", client_id="app", scopes=[], subject=who)
        said = auth_context_var.set(AuthenticatedUser(token))
        try:
            async with Client(server) as client:
                await client.call_tool("charge", {"amount": 5}, raise_on_error=False)
                found = await client.call_tool("charge", {"amount": 5}, raise_on_error=False)
                names.append((found.structured_content or {})["operation_id"])
                waiting = await client.call_tool(telling.UNRESOLVED_TOOL, {})
                assert [each["operation_id"] for each in waiting.data] == names[-1:]
                told = [
                    (await client.call_tool(telling.STATUS_TOOL, {"operation_id": name})).data
                    for name in names
                ]
        finally:
            auth_context_var.reset(said)
    assert till.charged == [5, 5]  # one for each of them
    assert "no operation" in told[0]["error"].lower()  # of the other one
    assert told[1]["status"] == UNKNOWN


@pytest.mark.proves("AGENTS-FASTMCP-1")
async def test_the_example_of_the_page_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    async def pay(card: str, amount: int) -> str:
        return f"{amount} from {card}"

    names = examples.first_of("agents-fastmcp.md", pay=pay)
    async with Client(names["mcp"]) as client:
        found = await client.call_tool("charge", {"card": "7", "amount": 5})
        assert found.data == "5 from 7"
    assert (tmp_path / "doubtless.db").exists()


@pytest.mark.proves("AGENTS-FASTMCP-1")
async def test_a_check_of_arguments_proves_that_a_tool_never_ran_and_its_own_words_do_not(app):
    server: FastMCP[Any] = FastMCP("shop", middleware=[Guarded(app)])
    paid: list[int] = []

    @server.tool
    async def pay(amount: Annotated[int, AfterValidator(even)]) -> str:
        paid.append(amount)
        raise ValidationError("it must be even")

    ours = await asked(server, 3, 4, name="pay")
    assert statuses(ours) == [(True, "failed"), (True, UNKNOWN)]
    assert paid == [4]


@pytest.mark.proves("AGENTS-FASTMCP-1")
async def test_an_error_of_a_tool_proves_nothing_unless_it_is_declared_to(app, till):
    def refuses() -> Any:
        raise ToolError("the card was refused")

    till.then = refuses
    assert statuses(await asked(till.server(Guarded(app)), 5)) == [(True, UNKNOWN)]
    keys = {"pay": ToolKeys(effect="money", valid_for="1h")}
    server = till.server(Guarded(app, contracts=keys, definitive=["pay"]), name="pay")
    (ours,) = await asked(server, 6, name="pay")
    assert statuses([ours]) == [(True, "failed")]
    assert "the card was refused" in ours.content[0].text
