"""The examples of the pages about actions are contracts that load, whole."""

import re
from pathlib import Path

import pytest

from doubtless.engine.contracts import parse_contracts

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [
    pytest.param(text, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.glob("actions-*.md"))
    for number, text in enumerate(EXAMPLE.findall(page.read_text(encoding="utf-8")), 1)
    if "[tools." in text
]


@pytest.mark.proves("ACTION-1")
@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_is_a_contract_that_loads(text, tmp_path):
    contracts = parse_contracts(text, str(tmp_path / "contracts.toml"))
    assert all(tool.action is not None for tool in contracts.tools.values())
