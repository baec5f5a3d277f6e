"""A check-up of all that this machine needs to carry out operations: what is wrong, and its mend.

It works where nothing else does: what can't be opened or read is a finding too.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import anyio

from doubtless.core.contract import Contract
from doubtless.engine import doctor_ledger
from doubtless.engine.actions import Actions
from doubtless.engine.contracts import Contracts, load_contracts
from doubtless.engine.credentials import Credentials
from doubtless.engine.findings import Finding, error, ok, warning
from doubtless.engine.surroundings import Surroundings
from doubtless.errors import ContractError, SettingsError
from doubtless.transports.base import Workplace
from doubtless.transports.http import HttpTransport

WATCHED_S: Final = 0.2
PARTED_MS: Final = 50


def examine(
    ledger: str,
    contracts: str,
    secrets: str | None,
    *,
    named: bool = True,
    surroundings: Surroundings | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> Iterator[Finding]:
    """Check everything, one finding after another; nothing is created or changed.

    Args:
        ledger: The address of a ledger.
        contracts: A contract file.
        secrets: A folder with one file for each credential.
        named: Somebody named the contract file; else it need not be there.
        surroundings: The clocks of this machine.
        pause: Waits so many seconds, while the clocks are watched.
    """
    around = surroundings or Surroundings()
    yield _clocks(around, pause)
    yield from doctor_ledger.examine(ledger, wall_ms=around.wall_ms())
    yield _http(around)
    if not named and not Path(contracts).exists():
        told = f"there is no {contracts} here, and tools in code are not looked at"
        yield warning(
            "contracts.load", told, "name a contract file with --contracts, if you have one"
        )
        return
    try:
        found = load_contracts(contracts)
    except ContractError as problem:
        mend = "name the file with --contracts, and run `doubtless contracts check`"
        yield error("contracts.load", str(problem), mend)
        return
    yield _loaded(contracts, found)
    credentials = Credentials(Path(secrets) if secrets is not None else None)
    yield _parts(list(found.tools.values()), around, credentials)
    yield _secrets(list(found.tools.values()), credentials)
    yield _webhooks(found, credentials)


def _clocks(around: Surroundings, pause: Callable[[float], None]) -> Finding:
    """Watch the wall clock beside the boot-time clock for a moment."""
    wall_ms, boot_s = around.wall_ms(), around.boot_s()
    pause(WATCHED_S)
    apart_ms = abs((around.wall_ms() - wall_ms) - (around.boot_s() - boot_s) * 1000)
    if apart_ms > PARTED_MS:
        told = f"the wall clock moved by {apart_ms:.0f} ms against the boot-time clock"
        return warning("machine.clock", told, "let one NTP service set it, in small steps")
    return ok("machine.clock", "the wall clock and the boot-time clock go together")


def _http(around: Surroundings) -> Finding:
    async def probe() -> None:
        transport = HttpTransport(boot_clock=around.boot_s)
        try:
            await transport.self_test()
        finally:
            await transport.aclose()

    try:
        anyio.run(probe)
    except SettingsError as problem:
        mend = "install the versions that doubtless names: pip install --force-reinstall doubtless"
        return error("library.http", str(problem), mend)
    return ok("library.http", "the HTTP library announces each step before the first byte")


def _loaded(path: str, found: Contracts) -> Finding:
    count = len(found.tools)
    told = f"{path} declares {count} tool{'' if count == 1 else 's'}"
    if not count:
        return warning("contracts.load", told, "declare tools: `doubtless contracts check` helps")
    return ok("contracts.load", told)


def _parts(tools: list[Contract], around: Surroundings, credentials: Credentials) -> Finding:
    place = Workplace(
        owner=around.owner,
        liveness=around.liveness,
        boot_s=around.boot_s,
        wall_ms=around.wall_ms,
        secret=credentials.find,
    )
    try:
        Actions(place).check(tools)
    except SettingsError as problem:
        return error("library.parts", str(problem), "install the parts that it names")
    return ok("library.parts", "every optional part that a contract needs is installed")


def _secrets(tools: list[Contract], credentials: Credentials) -> Finding:
    try:
        credentials.check(tools)
    except SettingsError as problem:
        return error("secrets.tools", str(problem), "put each where its line says")
    return ok("secrets.tools", "every credential that a contract wants is there")


def _webhooks(found: Contracts, credentials: Credentials) -> Finding:
    try:
        credentials.check((), found.webhooks)
    except SettingsError as problem:
        mend = "put each where its line says; only a process that takes webhooks in needs them"
        return error("secrets.webhooks", str(problem), mend)
    return ok("secrets.webhooks", "every webhook's secret is there")
