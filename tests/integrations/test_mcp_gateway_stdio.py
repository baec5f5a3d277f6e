"""The gateway as a client starts it: a link over pipes, the service, and what kills them."""

import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from tests.integrations.children import eventually
from tests.integrations.mcp_kit import ERAS, Shop, until

from doubtless import Doubtless
from doubtless.core.model import State
from doubtless.errors import SettingsError
from doubtless.integrations.mcp_place import FOLDER, GatewaySettings, Place
from doubtless.integrations.mcp_wire import LINE_BYTES_MAX

AMOUNTS = itertools.count(1)

pytestmark = pytest.mark.anyio


class Desk:
    """One scope on one ledger, with its clients and its service."""

    def __init__(self, folder: Path, *, idle: str = "10m") -> None:
        self.shop = Shop(folder)
        self.shop.contracts.unlink()  # nobody declared anything
        self.runtime = folder / "run"
        self.idle = idle

    @property
    def parameters(self) -> StdioServerParameters:
        said = ["mcp", "--scope", "agent-7", "--idle", self.idle, "--ledger", self.shop.ledger]
        return StdioServerParameters(
            command=sys.executable,
            args=["-m", "doubtless.cli", *said, "--", *self.shop.command],
            env={FOLDER: str(self.runtime), "PAY_KEY": "handed on"},
            cwd=self.shop.folder,
        )

    @asynccontextmanager
    async def client(self, mode: str = "auto") -> AsyncIterator[Client]:
        async with Client(self.parameters, mode=mode) as client:
            yield client

    def link(self, *more: str) -> subprocess.Popen[bytes]:
        """Start a link, as a client that never says a word."""
        said = self.parameters
        at = said.args.index("--")
        return subprocess.Popen(
            [said.command, *said.args[:at], *more, *said.args[at:]],
            env={**os.environ, **(said.env or {})},
            cwd=said.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    @property
    def pid(self) -> int | None:
        """The service's process id; None where none runs."""
        states = list(self.runtime.glob("*.json"))
        return json.loads(states[0].read_text())["pid"] if states else None

    @property
    def log(self) -> str:
        """What the service has said."""
        return next(iter(self.runtime.glob("*.log"))).read_text()

    def links(self) -> list[int]:
        """The process ids of links that were started for this scope."""
        found = []
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                argv = each.read_bytes().split(b"\0")
            except OSError:
                continue
            if b"doubtless.cli" in argv and self.shop.ledger.encode() in argv:
                found.append(int(each.parent.name))
        return found

    def kill(self) -> None:
        pid = self.pid
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: not Path(f"/proc/{pid}").exists())


@pytest.fixture(scope="module")
def desk(tmp_path_factory) -> Iterator[Desk]:
    found = Desk(tmp_path_factory.mktemp("desk"))
    yield found
    found.kill()


def asked(method: str, params: dict[str, object]) -> dict[str, object]:
    """Write a request as a client of the modern era has it."""
    envelope = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": envelope}}


async def states(desk: Desk) -> set[str]:
    async with Doubtless(desk.shop.ledger, worker=False) as app:
        return {each.state for each in (await app.session("agent-7")).unresolved}


async def is_executing(desk: Desk) -> bool:
    return State.EXECUTING in await states(desk)


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.proves("GATEWAY-10")
async def test_a_link_that_is_killed_leaves_the_call_and_the_next_one_is_told_its_end(desk, era):
    amount = next(AMOUNTS)
    what = {"amount": amount, "how": "slow"}
    async with desk.client(era) as client:
        call = asyncio.create_task(client.call_tool("charge", what))
        await until(lambda: is_executing(desk))
        for pid in desk.links():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(MCPError):
            await call
    desk.shop.let_go(amount)
    async with desk.client(era) as client:
        again = await client.call_tool("charge", what)
    assert again.structured_content == {"id": f"ch_{amount}"}
    assert desk.shop.effects(amount) == 1
    assert not desk.shop.was_cancelled


@pytest.mark.proves("GATEWAY-10")
async def test_a_client_that_closes_its_side_is_still_answered_and_starts_what_it_would(desk):
    amount = next(AMOUNTS)
    ask = asked("tools/call", {"name": "charge", "arguments": {"amount": amount}})
    link = desk.link()
    said, _ = await asyncio.to_thread(link.communicate, json.dumps(ask).encode() + b"\n")
    assert link.returncode == 0
    answers = [json.loads(line) for line in said.splitlines()]  # standard output is the protocol's
    assert [each["result"]["structuredContent"] for each in answers] == [{"id": f"ch_{amount}"}]
    assert desk.shop.effects(amount) == 1
    assert (desk.shop.folder / "key").read_text() == "handed on"


@pytest.mark.proves("GATEWAY-11")
async def test_a_service_killed_in_a_call_leaves_an_unknown_and_the_next_one_repeats_nothing(desk):
    amount = next(AMOUNTS)
    what = {"amount": amount, "how": "hang"}
    async with desk.client() as client:
        call = asyncio.create_task(client.call_tool("charge", what))
        await until(lambda: is_done(desk, amount))
        first = desk.pid
        desk.kill()
        with pytest.raises(MCPError):
            await call
    async with desk.client() as client:
        again = await client.call_tool("charge", what)
        assert again.structured_content["status"] == "unknown_reconciliation_required"
        operation_id = again.structured_content["operation_id"]
        async with Doubtless(desk.shop.ledger, worker=False) as app:
            await app.resolve(operation_id, "done", operator="mira", note="seen in the bank")
        status = await client.call_tool("operation_status", {"operation_id": operation_id})
        assert status.structured_content["state"] == "succeeded"
    assert desk.pid != first
    assert desk.shop.effects(amount) == 1


async def is_done(desk: Desk, amount: int) -> bool:
    return desk.shop.effects(amount) > 0


@pytest.mark.proves("GATEWAY-12")
async def test_links_that_start_at_once_share_one_service_which_ends_when_it_is_idle(tmp_path):
    desk = Desk(tmp_path, idle="100ms")
    links = [desk.link() for _ in range(3)]
    try:
        await asyncio.gather(*(asyncio.to_thread(greeted, each) for each in links))
        other = Desk(tmp_path, idle="200ms").link()
        _, refusal = await asyncio.to_thread(other.communicate)
        assert other.returncode == 2
        assert b"runs with other settings, and is in use" in refusal
    finally:
        told = [(await asyncio.to_thread(each.communicate))[1] for each in links]
    assert sum(b"service started" in each for each in told) == 1
    assert [each.returncode for each in links] == [0, 0, 0]
    await until(lambda: has_ended(desk))
    assert "Traceback" not in desk.log
    assert not list(desk.runtime.glob("*.sock"))


def greeted(link: subprocess.Popen[bytes]) -> None:
    """Say a word over a link, and wait for the answer."""
    assert link.stdin is not None
    assert link.stdout is not None
    link.stdin.write(json.dumps(asked("tools/list", {})).encode() + b"\n")
    link.stdin.flush()
    assert b"operation_status" in link.stdout.readline()


async def has_ended(desk: Desk) -> bool:
    return "the service has ended" in desk.log


@pytest.mark.proves("GATEWAY-10")
async def test_a_client_that_talks_nonsense_is_nobody_elses_concern(desk):
    link = desk.link()
    assert link.stdin is not None
    for nonsense in (b"garbage", b"[1, 2]", b"\xff\xfe", b'{"jsonrpc":"2.0","method":"nope"}'):
        link.stdin.write(nonsense + b"\n")
    await asyncio.to_thread(greeted, link)
    link.stdin.write(b"x" * LINE_BYTES_MAX)
    with suppress(BrokenPipeError):
        link.stdin.write(b"x" * LINE_BYTES_MAX)
    _, told = await asyncio.to_thread(link.communicate)
    assert link.returncode == 1
    assert b"ended the link" in told
    async with desk.client() as client:
        assert (await client.list_tools()).tools


@pytest.mark.proves("GATEWAY-12")
def test_a_runtime_folder_that_others_can_enter_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    tmp_path.chmod(0o755)
    with pytest.raises(SettingsError, match="nobody else can enter"):
        Place.of(GatewaySettings(ledger="sqlite:///x.db", scope="a", folder=str(tmp_path)))


@pytest.mark.proves("GATEWAY-12")
async def test_a_service_that_is_told_to_stop_lets_open_calls_end_and_answers_them(desk):
    amount = next(AMOUNTS)
    async with desk.client() as client:
        await client.list_tools()  # else the client asks for the schema after the call
        call = asyncio.create_task(client.call_tool("charge", {"amount": amount, "how": "slow"}))
        await until(lambda: is_executing(desk))
        stopping = await asyncio.to_thread(desk.link("--stop").communicate)
        assert b"is ending" in stopping[1]
        desk.shop.let_go(amount)
        assert (await call).structured_content == {"id": f"ch_{amount}"}
    await until(lambda: has_ended(desk))
    assert desk.shop.effects(amount) == 1
