"""Workers that empty and archive: only where a flag says when."""

import sqlite3
from contextlib import closing

import anyio
import pytest
from tests.cli.shell import Shell
from tests.engine.functions import WRITE
from tests.service.serving import Serving, until

from doubtless import Call, Doubtless
from doubtless.ledger.store import open_ledger, wall_ms

AGO_MS = 400 * 86_400_000
CONTRACTS = """
[sources.payments]
base_url = "https://payments.invalid"

[tools.look]
effect = "read"
source = "payments"

[tools.look.request]
method = "GET"
path = "/v1/refunds"
"""


@pytest.fixture
def shell(tmp_path) -> Shell:
    """A folder with a ledger in which both tenants settled something long ago."""
    found = Shell(tmp_path)
    (tmp_path / "contracts.toml").write_text(CONTRACTS, encoding="utf-8")

    async def settle(tenant: str) -> None:
        with open_ledger(found.ledger, clock=lambda: wall_ms() - AGO_MS) as ledger:
            app = Doubtless(ledger, tenant=tenant, worker=False)

            @app.tool(**WRITE)
            async def buy(_call: Call, what: str) -> dict[str, str]:
                return {"bought": what}

            async with app:
                await app.call("buy", {"what": "tea"}, operation_id="o1")

    for tenant in ("main", "acme"):
        anyio.run(settle, tenant)
    return found


def left(shell: Shell) -> dict[str, tuple[int, int]]:
    """Return of each tenant how many bodies are kept, and how many operations are archived."""
    asked = """
        select (select count(*) from body where tenant = :tenant and content is not null)
               + (select count(*) from archived_body
                   where tenant = :tenant and content is not null),
               (select count(*) from archived where tenant = :tenant)
    """
    with closing(sqlite3.connect(shell.folder / "doubtless.db")) as link:
        return {
            tenant: link.execute(asked, {"tenant": tenant}).fetchone()
            for tenant in ("main", "acme")
        }


@pytest.mark.proves("SCALE-12")
@pytest.mark.long
def test_a_worker_empties_and_archives_its_own_tenants_where_flags_say_when(shell):
    before = left(shell)
    assert before["main"] == before["acme"]
    kept, archived = before["main"]
    assert (kept > 0, archived) == (True, 0)
    with Serving(shell, "--tenant", "acme", "--retention", "90d", command="worker") as serving:
        assert ", tenant acme;" in serving.first_line
        until(lambda: left(shell)["acme"][0] == 0)
        assert serving.stop() == 0
    assert left(shell) == {"main": (kept, 0), "acme": (0, 0)}  # what isn't said is not done
    with Serving(shell, "--archive-after", "399d") as serving:
        assert "tenant" not in serving.first_line
        until(lambda: left(shell)["main"][1] == 1)
        assert serving.stop() == 0
    assert left(shell) == {"main": (kept, 1), "acme": (0, 0)}


@pytest.mark.proves("SCALE-12")
@pytest.mark.parametrize("command", ["serve", "worker"])
@pytest.mark.parametrize("flag", ["--retention", "--archive-after"])
def test_a_wrong_time_is_refused_with_its_place_and_its_mend(tmp_path, command, flag):
    shell = Shell(tmp_path)
    for wrong, why in (
        ("soon", "'soon' is no duration: write 90d."),
        ("9999d", "'9999d' is more than ten years: write 90d."),
        ("23h", "23h is too short: a day (1d) is the least."),
    ):
        refused = shell.here(command, flag, wrong)
        assert refused.code == 2
        assert f"Invalid value for '{flag}': {why}" in refused.err
    (tmp_path / "contracts.toml").write_text(CONTRACTS, encoding="utf-8")
    in_code = shell.here(command, flag, "90d", "--app", "shop:app")
    assert (in_code.code, f"leave {flag} out" in in_code.err) == (2, True)


@pytest.mark.proves("SCALE-12")
def test_a_service_without_a_worker_has_nobody_to_do_it(tmp_path):
    refused = Shell(tmp_path).here("serve", "--no-worker", "--retention", "90d")
    assert refused.code == 2
    assert "--retention is the worker's: leave --no-worker out" in refused.err
