"""Calls and decisions from the command line, within an application that is opened for them."""

import getpass
import importlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import anyio
import click

from doubtless import Doubtless, Outcome
from doubtless.cli_read import be_there
from doubtless.cli_settings import Settings
from doubtless.core.model import Json
from doubtless.errors import SettingsError

T = TypeVar("T")


def carry_out(  # noqa: PLR0913 - what a caller may say, each by its name
    settings: Settings,
    tool: str,
    arguments: Mapping[str, Json],
    *,
    operation_id: str | None,
    session_id: str | None,
    after: Sequence[str],
    on_unknown: str,
    supersedes: str | None,
    wait_ms: int | None,
) -> Outcome:
    """Make one call; with `wait_ms`, look it up for so long if it is not settled at once."""

    async def act(app: Doubtless) -> Outcome:
        first = await app.call(
            tool,
            arguments,
            operation_id=operation_id,
            session_id=session_id,
            after=after,
            on_unknown=on_unknown,
            supersedes=supersedes,
        )
        if not wait_ms or first.outcome not in ("unknown", "pending"):
            return first
        return _of_this_call(await app.wait(first.operation_id, timeout=wait_ms / 1000))

    return within(opened(settings, worker=True, tools=True), act)


def _of_this_call(outcome: Outcome) -> Outcome:
    """Tell what was waited for as the call's own: it was not done before the call."""
    if not outcome.already_done:
        return outcome
    message = f"{outcome.tool} took effect, as operation {outcome.operation_id}."
    return replace(outcome, already_done=False, recovery=None, message=message)


def decide(
    settings: Settings,
    operation_id: str,
    word: str,
    *,
    note: str,
    version: int | None,
    provider_operation_id: str | None,
    mark_duplicate: bool,
    wait_ms: int | None,
) -> Outcome:
    """Record an operator's decision; with `wait_ms`, stay for so long to look it up.

    A decision that sends nothing needs neither contracts nor credentials.
    """
    operator = operator_of(settings)
    if settings.app is None:
        be_there(settings.ledger)

    async def act(app: Doubtless) -> Outcome:
        outcome = await app.resolve(
            operation_id,
            word,
            operator=operator,
            note=note,
            version=version,
            provider_operation_id=provider_operation_id,
            mark_duplicate=mark_duplicate,
        )
        if wait_ms:
            outcome = await app.wait(outcome.operation_id, timeout=wait_ms / 1000)
        return outcome

    acts = word in ("retry", "again") or bool(wait_ms)
    return within(opened(settings, worker=bool(wait_ms), tools=acts), act)


def end_processes(settings: Settings, operation_id: str, *, note: str) -> Outcome:
    """End the processes that run for an operation, here on their host."""
    operator = operator_of(settings)
    if settings.app is None:
        be_there(settings.ledger)

    async def act(app: Doubtless) -> Outcome:
        return await app.stop(operation_id, operator=operator, note=note)

    return within(opened(settings, worker=False, tools=False), act)


def operator_of(settings: Settings) -> str:
    """Return who decides: the name that was given, or that of the system's user.

    Raises:
        SettingsError: There is none.
    """
    if settings.operator:
        return settings.operator
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        raise SettingsError("who decides? Give --operator, or set DOUBTLESS_OPERATOR") from None


def within(application: Doubtless, act: Callable[[Doubtless], Awaitable[T]]) -> T:
    """Open the application, do `act` in it, and close it."""

    async def run() -> T:
        async with application as app:
            return await act(app)

    try:
        return anyio.run(run)
    except KeyboardInterrupt:
        click.echo("\ndoubtless: what was sent can't be called back; the ledger has it", err=True)
        raise


def opened(
    settings: Settings,
    *,
    worker: bool,
    tools: bool,
    retention: str | None = None,
    archive_after: str | None = None,
) -> Doubtless:
    """Return the application that the settings name. It is not open yet.

    Raises:
        SettingsError: They name none.
    """
    if settings.app is not None:
        return _imported(settings, settings.app)
    if tools and not Path(settings.contracts).exists() and "contracts" not in settings.said:
        raise SettingsError(
            f"no tools: there is no {settings.contracts} here. Name a contract file with "
            "--contracts or DOUBTLESS_CONTRACTS, or tools in code with --app"
        )
    return Doubtless(
        settings.ledger,
        contracts=settings.contracts if tools else None,
        principal=settings.principal,
        secrets=settings.secrets if tools else None,
        worker=worker,
        tenant=settings.tenant,
        retention=retention,
        archive_after=archive_after,
    )


def _imported(settings: Settings, place: str) -> Doubtless:
    """Import the application that --app names."""
    clash = sorted(settings.flags & {"ledger", "tenant", "contracts", "secrets", "principal"})
    if clash:
        raise SettingsError(f"--app brings its own {', '.join(clash)}: leave --{clash[0]} out")
    module, _, name = place.partition(":")
    sys.path.insert(0, "")  # as `python -m` does
    try:
        found: object = getattr(importlib.import_module(module), name or "app", None)
    except (ImportError, ValueError) as error:
        raise SettingsError(f"--app {place}: {module} can't be imported: {error}") from error
    if not isinstance(found, Doubtless):
        raise SettingsError(f"--app {place}: there is no Doubtless of that name in {module}")
    if "tenant" in settings.said and found.tenant != settings.tenant:
        raise SettingsError(
            f"--app {place} is of the tenant {found.tenant!r}, and {settings.tenant!r} is said by"
            " DOUBTLESS_TENANT or doubtless.toml: let both say the same"
        )
    return found
