"""`contracts explain`, and what people see of actions of every kind before they decide."""

import pytest
from tests.cli.shell import Shell, too_wide

from doubtless.engine.contracts import load_contracts
from doubtless.engine.registry import Tool
from doubtless.service.api_reads import tool_data

CONTRACTS = """
[tools.save]
effect = "file"
description = "Save a report."
[tools.save.arguments]
type = "object"
required = ["name"]
properties.name = { type = "string" }
[tools.save.file]
path = "{args.name}.md"
content = "a report"
[tools.save.approval]

[tools.submit]
effect = "browser"
[tools.submit.browser]
script = "shop.forms:send"
start_url = "https://shop.example/form"

[tools.tell]
effect = "message"
[tools.tell.mail]
smtp = "mail.example.com:587"
sender = "shop@example.com"
to = "ann@example.com"
bcc = ["log@example.com"]
subject = "s"
text = "t"
[tools.tell.approval]
"""
CODE = """
from doubtless import Doubtless, Effect
app = Doubtless("sqlite:///code.db")

@app.tool(effect=Effect.WRITE)
def ticket(call, title: str) -> dict:
    return {}
"""


@pytest.fixture
def shell(tmp_path) -> Shell:
    (tmp_path / "contracts.toml").write_text(CONTRACTS, encoding="utf-8")
    (tmp_path / "explained_code.py").write_text(CODE, encoding="utf-8")
    return Shell(tmp_path)


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.proves("EXPLAIN-5")
def test_a_tool_is_explained_in_plain_words_that_fit_a_terminal(shell):
    told = shell.here("contracts", "explain", "save")
    assert (told.code, told.err, too_wide(told.out)) == (0, "", [])
    assert told.out.startswith("save: fully automatic\n  Save a report.\n")
    assert "   6 the rename: unknown\n" in told.out
    assert f"write {{args.name}}.md, below {shell.folder}" in one_line(told.out)
    assert "\x1b" not in told.out
    narrow = shell.here("contracts", "explain", COLUMNS="60").out
    assert max(map(len, narrow.splitlines())) <= 60
    assert "never repeated by itself" in one_line(narrow)


@pytest.mark.proves("EXPLAIN-5")
def test_all_tools_are_explained_for_programs_too(shell):
    told = shell.here("contracts", "explain", "--json").json["tools"]
    assert [each["tool"] for each in told] == ["save", "submit", "tell"]
    assert [each["fully_automatic"] for each in told] == [True, False, False]
    assert told[1]["path"][5]["name"] == "the click"
    assert told[1]["path"][5]["proof"] == ""
    one = shell.here("contracts", "explain", "tell", "submit", "--json").json["tools"]
    assert one == [told[2], told[1]]


@pytest.mark.proves("EXPLAIN-5")
def test_a_tool_that_is_not_declared_is_told_with_the_nearest_name(shell):
    told = shell.here("contracts", "explain", "sve")
    assert (told.code, told.out) == (2, "")
    assert "no tool 'sve' is declared: did you mean 'save'?" in told.err
    assert shell.here("contracts", "explain", "--contracts", "no.toml").code == 2


@pytest.mark.proves("EXPLAIN-5")
def test_tools_in_code_are_explained_and_no_ledger_is_made(shell, monkeypatch):
    monkeypatch.syspath_prepend(str(shell.folder))
    told = shell.here("contracts", "explain", "ticket", "--app", "explained_code:app")
    assert (told.code, told.err) == (0, "")
    assert "the function's first line: unknown" in told.out
    assert "It declares no look-up" in told.out
    assert [each.name for each in shell.folder.glob("*.db")] == []


@pytest.mark.proves("EXPLAIN-6")
def test_who_approves_sees_what_is_done_to_what(shell):
    shell.call("save", "--operation-id", "o1", name="q3")
    told = shell.here("approve", "o1", "--note", "seen", "--operator", "ann").out
    assert f"does write q3.md, below {shell.folder}" in one_line(told)
    shell.call("tell", "--operation-id", "o2")
    told = shell.here("deny", "o2", "--note", "no", "--operator", "ann").out
    assert "does mail to ann@example.com, bcc log@example.com, through mail" in one_line(told)
    page = one_line(shell.here("operations", "show", "o1").out)
    assert f"does write q3.md, below {shell.folder}" in page


@pytest.mark.proves("EXPLAIN-4")
def test_agents_are_told_which_blocks_settle_by_themselves(shell):
    declared = load_contracts(shell.folder / "contracts.toml").tools
    told = {name: tool_data(Tool(contract=each)) for name, each in declared.items()}
    assert {name: each["fully_automatic"] for name, each in told.items()} == {
        "save": True,
        "submit": False,
        "tell": False,
    }
    assert told["submit"]["effect"] == "browser"
