"""The gate: the last question before the first byte."""

from dataclasses import replace

import pytest
from tests.core.samples import (
    DAY,
    EVENTS,
    HORIZON,
    HOUR,
    KEY,
    T0,
    TIMEOUT,
    adding,
    attempt,
    contract,
    event,
    evidence,
    now,
    record,
    sends,
    tried,
)

from doubtless.core.contract import STALL_MARGIN_MS
from doubtless.core.model import Blocker, Effect, Seen, Shows, State, Strength
from doubtless.core.permission import Pass, gate

RULES = contract(events=EVENTS)
OPENED = sends(record(), RULES, T0)
LEASE_LAST = T0 + TIMEOUT + 10_000 - STALL_MARGIN_MS


def ask(opened=OPENED, rules=RULES, at=T0 + 20, *, break_ms=0, **how):
    asked = {"attempt": opened.attempts[-1].number, "fence": opened.operation.fence, **how}
    return gate(opened, rules, now(at, break_ms), **asked)


@pytest.mark.proves("CORE-39", "INV-3")
def test_a_free_attempt_passes_until_its_lease_less_the_margin_for_a_stall():
    assert ask() == Pass(write_by_ms=LEASE_LAST)


def test_the_first_byte_can_leave_one_stall_after_the_last_check():
    assert Pass(write_by_ms=LEASE_LAST).sent_by_ms == LEASE_LAST + STALL_MARGIN_MS


@pytest.mark.proves("CORE-39", "INV-3")
@pytest.mark.parametrize(
    ("opened", "how"),
    [
        (OPENED, {"fence": OPENED.operation.fence - 1}),
        (OPENED, {"fence": OPENED.operation.fence + 1}),
        (OPENED, {"attempt": 2}),
        (record(State.EXECUTING), {"attempt": 1, "fence": 0}),
        (tried(attempt(), state=State.EXECUTING), {}),
        *[
            (replace(OPENED, operation=replace(OPENED.operation, state=state)), {})
            for state in State
            if state is not State.EXECUTING
        ],
    ],
)
def test_no_attempt_passes_that_is_not_the_open_one_under_the_present_fence(opened, how):
    if not opened.attempts:
        assert isinstance(gate(opened, RULES, now(T0), attempt=1, fence=0), str)
    else:
        assert isinstance(ask(opened, **how), str)


@pytest.mark.proves("CORE-39")
@pytest.mark.parametrize(("at", "word"), [(LEASE_LAST, "lease"), (LEASE_LAST + 1, "lease")])
def test_an_attempt_whose_lease_has_run_out_does_not_pass(at, word):
    assert word in ask(at=at)
    assert isinstance(ask(at=LEASE_LAST - 1), Pass)


@pytest.mark.proves("CORE-23", "CORE-39")
def test_a_void_intent_does_not_pass():
    short = sends(record(valid_until_ms=T0 + 1_000), RULES, T0)
    assert "void" in ask(short, at=T0 + 1_000)
    assert ask(short, at=T0 + 999) == Pass(write_by_ms=T0 + 1_000)


KEYED = contract(Effect.IDEMPOTENT_CALL, key=KEY, lookups=())
LAST_SEND = T0 + DAY - STALL_MARGIN_MS - TIMEOUT - HORIZON - KEY.margin_ms


def second(opened_at=T0 + HOUR, rules=KEYED):
    before = tried(attempt(), valid_until_ms=T0 + 9 * DAY)
    return sends(before, rules, opened_at, resend=True)


@pytest.mark.proves("CORE-35", "CORE-39")
def test_a_key_that_would_not_outlive_the_send_does_not_pass():
    opened = second(LAST_SEND)
    assert ask(opened, KEYED, LAST_SEND) == Pass(write_by_ms=LAST_SEND)
    assert "key" in ask(opened, KEYED, LAST_SEND + 1)


@pytest.mark.parametrize(
    ("rules", "break_ms"),
    [(replace(KEYED, key=replace(KEY, ttl_ms=None)), 0), (KEYED, T0 + 1)],
    ids=["unknown life", "clock broke"],
)
@pytest.mark.proves("CORE-11", "CORE-35")
def test_a_second_send_under_a_key_of_unknown_life_does_not_pass(rules, break_ms):
    assert "key" in ask(second(rules=rules), rules, T0 + HOUR + 20, break_ms=break_ms)


def test_the_first_send_needs_no_key_life():
    rules = replace(KEYED, key=replace(KEY, ttl_ms=None))
    assert isinstance(ask(sends(record(), rules, T0), rules), Pass)


@pytest.mark.proves("CORE-39")
@pytest.mark.parametrize("least", ["lease", "validity", "key"])
def test_the_write_must_begin_by_the_least_of_lease_validity_and_key(least):
    at = LAST_SEND - 10
    valid = at + 5 if least == "validity" else T0 + 9 * DAY
    key = KEY if least == "key" else replace(KEY, ttl_ms=9 * DAY)
    rules = replace(KEYED, key=key)
    before = tried(attempt(), valid_until_ms=valid)
    expected = {"lease": at + TIMEOUT + 5_000, "validity": at + 5, "key": LAST_SEND}
    assert ask(sends(before, rules, at, resend=True), rules, at) == Pass(
        write_by_ms=expected[least]
    )


@pytest.mark.proves("CORE-39")
@pytest.mark.parametrize(
    "shows", [Shows.APPLIED, Shows.NOT_APPLIED, Shows.IN_PROGRESS, Shows.CONFLICT]
)
def test_nothing_passes_once_evidence_has_settled_it(shows):
    assert "evidence" in ask(adding(OPENED, evidence(shows, at=T0 + 10)))


@pytest.mark.parametrize("shows", [Shows.ABSENT, Shows.COULD_NOT_ASK, Shows.PRESENT])
def test_evidence_that_settles_nothing_stops_nothing(shows):
    assert isinstance(ask(adding(OPENED, evidence(shows, at=T0 + 10))), Pass)


def test_an_advisory_item_does_not_close_the_gate():
    item = event(Shows.APPLIED, at=T0 + 10, strength=Strength.ADVISORY)
    assert isinstance(ask(adding(OPENED, item)), Pass)


@pytest.mark.proves("CORE-26", "CORE-39")
def test_an_operation_that_was_overtaken_does_not_pass():
    assert "newer" in ask(replace(OPENED, overtaken_by="newer"))


@pytest.mark.proves("CORE-25", "CORE-39")
@pytest.mark.parametrize("on_unknown", ["stop", "continue"])
@pytest.mark.parametrize("state", State)
def test_it_passes_only_while_what_it_comes_after_stands(state, on_unknown):
    doubtful = (State.UNKNOWN, State.RECONCILING, State.MANUAL_REVIEW)
    stands = state is State.SUCCEEDED or (on_unknown == "continue" and state in doubtful)
    after = replace(
        OPENED,
        operation=replace(OPENED.operation, on_unknown=on_unknown),
        blockers=(Blocker(operation_id="b", state=state),),
    )
    assert isinstance(ask(after), Pass) is stands


def test_it_does_not_pass_while_something_of_an_older_sibling_may_arrive():
    assert isinstance(ask(replace(OPENED, waits_for="older")), str)


def test_the_attempt_that_asks_counts_neither_for_nor_against_its_own_key():
    rules = replace(KEYED, key=replace(KEY, ttl_ms=None))
    before = tried(attempt(seen=Seen.NOT_SENT))
    assert isinstance(ask(sends(before, rules, T0 + HOUR), rules, T0 + HOUR + 20), Pass)
