"""Tokens: made, listed and revoked on the command line, and honoured by a running service."""

import re

import pytest
from tests.cli.shell import Shell

from doubtless.core.model import Role
from doubtless.errors import SettingsError, TokenNotFound
from doubtless.ledger.store import open_ledger
from doubtless.service import auth

SECRET = re.compile(r"dbt_[A-Za-z0-9_-]{43}")


@pytest.fixture
def shell(tmp_path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(f"sqlite:///{tmp_path}/other.db") as found:
        yield found


@pytest.mark.proves("SERVICE-17")
def test_a_token_is_printed_once_alone_and_stored_nowhere(shell):
    made = shell.here("token", "create", "--role", "agent", "--name", "shop-agent")
    secret = made.out.strip()
    assert made.code == 0
    assert SECRET.fullmatch(secret)
    assert secret not in made.err
    assert "shop-agent" in made.err

    listed = shell.here("token", "list", "--json")
    assert secret not in listed.out
    (found,) = listed.json
    assert {"name": "shop-agent", "role": "agent", "live": True, "expires_at": None}.items() <= (
        found.items()
    )
    for file in shell.folder.iterdir():
        assert secret.encode() not in file.read_bytes(), file
        assert secret.removeprefix("dbt_").encode() not in file.read_bytes(), file


@pytest.mark.proves("SERVICE-17")
def test_two_tokens_are_never_alike(ledger):
    secrets = {auth.issue(ledger, "a", Role.AGENT).secret for _ in range(50)}
    assert len(secrets) == 50


@pytest.mark.proves("SERVICE-17")
def test_an_issued_token_does_not_show_in_logs_of_it(ledger):
    issued = auth.issue(ledger, "a", Role.AGENT)
    assert issued.secret not in repr(issued)


@pytest.mark.proves("SERVICE-18")
def test_a_token_that_is_revoked_is_refused_at_once_by_a_running_service(stage):
    made = stage.shell.run("token", "create", "--role", "agent", "--name", "brief")
    secret = made.out.strip()
    assert stage.serving.ask("GET", "/v1/tools", token=secret).status == 200
    (found,) = [
        each for each in stage.shell.run("token", "list", "--json").json if each["name"] == "brief"
    ]
    assert stage.shell.run("token", "revoke", found["id"]).code == 0

    assert stage.serving.ask("GET", "/v1/tools", token=secret).status == 401
    assert stage.shell.run("token", "revoke", found["id"]).code == 0  # again changes nothing
    (after,) = [
        each for each in stage.shell.run("token", "list", "--json").json if each["name"] == "brief"
    ]
    assert not after["live"]
    assert after["revoked_at"] is not None


@pytest.mark.proves("SERVICE-18")
def test_a_token_is_refused_from_the_instant_of_its_expiry_on(tmp_path):
    now_ms = 1_000_000
    with open_ledger(f"sqlite:///{tmp_path}/x.db", clock=lambda: now_ms) as ledger:
        secret = auth.issue(ledger, "a", Role.AGENT, lifetime_ms=1_000).secret
        now_ms += 999
        found = auth.principal_of(ledger, f"Bearer {secret}")
        assert found is not None
        assert (found.name, found.role) == ("a", Role.AGENT)
        now_ms += 1
        assert auth.principal_of(ledger, f"Bearer {secret}") is None


@pytest.mark.proves("SERVICE-18")
def test_a_clock_that_is_set_back_brings_no_expired_token_back(tmp_path):
    now_ms = 1_000_000
    with open_ledger(f"sqlite:///{tmp_path}/x.db", clock=lambda: now_ms) as ledger:
        secret = auth.issue(ledger, "a", Role.AGENT, lifetime_ms=1_000).secret
        now_ms += 5_000
        auth.issue(ledger, "b", Role.AGENT)  # whatever is written moves the ledger's clock on
        now_ms -= 4_999
        assert auth.principal_of(ledger, f"Bearer {secret}") is None


@pytest.mark.proves("SERVICE-14")
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
def test_the_schemes_name_may_be_written_in_any_case(ledger, scheme):
    secret = auth.issue(ledger, "a", Role.OPERATOR).secret
    found = auth.principal_of(ledger, f"{scheme} {secret}")
    assert found is not None
    assert found.role is Role.OPERATOR


@pytest.mark.proves("SERVICE-17")
@pytest.mark.parametrize("name", ["", " ", "a b", "a/b", "-a", "a\n", "é", "x" * 65])
def test_a_name_that_could_mislead_is_refused(ledger, name):
    with pytest.raises(SettingsError, match="name"):
        auth.issue(ledger, name, Role.AGENT)
    assert auth.all_tokens(ledger) == []


@pytest.mark.proves("SERVICE-17")
def test_no_token_has_the_role_of_a_provider(ledger):
    with pytest.raises(SettingsError, match="role"):
        auth.issue(ledger, "a", Role.PROVIDER)


@pytest.mark.proves("SERVICE-17")
def test_a_token_that_is_not_there_cannot_be_revoked(ledger, shell):
    with pytest.raises(TokenNotFound):
        auth.revoke(ledger, "tok-none")
    shell.here("token", "create", "--role", "agent", "--name", "a")
    told = shell.here("token", "revoke", "tok-none")
    assert told.code == 2
    assert "token list" in told.err


@pytest.mark.proves("SERVICE-17")
def test_tokens_are_listed_for_people(shell):
    assert shell.here("token", "list").code == 2  # there is no ledger, and reading makes none
    shell.here("token", "create", "--role", "operator", "--name", "night", "--expires", "30d")
    shell.here("token", "create", "--role", "agent", "--name", "shop")
    listed = shell.here("token", "list").out.splitlines()
    assert "expires in 29d 23h" in listed[0] or "expires in 30d" in listed[0]
    assert "does not expire" in listed[1]
