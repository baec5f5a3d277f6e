"""The generated pages say what the code says."""

import pytest
from tests.cli.pages import DOCS, PAGES, STATES

from doubtless.core.model import State


@pytest.mark.proves("DOCS-2")
@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_says_what_the_code_says(name):
    written = (DOCS / name).read_text(encoding="utf-8")
    assert written == PAGES[name](), "run `python -m tests.cli.pages`"


def test_every_state_has_words():
    assert STATES.keys() == set(State)
