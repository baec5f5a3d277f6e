"""The blocking application: the asynchronous one, called from threads."""

import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.engine.functions import WITHIN_S, WRITE

from doubtless import Call, Doubtless
from doubtless.core.model import Principal, Role
from doubtless.engine.actor import Actor
from doubtless.engine.blocking import BlockingDoubtless, Hands
from doubtless.engine.remote.app import RemoteDoubtless
from doubtless.errors import (
    DoubtlessError,
    InsideTransaction,
    SettingsError,
    TransactionTimedOut,
)

ROOT = Path(__file__).parents[2]


class Noting(BlockingDoubtless):
    """A blocking application with a tool, `note`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(Doubtless(f"sqlite:///{folder / 'ledger.db'}"))
        self.calls: list[str] = []
        self.note = self.tool(name="note", **WRITE)(self._carry_out)

    def _carry_out(self, call: Call, number: int) -> int:
        self.calls.append(call.operation_id)
        return number


@pytest.fixture
def app(tmp_path):
    return Noting(tmp_path)


def comes_true(condition) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(POLL_S)


POLL_S = 0.01

# --- tools ---------------------------------------------------------------------------------------


@pytest.mark.proves("CLIENT-5")
def test_a_plain_function_is_a_tool_and_calling_it_blocks_for_its_outcome(app):
    with app:
        told = app.note.with_id("n1")(number=7)
        assert (told.status, told.result, told.operation_id) == ("succeeded", 7, "n1")
        assert app.note.with_id("n1")(number=7).already_done

        @app.tool(**WRITE)
        async def later(call: Call) -> str:
            return "declared while it is open"

        assert later().result == "declared while it is open"
    assert app.calls == ["n1"]


@pytest.mark.proves("CLIENT-5")
def test_several_threads_call_at_once_and_one_intent_acts_once(app):
    with app, ThreadPoolExecutor(8) as threads:
        same = [
            threads.submit(app.call, "note", {"number": 1}, operation_id="n1", wait_s=WITHIN_S)
            for _ in range(8)
        ]
        told = [each.result() for each in same]
        others = list(
            threads.map(lambda number: app.call("note", {"number": number}), range(2, 22))
        )
    assert {each.result for each in told} == {1}
    assert sorted(each.result for each in others) == list(range(2, 22))
    assert app.calls.count("n1") == 1
    assert len(app.calls) == 21


@pytest.mark.proves("CLIENT-5")
def test_another_principal_s_hands_block_as_well(app):
    with app:
        other = app.actor(Principal(name="other", role=Role.AGENT))
        assert other.call("note", {"number": 1}, operation_id="n1").status == "succeeded"
        assert [each.operation_id for each in other.session().recent] == ["n1"]
        assert app.session().recent == ()
        told: list[Any] = []
        other.on_settled(told.append, name="mine")
        comes_true(lambda: len(told) == 1)


@pytest.mark.proves("CLIENT-5")
def test_a_subscriber_may_call_the_application_itself(app):
    told: list[str] = []
    app.on_settled(lambda each: told.append(app.outcome(each.outcome.operation_id).state), name="x")
    with app:
        app.note.with_id("n1")(number=1)
        comes_true(lambda: told == ["succeeded"])


# --- opening and closing -------------------------------------------------------------------------


@pytest.mark.proves("CLIENT-4")
def test_an_application_that_is_not_open_says_so(app):
    with pytest.raises(DoubtlessError, match=r"with Doubtless\.sync"):
        app.outcome("n1")
    with app:
        with pytest.raises(DoubtlessError, match="open already"):
            app.__enter__()
        assert app.note(number=1).status == "succeeded"
    with pytest.raises(DoubtlessError, match="not open"):
        app.note(number=1)
    with app:
        assert app.note(number=2).status == "succeeded"


@pytest.mark.proves("CLIENT-4")
def test_its_own_event_loop_can_t_wait_for_it(app):
    seen: list[BaseException] = []

    @app.tool(**WRITE)
    async def inner(call: Call) -> str:
        try:
            app.outcome("n1")
        except DoubtlessError as error:
            seen.append(error)
        return "done"

    with app:
        assert inner().status == "succeeded"
    assert "can't be used here" in str(seen[0])


@pytest.mark.proves("CLIENT-5")
def test_what_the_block_raises_comes_out_as_it_is_and_closes_the_application(app):
    with pytest.raises(KeyError), app:
        fails(app.note(number=1))
    assert "doubtless-ledger" not in {each.name for each in threading.enumerate()}


@pytest.mark.proves("CLIENT-5")
def test_a_thread_that_waits_is_let_go_when_another_closes_the_application(app):
    @app.tool(**WRITE, approval={})
    def approved(call: Call) -> str:
        return "done"

    with ThreadPoolExecutor(1) as threads:
        with app:
            app.call("approved", {}, operation_id="a1")
            waiting = threads.submit(app.wait, "a1", timeout=60)
        with pytest.raises(DoubtlessError):
            waiting.result(WITHIN_S)


@pytest.mark.proves("CLIENT-5")
@pytest.mark.parametrize(("seconds", "state"), [(1.0, "succeeded"), (20.0, "unknown")])
def test_an_interrupt_ends_the_waiting_and_closes_in_order(tmp_path, seconds, state):
    ledger = tmp_path / "ledger.db"
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clients.interrupted", str(ledger), str(seconds)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "interrupted\n"
        with Doubtless.sync(f"sqlite:///{ledger}", worker=False) as app:
            found = app.outcome("o1")
            assert found.state in (state, "manual_review"), found.message
            assert (found.outcome == "success") == (state == "succeeded")
    finally:
        process.kill()
        process.communicate()


# --- transactions --------------------------------------------------------------------------------


@pytest.mark.proves("CLIENT-5")
def test_a_transaction_commits_what_is_done_in_it_and_the_operation_is_carried_out(app):
    with app:
        with app.transaction() as tx:
            tx.run("create table orders (id integer primary key, note text)")
            tx.run("insert into orders (id, note) values (:id, :note)", id=7, note="x")
            told = tx.prepare("note", {"number": 7}, operation_id="n7")
            assert told.status == "pending"
            assert tx.row("select note from orders where id = :id", id=7) == {"note": "x"}
            with pytest.raises(InsideTransaction):
                app.call("note", {"number": 8})
        assert app.wait("n7", timeout=WITHIN_S).result == 7
        with pytest.raises(KeyError):
            roll_back(app)
        with app.transaction() as tx:
            assert tx.rows("select id from orders") == [{"id": 7}]
        assert app.prepare("note", {"number": 9}, operation_id="n9").status == "pending"
        assert app.wait("n9", timeout=WITHIN_S).result == 9
    assert app.calls == ["n7", "n9"]


def fails(_: object = None) -> None:
    raise KeyError("of the block's own")


def roll_back(app: BlockingDoubtless) -> None:
    with app.transaction() as tx:
        tx.run("insert into orders (id, note) values (8, 'y')")
        tx.prepare("note", {"number": 8}, operation_id="n8")
        fails()


def take_too_long(app: BlockingDoubtless, late: threading.Event) -> None:
    with app.transaction() as tx:
        tx.run("create table orders (id integer primary key)")
        late.wait(0.5)
        tx.run("insert into orders (id) values (1)")


@pytest.mark.proves("CLIENT-4")
def test_a_transaction_that_is_open_for_too_long_is_rolled_back(tmp_path):
    ledger = f"sqlite:///{tmp_path / 'ledger.db'}"
    late = threading.Event()
    with Doubtless.sync(ledger, transaction_timeout_s=0.2) as app:
        with pytest.raises(TransactionTimedOut):
            take_too_long(app, late)
        with app.transaction() as tx:
            assert tx.rows("select name from sqlite_schema where name = 'orders'") == []


# --- completeness --------------------------------------------------------------------------------


ONLY_ASYNC = {
    "position": "what delivers to a subscriber stands on it; it is no user's",
    "drain": "a service's; the blocking one has it too",
    "page": "of an actor in the service",
    "session_of": "of an actor in the service",
    "ledger": "the ledger itself blocks already",
    "loop": "there is none for who blocks: `asynchronous.loop` is the one behind it",
    "actions": "of the gateway, which works on the event loop",
    "outcome_in_session": "of the gateway, which works on the event loop",
    "call_in_doubt": "of the adapters, which work on the event loop",
    "tenant": "of the service and its commands",
    "webhook_secrets": "of the service, which receives webhooks",
    "check_webhooks": "of the service, which receives webhooks",
}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.proves("CLIENT-8")
def test_the_blocking_application_has_every_method_with_the_same_arguments():
    wanted = public(Doubtless) - {"sync"}
    assert wanted - public(BlockingDoubtless) <= ONLY_ASYNC.keys()
    for name in wanted & public(BlockingDoubtless) - {"tool", "registry", "ledger"}:
        there = inspect.signature(getattr(Doubtless, name))
        here = inspect.signature(getattr(BlockingDoubtless, name))
        assert list(there.parameters) == list(here.parameters), name
    assert public(Actor) - public(Hands) <= ONLY_ASYNC.keys()


@pytest.mark.proves("CLIENT-8")
def test_the_remote_application_has_every_method_with_the_same_arguments():
    assert public(Doubtless) <= public(RemoteDoubtless)
    for name, method in inspect.getmembers(Doubtless, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            there, here = (
                inspect.signature(method),
                inspect.signature(getattr(RemoteDoubtless, name)),
            )
            assert list(there.parameters) == list(here.parameters), name


@pytest.mark.proves("CLIENT-6")
def test_a_token_without_a_service_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="token= belongs"):
        Doubtless(f"sqlite:///{tmp_path}/x.db", token="x")
