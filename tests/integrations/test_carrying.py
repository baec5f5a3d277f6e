"""What the adapters for engines share."""

import ast
import asyncio
import dataclasses
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.shell import Shell
from tests.integrations.children import eventually
from tests.service.serving import Serving, make_tokens

from doubtless import Doubtless, DoubtlessError
from doubtless.core import identity
from doubtless.engine.remote.app import RemoteDoubtless
from doubtless.errors import NoIdentity
from doubtless.integrations import carrying
from doubtless.integrations.carrying import (
    AGAIN_MAX_S,
    AGAIN_MIN_S,
    Carrier,
    Effect,
    Place,
    effect,
    is_open,
    look_again_s,
)

words = st.text(max_size=5)
parts = st.lists(words, max_size=3).map(tuple)
places = st.tuples(
    st.builds(Place, engine=st.sampled_from(["dbos", "celery"]), flow=parts, step=parts),
    words,
    words,
)


ENGINES = {"dbos", "temporalio", "procrastinate", "celery"}


@pytest.mark.proves("ENGINES-2")
def test_an_engine_s_library_is_imported_with_its_adapter_alone():
    found = {}
    for path in Path(carrying.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        named = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
        named += [
            name.name
            for each in ast.walk(tree)
            if isinstance(each, ast.Import)
            for name in each.names
        ]
        found[path.stem] = {name.partition(".")[0] for name in named} & ENGINES
    alone = {name: {name} for name in ("dbos", "procrastinate", "celery")}
    found = {name: engines for name, engines in found.items() if engines}
    assert found == {"temporal": {"temporalio"}, **alone}


@pytest.mark.proves("ENGINES-3")
@given(places, places)
def test_two_places_have_one_id_only_if_they_are_the_same(one, other):
    (place, tool, part), (also, tool_too, part_too) = one, other
    same = one == other
    assert (place.operation_id(tool, part) == also.operation_id(tool_too, part_too)) == same


@pytest.mark.proves("ENGINES-3")
@given(places, st.text(max_size=200))
def test_every_id_that_comes_of_a_place_may_be_used(one, run):
    place, tool, part = one
    assert identity.is_operation_id(place.operation_id(tool, part))
    for word in (place.session_id, place.correlation_id(run)):
        assert 0 < len(word) <= 128
        assert all("!" <= each <= "~" for each in word)


@pytest.mark.proves("ENGINES-3")
def test_where_there_is_no_place_an_id_of_the_intent_is_wanted():
    said = {"run": "r", "part": "", "otherwise": "it runs nowhere"}
    with pytest.raises(NoIdentity, match="refund: it runs nowhere"):
        effect(None, "refund", {}, operation_id=None, **said)
    assert effect(None, "refund", {}, operation_id="r1", **said).operation_id == "r1"


def asked(charge: str) -> Effect:
    return Effect(
        tool="refund",
        arguments={"charge": charge, "amount": 500},
        operation_id=f"refund_{charge}",
        session_id="order-7",
        correlation_id=None,
    )


@pytest.mark.proves("ENGINES-4")
async def test_a_service_that_is_away_is_waited_for_and_means_the_same_operation(shop, monkeypatch):
    """Nobody listens yet when they call: a blocking application and an asynchronous one."""
    monkeypatch.setattr(RemoteDoubtless, "retry_for_s", 0.1)
    monkeypatch.setattr(carrying, "PAUSE_MAX_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    shell = Shell(shop.folder)
    token = make_tokens(shell.ledger)["agent"]
    url = f"http://127.0.0.1:{port}"
    away = 0

    async def go_on() -> None:
        nonlocal away
        away += 1

    async with Doubtless(url, token=token) as app:
        with Doubtless.sync(url, token=token) as blocking:
            call = Carrier(blocking).carry
            first = asyncio.create_task(asyncio.to_thread(call, asked("ch_1"), go_on=lambda: None))
            second = asyncio.create_task(Carrier(app).carry_async(asked("ch_2"), go_on=go_on))
            await asyncio.to_thread(eventually, lambda: away)
            with await asyncio.to_thread(Serving, shell, "--port", str(port)):
                found = await asyncio.gather(first, second)
                assert [each.status for each in found] == ["succeeded", "succeeded"]
                assert [each.operation_id for each in found] == ["refund_ch_1", "refund_ch_2"]
    assert shop.effects(500) == 2


@pytest.mark.proves("ENGINES-4")
async def test_an_application_is_not_waited_for_on_its_own_event_loop(shop):
    async with Doubtless(shop.ledger, contracts=shop.contracts) as app:
        with pytest.raises(DoubtlessError, match="await call_async"):
            Carrier(app).call(asked("ch_1"))
        found = await Carrier(app).call_async(asked("ch_1"))
        for age_s, least_s, most_s in ((0, AGAIN_MIN_S, 3.0), (60, 25.0, 35.0), (9e5, 60.0, 60.0)):
            begun = datetime.now(UTC) - timedelta(seconds=age_s)
            aged = dataclasses.replace(found, created_at=begun.isoformat())
            assert least_s <= look_again_s(aged) <= min(most_s, AGAIN_MAX_S)
        assert not is_open(found)
