"""What the README shows was run: its examples work as they are written."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from doubtless import cli

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOST = [{"match": {"method": "POST", "nth": 1}, "then": {"action": "commit_then_rst"}}]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


async def execute(source: str) -> dict[str, Any]:
    """Run an example that awaits at its top level, and return its names."""
    names: dict[str, Any] = {"__name__": "readme"}
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    await eval(compile(source, "README.md", "exec", flags), names)  # noqa: S307
    return names


@pytest.fixture
def folder(tmp_path, monkeypatch, provider):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOUBTLESS_SECRET_PAYMENTS", "made up")
    provider.configure(LOST)
    (contract,) = blocks("toml")
    (tmp_path / "contracts.toml").write_text(here(contract, provider))
    return tmp_path


def here(text: str, provider) -> str:
    assert "https://api.example.com" in text
    return text.replace("https://api.example.com", provider.url)


@pytest.mark.proves("DOCS-1")
async def test_the_tool_by_contract_runs_as_it_is_written(folder, provider, capsys):
    names = await execute(blocks("python")[0])
    assert names["outcome"].status == "succeeded"
    assert capsys.readouterr().out.startswith("succeeded refund ")
    assert len(provider.effects()) == 1


@pytest.mark.proves("DOCS-1")
async def test_the_tool_in_code_runs_as_it_is_written(folder, provider):
    names = await execute(here(blocks("python")[1], provider))
    assert names["outcome"].outcome == "unknown"
    async with names["app"] as app:
        found = await app.wait("refund_74220", timeout=20)
    assert (found.status, found.provider_operation_id) == ("succeeded", "re_000001")
    assert len(provider.effects()) == 1


@pytest.mark.proves("DOCS-1")
def test_the_outcome_is_shown_as_a_call_prints_it(folder, capsys):
    arguments = json.dumps({"charge": "ch_1", "amount": 500})
    assert cli.main(["call", "refund", "--json", arguments, "--operation-id", "refund_74219"]) == 3
    real = json.loads(capsys.readouterr().out)
    (text,) = blocks("json")
    shown = json.loads(text)
    assert list(shown) == list(real)
    varies = {"correlation_id", "idempotency_key", "ref"}
    steady = {name for name in shown if name not in varies and not holds_an_instant(shown[name])}
    assert {name: shown[name] for name in steady} == {name: real[name] for name in steady}
    for name in ("acts", "last_confirmed", "reconcile"):
        assert shown[name].keys() == real[name].keys()


def holds_an_instant(value: object) -> bool:
    return bool(re.search(r"\d{4}-\d\d-\d\dT", json.dumps(value)))


@pytest.mark.proves("DOCS-1")
def test_every_command_is_in_the_table():
    listed = set(
        re.findall(
            r"^\| `doubtless ([a-z]+(?: (?:list|show|stop|check|explain))?)", README, re.MULTILINE
        )
    )
    assert listed == {
        "demo",
        "approve",
        "call",
        "deny",
        "doctor",
        "events list",
        "mcp",
        "operations list",
        "operations show",
        "operations stop",
        "sessions show",
        "resolve",
        "contracts check",
        "contracts explain",
        "migrate",
        "serve",
        "token",
        "worker",
    }
