"""Properties of whole lives of an operation: `@every_life` draws contract and life."""

from hypothesis import given, settings

from doubtless.testing.strategies import contracts, lives

LIVES = contracts().flatmap(lives)


def every_life(test):
    """Check a property of some dozens of drawn lives; drawing them is what takes time."""
    return settings(max_examples=20)(given(LIVES)(test))
