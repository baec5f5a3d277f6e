"""What `contracts explain` announces is what policy then does, whatever the contract."""

import pytest
from hypothesis import assume, given, settings
from tests.core.samples import T0, adding, attempt, evidence, now, tried

from doubtless.core.contract import Contract, OnAbsent
from doubtless.core.effects import NO_EFFECT
from doubtless.core.evidence import weigh
from doubtless.core.model import Effect, Record, Shows, State
from doubtless.core.policy import decide
from doubtless.core.schedule import next_send_ms
from doubtless.core.steps import Escalate, Send, Settle
from doubtless.engine.contracts.answers import answers_of, repeats
from doubtless.engine.contracts.explain import explain
from doubtless.testing.strategies import contracts

EFFECTFUL = contracts([each for each in Effect if each not in NO_EFFECT])


def doubtful(contract: Contract, *shows: Shows) -> Record:
    """Return an operation whose only attempt is unknown, and each look-up asked once."""
    looked = [
        evidence(each, at=T0 + 40_000, by=look.name) for look in contract.lookups for each in shows
    ]
    deadline_ms = T0 + contract.recovery_deadline_ms
    valid_ms = T0 + contract.valid_for_ms
    before = tried(
        attempt(), deadline_ms=deadline_ms, valid_until_ms=valid_ms, effect=contract.effect
    )
    return adding(before, *looked)


def told(contract: Contract) -> dict[str, str]:
    return {each.name: each.text for each in explain(contract).on_unknown}


@pytest.mark.proves("EXPLAIN-2")
@settings(max_examples=60, deadline=None)
@given(EFFECTFUL)
def test_what_is_sent_again_without_proof_is_announced_and_nothing_else_is(contract):
    record = doubtful(contract, Shows.ABSENT)  # once: no proof
    at_ms = max(T0 + 60_000, next_send_ms(record, contract))
    step = decide(record, contract, now(at_ms)).step
    assert isinstance(step, Send) == ("sent again" in told(contract)), step
    assert isinstance(step, Send) == repeats(contract)


@pytest.mark.proves("EXPLAIN-2")
@settings(max_examples=60, deadline=None)
@given(EFFECTFUL)
def test_what_follows_on_proof_that_it_was_not_done_is_as_announced(contract):
    assume(contract.proving_lookups and answers_of(contract).asks)
    bare = doubtful(contract)
    settled_ms = weigh(bare, contract, now(T0 + 60_000)).absence.settled_from_ms
    first_ms = settled_ms + contract.lag_ms
    seen = [
        evidence(Shows.ABSENT, at=first_ms + number * look.interval_ms, by=look.name)
        for number in range(max(look.confirmations for look in contract.lookups))
        for look in contract.lookups
    ]
    record = adding(bare, *seen)
    step = decide(record, contract, now(seen[-1].at_ms + 1_000)).step
    announced = told(contract)["not done"]
    assert isinstance(step, Send) == ("Then it is sent again by itself" in announced), step
    assert isinstance(step, Escalate) == ("Then a person is asked" in announced), step
    assert isinstance(step, Settle) == ("Then it is failed_safe_to_retry" in announced), step
    if isinstance(step, Settle):
        assert step.to is State.FAILED
        assert contract.on_absent is not OnAbsent.REVIEW


@pytest.mark.proves("EXPLAIN-2")
@settings(max_examples=60, deadline=None)
@given(EFFECTFUL)
def test_a_person_is_asked_at_once_exactly_where_that_is_announced(contract):
    record = doubtful(contract)
    step = decide(record, contract, now(T0 + 60_000)).step
    announced = told(contract)["a person"]
    assert isinstance(step, Escalate) == (
        announced.startswith("At once") and "a person is asked" in announced
    ), step
    if not contract.review:
        assert "it stays unknown" in announced
