"""What an unknown of each effect leads to: the model's table, written out again."""

from dataclasses import dataclass, replace

import pytest
from tests.core.life import every_life
from tests.core.samples import (
    DAY,
    HOUR,
    INTERVAL,
    KEY,
    PROVES,
    T0,
    absences,
    adding,
    attempt,
    contract,
    ends,
    now,
    observed,
    record,
    sends,
    settled,
    tried,
    witnessed,
)

from doubtless.core.contract import ConditionRules, OnAbsent, RetryRules, Stores
from doubtless.core.effects import RULES
from doubtless.core.evidence import weigh
from doubtless.core.model import TERMINAL, Cause, Effect, Seen, Shows, Source, State, Verdict
from doubtless.core.permission import may_resend
from doubtless.core.policy import decide
from doubtless.core.steps import Escalate, LookUp, Send, Settle
from doubtless.testing.strategies import Life


@dataclass(frozen=True)
class Row:
    """One row of the model's table."""

    looks_up: bool
    resend: str  # freely | straight | keyed | absent | absent and keyed | never
    on_absent: str
    irreversible: bool = False


MODEL = {
    "read": Row(False, "freely", "report"),
    "compute": Row(False, "freely", "report"),
    "file": Row(True, "absent", "resend"),
    "shell_read": Row(True, "straight", "resend"),
    "shell_write": Row(True, "absent", "report", irreversible=True),
    "keyed_create": Row(True, "straight", "resend"),
    "conditional_update": Row(True, "straight", "resend"),
    "idempotent_call": Row(True, "keyed", "resend"),
    "write": Row(True, "absent", "report"),
    "money": Row(True, "absent and keyed", "report", irreversible=True),
    "message": Row(True, "absent and keyed", "report", irreversible=True),
    "access": Row(True, "absent", "report", irreversible=True),
    "delete": Row(True, "absent", "report", irreversible=True),
    "publish": Row(True, "absent", "report", irreversible=True),
    "order": Row(True, "absent and keyed", "report", irreversible=True),
    "booking": Row(True, "absent and keyed", "report", irreversible=True),
    "physical": Row(True, "absent and keyed", "report", irreversible=True),
    "browser": Row(False, "never", "report", irreversible=True),
    "time_sensitive": Row(False, "never", "report", irreversible=True),
}
RESENDS = {"keyed_create": 4, "conditional_update": 4, "idempotent_call": 4}
ONCE = {"file", "shell_read"}

STABLE = ConditionRules(header="If-Match", value="{args.etag}", version_reuse=False)
ASKED_AT = PROVES + INTERVAL


def rules_of(effect: Effect, **changes):
    """Return a contract that permits all that the effect's row permits."""
    looked = {} if MODEL[effect].looks_up else {"lookups": ()}
    base = {"key": KEY, "condition": STABLE, "on_absent": OnAbsent(MODEL[effect].on_absent)}
    return contract(effect, **{**base, **looked, **changes})


def effects(*resends: str) -> list[Effect]:
    return [effect for effect in Effect if MODEL[effect].resend in resends]


def absent():
    return adding(tried(attempt()), *absences(PROVES - INTERVAL, PROVES, ASKED_AT))


@pytest.mark.proves("CORE-18")
@pytest.mark.parametrize("effect", Effect)
def test_every_effect_has_the_models_row(effect):
    row, rule = MODEL[effect], RULES[effect]
    assert (rule.looks_up, rule.irreversible) == (row.looks_up, row.irreversible)
    assert rule.on_absent == row.on_absent
    assert rule.confirmations == (3 if row.irreversible else 2)
    assert rule.resends == RESENDS.get(effect, 1)
    assert rule.resends_max == (1 if effect in ONCE else None)


def test_no_effect_lacks_a_row_and_no_row_an_effect():
    assert {effect.value for effect in Effect} == set(MODEL)
    assert set(RULES) == set(Effect)


@pytest.mark.proves("CORE-18", "INV-1")
@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("is_absent", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_an_unknown_may_be_resent_only_as_its_row_says(effect, is_absent, keyed):
    permitted = {
        "freely": True,
        "straight": True,
        "keyed": keyed,
        "absent": is_absent,
        "absent and keyed": is_absent and keyed,
        "never": False,
    }
    rules = rules_of(effect, key=KEY if keyed else None)
    may = may_resend(tried(attempt()), rules, now(PROVES), absent=is_absent)
    assert may is permitted[MODEL[effect].resend]


@pytest.mark.proves("CORE-18", "INV-1")
@pytest.mark.parametrize(
    ("stores", "straight"),
    [
        (Stores.ALL, True),
        (Stores.CURRENT_STATE, True),
        (Stores.SUCCESS_ONLY, False),
        (Stores.REEXECUTES_FAILED, False),
    ],
)
def test_a_keyed_call_is_resent_before_absence_only_where_the_first_answer_is_kept(
    stores, straight
):
    rules = rules_of(Effect.IDEMPOTENT_CALL, key=replace(KEY, stores=stores))
    before = tried(attempt())
    assert may_resend(before, rules, now(PROVES), absent=False) is straight
    assert may_resend(before, rules, now(PROVES), absent=True)


@pytest.mark.proves("CORE-4", "INV-1")
@pytest.mark.parametrize(("source", "kept"), [(Source.RESPONSE, False), (Source.KEY_REPLAY, True)])
def test_a_repeat_that_was_refused_by_itself_shows_that_the_key_replays_nothing(source, kept):
    before = tried(attempt(), attempt(2, resend=True, at=T0 + 20_000), attempt(3, at=T0 + 40_000))
    refused = adding(before, witnessed(2, Shows.REFUSED, source=source))
    rules = rules_of(Effect.IDEMPOTENT_CALL, retry=RetryRules(resend=4))
    assert may_resend(refused, rules, now(PROVES), absent=False) is kept
    assert may_resend(refused, rules, now(PROVES), absent=True)


@pytest.mark.parametrize("cause", [Cause.UNPROVEN_STATUS, Cause.KEY_MISMATCH])
def test_a_repeat_with_an_answer_of_its_own_is_followed_by_none_before_absence(cause):
    own = observed(Seen.UNKNOWN, cause=cause, status=422)
    rules = rules_of(Effect.IDEMPOTENT_CALL, retry=RetryRules(resend=4))
    repeat = attempt(2, resend=True, at=T0 + 20_000, observation=own)
    assert not may_resend(tried(attempt(), repeat), rules, now(PROVES), absent=False)
    first = tried(attempt(observation=own))
    assert may_resend(first, rules, now(PROVES), absent=False)


@pytest.mark.proves("CORE-18", "INV-1")
@pytest.mark.parametrize("condition", [None, replace(STABLE, version_reuse=True)])
@pytest.mark.parametrize("is_absent", [True, False])
def test_an_update_is_not_resent_where_versions_may_repeat(condition, is_absent):
    rules = rules_of(Effect.CONDITIONAL_UPDATE, condition=condition)
    assert not may_resend(tried(attempt()), rules, now(PROVES), absent=is_absent)


@pytest.mark.parametrize("effect", effects("absent", "absent and keyed"))
def test_an_unknown_that_can_be_looked_up_is_looked_up_and_not_resent(effect):
    step = decide(tried(attempt()), rules_of(effect), now(T0 + 20_000)).step
    assert isinstance(step, LookUp)


@pytest.mark.proves("CORE-19")
@pytest.mark.parametrize("effect", effects("absent", "absent and keyed", "straight", "keyed"))
@pytest.mark.parametrize("on_absent", OnAbsent)
def test_only_the_contract_orders_what_follows_a_confirmed_absence(effect, on_absent):
    step = decide(absent(), rules_of(effect, on_absent=on_absent), now(ASKED_AT)).step
    expected = {
        OnAbsent.RESEND: Send(resend=True, why=Cause.CONFIRMED_ABSENT),
        OnAbsent.REPORT: Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT),
        OnAbsent.REVIEW: Escalate(cause=Cause.ABSENT_REVIEW),
    }
    assert step == expected[on_absent]


@pytest.mark.parametrize("effect", effects("absent", "absent and keyed"))
def test_a_confirmed_absence_is_reported_where_the_resend_is_not_permitted_any_more(effect):
    rules = rules_of(effect, on_absent=OnAbsent.RESEND, retry=RetryRules(resend=0))
    expected = Settle(to=State.FAILED, cause=Cause.CONFIRMED_ABSENT)
    assert decide(absent(), rules, now(ASKED_AT)).step == expected


@pytest.mark.proves("CORE-20")
@pytest.mark.parametrize("effect", effects("straight", "keyed"))
def test_a_declared_look_up_is_asked_before_any_resend(effect):
    rules, before = rules_of(effect), tried(attempt())
    assert isinstance(decide(before, rules, now(T0 + 60_000)).step, LookUp)
    asked = adding(before, *absences(T0 + 20_000))
    assert decide(asked, rules, now(T0 + 60_000)).step == Send(resend=True)


@pytest.mark.proves("CORE-20")
@pytest.mark.parametrize("effect", [Effect.KEYED_CREATE, Effect.IDEMPOTENT_CALL])
def test_a_look_before_the_last_attempt_is_not_asking_before_the_next(effect):
    rules = rules_of(effect, retry=RetryRules(resend=4))
    again = tried(attempt(), attempt(2, resend=True, at=T0 + 30_000))
    asked = adding(again, *absences(T0 + 20_000))
    assert isinstance(decide(asked, rules, now(T0 + 90_000)).step, LookUp)
    anew = adding(asked, *absences(T0 + 50_000))
    assert decide(anew, rules, now(T0 + 90_000)).step == Send(resend=True)


@pytest.mark.parametrize("effect", effects("straight", "keyed"))
def test_a_safe_resend_needs_no_look_up(effect):
    step = decide(tried(attempt()), rules_of(effect, lookups=()), now(T0 + 60_000)).step
    assert step == Send(resend=True)


@pytest.mark.parametrize("effect", effects("straight", "keyed"))
@pytest.mark.parametrize("on_absent", [OnAbsent.REPORT, OnAbsent.REVIEW])
def test_a_contract_that_orders_no_resend_gets_none(effect, on_absent):
    rules = rules_of(effect, lookups=(), on_absent=on_absent)
    assert not isinstance(decide(tried(attempt()), rules, now(T0 + 60_000)).step, Send)


@pytest.mark.proves("CORE-21")
@pytest.mark.parametrize("effect", effects("never"))
def test_what_is_worth_doing_only_now_goes_straight_to_a_person(effect):
    after = settled(tried(attempt()), rules_of(effect), T0 + 20_000).operation
    assert (after.state, after.cause) == (State.MANUAL_REVIEW, Cause.NOTHING_LEFT)


@pytest.mark.parametrize("effect", effects("never"))
def test_what_is_worth_doing_only_now_is_never_resent(effect):
    rules = rules_of(effect, on_absent=OnAbsent.RESEND, lookups=contract().lookups)
    for at in (T0 + 20_000, PROVES, PROVES + HOUR):
        assert not may_resend(absent(), rules, now(at), absent=True)


@pytest.mark.parametrize("effect", effects("absent", "absent and keyed"))
def test_an_unknown_that_nothing_can_settle_goes_straight_to_a_person(effect):
    step = decide(tried(attempt()), rules_of(effect, lookups=()), now(T0 + 20_000)).step
    assert step == Escalate(cause=Cause.NOTHING_LEFT)


@pytest.mark.proves("CORE-22")
@pytest.mark.parametrize("effect", effects("freely"))
def test_a_read_is_tried_again_and_then_fails_and_may_be_repeated(effect):
    rules = rules_of(effect, key=None)
    before = record(valid_until_ms=T0 + DAY)
    for number in range(rules.retry.attempts):
        before = settled(before, rules, T0 + number * 60_000)
        assert isinstance(decide(before, rules, now(T0 + number * 60_000)).step, Send)
        before = sends(before, rules, T0 + number * 60_000)
        before = ends(before, rules, T0 + number * 60_000 + 10_000, Seen.UNKNOWN)
        assert before.operation.state is State.PREPARED or number == rules.retry.attempts - 1
    after = settled(before, rules, T0 + HOUR).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.NO_EFFECT)


@pytest.mark.parametrize("effect", [e for e in Effect if not MODEL[e].irreversible])
def test_where_duplicates_are_acceptable_an_unknown_may_be_resent_at_once(effect):
    rules = rules_of(effect, duplicates_acceptable=True, lookups=())
    assert may_resend(tried(attempt()), rules, now(PROVES), absent=False)


@pytest.mark.parametrize("effect", sorted(ONCE))
def test_a_file_or_a_shell_read_is_resent_once_however_often_the_contract_says(effect):
    rules = rules_of(Effect(effect), retry=RetryRules(resend=5))
    again = tried(attempt(), attempt(2, resend=True, at=T0 + 20_000))
    assert not may_resend(again, rules, now(PROVES), absent=True)


@pytest.mark.proves("INV-1")
@every_life
def test_an_unknown_is_resent_only_where_the_row_of_its_effect_permits(life: Life):
    rules, row = life.contract, MODEL[life.contract.effect]
    for before, at in zip(life.records, life.times, strict=True):
        step = decide(before, rules, at).step
        if not isinstance(step, Send) or not step.resend:
            continue
        found = weigh(before, rules, at)
        assert found.verdict in (Verdict.UNKNOWN, Verdict.NOT_APPLIED)
        assert row.resend != "never"
        if row.resend.startswith("absent") and not rules.duplicates_acceptable:
            assert found.absence.confirmed
            assert rules.on_absent is OnAbsent.RESEND
        if row.resend.endswith("keyed") and not rules.duplicates_acceptable:
            assert rules.key is not None


@every_life
def test_a_read_never_enters_unknown(life: Life):
    if MODEL[life.contract.effect].resend == "freely":
        unknown = {State.UNKNOWN, State.RECONCILING}
        assert not unknown & {record.operation.state for record in life.records}


def test_a_read_that_was_accepted_and_never_answered_fails_and_may_be_repeated():
    rules = rules_of(Effect.READ, key=None)
    before = ends(sends(record(), rules, T0), rules, T0 + 1_000, Seen.ACCEPTED)
    after = settled(before, rules, T0 + DAY).operation
    assert (after.state, after.cause) == (State.FAILED, Cause.NO_EFFECT)


@every_life
def test_nothing_is_sent_of_what_has_ended(life: Life):
    for before, at in zip(life.records, life.times, strict=True):
        if before.operation.state in TERMINAL:
            assert not isinstance(decide(before, life.contract, at).step, Send)
