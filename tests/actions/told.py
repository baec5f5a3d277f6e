"""What an outcome tells, with the shape that a test expects of it."""

from collections.abc import Mapping
from typing import Any

from doubtless import Outcome


def result(outcome: Outcome) -> Mapping[str, Any]:
    """Return the result, which is an object."""
    assert isinstance(outcome.result, Mapping), outcome
    return outcome.result


def observed(outcome: Outcome) -> Mapping[str, Any]:
    """Return what the last attempt saw."""
    assert outcome.observation is not None, outcome
    return outcome.observation


def reconcile(outcome: Outcome) -> Mapping[str, Any]:
    """Return how it is settled."""
    assert outcome.reconcile is not None, outcome
    return outcome.reconcile


def action(contract: Any) -> Mapping[str, Any]:
    """Return the block of a contract."""
    assert contract.action is not None
    found: Mapping[str, Any] = contract.action
    return found
