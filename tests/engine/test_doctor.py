"""The check-up: every check has a case in which it fires, and one in which it doesn't."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from doubtless.engine import doctor, doctor_ledger
from doubtless.engine.findings import Finding
from doubtless.engine.surroundings import Surroundings
from doubtless.errors import SettingsError
from doubtless.ledger.checkup import FileFacts, ServerFacts
from doubtless.ledger.store import open_ledger

NOW_MS = 1_800_000_000_000
FILE = FileFacts(
    path="/var/lib/app/doubtless.db",
    is_there=True,
    writable=True,
    file_system="ext4",
    free_bytes=50 * 2**30,
    library="3.54.1",
    journal_mode="wal",
    synchronous=2,
    floor_ms=NOW_MS,
)
SOUND = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "",
    "statement_timeout": "0",
    "transaction_timeout": "0",
}
SERVER = ServerFacts(
    version=160_004,
    encoding="UTF8",
    is_standby=False,
    settings=SOUND,
    standbys=0,
    waited_for=0,
    connections_max=97,
    connections=4,
    is_pooled=False,
    wall_ms=NOW_MS,
    floor_ms=NOW_MS,
)
CONTRACT = """
[sources.pay]
base_url = "https://pay.example"
auth = { scheme = "bearer", credential = "pay-key" }
webhook = { scheme = "standard", credential = "pay-hook" }
"""


def grades(findings: Iterable[Finding]) -> dict[str, str]:
    found = list(findings)
    assert len({each.check for each in found}) == len(found)
    assert all(bool(each.mend) is (each.grade != "ok") for each in found)
    return {each.check: each.grade.value for each in found}


def test_everything_is_well_where_it_is():
    found = grades(doctor_ledger.judge_file(FILE, NOW_MS))
    found |= grades(doctor_ledger.judge_server(SERVER, NOW_MS))
    assert set(found.values()) == {"ok"}


FILE_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ledger.clock", "warning", {"floor_ms": NOW_MS + 10_000}),
    ("sqlite.library", "error", {"library": "3.51.2"}),
    ("sqlite.durable", "error", {"synchronous": 1}),
    ("sqlite.durable", "warning", {"journal_mode": "delete"}),
    ("sqlite.file_system", "error", {"file_system": "nfs4"}),
    ("sqlite.file_system", "warning", {"file_system": "tmpfs"}),
    ("sqlite.file_system", "warning", {"file_system": "overlay"}),
    ("sqlite.space", "error", {"free_bytes": 10 * 2**20}),
    ("sqlite.space", "warning", {"free_bytes": 500 * 2**20}),
]
SERVER_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("ledger.clock", "warning", {"floor_ms": NOW_MS + 10_000}),
    ("ledger.clock", "warning", {"wall_ms": NOW_MS - 9_000, "floor_ms": NOW_MS - 9_000}),
    ("postgres.version", "error", {"version": 130_011}),
    ("postgres.version", "error", {"encoding": "LATIN1"}),
    ("postgres.primary", "error", {"is_standby": True}),
    ("postgres.durable", "error", {"settings": {**SOUND, "fsync": "off"}}),
    ("postgres.durable", "error", {"settings": {**SOUND, "full_page_writes": "off"}}),
    ("postgres.commits", "error", {"settings": {**SOUND, "synchronous_commit": "off"}}),
    ("postgres.standbys", "warning", {"standbys": 2}),
    ("postgres.standbys", "error", {"settings": {**SOUND, "synchronous_standby_names": "a"}}),
    ("postgres.time_outs", "error", {"settings": {**SOUND, "statement_timeout": "5s"}}),
    ("postgres.connections", "error", {"connections": 96}),
    ("postgres.connections", "warning", {"connections": 85}),
    ("postgres.pooler", "error", {"is_pooled": True}),
]


@pytest.mark.proves("DOCTOR-1")
@pytest.mark.parametrize(("check", "grade", "changes"), FILE_CASES)
def test_a_file_that_may_lose_something_is_told_of_by_one_check(check, grade, changes):
    found = grades(doctor_ledger.judge_file(replace(FILE, **changes), NOW_MS))
    assert {name: each for name, each in found.items() if each != "ok"} == {check: grade}


@pytest.mark.proves("DOCTOR-2")
@pytest.mark.parametrize(("check", "grade", "changes"), SERVER_CASES)
def test_a_server_that_may_lose_something_is_told_of_by_one_check(check, grade, changes):
    found = grades(doctor_ledger.judge_server(replace(SERVER, **changes), NOW_MS))
    assert {name: each for name, each in found.items() if each != "ok"} == {check: grade}


@pytest.mark.proves("DOCTOR-2")
def test_every_kind_of_commit_that_a_ledger_allows_is_explained():
    told = set()
    for value in ("on", "remote_apply", "remote_write", "local"):
        server = replace(SERVER, settings={**SOUND, "synchronous_commit": value})
        (found,) = (
            each
            for each in doctor_ledger.judge_server(server, NOW_MS)
            if each.check == "postgres.commits"
        )
        assert found.grade == "ok"
        told.add(found.found)
    assert len(told) == 4


# --- real ledgers --------------------------------------------------------------------------------


def of_ledger(address: str) -> dict[str, str]:
    return grades(doctor_ledger.examine(address, wall_ms=Surroundings().wall_ms()))


@pytest.mark.proves("DOCTOR-1")
def test_a_file_is_looked_at_without_making_one(tmp_path):
    address = f"sqlite:///{tmp_path / 'ledger.db'}"
    absent = of_ledger(address)
    assert list(tmp_path.iterdir()) == []
    assert absent["ledger.opens"] == absent["ledger.schema"] == "ok"
    open_ledger(address).close()
    there = of_ledger(address)
    assert there["sqlite.durable"] == there["sqlite.library"] == there["ledger.schema"] == "ok"
    (tmp_path / "ledger.db").write_bytes(b"this is no database at all, but a text\n" * 100)
    assert of_ledger(address) == {"ledger.opens": "error"}
    assert of_ledger(f"sqlite:///{tmp_path}/absent/ledger.db") == {"ledger.opens": "error"}
    assert of_ledger("sqlite://") == {"ledger.opens": "error"}


@pytest.mark.proves("DOCTOR-1")
def test_a_schema_that_is_not_this_releases_is_an_error(tmp_path):
    address = f"sqlite:///{tmp_path / 'ledger.db'}"
    with open_ledger(address, inline=True) as ledger:
        newer = "insert into migration (tenant, number, name, checksum, applied_ms)"
        ledger.write(lambda tx: tx.run(f"{newer} values ('main', 9999, '9999_later.sql', 'x', 1)"))
    assert of_ledger(address)["ledger.schema"] == "error"


@pytest.mark.proves("DOCTOR-2")
def test_a_server_is_looked_at_as_it_is(postgres):
    address = postgres.empty()
    found = of_ledger(address)
    assert set(found.values()) == {"ok"}, found
    assert len(found) == 11
    unsafe = of_ledger(f"{address}&options=-csynchronous_commit%3Doff")
    assert unsafe["postgres.commits"] == "error"


@pytest.mark.proves("DOCTOR-3")
def test_a_server_that_is_away_is_a_finding_without_a_password():
    told = list(doctor_ledger.examine("postgresql://app:hunter2@127.0.0.1:1/x", wall_ms=NOW_MS))
    assert [(each.check, each.grade) for each in told] == [("ledger.opens", "error")]
    assert "hunter2" not in told[0].found
    assert "target_session_attrs" not in told[0].found


# --- the rest of the machine ---------------------------------------------------------------------


def examined(tmp_path, **options: Any) -> dict[str, Finding]:
    ledger, contracts = f"sqlite:///{tmp_path / 'ledger.db'}", str(tmp_path / "contracts.toml")
    options.setdefault("pause", lambda seconds: None)
    return {
        each.check: each
        for each in doctor.examine(ledger, contracts, str(tmp_path / "secrets"), **options)
    }


@pytest.mark.proves("DOCTOR-3")
def test_secrets_are_there_or_missing_and_never_shown(tmp_path):
    (tmp_path / "contracts.toml").write_text(CONTRACT + TOOL)
    (tmp_path / "secrets").mkdir()
    found = examined(tmp_path)
    assert found["contracts.load"].grade == found["library.parts"].grade == "ok", found
    for check, name in (("secrets.tools", "pay-key"), ("secrets.webhooks", "pay-hook")):
        assert found[check].grade == "error"
        assert name in found[check].found
        (tmp_path / "secrets" / name).write_text("hunter2")
    found = examined(tmp_path)
    assert found["secrets.tools"].grade == found["secrets.webhooks"].grade == "ok"
    assert not [each for each in found.values() if "hunter2" in each.found + each.mend]


TOOL = """
[tools.pay]
source = "pay"
effect = "write"
request = { method = "POST", path = "/pay" }
arguments = { type = "object" }
"""


@pytest.mark.proves("DOCTOR-3")
def test_contracts_that_do_not_load_are_an_error_and_absent_ones_nobody_named_are_not(tmp_path):
    assert examined(tmp_path)["contracts.load"].grade == "error"
    assert examined(tmp_path, named=False)["contracts.load"].grade == "warning"
    (tmp_path / "contracts.toml").write_text("[tools.pay]\n")
    assert examined(tmp_path, named=False)["contracts.load"].grade == "error"
    (tmp_path / "contracts.toml").write_text("")
    assert examined(tmp_path)["contracts.load"].grade == "warning"


@pytest.mark.proves("DOCTOR-3")
def test_clocks_that_part_and_libraries_that_are_not_known_are_told(tmp_path, monkeypatch):
    wall = Surroundings().wall_ms
    steps = iter((0, 5_000, 5_000, 5_000))
    moved = Surroundings(wall_ms=lambda: wall() + next(steps))
    assert examined(tmp_path)["machine.clock"].grade == "ok"
    assert examined(tmp_path, surroundings=moved)["machine.clock"].grade == "warning"
    assert examined(tmp_path)["library.http"].grade == "ok"

    async def unknown(self) -> None:
        raise SettingsError("httpcore2 9.9 is not known")

    monkeypatch.setattr("doubtless.transports.http.HttpTransport.self_test", unknown)
    assert examined(tmp_path)["library.http"].grade == "error"
    (tmp_path / "contracts.toml").write_text(CONTRACT + TOOL)

    def missing(self, contracts) -> None:
        raise SettingsError("pay needs another library")

    monkeypatch.setattr("doubtless.engine.actions.Actions.check", missing)
    assert examined(tmp_path)["library.parts"].grade == "error"
