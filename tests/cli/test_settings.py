"""Flags come before variables, these before doubtless.toml, and that before the defaults."""

import pytest

from doubtless import cli


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("LEDGER", "TENANT", "CONTRACTS", "SECRETS", "PRINCIPAL", "OPERATOR", "APP"):
        monkeypatch.delenv(f"DOUBTLESS_{name}", raising=False)
    return tmp_path


def told(capsys, *flags: str) -> str:
    """Return the error that names the ledger which was looked for."""
    assert cli.main(["operations", "list", *flags]) == 2
    return str(capsys.readouterr().err)


@pytest.mark.proves("CLI-8")
def test_each_place_outweighs_the_next(folder, capsys, monkeypatch):
    assert "no ledger at sqlite:///doubtless.db" in told(capsys)
    (folder / "doubtless.toml").write_text('ledger = "sqlite:///file.db"\n')
    assert "no ledger at sqlite:///file.db" in told(capsys)
    monkeypatch.setenv("DOUBTLESS_LEDGER", "sqlite:///variable.db")
    assert "no ledger at sqlite:///variable.db" in told(capsys)
    assert "no ledger at sqlite:///flag.db" in told(capsys, "--ledger", "sqlite:///flag.db")


@pytest.mark.proves("CLI-8")
@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('leger = "x"\nledger = 3\n', "no setting 'leger': use ledger, tenant, contracts"),
        ("ledger = 3\n", 'ledger must be text in quotes: ledger = "…"'),
        ("ledger =\n", "this is not TOML: Invalid value (at line 1, column 9)"),
    ],
)
def test_a_wrong_settings_file_is_an_error(folder, capsys, text, wrong):
    (folder / "doubtless.toml").write_text(text)
    assert wrong in told(capsys)
