"""The commands on a PostgreSQL ledger: the address is all that is different."""

import pytest


@pytest.fixture
def address(postgres) -> str:
    """An address with a password, which this server doesn't ask for."""
    base, _, query = postgres.empty().partition("?")
    return f"{base.replace('postgres:@', 'postgres:hunter2@')}?{query}"


@pytest.mark.proves("PG-3", "PG-11")
def test_commands_work_on_a_postgresql_ledger_and_print_no_password(shell, provider, address):
    variables = {"DOUBTLESS_LEDGER": address}
    words = ["refund", "--operation-id", "r1", "--json", '{"charge": "ch_1", "amount": 5}']
    called = shell.here("call", *words, **variables)
    assert called.code == 0, called.err
    assert len(provider.effects()) == 1
    listed = shell.here("operations", "list", **variables)
    assert "r1" in listed.out
    shown = shell.here("operations", "show", "r1", **variables)
    assert "succeeded" in shown.out
    checked = shell.here("migrate", "--check", **variables)
    assert checked.code == 0
    assert "postgres:***@" in checked.out
    assert "is up to date" in checked.out
    told = shell.here("migrate", "--as-json", **variables)
    events = shell.here("events", "list", **variables)
    assert events.code == 0, events.err
    for found in (called, listed, shown, checked, told, events):
        assert "hunter2" not in found.out + found.err


@pytest.mark.proves("PG-11")
@pytest.mark.parametrize("words", [["operations", "list"], ["migrate", "--check"], ["migrate"]])
def test_a_ledger_that_is_not_there_is_an_error_and_is_not_made(shell, postgres, words):
    address = postgres.fresh()
    found = shell.here(*words, "--ledger", address)
    assert found.code == 2
    assert "there is no ledger at postgresql://" in found.err
    with postgres.connect() as connection:
        schemas = "select count(*) from pg_namespace where nspname = %s"
        asked = (address.rpartition("schema=")[2],)
        assert connection.execute(schemas, asked).fetchone() == (0,)
