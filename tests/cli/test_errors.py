"""Whatever is wrong is told with its mend, without a traceback, and with an exit code."""

import json
import subprocess
import sys

import apsw
import pytest
from tests.cli.shell import environment

from doubtless import cli
from doubtless.ledger import migrate


def run_here(capsys, *words: str) -> tuple[int, str]:
    """Run a command in this process: for errors that come before anything is opened."""
    code = cli.main(list(words))
    captured = capsys.readouterr()
    assert captured.out == ""
    return code, captured.err


@pytest.mark.proves("CLI-3")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a": 1,\n "b": }', "Expecting value at line 2, column 7"),
        ("[1]", "an object is wanted"),
        ('{"a": 1, "a": 2}', "it says a twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ("[" * 100_000, "recursion"),
    ],
    ids=["syntax", "a list", "twice", "no number", "deep"],
)
def test_arguments_that_are_no_json_object_are_refused_with_the_place(capsys, text, told):
    code, err = run_here(capsys, "call", "refund", "--json", text)
    assert code == 2
    assert told in err


NOWHERE = "postgres://app:hunter2@127.0.0.1:1/ledger"


@pytest.mark.proves("CLI-3")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["operations", "list", "--older-than", "5x"], "write 250ms, 30s, 15m, 24h or 7d"),
        (["operations", "list", "--state", "lost"], "unresolved"),
        (["resolve", "r1", "maybe", "--note", "x"], "it is one of done, not-done"),
        (["resolve", "r1", "done", "--note", " "], "say what you saw, and where"),
        (["resolve", "r1", "done"], "Missing option '--note'"),
        (["call", "refund"], "Missing option '--json'"),
        (["nothing"], "No such command"),
    ],
)
def test_a_wrong_option_is_refused_with_what_may_stand_there(capsys, words, told):
    code, err = run_here(capsys, *words)
    assert code == 2
    assert told in err


@pytest.mark.proves("CLI-3")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["call", "nosuch", "--json", "{}"], "Declared tools: place_bid, refund"),
        (["call", "refund", "--json", "{}", "--operation-id", "a b"], "must be 1 to 128 of"),
        (["call", "refund", "--json", '{"amount": 1}'], '"charge" is a required property'),
        (["call", "refund", "--json", "{}", "--contracts", "no.toml"], "can't be read"),
        (["call", "refund", "--json", "{}", "--ledger", NOWHERE], "could not be opened"),
    ],
)
def test_a_call_that_can_t_be_carried_out_says_why(shell, provider, words, told):
    found = shell.here(*words)
    assert found.code == (1 if "postgres" in words[-1] else 2)
    assert told in found.err
    assert "hunter2" not in found.err
    assert found.err.startswith("doubtless: ")
    assert (found.out, provider.arrivals()) == ("", [])


@pytest.mark.proves("CLI-3")
def test_a_missing_credential_names_the_variable_and_the_tool(shell):
    path = shell.folder / "contracts.toml"
    text = path.read_text().replace(
        "[tools.refund]", 'auth = { scheme = "bearer", credential = "pay" }\n[tools.refund]', 1
    )
    path.write_text(text)
    found = shell.call("refund", charge="ch_1", amount=1)
    assert found.code == 2
    assert "set DOUBTLESS_SECRET_PAY (wanted by place_bid, refund)" in found.err
    (shell.folder / "secrets").mkdir()
    (shell.folder / "secrets" / "pay").write_text("s3cret\n")
    found = shell.call("refund", "--secrets", "secrets", charge="ch_1", amount=1)
    assert found.code == 0
    assert "s3cret" not in found.out


@pytest.mark.proves("CLI-4")
@pytest.mark.parametrize(
    "words",
    [
        ["operations", "list"],
        ["operations", "show", "r1"],
        ["sessions", "show", "s1"],
        ["resolve", "r1", "done", "--note", "x"],
        ["migrate"],
        ["migrate", "--check"],
    ],
)
def test_a_ledger_that_is_not_there_is_an_error_and_is_not_made(tmp_path, capsys, words):
    address = f"sqlite:///{tmp_path}/no.db"
    code, err = run_here(capsys, *words, "--ledger", address)
    assert code == 2
    assert err.startswith(f"doubtless: there is no ledger at {address}")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def later(monkeypatch):
    """Let the release have two more migrations: one that older code can live with, and another."""
    known = migrate.known()
    texts = ("create table more (a)", "drop table more")
    released = (
        *known,
        *(
            migrate.Migration(number=len(known) + at, name=f"later.{step}.sql", text=text)
            for at, (step, text) in enumerate(zip(("pre", "post"), texts, strict=True), start=1)
        ),
    )
    with monkeypatch.context() as patched:

        def release() -> None:
            patched.setattr(migrate, "known", lambda *_: released)

        yield release


@pytest.mark.proves("CLI-10")
def test_an_outdated_ledger_is_refused_with_the_command_and_migrated_by_it(shell, later):
    assert shell.call("refund", charge="ch_1", amount=1).code == 0
    later()
    refused = shell.here("operations", "list")
    assert refused.code == 1
    assert "lacks 1 migration(s), from later.pre.sql on: run `doubtless migrate`" in refused.err
    applied = shell.here("migrate")
    first, rest = applied.out.splitlines()
    assert (applied.code, first) == (0, "sqlite:///doubtless.db now has later.pre.sql.")
    assert "`doubtless migrate --post` applies what is left: later.post.sql." in rest
    assert shell.here("operations", "list").code == 0
    assert shell.run("operations", "list").code == 0  # of the release before
    last = shell.here("migrate", "--post")
    assert (last.code, last.out) == (0, "sqlite:///doubtless.db now has later.post.sql.\n")
    assert shell.here("migrate").out == "sqlite:///doubtless.db is up to date.\n"
    newer = shell.run("operations", "list")
    assert newer.code == 1
    assert "later.post.sql, which is newer than this release: upgrade doubtless" in newer.err


@pytest.mark.proves("MIGRATE-9")
def test_the_check_tells_each_step_and_changes_nothing(shell, later):
    assert shell.call("refund", charge="ch_1", amount=1).code == 0
    current = shell.here("migrate", "--check")
    assert current.code == 0
    first, *steps, last = current.out.splitlines()
    assert (first, last) == (
        "sqlite:///doubtless.db is up to date.",
        "This release can run on it.",
    )
    assert len(steps) == len(migrate.known())
    assert all("applied 2" in step for step in steps)
    later()
    for _ in range(2):
        found = shell.here("migrate", "--check")
        assert found.code == 1
        lines = [line.split() for line in found.out.splitlines()]
        assert lines[0][1:] == ["lacks", "later.pre.sql,", "later.post.sql."]
        assert ["later.pre.sql", "pre", "missing"] in lines
        assert ["later.post.sql", "post", "missing"] in lines
        assert "This release can't run on it" in found.out
    shell.here("migrate")
    told = shell.here("migrate", "--check", "--json")
    assert told.code == 1
    assert told.json["pending"] == ["later.post.sql"]
    assert (told.json["runs"], told.json["why_not"]) == (True, None)
    assert [each["step"] for each in told.json["migrations"]][-2:] == ["pre", "post"]
    older = shell.run("migrate", "--check")
    assert older.code == 0
    assert "of a newer release" in older.out
    shell.here("migrate", "--post")
    older = shell.run("migrate", "--check")
    assert older.code == 1
    assert "This release can't run on it" in older.out


@pytest.mark.proves("MIGRATE-9")
@pytest.mark.parametrize("words", [["--force"], ["--check", "--post"]])
def test_options_of_migrate_that_say_nothing_are_refused(shell, words):
    found = shell.here("migrate", *words)
    assert found.code == 2
    assert "--post" in found.err


@pytest.mark.proves("CLI-10")
def test_a_file_that_is_no_ledger_is_left_alone(shell):
    other = apsw.Connection(str(shell.folder / "other.db"))
    other.execute("create table mine (a)")
    other.close()
    found = shell.here("migrate", "--ledger", "sqlite:///other.db")
    assert found.code == 1
    assert "is a SQLite database, but not a ledger" in found.err


@pytest.mark.proves("CLI-12")
def test_an_unexpected_error_is_one_line_and_its_traceback_is_there_on_demand(capsys, monkeypatch):
    def broken(*words, **said):
        raise RuntimeError("a wheel\ncame off")

    monkeypatch.setattr("doubtless.cli_act.carry_out", broken)
    code, err = run_here(capsys, "call", "refund", "--json", "{}")
    assert code == 1
    assert err.startswith("doubtless: a fault of ours: RuntimeError: a wheel came off\n")
    assert "--debug" in err
    assert "Traceback" not in err
    code, err = run_here(capsys, "--debug", "call", "refund", "--json", "{}")
    assert code == 1
    assert "Traceback" in err


@pytest.mark.proves("CLI-9")
def test_a_broken_contract_file_tells_every_error_at_once_and_exits_with_2(shell):
    path = shell.folder / "contracts.toml"
    path.write_text(path.read_text().replace('effect = "money"', 'effect = "cash"\nrisk = "low"'))
    found = shell.run("contracts", "check")
    assert found.code == 2
    assert "tools.refund.effect" in found.err
    assert "tools.refund.risk" in found.err
    told = shell.here("contracts", "check", "contracts.toml", "--json")
    assert told.code == 2
    assert {each["key"] for each in told.json["errors"]} == {"effect", "risk"}
    assert shell.here("call", "refund", "--json", "{}").code == 2


@pytest.mark.proves("CLI-9")
def test_a_sound_contract_file_is_reported_for_people_and_for_programs(shell):
    found = shell.run("contracts", "check")
    assert (found.code, found.err) == (0, "")
    assert "refund  [money]  fully automatic" in found.out
    told = shell.here("contracts", "check", "--json").json
    assert {tool["tool"]: tool["fully_automatic"] for tool in told["tools"]} == {
        "refund": True,
        "place_bid": False,
    }


@pytest.mark.proves("CLI-13")
def test_help_imports_nothing_that_is_slow():
    slow = ["anyio", "apsw", "httpx2", "pydantic", "jsonschema_rs", "rich", "asyncio"]
    program = (
        "import sys, json\n"
        "from doubtless import cli\n"
        "assert cli.main(['--help']) == 0 and cli.main(['call', '--help']) == 0\n"
        f"print(json.dumps([name for name in {slow} if name in sys.modules]))\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, check=True
    )
    assert json.loads(found.stdout.splitlines()[-1]) == []
