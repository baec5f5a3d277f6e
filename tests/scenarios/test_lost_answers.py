"""The request was handed over, and no answer tells what became of it."""

import pytest
from tests.scenarios.stories import UNKNOWN

POST = {"method": "POST"}
ONCE = {**POST, "nth": 1}

BIG = "x" * 6_000_000  # more than the buffers of a connection hold

NO_LOOKUP = {"effect": "write", "lookup": None}
RARE_LOOKUP = {"lookup.interval": "7s"}


def on_the_first_send(action: str, **options: object) -> list[dict[str, object]]:
    return [{"match": ONCE, "then": {"action": action, **options}}]


@pytest.mark.proves("ROW-A-1", "ROW-A-2")
@pytest.mark.parametrize("on_absent", ["resend", "report"])
@pytest.mark.parametrize("close", ["fin", "rst"])
@pytest.mark.parametrize("committed", [True, False], ids=["committed", "dropped"])
async def test_the_same_exception_leads_to_what_the_provider_s_evidence_says(
    story, committed, close, on_absent
):
    story.declare({"on_absent": on_absent})
    if committed:
        story.provider.configure(on_the_first_send(f"commit_then_{close}"))
    else:
        story.provider.configure(on_the_first_send("drop_before_commit", close=close))
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.state) == (UNKNOWN, "unknown")
        assert first.observation["cause"] == "connection_reset"
        assert first.observation["stage"] == "sent"
        if committed:
            last = await story.ends(app, "succeeded")
            assert last.provider_operation_id == story.effects(last)[0].id
            story.happened(last, effects=1, sends=1)
        elif on_absent == "report":
            last = await story.ends(app, "failed")
            assert last.status == "failed_safe_to_retry"
            assert last.error == {"code": "confirmed_absent"}
            story.happened(last, effects=0, sends=1)
            told = await story.call(app)
            assert told.status == "succeeded"
            story.happened(told, effects=1, sends=2)
            proven_late_enough(story)
        else:
            last = await story.ends(app, "succeeded")
            story.happened(last, effects=1, sends=2)
            proven_late_enough(story)


def proven_late_enough(story) -> None:
    """Check that nothing was sent again before horizon and lag were over, and looked at twice."""
    first, again = story.sends()
    looks = [look.at for look in story.looks() if first.at < look.at < again.at]
    timeout_s, horizon_s, lag_s, interval_s = 1.0, 0.2, 0.1, 0.15
    assert again.at - first.at >= timeout_s + horizon_s + lag_s
    assert looks[-1] - first.at >= timeout_s + horizon_s + lag_s - TOLERANCE_S
    assert looks[-1] - looks[-2] >= interval_s - TOLERANCE_S


TOLERANCE_S = 0.1  # between the gate, where our clock was read, and the arrival


@pytest.mark.proves("ROW-B-1", "CASE-T-1")
@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "without a key"])
@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_a_5xx_after_the_effect_is_unknown_until_a_look_up_finds_the_effect(
    story, status, keyed
):
    story.declare({} if keyed else {"effect": "write", "idempotency": None})
    story.provider.configure(on_the_first_send("commit_then_status", status=status))
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.observation["cause"]) == (UNKNOWN, "gateway_error")
        assert str(status) in first.transport_observation
        story.happened(await story.ends(app, "succeeded"), effects=1, sends=1)


@pytest.mark.proves("ROW-B-2")
@pytest.mark.parametrize("on_absent", ["resend", "report"])
@pytest.mark.parametrize(
    ("rule", "cause"),
    [
        (
            {"match": ONCE, "then": {"action": "half_body_read_then_rst"}},
            "connection_reset",
        ),
        ({"match": {"nth": 1}, "then": {"action": "never_read"}}, "timeout"),
    ],
    ids=["the provider resets", "our time is over"],
)
async def test_a_body_that_was_written_in_part_is_unknown_until_its_absence_is_confirmed(
    story, rule, cause, on_absent
):
    # This provider does not keep what is sent as `object`: its answers stay small.
    story.declare({"request.json.object": "{args.note}", "on_absent": on_absent})
    story.provider.configure([rule])
    async with story.app() as app:
        first = await story.call(app, note=BIG)
        assert (first.status, first.observation["cause"]) == (UNKNOWN, cause)
        assert first.observation["stage"] == "sent"
        assert story.provider.effects() == []
        if on_absent == "resend":
            last = await story.ends(app, "succeeded")
            assert last.attempts == 2
            assert len(story.effects(last)) == 1
        else:
            last = await story.ends(app, "failed")
            assert (last.status, last.attempts) == ("failed_safe_to_retry", 1)
            assert story.effects(last) == []
        assert {sent.key for sent in story.sends()} <= {last.idempotency_key}


@pytest.mark.proves("ROW-C-1")
@pytest.mark.parametrize(
    ("changes", "looked"),
    [({}, True), (RARE_LOOKUP, False), (NO_LOOKUP, False)],
    ids=["look-up comes first", "before the next look-up", "without a look-up"],
)
async def test_an_answer_that_came_too_late_is_evidence_and_nothing_is_sent_again(
    story, changes, looked
):
    slow = {"timeout": "400ms", "in_flight_horizon": "3s"}
    story.declare({**slow, **changes})
    story.provider.configure(on_the_first_send("commit_then_delay", delay_s=0.9))
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.observation["cause"]) == (UNKNOWN, "timeout")
        last = await story.ends(app, "succeeded")
        assert bool(story.looks()) == looked
        await story.until_told(app, "late: status 201")
        assert (await app.outcome("r1")).state == "succeeded"
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-O-1")
@pytest.mark.parametrize(
    ("action", "cause"),
    [("truncate_response", "truncated"), ("garbage_response", "unreadable")],
)
async def test_a_success_that_can_t_be_read_is_unknown_with_its_status_as_evidence(
    story, action, cause
):
    story.provider.configure(on_the_first_send(action))
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.observation["cause"]) == (UNKNOWN, cause)
        assert first.transport_observation.startswith("status 20")
        story.happened(await story.ends(app, "succeeded"), effects=1, sends=1)
