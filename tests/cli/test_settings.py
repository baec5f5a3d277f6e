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


@pytest.mark.proves("CLI-8", "SCALE-11")
def test_a_wrong_tenant_is_refused_with_the_place_that_says_it(folder, capsys, monkeypatch):
    assert "--tenant: 'A b' can't be a tenant's name: use up to 64 of" in told(
        capsys, "--tenant", "A b"
    )
    assert "no ledger at" in told(capsys, "--tenant", "a" * 64)
    (folder / "doubtless.toml").write_text('tenant = "-x"\n')
    assert "doubtless.toml: tenant: '-x' can't be" in told(capsys)
    monkeypatch.setenv("DOUBTLESS_TENANT", "a" * 65)
    assert "DOUBTLESS_TENANT: 'aaa" in told(capsys)
    monkeypatch.setenv("DOUBTLESS_TENANT", "acme")
    assert "no ledger at" in told(capsys)


@pytest.mark.proves("SCALE-11")
def test_an_application_of_another_tenant_is_not_taken_for_ours(folder, capsys, monkeypatch):
    text = 'from doubtless import Doubtless\napp = Doubtless("sqlite:///a.db", tenant="acme")\n'
    (folder / "its_shop.py").write_text(text)
    words = ["call", "none", "--json", "{}", "--app", "its_shop:app"]
    assert cli.main([*words, "--tenant", "acme"]) == 2
    assert "--app brings its own tenant: leave --tenant out" in capsys.readouterr().err
    monkeypatch.setenv("DOUBTLESS_TENANT", "bolt")
    assert cli.main(words) == 2
    assert "is of the tenant 'acme', and 'bolt' is said by" in capsys.readouterr().err
    monkeypatch.setenv("DOUBTLESS_TENANT", "acme")
    assert cli.main(words) == 2
    assert "'none'" in capsys.readouterr().err
