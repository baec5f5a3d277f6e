"""Events: kept, matched and weighed, whenever they come and however often."""

import time
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from tests.engine.functions import WRITE, application, comes_true, ends, looks
from tests.engine.inboxes import EVENTS, SOURCE, Acts, evidence, inbox, said, tells, unknown

from doubtless import Absent, Call, Doubtless, Operation, Present
from doubtless.core.model import Principal, Role
from doubtless.errors import (
    BadCursor,
    BadEvent,
    DecisionRefused,
    EventNotFound,
    LedgerError,
    SettingsError,
    UnknownSource,
)
from doubtless.ledger import inbox as stored

pytestmark = pytest.mark.anyio


@pytest.fixture
def acts() -> Acts:
    return Acts()


@pytest.fixture
async def app(tmp_path, acts):
    app = application(tmp_path)
    acts.declare(app)
    async with app:
        yield app


# --- matched -------------------------------------------------------------------------------------


@pytest.mark.proves("INBOX-1")
@pytest.mark.parametrize(("status", "state"), [("done", "succeeded"), ("failed", "failed")])
async def test_an_event_settles_what_is_unknown(app: Doubtless, acts, status, state):
    told = await unknown(app, acts)
    found = await tells(app, said(status, ref=told.ref, id="p1"))
    assert (found.new, found.operation_id, found.reason) == (True, "o1", None)
    after = await app.outcome("o1")
    assert (after.state, after.provider_operation_id) == (state, "p1")
    assert after.last_confirmed["source"] == "webhook"
    [item] = await evidence(app)
    assert (item["by"], item["strength"], item["detail"]) == (
        SOURCE,
        "authoritative",
        "event e1 (paid)",
    )


@pytest.mark.parametrize("name", ["ref", "operation_id", "provider_operation_id"])
async def test_an_event_is_tied_by_the_first_name_that_it_carries(app, acts, name):
    told = await unknown(app, acts)
    await tells(app, said("moving", kind="moved", event_id="e0", ref=told.ref, id="p1"))
    values: dict[str, dict[str, Any]] = {
        "ref": {"ref": told.ref, "name": "another", "id": "another"},
        "operation_id": {"name": "o1", "id": "another"},
        "provider_operation_id": {"id": "p1"},
    }
    found = await tells(app, said(**values[name]))
    assert found.operation_id == "o1"
    assert (await app.outcome("o1")).state == "succeeded"


async def test_whoever_waits_is_woken_by_an_event(app, acts):
    told = await unknown(app, acts)
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:

            async def waits() -> None:
                assert (await app.wait("o1", timeout=60)).state == "succeeded"

            tasks.start_soon(waits)
            await anyio.lowlevel.checkpoint()
            await tells(app, said(ref=told.ref))


async def test_an_event_that_names_no_end_says_that_the_work_goes_on(app, acts):
    told = await unknown(app, acts)
    await tells(app, said("pending", ref=told.ref))
    after = await app.outcome("o1")
    assert (after.state, after.status) == ("accepted", "pending")
    assert after.last_confirmed["state"] == "in_progress"


async def test_an_event_that_says_both_goes_to_a_person(tmp_path, acts):
    app = application(tmp_path)
    acts.declare(app, events={**EVENTS, "failed": "data.status == 'done'"})
    async with app:
        told = await unknown(app, acts)
        await tells(app, said(ref=told.ref))
        assert (await app.outcome("o1")).state == "manual_review"


async def test_an_event_during_the_attempt_counts_when_it_ends(app, acts):
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.call, "act", {"what": "x"})
        await comes_true(lambda: bool(acts.calls))
        call = acts.calls[0]
        found = await tells(app, said(ref=call.ref))
        assert found.operation_id == call.operation_id
        assert (await app.outcome(call.operation_id)).state == "executing"
        acts.goes_on.set()
    assert (await app.outcome(call.operation_id)).state == "succeeded"


# --- early ---------------------------------------------------------------------------------------


@pytest.mark.proves("INBOX-2")
@pytest.mark.parametrize("latest_wins", [False, True])
async def test_an_event_that_comes_before_its_operation_waits_for_it(tmp_path, acts, latest_wins):
    app = application(tmp_path)
    acts.declare(
        app, **({"ordering": "latest_wins", "business_key": ["what"]} if latest_wins else {})
    )
    async with app:
        found = await tells(app, said(name="o1"))
        assert (found.new, found.operation_id, found.reason) == (True, None, "no_operation")
        acts.goes_on.set()
        told = await app.call("act", {"what": "x"}, operation_id="o1")
        assert told.state == "succeeded"  # the answer was lost, and the event was there already
        assert len(acts.calls) == 1, "an early event doesn't stop the send"
        assert len(await evidence(app)) == 1
        [event] = await inbox(app)
        assert (event.matched, event.operation_id, event.matched_by) == (True, "o1", SOURCE)


@pytest.mark.proves("INBOX-2")
async def test_an_event_waits_until_its_operation_learns_what_the_provider_calls_it(app, acts):
    await tells(app, said(id="p1"))
    [event] = await inbox(app, matched=False)
    assert event.reason == "no_operation"
    acts.goes_on.set()
    acts.names = "p1"
    told = await app.call("act", {"what": "x"}, operation_id="o1")
    assert told.state == "succeeded"
    assert await inbox(app, matched=False) == []
    assert [item["shows"] for item in await evidence(app)] == ["applied"]


async def test_one_event_may_lead_to_the_next(app, acts):
    await tells(app, said("done", event_id="e1", id="p1"))
    told = await unknown(app, acts)
    assert (await app.outcome("o1")).state == "unknown"
    await tells(app, said("pending", event_id="e2", ref=told.ref, id="p1"))
    assert (await app.outcome("o1")).state == "succeeded"
    assert len(await evidence(app)) == 2


async def test_an_early_failure_counts_too(app, acts):
    await tells(app, said("failed", name="o1"))
    acts.goes_on.set()
    told = await app.call("act", {"what": "x"}, operation_id="o1")
    assert (told.state, told.error) != ("succeeded", None)
    assert told.state == "failed"


async def test_an_event_from_long_before_the_operation_proves_nothing(app, acts):
    await tells(app, said(name="o1", at=1_000))
    told = await unknown(app, acts)
    assert told.state == "unknown"
    [item] = await evidence(app)
    assert item["occurred_ms"] == 1_000_000


@pytest.mark.proves("INBOX-3")
async def test_an_event_outlives_the_process_that_took_it_in(tmp_path, acts):
    app = application(tmp_path)
    acts.declare(app)
    async with app:
        await tells(app, said(name="o1"))
    again = application(tmp_path)
    acts.declare(again)
    async with again:
        acts.goes_on.set()
        assert (await again.call("act", {"what": "x"}, operation_id="o1")).state == "succeeded"


@pytest.mark.proves("INBOX-2")
async def test_an_event_for_what_still_waits_for_its_turn_is_held(app, acts):
    acts.answer = "done"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.call, "act", {"what": "first"})
        await comes_true(lambda: bool(acts.calls))
        first = acts.calls[0].operation_id
        told = await app.call("act", {"what": "second"}, operation_id="o2", after=[first], wait_s=0)
        assert told.state == "prepared"
        found = await tells(app, said(ref=told.ref))
        assert found.operation_id == "o2"
        held = await app.outcome("o2")
        assert (held.state, held.attempts) == ("prepared", 0)
        acts.goes_on.set()
    await ends(app, "succeeded", "o2")
    assert [call.operation_id for call in acts.calls] == [first, "o2"], "it was sent all the same"
    assert len(await evidence(app, "o2")) == 1


# --- copies --------------------------------------------------------------------------------------


@pytest.mark.proves("INBOX-4")
async def test_the_same_event_ten_times_at_once_is_evidence_once(app, acts):
    told = await unknown(app, acts)
    found = []

    async def tell() -> None:
        found.append(await tells(app, said("pending", ref=told.ref)))

    async with anyio.create_task_group() as tasks:
        for _ in range(10):
            tasks.start_soon(tell)
    assert sorted(each.new for each in found) == [False] * 9 + [True]
    assert {each.operation_id for each in found} == {"o1"}
    assert len(await evidence(app)) == 1
    assert len(await inbox(app)) == 1


@pytest.mark.proves("INBOX-4")
async def test_the_same_event_is_known_for_ever_whatever_became_of_it(app, acts):
    told = await unknown(app, acts)
    await tells(app, said(ref=told.ref))
    again = await tells(app, said("failed", ref=told.ref))
    assert (again.new, again.operation_id) == (False, "o1")
    assert (await app.outcome("o1")).state == "succeeded"


@pytest.mark.proves("INBOX-5")
async def test_the_same_news_under_another_id_is_kept_and_counts_once(app, acts):
    told = await unknown(app, acts)
    first = await tells(app, said("pending", event_id="e1", ref=told.ref, id="p1", version=3))
    copy = await tells(app, said("pending", event_id="e2", ref=told.ref, id="p1", version=3))
    assert (copy.new, copy.copy_of, copy.operation_id) == (True, first.id, None)
    assert len(await evidence(app)) == 1
    assert [event.copy_of for event in await inbox(app)] == [first.id, None]
    assert await inbox(app, matched=False) == []


@pytest.mark.proves("INBOX-5")
@pytest.mark.parametrize(
    "other", [{"version": 4}, {"id": "p2"}, {"version": None}, {"status": "done"}], ids=repr
)
async def test_other_news_is_no_copy(app, acts, other):
    told = await unknown(app, acts)
    news: dict[str, Any] = {"status": "pending", "ref": told.ref, "id": "p1", "version": 3}
    await tells(app, said(event_id="e1", **news))
    found = await tells(app, said(event_id="e2", **{**news, **other}))
    assert (found.copy_of, found.operation_id) == (None, "o1")
    assert len(await evidence(app)) == 2


async def test_an_early_copy_is_one_too(app, acts):
    await tells(app, said(event_id="e1", name="o1", id="p1", version=3))
    copy = await tells(app, said(event_id="e2", name="o1", id="p1", version=3))
    assert copy.copy_of is not None
    acts.goes_on.set()
    assert (await app.call("act", {"what": "x"}, operation_id="o1")).state == "succeeded"
    assert len(await evidence(app)) == 1


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.proves("INBOX-6")
async def test_an_older_failure_that_arrives_late_changes_nothing(app, acts):
    told = await unknown(app, acts)
    now = int(time.time())
    await tells(app, said("done", event_id="e2", ref=told.ref, at=now + 1))
    await tells(app, said("failed", event_id="e1", ref=told.ref, at=now))
    assert (await app.outcome("o1")).state == "succeeded"
    assert len(await evidence(app)) == 2, "it is kept all the same"


@pytest.mark.proves("INBOX-6")
@pytest.mark.parametrize("first", ["done", "failed"])
async def test_a_tie_without_a_look_up_is_a_persons(app, acts, first):
    told = await unknown(app, acts)
    second = {"done": "failed", "failed": "done"}[first]
    now = int(time.time())
    await tells(app, said(first, event_id="e1", ref=told.ref, at=now))
    await tells(app, said(second, event_id="e2", ref=told.ref, at=now))
    after = await app.outcome("o1")
    assert after.state == "manual_review"
    assert after.recovery == "needs_operator"


@pytest.mark.proves("INBOX-6")
@pytest.mark.parametrize("there", [True, False])
async def test_a_tie_is_settled_by_reading_the_object(tmp_path, acts, there):
    async def ask(operation: Operation) -> Present:
        state = "applied" if there else "failed"
        return Present(state=state, provider_operation_id="p1")  # type: ignore[arg-type]

    app = application(tmp_path)
    acts.declare(app, lookup=looks(ask, authoritative=False))
    async with app:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app.call, "act", {"what": "x"})
            await comes_true(lambda: bool(acts.calls))
            call, now = acts.calls[0], int(time.time())
            for status in ("done", "failed"):
                await tells(app, said(status, event_id=status, ref=call.ref, at=now))
            acts.goes_on.set()
        after = await ends(app, "succeeded" if there else "failed", call.operation_id)
        assert after.last_confirmed["source"] == "lookup"
        assert len(await evidence(app, call.operation_id)) == 2


@pytest.mark.proves("INBOX-6")
async def test_a_failure_after_a_success_opens_it_for_a_person(app, acts):
    told = await unknown(app, acts)
    now = int(time.time())
    await tells(app, said("done", event_id="e1", ref=told.ref, at=now))
    await tells(app, said("failed", event_id="e2", ref=told.ref, at=now + 1))
    assert (await app.outcome("o1")).state == "manual_review"


# --- for nobody, and by a person -----------------------------------------------------------------


@pytest.mark.proves("INBOX-7")
@pytest.mark.parametrize(
    ("event", "reason"),
    [
        pytest.param(said(ref="nobody's"), "no_operation", id="nobody's"),
        pytest.param(said(kind="else", ref="x"), "no_tool", id="no tool"),
        pytest.param(said(), "no_value", id="no name"),
        pytest.param({"id": "e1", "data": {"ref": "x"}}, "no_type", id="no type"),
        pytest.param(said(ref={"a": 1}), "no_value", id="no text"),
    ],
)
async def test_an_event_for_nobody_is_kept_with_the_reason(app, event, reason):
    found = await app.ingest(SOURCE, event)
    assert (found.new, found.operation_id, found.reason) == (True, None, reason)
    [listed] = await inbox(app, matched=False)
    assert (listed.reason, listed.matched, listed.source) == (reason, False, SOURCE)
    assert await inbox(app, matched=True) == []


async def test_an_event_of_which_no_tool_speaks_is_no_failure_to_match(app):
    async def told(name: str) -> dict[tuple[str, ...], float]:
        return next(dict(r.values) for r in await app.metrics() if r.metric.name == name)

    failures, age = "event_match_failures_total", "oldest_unmatched_event_age_seconds"
    await app.ingest(SOURCE, said(event_id="e1", kind="else"))
    assert await told(f"doubtless_{failures}") == {}
    assert await told(f"doubtless_{age}") == {}
    await app.ingest(SOURCE, said(event_id="e2", ref="nobody's"))
    assert await told(f"doubtless_{failures}") == {("none", SOURCE): 1}
    assert (SOURCE,) in await told(f"doubtless_{age}")


async def test_an_event_that_names_several_operations_belongs_to_none(app, acts):
    for name in ("o1", "o2"):
        told = await unknown(app, acts, name)
        await tells(app, said("pending", event_id=f"of {name}", ref=told.ref, id="p1"))
    found = await tells(app, said(event_id="e9", id="p1"))
    assert (found.operation_id, found.reason) == (None, "ambiguous")


async def test_what_names_several_is_left_to_a_person_whoever_appears(app, acts):
    for name in ("o1", "o2"):
        told = await unknown(app, acts, name)
        await tells(app, said("pending", event_id=f"of {name}", ref=told.ref, id="p1"))
    await tells(app, said(event_id="e9", id="p1"))
    acts.names = "p1"
    await app.call("act", {"what": "o3"}, operation_id="o3")
    assert [event.reason for event in await inbox(app, matched=False)] == ["ambiguous"]


async def test_what_names_another_by_reference_waits_for_that_one(app, acts):
    await tells(app, said(event_id="e1", ref="another's", id="p1"))
    acts.goes_on.set()
    acts.names = "p1"
    assert (await app.call("act", {"what": "x"}, operation_id="o1")).state == "succeeded"
    assert await evidence(app) == []
    assert [event.reason for event in await inbox(app, matched=False)] == ["no_operation"]


@pytest.mark.proves("INBOX-2")
async def test_an_event_of_which_no_tool_spoke_is_read_again_once_one_does(tmp_path, acts):
    silent = application(tmp_path)
    acts.declare(silent, events={**EVENTS, "types": ["refused"]})
    async with silent:
        told = await unknown(silent, acts)
        await tells(silent, said(event_id="e1", ref=told.ref, id="p1", version=1))
        await tells(silent, said(event_id="e2", name="o2"))
        await tells(silent, said(event_id="e3"))
        assert {event.reason for event in await inbox(silent)} == {"no_tool"}
    app = application(tmp_path)
    acts.declare(app)
    async with app:
        assert (await app.outcome("o1")).state == "succeeded"
        found = {event.event_id: event.reason for event in await inbox(app)}
        assert found == {"e1": None, "e2": "no_operation", "e3": "no_value"}
        assert (await app.call("act", {"what": "y"}, operation_id="o2")).state == "succeeded"
        copy = await tells(app, said(event_id="e4", ref=told.ref, id="p1", version=1))
        assert copy.copy_of is not None


async def test_an_event_of_another_source_never_matches(tmp_path, acts):
    app = application(tmp_path)
    acts.declare(app)
    acts.declare(app, "other", source="elsewhere")
    async with app:
        told = await unknown(app, acts)
        found = await app.ingest("elsewhere", said(ref=told.ref))
        assert (found.operation_id, found.reason) == (None, "no_operation")
        assert (await app.outcome("o1")).state == "unknown"
        with pytest.raises(DecisionRefused, match="comes from elsewhere, and not from payments"):
            await app.match(found.id, "o1", operator="ops", note="looks like it")


@pytest.mark.proves("INBOX-8")
async def test_an_operator_matches_an_event_and_the_evidence_stays_the_providers(app, acts):
    await unknown(app, acts)
    found = await tells(app, said(id="p7"))
    told = await app.match(found.id, "o1", operator="ops", note="same customer")
    assert (told.state, told.provider_operation_id) == ("succeeded", "p7")
    entries = await app.timeline("o1")
    [decision] = [each for each in entries if each["role"] == "operator"]
    assert (decision["kind"], decision["principal"]) == ("decision", "ops")
    assert decision["inputs"]["decision"] == "match"
    assert decision["inputs"]["note"] == "same customer"
    [item] = [each for each in entries if each.get("evidence", {}).get("source") == "webhook"]
    assert (item["principal"], item["role"], item["evidence"]["by"]) == (
        SOURCE,
        "provider",
        SOURCE,
    )
    [event] = await inbox(app)
    assert (event.matched_by, event.operation_id) == ("ops", "o1")


@pytest.mark.proves("INBOX-8")
async def test_an_event_is_matched_once(app, acts):
    told = await unknown(app, acts)
    await unknown(app, acts, "o2")
    found = await tells(app, said("pending", ref=told.ref))
    with pytest.raises(DecisionRefused, match="is matched to o1"):
        await app.match(found.id, "o2", operator="ops", note="no")
    assert await evidence(app, "o2") == []


@pytest.mark.parametrize(
    ("event", "error", "words"),
    [
        ("999", EventNotFound, "no such event"),
        ("nothing \x00", EventNotFound, "no such event"),
        ("twin", EventNotFound, "two sources use that id"),
        ("odd", DecisionRefused, "no rules for events of the type else"),
    ],
)
async def test_a_match_that_makes_no_sense_says_why(tmp_path, acts, event, error, words):
    app = application(tmp_path)
    acts.declare(app)
    acts.declare(app, "other", source="elsewhere")
    async with app:
        await unknown(app, acts)
        for source in (SOURCE, "elsewhere"):
            await app.ingest(source, said(event_id="twin"))
        await app.ingest(SOURCE, said(event_id="odd", kind="else"))
        with pytest.raises(error, match=words):
            await app.match(event, "o1", operator="ops", note="because")
        with pytest.raises(SettingsError, match="a match needs"):
            await app.match("odd", "o1", operator="ops", note=" ")


# --- hints ---------------------------------------------------------------------------------------


@pytest.mark.proves("INBOX-9")
async def test_an_event_that_is_not_authoritative_is_only_a_reason_to_look(tmp_path):
    seen: list[str] = []
    there = False

    async def ask(operation: Operation) -> Present | Absent:
        seen.append(operation.operation_id)
        return Present(provider_operation_id="p1") if there else Absent()

    app = application(tmp_path)

    @app.tool(
        **{
            **WRITE,
            "source": SOURCE,
            "events": {**EVENTS, "authoritative": False},
            "recovery_deadline": "4h",
            "lookup": looks(ask, authoritative=False, interval="59m", interval_max="59m"),
        }
    )
    async def act(call: Call) -> None:
        raise OSError

    async with app:
        told = await app.call("act", {}, operation_id="o1")
        assert (told.state, seen) == ("unknown", [])
        await tells(app, said("failed", event_id="e1", ref=told.ref))
        await comes_true(lambda: len(seen) == 1)
        assert (await ends(app, "unknown")).status == "unknown_reconciliation_required"
        there = True
        await tells(app, said("failed", event_id="e2", ref=told.ref))
        after = await ends(app, "succeeded")
        assert after.last_confirmed["source"] == "lookup"
        assert [item["strength"] for item in await evidence(app)] == ["advisory"] * 2


@pytest.mark.proves("INBOX-12")
async def test_an_expected_event_that_does_not_come_is_looked_up(tmp_path):
    seen: list[str] = []

    async def ask(operation: Operation) -> Present:
        seen.append(operation.operation_id)
        return Present(provider_operation_id="p1")

    app = application(tmp_path)
    slow = looks(ask, authoritative=False, interval="59m", interval_max="59m")
    keys = {**WRITE, "source": SOURCE, "recovery_deadline": "4h", "lookup": slow}

    @app.tool(name="expects", **keys, events={**EVENTS, "expect": "100ms"})
    async def expects(call: Call) -> None:
        raise OSError

    @app.tool(name="waits", **keys, events={**EVENTS, "expect": "59m"})
    async def waits(call: Call) -> None:
        raise OSError

    async with app:
        for name in ("expects", "waits"):
            told = await app.call(name, {}, operation_id=name)
            assert told.state == "unknown"
        assert (await ends(app, "succeeded", "expects")).last_confirmed["source"] == "lookup"
        assert seen == ["expects"]


@pytest.mark.proves("INBOX-12")
async def test_a_missing_event_is_told_where_nothing_can_be_looked_up(tmp_path, acts):
    app = application(tmp_path)
    acts.declare(app, events={**EVENTS, "expect": "100ms"})
    async with app:
        told = await unknown(app, acts)
        deadline = told.reconcile and told.reconcile["deadline"]

        async def missing() -> bool:
            return "is overdue" in (await app.outcome("o1")).message

        await comes_true(missing)
        after = await app.outcome("o1")
        assert after.state == "unknown"
        assert after.reconcile is not None
        assert after.reconcile["deadline"] == deadline
        entries: list[dict[str, Any]] = await app.timeline("o1")
        causes = [entry.get("operation", {}).get("cause") for entry in entries]
        assert [each for each in causes if each] == ["tool_error", "webhook_missing"]
        await tells(app, said(ref=told.ref))
        assert (await app.outcome("o1")).state == "succeeded"


# --- the surface ---------------------------------------------------------------------------------


@pytest.mark.proves("INBOX-10")
async def test_a_source_without_events_is_refused_with_those_that_have_some(app):
    with pytest.raises(UnknownSource, match="Sources with events: payments"):
        await app.ingest("payment", said())
    assert await inbox(app) == []


@pytest.mark.proves("INBOX-10")
@pytest.mark.parametrize(
    ("event", "options"),
    [
        pytest.param(b"{", {}, id="cut"),
        pytest.param(b"[1]", {}, id="a list"),
        pytest.param(b'{"a": NaN}', {}, id="NaN"),
        pytest.param(b'{"a": 1e999}', {}, id="infinite"),
        pytest.param(b"\xff", {}, id="no UTF-8"),
        pytest.param(b"[" * 100_000, {}, id="deep"),
        pytest.param({"a": float("nan")}, {}, id="NaN in a mapping"),
        pytest.param({"a": {1, 2}}, {}, id="a set"),
        pytest.param({"id": "e1"}, {"occurred_at": "yesterday"}, id="no instant"),
        pytest.param({"id": "e1"}, {"occurred_at": -1}, id="before all time"),
    ],
)
async def test_what_is_no_event_is_refused_and_not_stored(app, event, options):
    with pytest.raises(BadEvent):
        await app.ingest(SOURCE, event, **options)
    assert await inbox(app) == []


@pytest.mark.parametrize(
    ("event", "options", "event_id"),
    [
        ({"id": "e1"}, {}, "e1"),
        ({"id": 17}, {}, "17"),
        ({"event_id": "e2"}, {}, "e2"),
        ({"id": "e1"}, {"event_id": "own"}, "own"),
    ],
)
async def test_the_events_id_is_its_own_or_the_one_that_was_said(app, event, options, event_id):
    assert (await app.ingest(SOURCE, event, **options)).event_id == event_id


@pytest.mark.parametrize(
    "odd", [None, "", "x" * 256, "a\x00b", "\ud800", True, 1.5, {"a": 1}], ids=ascii
)
async def test_an_event_without_a_usable_id_is_known_by_what_it_says(app, odd):
    first = await app.ingest(SOURCE, {"id": odd, "n": 1})
    again = await app.ingest(SOURCE, {"n": 1, "id": odd})
    other = await app.ingest(SOURCE, {"id": odd, "n": 2})
    assert first.event_id.startswith("sha256:")
    assert (again.new, again.id, other.new) == (False, first.id, True)


async def test_an_event_that_is_nested_very_deep_is_kept(app):
    deep = b'{"id": "deep", "type": "paid", "data": {"version": 1, "id": ' + b"[" * 900
    found = await app.ingest(SOURCE, deep + b"]" * 900 + b"}}")
    assert (found.new, found.reason) == (True, "no_value")


async def test_events_are_listed_newest_first_in_pages(app):
    for number in range(5):
        await app.ingest(SOURCE, {"id": f"e{number}", "type": "paid"}, occurred_at=number + 1)
    page = await app.events(limit=2)
    assert [event.event_id for event in page.events] == ["e4", "e3"]
    assert page.events[0].occurred_at == "1970-01-01T00:00:05.000Z"
    last = await app.events(limit=3, cursor=page.cursor)
    assert ([event.event_id for event in last.events], last.cursor) == (["e2", "e1", "e0"], None)
    assert await inbox(app, source="another") == []
    for cursor in ("x", "-1", "1" * 30, "²"):
        with pytest.raises(BadCursor):
            await app.events(cursor=cursor)


async def test_who_hands_an_event_over_is_kept(app):
    gateway = app.actor(Principal(name="gateway", role=Role.WORKER))
    found = await gateway.ingest(SOURCE, said())
    [event] = await inbox(app)
    assert (event.delivered_by, event.id) == ("gateway", found.id)
    assert event.to_json()["delivered_by"] == "gateway"
    assert found.to_json()["event_id"] == "e1"


# --- for ever ------------------------------------------------------------------------------------


@pytest.mark.proves("INBOX-3")
async def test_retention_empties_what_a_matched_event_said_and_nothing_else(app, acts):
    told = await unknown(app, acts)
    await tells(app, said(ref=told.ref, event_id="matched"))
    await tells(app, said(ref="later", event_id="waits"))
    numbers = [1, 2]
    assert app.ledger.write(lambda tx: stored.empty(tx, "main", numbers)) == 1
    contents = app.ledger.read(lambda tx: [stored.content(tx, "main", each) for each in numbers])
    assert contents[0] is None
    assert contents[1] is not None
    again = await tells(app, said("failed", ref=told.ref, event_id="matched"))
    assert (again.new, again.operation_id) == (False, "o1")
    assert all(len(event.digest) == 64 for event in await inbox(app))


@pytest.mark.parametrize(
    "sql",
    [
        "delete from event",
        "update event set event_id = 'other'",
        "update event set digest = 'other'",
        "update event set content = cast('other' as blob)",
        "update event set operation_id = null, matched_ms = null, reason = 'no_tool'",
    ],
)
async def test_what_an_event_is_never_changes(app, acts, sql):
    told = await unknown(app, acts)
    await tells(app, said(ref=told.ref))
    with pytest.raises(LedgerError):
        app.ledger.write(lambda tx: tx.run(sql))
