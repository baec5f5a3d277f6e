"""Fixtures that the tests of several kinds of actions share."""

import pytest
from tests.actions.agent import Agency


@pytest.fixture(scope="session")
def agency():
    """Whoever forks applications in processes of their own."""
    found = Agency()
    yield found
    found.close()
