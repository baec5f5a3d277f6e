"""The promised behaviours: an id and one sentence each.

An id is an area and a number (`LEDGER-3`) and never changes its meaning. A test says
`@pytest.mark.proves("LEDGER-3")`; tests/test_requirements.py checks that every promise is proven
and that every id exists.
"""

from typing import Final

REQUIREMENTS: Final[dict[str, str]] = {
    # What can be imported.
    "API-1": "The public names are these, and each can be imported.",
}
