"""Models that repeat, vary, split, rephrase and start over after an unknown: one effect.

What counts is the far side's own count. Beside each stands the same model without us.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import Shell
from tests.integrations import stubborn
from tests.integrations.stubborn import FIRST, SCRIPTS, FarSide, Said
from tests.service.serving import staged

from doubtless import Doubtless
from doubtless.core.model import Principal, Role
from doubtless.core.outcome import Outcome
from doubtless.engine.contracts import ToolKeys
from doubtless.engine.tools import Call
from doubtless.integrations import doubting, guarding, telling
from doubtless.integrations.guarding import Guard
from doubtless.testing.provider import ProviderProcess

INVITED = re.compile(r"\b(try again|please retry|may be called again)", re.IGNORECASE)
named = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)


def said_honestly(heard: list[Said]) -> None:
    """Hold every text against what was known: that it is not known."""
    assert heard[0].text.startswith("[unknown_reconciliation_required] ")
    for each in heard:
        assert not INVITED.search(each.text), each
        if each.turn.tool in ("refund", "credit"):
            status = each.text.partition("]")[0]
            assert status in (
                "[unknown_reconciliation_required",
                "[rejected_by_policy",
                "[not_done",
            ), each


@pytest.mark.proves("STUBBORN-1")
@named
async def test_a_stubborn_model_makes_one_effect_where_the_object_is_named(script, tmp_path):
    far, plain = FarSide(), FarSide()
    await stubborn.run(script, plain.plainly())
    async with stubborn.opened(tmp_path) as app:
        heard = await stubborn.run(script, stubborn.guarded(Guard(app), far, stubborn.BARRED))
        listed = await app.session("agent")
    assert far.effects == [("refund", {"charge": "ch_1", "amount": 500})]
    assert len(plain.effects) >= 2
    assert len(listed.unresolved) == 1
    said_honestly(heard)


UNNAMED: dict[str, int] = {
    "repeats": 1,
    "reorders": 1,
    "writes_the_number_in_another_way": 1,
    "makes_an_id_up": 1,
    # What follows passes: to the ledger another payload is another intent.
    "rounds": 3,
    "adds_a_note": 2,
    "rephrases": 3,
    "splits": 2,  # the two halves are one payload
    "uses_another_tool": 2,
    "starts_over": 3,  # without an object it is the payload within the session
    "asks_and_goes_on": 3,
}


@pytest.mark.proves("STUBBORN-2")
@named
async def test_without_a_named_object_a_repeat_is_barred_and_a_variant_passes(script, tmp_path):
    far = FarSide()
    async with stubborn.opened(tmp_path) as app:
        await stubborn.run(script, stubborn.guarded(Guard(app), far, None))
    assert len(far.effects) == UNNAMED[script.__name__]


@pytest.mark.proves("STUBBORN-2")
def test_that_a_variant_would_pass_is_said_when_contracts_are_checked(tmp_path):
    said = {}
    for names_it in (True, False):
        text = contract("http://127.0.0.1:9", named=names_it)
        (tmp_path / "contracts.toml").write_text(text)
        words = " ".join(Shell(tmp_path).here("contracts", "check").out.split())
        said[names_it] = "a slightly different call would pass" in words
    assert said == {True: False, False: True}


# --- tools of a contract, over HTTP --------------------------------------------------------------

LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}}]

TOOL = """
[tools.{name}]
effect = "money"
source = "payments"
{named}
timeout = "2s"
in_flight_horizon = "200ms"
recovery_deadline = "60s"

[tools.{name}.arguments]
type = "object"
required = ["charge", "amount"]
additionalProperties = false

[tools.{name}.arguments.properties]
charge = {{ type = "string" }}
amount = {{ type = "number" }}
note = {{ type = "string" }}

[tools.{name}.request]
method = "POST"
path = "/v1/{name}s"

[tools.{name}.request.json]
charge = "{{args.charge}}"
amount = "{{args.amount}}"
metadata = {{ operation = "{{operation.ref}}" }}

[tools.{name}.idempotency]
header = "Idempotency-Key"
ttl = "24h"
"""
LOOKUP = """
[tools.{name}.lookup]
path = "/v1/{name}s"
query = {{ charge = "{{args.charge}}" }}
items = "data"
where = {{ "metadata.operation" = "{{operation.ref}}" }}
authoritative = true
lag = "0s"
interval = "50ms"
"""


def contract(url: str, *, named: bool = True, looked_up: bool = False) -> str:
    """Write a contract file with two tools that give money back."""
    texts = [f'[sources.payments]\nbase_url = "{url}"']
    for name in ("refund", "credit"):
        texts.append(TOOL.format(name=name, named='business_key = ["charge"]' if named else ""))
        texts.append(LOOKUP.format(name=name) if looked_up else "")
    return "\n".join(texts)


@pytest.fixture
def loses(provider: ProviderProcess) -> ProviderProcess:
    """A provider that takes effect and resets every connection."""
    provider.configure(LOST)
    return provider


@pytest.mark.proves("STUBBORN-1")
@named
async def test_a_stubborn_model_makes_one_effect_through_a_tool_of_a_contract(
    script, loses, tmp_path
):
    (tmp_path / "contracts.toml").write_text(contract(loses.url))
    async with stubborn.opened(tmp_path, contracts=tmp_path / "contracts.toml") as app:
        heard = await stubborn.run(script, stubborn.offered(app))
    assert len(loses.effects()) == 1
    said_honestly(heard)


# --- after it was settled behind the model's back ------------------------------------------------


@pytest.mark.proves("STUBBORN-3")
@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (FIRST, "[succeeded] refund had already been done"),
        (FIRST.but(amount=500.0), "[succeeded] refund had already been done"),
        (FIRST.but(amount=250), "[rejected_by_policy] refund was refused: an earlier operation"),
        (FIRST.but(note="again"), "[rejected_by_policy] refund was refused: an earlier operation"),
        (replace(FIRST, tool="credit"), "[rejected_by_policy] credit was refused: an earlier"),
    ],
)
async def test_what_was_settled_meanwhile_is_told_before_anything_is_sent_again(
    loses, tmp_path, turn, told
):
    text = contract(loses.url, looked_up=True)
    (tmp_path / "contracts.toml").write_text(text)
    async with stubborn.opened(tmp_path, contracts=tmp_path / "contracts.toml") as app:
        tools = stubborn.offered(app)
        first = await tools["refund"](FIRST.arguments, "agent")
        assert first.startswith("[unknown")
        named = stubborn.named_in(first)
        assert (await app.wait(named, timeout=20)).outcome == "success"
        second = await tools[turn.tool](turn.arguments, "agent")
        assert second.startswith(told)
        assert named in second
        assert len(loses.effects()) == 1
        asked = await tools["operation_status"]({"operation_id": named}, "agent")
        assert "took effect" in asked
        # It knows now. Whatever it asks for next, it means.
        third = await tools[turn.tool](turn.arguments, "agent")
        assert third.startswith("[unknown")
        assert len(loses.effects()) == 2


@pytest.mark.proves("STUBBORN-3")
@pytest.mark.parametrize("whose", ["its own", "another's", "nobody's"])
async def test_only_an_operation_of_its_own_bars_what_a_caller_asks_for(provider, tmp_path, whose):
    (tmp_path / "contracts.toml").write_text(contract(provider.url))
    async with stubborn.opened(tmp_path, contracts=tmp_path / "contracts.toml") as app:
        other = app.actor(Principal(name="another", role=Role.AGENT))
        first = await (app if whose == "its own" else other).call("refund", FIRST.arguments)
        in_doubt = ["nobody-s" if whose == "nobody's" else first.operation_id]
        again = await app.call_in_doubt("refund", FIRST.arguments, in_doubt=in_doubt)
        variant = await app.call_in_doubt(
            "refund", {**FIRST.arguments, "amount": 1}, in_doubt=in_doubt
        )
    is_barred = whose == "its own"
    assert (again.outcome, again.already_done) == ("success", is_barred)
    assert variant.outcome == ("rejected" if is_barred else "success")
    assert len(provider.effects()) == (1 if is_barred else 3)


@pytest.mark.proves("STUBBORN-3")
async def test_a_repeat_at_a_service_is_told_of_what_was_settled_meanwhile(loses, tmp_path):
    with staged(tmp_path, contract(loses.url, looked_up=True)) as stage:
        async with Doubtless(stage.serving.url, token=stage.tokens["agent"]) as app:
            first = await doubting.ask(app, "refund", FIRST.arguments, session_id="agent")
            assert first.outcome == "unknown"
            assert (await app.wait(first.operation_id, timeout=20)).outcome == "success"
            again = await doubting.ask(app, "refund", FIRST.arguments, session_id="agent")
            assert (again.operation_id, again.already_done) == (first.operation_id, True)
            assert telling.told(again).startswith("[succeeded] refund had already been done")
            assert len(loses.effects()) == 1
            # It knows now. Whatever it asks for next, it means.
            meant = await doubting.ask(app, "refund", FIRST.arguments, session_id="agent")
    assert meant.operation_id != first.operation_id
    assert len(loses.effects()) == 2


@pytest.mark.proves("STUBBORN-3")
async def test_a_framework_that_repeats_its_own_calls_is_told_of_each_of_them(tmp_path):
    sent = []
    at_once, late = asyncio.Event(), asyncio.Event()
    at_once.set()

    def sends(ready: asyncio.Event) -> Callable[[Call], Awaitable[int]]:
        async def perform(call: Call) -> int:
            sent.append(call.operation_id)
            number = len(sent)
            await ready.wait()
            return number

        return perform

    async with stubborn.opened(tmp_path) as app:
        guard = Guard(app, scope="agent")
        soon: ToolKeys = {**stubborn.BARRED, "timeout": "100ms"}
        guard.declare("refund", schema=None, keys=soon)

        async def call(number: int, ready: asyncio.Event) -> Outcome:
            return await guard.call(
                "refund", {"charge": "ch_1", "part": number % 2}, sends(ready), call_id=f"t{number}"
            )

        assert (await call(0, at_once)).result == 1
        assert (await call(1, late)).outcome == "unknown"
        late.set()
        assert (await app.wait("t1", timeout=20)).outcome == "success"
        # It starts again from where it was saved, before all three.
        assert (await call(0, at_once)).result == 1
        assert (await call(2, at_once)).outcome == "rejected", "it doesn't know of t1 yet"
        assert (await call(1, at_once)).result == 2
        assert (await call(2, at_once)).result == 3
    assert sent == ["t0", "t1", "t2"]


@pytest.mark.proves("STUBBORN-3")
async def test_what_provably_was_not_done_may_be_called_again(provider, tmp_path):
    first_alone = {"action": "drop_before_commit"}
    provider.configure([{"match": {"method": "POST"}, "then": first_alone, "times": 1}])
    text = contract(provider.url, looked_up=True).replace('"2s"', '"300ms"')
    (tmp_path / "contracts.toml").write_text(text)
    async with stubborn.opened(tmp_path, contracts=tmp_path / "contracts.toml") as app:
        tools = stubborn.offered(app)
        first = await tools["refund"](FIRST.arguments, "agent")
        assert first.startswith("[unknown")
        named = stubborn.named_in(first)
        assert (await app.wait(named, timeout=20)).status == "failed_safe_to_retry"
        asked = await tools["operation_status"]({"operation_id": named}, "agent")
        assert "it may be called again" in asked
        again = await tools["refund"](FIRST.arguments, "agent")
        assert again.startswith("[succeeded]")
    assert len(provider.effects()) == 1


# --- the page about agents -----------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")


@pytest.mark.proves("STUBBORN-4")
async def test_the_loop_on_the_page_runs_as_it_is_written(loses, tmp_path):
    (tmp_path / "contracts.toml").write_text(contract(loses.url))
    names: dict[str, Any] = {}
    loop, blocking, guarded = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(f"{loop}\n{guarded}", "agents.md", "exec"), names)  # noqa: S102 - our own page
    async with stubborn.opened(tmp_path, contracts=tmp_path / "contracts.toml") as app:
        offers = {each.name: each for each in await guarding.offers(app)}
        assert telling.CAUTION in offers["refund"].description
        answer: Callable[..., Awaitable[str]] = names["answer"]
        first = await answer(app, "refund", dict(FIRST.arguments), "agent")
        assert first.startswith("[unknown_reconciliation_required] It is not known whether refund")
        listed = await answer(app, telling.UNRESOLVED_TOOL, {}, "agent")
        named = stubborn.named_in(first)
        assert named in listed
        asked = await answer(app, telling.STATUS_TOOL, {"operation_id": named}, "agent")
        assert json.loads(asked)["outcome"] == "unknown"
        assert (await answer(app, "refund", {"amount": 1}, "agent")).startswith("[not_done]")

        pinged = []

        async def ping(to: str) -> str:
            pinged.append(to)
            return "pong"

        for _ in range(2):
            told = await names["guarded_ping"](app, ping, {"to": "ann"}, "run-1", "call-1")
            assert told.startswith("[succeeded]")
    assert (len(loses.effects()), pinged) == (1, ["ann"])

    def block() -> str:
        with Doubtless.sync(
            f"sqlite:///{tmp_path / 'other.db'}", contracts=tmp_path / "contracts.toml"
        ) as app:
            names["app"] = app
            exec(compile(blocking, "agents.md", "exec"), names)  # noqa: S102 - our own page
        return str(names["text"])

    assert (await asyncio.to_thread(block)).startswith("[unknown_reconciliation_required]")
