"""Processes that are killed: before the send, after it, and again and again."""

import socket

import pytest
from tests.scenarios.processes import acting
from tests.scenarios.stories import UNKNOWN

from doubtless.testing.provider import spawn_provider

ONCE = {"method": "POST", "nth": 1}
LOOKS = {"method": "GET"}
LONG = {"timeout": "20s", "recovery_deadline": "90s"}
NEVER_ANSWERED = {"action": "commit_then_delay", "delay_s": 20}


@pytest.mark.proves("ROW-E-1")
@pytest.mark.parametrize("place", ["after the write", "before the record"])
async def test_a_process_that_was_killed_after_the_effect_is_followed_by_a_look_up(story, place):
    story.declare({**LONG, "on_absent": "resend", "lookup.interval": "1s"})
    options = {}
    if place == "before the record":
        options["stops"] = place
    else:
        story.provider.configure([{"match": ONCE, "then": NEVER_ANSWERED}])
    with acting(story, "callers", 1, **options) as child:
        child.expect("ready")
        child.tell("go")
        if options:
            child.stopped()
        await story.seen(lambda provider: len(provider.effects()) == 1)
        child.kill()
    async with story.app(worker=False) as app:
        assert (await story.call(app, wait_s=0)).status == "pending"
        joined = await story.call(app, None, wait_s=0)
        assert joined.operation_id == "r1"
    async with story.app() as app:
        last = await story.ends(app, "succeeded")
        assert "'cause': 'crash'" in str(await app.timeline("r1"))
        assert UNKNOWN in story.told
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-E-1")
async def test_a_process_that_was_killed_while_it_connected_is_proven_to_have_sent_nothing(story):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host, port = full.getsockname()
        with socket.create_connection((host, port)):  # its queue is full: who connects now, waits
            story.declare({**LONG, "record_sending": True}, url=f"http://{host}:{port}")
            with acting(story, "callers", 1) as child:
                child.expect("ready")
                child.tell("go")
                async with story.app(worker=False) as app:
                    await story.begun(app)
                child.kill()
    with spawn_provider(port=port) as provider:
        story.provider = provider
        async with story.app() as app:
            last = await story.ends(app, "succeeded")
            assert "'seen': 'not_sent'" in str(await app.timeline("r1"))
            assert UNKNOWN not in story.told
            assert last.attempts == 2
            story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-E-1")
@pytest.mark.parametrize("records", [True, False], ids=["recorded", "not recorded"])
@pytest.mark.parametrize("place", ["before the gate", "behind the gate"])
async def test_a_process_that_was_killed_at_the_gate_is_unknown_unless_the_record_proves_more(
    story, place, records
):
    short = {"timeout": "500ms", "on_absent": "report"}
    story.declare({**short, "record_sending": records})
    with acting(story, "callers", 1, stops=place, short_leases=True) as child:
        child.expect("ready")
        child.tell("go")
        child.stopped()
        child.kill()
    async with story.app() as app:
        proven = records and place == "before the gate"
        last = await story.ends(app, "succeeded" if proven else "failed")
        assert (UNKNOWN in story.told) is not proven
        if not proven:
            assert (last.status, last.attempts) == ("failed_safe_to_retry", 1)
            assert story.sends() == []
            last = await story.call(app)
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("CASE-C-1", "ROW-E-1")
async def test_a_process_that_crashes_after_every_restart_makes_one_effect(story):
    story.declare({**LONG, "on_absent": "resend"})
    story.provider.configure(
        [{"match": ONCE, "then": NEVER_ANSWERED}, {"match": LOOKS, "then": {"action": "hang"}}]
    )
    for crashes in range(3):
        with acting(story, "callers", 1) as child:
            child.expect("ready")
            child.tell("go")
            await story.seen(lambda provider: len(provider.effects()) == 1)
            # The first is killed while it waits for the answer, the others in a look-up.
            await story.seen(lambda provider, n=crashes: len(provider.arrivals()) > n)
            child.kill()
    story.provider.configure({})
    async with story.app() as app:
        last = await story.ends(app, "succeeded")
        story.happened(last, effects=1, sends=1)
        assert last.attempts == 1
