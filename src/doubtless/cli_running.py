"""What `doubtless serve` and `doubtless worker` do: they go on running until a signal."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import click

from doubtless.cli_act import opened
from doubtless.cli_settings import TENANT, Settings
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts.answers import answers_of
from doubtless.errors import SettingsError
from doubtless.ledger.address import masked
from doubtless.service import auth, logs
from doubtless.service.server import serve, work
from doubtless.service.settings import ServiceSettings


def run_service(
    settings: Settings, service: ServiceSettings, *, worker: bool, **keep: str | None
) -> int:
    """Serve until a signal. `keep` may say `retention` and `archive_after`."""
    application = _application(settings, worker=worker, **keep)
    logs.configure()

    def listening(url: str) -> None:
        _say(f"listening on {url}", application, settings, worker=worker)
        if not auth.all_tokens(application.ledger, tenant=application.tenant):
            click.echo(
                "doubtless: the ledger has no token yet, so nobody may use it: make one with"
                f" `doubtless token create --role agent --name NAME{_at(settings, application)}`"
            )
        sys.stdout.flush()

    return _until_stopped(lambda: serve(application, service, listening=listening))


def run_worker(settings: Settings, *, grace_s: float, **keep: str | None) -> int:
    """Work until a signal. `keep` may say `retention` and `archive_after`."""
    application = _application(settings, worker=True, **keep)
    logs.configure()

    def working() -> None:
        _say("working", application, settings, worker=True)
        sys.stdout.flush()

    return _until_stopped(lambda: work(application, grace_s=grace_s, working=working))


def _application(settings: Settings, *, worker: bool, **keep: str | None) -> Doubtless:
    said = [f"--{name.replace('_', '-')}" for name, time in keep.items() if time is not None]
    if settings.app is not None and said:
        raise SettingsError(f"--app brings its own {said[0][2:]}: leave {said[0]} out")
    if settings.app is None and not Path(settings.contracts).exists():
        raise SettingsError(
            f"no tools: there is no {settings.contracts} here. Name a contract file with "
            "--contracts or DOUBTLESS_CONTRACTS, or tools in code with --app"
        )
    return opened(settings, worker=worker, tools=True, **keep)


def _say(what: str, application: Doubtless, settings: Settings, *, worker: bool) -> None:
    """Say in the first line what was started on what."""
    contracts = [tool.contract for tool in application.registry]
    people = sorted(each.tool for each in contracts if not answers_of(each).automatic)
    ledger = masked(settings.ledger) if settings.app is None else f"that of {settings.app}"
    if application.tenant != TENANT:
        ledger += f", tenant {application.tenant}"
    parts = [what, f"ledger {ledger}", f"{len(contracts)} tool{'' if len(contracts) == 1 else 's'}"]
    parts.append(f"not fully automatic: {', '.join(people)}" if people else "all fully automatic")
    if not worker:
        parts.append("no worker here: run `doubtless worker` on the same ledger")
    click.echo(f"doubtless: {'; '.join(parts)}")


def _at(settings: Settings, application: Doubtless) -> str:
    ledger = f" --ledger {masked(settings.ledger)}" if "ledger" in settings.flags else ""
    return ledger + (f" --tenant {application.tenant}" if application.tenant != TENANT else "")


def _until_stopped(run: Callable[[], Awaitable[None]]) -> int:
    anyio.run(run)
    return 0
