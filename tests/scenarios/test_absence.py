"""When "not found" may be believed, when a key may be trusted, and who could not be asked."""

import pytest
from tests.scenarios.contracts import REPLAYED
from tests.scenarios.stories import UNKNOWN

ONCE = {"method": "POST", "nth": 1}
LIFE = {"timeout": "400ms", "in_flight_horizon": "100ms"}
LOOKS = {"method": "GET"}
OTHERS = {"charge": "ch_2", "amount": 500, "metadata": {"operation": "of somebody else"}}


@pytest.mark.proves("ROW-H-1", "CASE-T-2")
@pytest.mark.parametrize("on_absent", ["resend", "report"])
async def test_absent_is_not_believed_while_the_read_side_may_still_trail(story, on_absent):
    # Nothing is on its way any more after half a second: only the lag forbids to believe it.
    story.declare({**LIFE, "on_absent": on_absent, "lookup.lag": "1500ms"})
    story.provider.configure(
        {
            "settings": {"read_lag_s": 1.1},
            "rules": [{"match": ONCE, "then": {"action": "commit_then_rst"}}],
        }
    )
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        last = await story.ends(app, "succeeded")
        said = str(await app.timeline("r1"))
        assert said.count("'shows': 'absent'") >= 2, "it was told so, more than once"
        story.happened(last, effects=1, sends=1)


@pytest.mark.proves("ROW-I-1", "CASE-T-5")
@pytest.mark.parametrize("on_absent", ["resend", "report"])
async def test_a_request_that_takes_effect_after_we_gave_up_is_waited_for(story, on_absent):
    zombie = {"action": "delay_then_commit", "delay_s": 1.2, "ignore_key": True}
    slow = {"timeout": "400ms", "in_flight_horizon": "1500ms"}
    story.declare({**slow, "on_absent": on_absent, "lookup.interval": "200ms"})
    story.provider.configure([{"match": ONCE, "then": zombie}])
    async with story.app() as app:
        first = await story.call(app)
        assert (first.status, first.observation["cause"]) == (UNKNOWN, "timeout")
        await story.until_told(app, "'shows': 'absent'")
        assert story.provider.effects() == []
        story.happened(await story.ends(app, "succeeded"), effects=1, sends=1)


# --- the life of a key ---------------------------------------------------------------------------

FORGETFUL = {
    "settings": {"key_ttl_s": 1.5},
    "rules": [{"match": ONCE, "then": {"action": "commit_then_rst"}}],
}
# Stall margin, time-out, horizon and the margin of a minute are taken off: 1.5 s are left.
SHORT_LIFE = {**REPLAYED, **LIFE, "on_absent": "resend", "idempotency.ttl": "67s"}


@pytest.mark.proves("ROW-J-1")
async def test_a_request_is_sent_again_while_its_key_surely_lives(story):
    story.declare(SHORT_LIFE)
    story.provider.configure(FORGETFUL)
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        story.happened(await story.ends(app, "succeeded"), effects=1, sends=2)


@pytest.mark.proves("ROW-J-1")
@pytest.mark.parametrize(
    "changes",
    [
        {**SHORT_LIFE, "retry.backoff": "2s"},
        {**REPLAYED, **LIFE, "on_absent": "review", "idempotency.ttl": "1s"},
        {**REPLAYED, **LIFE, "on_absent": "review", "idempotency.ttl": None},
    ],
    ids=["dies while it waits", "too short for any resend", "of unknown life"],
)
async def test_nothing_is_sent_again_under_a_key_that_the_provider_may_have_forgotten(
    story, changes
):
    story.declare(changes)
    story.provider.configure(FORGETFUL)
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        last = await story.ends(app, "manual_review")
        assert last.recovery == "needs_operator"
        assert (await story.call(app)).status == UNKNOWN
        assert len(story.effects(last)) == 1
        story.happened(last, effects=1, sends=1)


# --- who could not be asked ----------------------------------------------------------------------


@pytest.mark.proves("ROW-N-1", "CASE-T-7")
@pytest.mark.parametrize(
    ("committed", "words", "fault"),
    [
        (True, "status 500", {"action": "status", "status": 500}),
        (False, "status 500", {"action": "status", "status": 500}),
        (False, "status 403", {"action": "status", "status": 403}),
        (True, "no answer within", {"action": "hang"}),
        (False, "no answer within", {"action": "hang"}),
        (False, "not JSON", {"action": "login_page"}),
        (False, "not JSON", {"action": "garbage_response"}),
        (False, "broke off", {"action": "truncate_response"}),
        (False, "only a part", {"action": "incomplete_page"}),
    ],
    ids=lambda value: value["action"] if isinstance(value, dict) else value,
)
async def test_a_look_up_that_could_not_be_asked_counts_neither_for_nor_against(
    story, committed, words, fault
):
    story.declare(LOOKED_FOR_IN_VAIN)
    happens = {"action": "commit_then_rst" if committed else "drop_before_commit"}
    story.provider.configure([{"match": ONCE, "then": happens}, {"match": LOOKS, "then": fault}])
    await ends_with_a_person(story, words, effects=int(committed))


@pytest.mark.proves("ROW-N-1")
async def test_a_filter_that_the_provider_ignored_counts_neither_for_nor_against(story):
    story.declare(LOOKED_FOR_IN_VAIN)
    story.provider.configure(
        {
            "settings": {"ignore_filters": True},
            "rules": [{"match": ONCE, "then": {"action": "drop_before_commit"}}],
        }
    )
    story.provider.seed("refunds", OTHERS)
    await ends_with_a_person(story, "ignored the filter", effects=0)


LOOKED_FOR_IN_VAIN = {
    "timeout": "300ms",
    "in_flight_horizon": "50ms",
    "recovery_deadline": "700ms",
    "on_absent": "resend",
    "lookup.lag": "0s",
    "lookup.confirmations": 1,
    "lookup.interval": "100ms",
    "lookup.timeout": "200ms",
}


async def ends_with_a_person(story, words: str, *, effects: int) -> None:
    """Check that it goes to a person at its deadline, with nothing sent meanwhile."""
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        last = await story.ends(app, "manual_review")
        assert last.status == UNKNOWN
        assert last.acts["who"] == "operator"
        said = str(await app.timeline("r1"))
        assert words in said
        assert "'shows': 'absent'" not in said
        assert "escalate: deadline" in said
        assert story.looks()
        story.happened(last, effects=effects, sends=1)


@pytest.mark.proves("ROW-N-1", "CASE-T-7")
async def test_pages_are_read_to_the_last_before_anything_is_called_absent(story):
    story.declare(
        {
            "lookup.query": {"starting_after": "{page}"},
            "lookup.next_page": "next_cursor",
        }
    )
    story.provider.configure(
        {
            "settings": {"page_size": 2, "newest_first": False},
            "rules": [{"match": ONCE, "then": {"action": "commit_then_rst"}}],
        }
    )
    for _ in range(5):
        story.provider.seed("refunds", OTHERS)
    async with story.app() as app:
        assert (await story.call(app)).status == UNKNOWN
        story.happened(await story.ends(app, "succeeded"), effects=1, sends=1)
        assert len(story.looks()) == 3
