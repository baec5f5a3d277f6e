"""The commands that go on running: the service, and a worker alone."""

import click

from doubtless.cli_settings import DURATION, KEEP_TIME, Settings, with_settings

grace = click.option(
    "--grace",
    "grace_ms",
    type=DURATION,
    default="10s",
    show_default=True,
    help="How long attempts that are open get to end when it is stopped.",
)
retention = click.option(
    "--retention",
    type=KEEP_TIME,
    help="Empty what settled operations carried so long after their end, such as 90d; else never.",
)
archive_after = click.option(
    "--archive-after",
    type=KEEP_TIME,
    help="Move what was recorded of them into the archive after so long; else never.",
)


@click.command(short_help="Serve the HTTP API, and work.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8787,
    show_default=True,
    help="0 takes a free one, and says which.",
)
@click.option("--no-worker", is_flag=True, help="Leave what is due to `doubtless worker`.")
@grace
@retention
@archive_after
@with_settings("ledger", "tenant", "contracts", "secrets", "app")
def serve(
    settings: Settings,
    *,
    host: str,
    port: int,
    no_worker: bool,
    grace_ms: int,
    **keep: str | None,
) -> int:
    """Serve the HTTP API, with a worker in the same process.

    Whoever calls it needs a token: see `doubtless token create`. SIGTERM and SIGINT end it in
    order: nothing new is taken, and attempts that are open end, or are recorded as unknown. A
    second signal ends it at once; what it left is taken up by the next one.
    """
    from doubtless.cli_running import run_service
    from doubtless.service.settings import ServiceSettings

    for name, time in keep.items():
        if no_worker and time is not None:
            flag = "--" + name.replace("_", "-")
            raise click.UsageError(
                f"{flag} is the worker's: leave --no-worker out, or say it to `doubtless worker`."
            )
    service = ServiceSettings(host=host, port=port, grace_s=grace_ms / 1000)
    return run_service(settings, service, worker=not no_worker, **keep)


@click.command(short_help="Take up what is due, without serving.")
@grace
@retention
@archive_after
@with_settings("ledger", "tenant", "contracts", "secrets", "app")
def worker(settings: Settings, *, grace_ms: int, **keep: str | None) -> int:
    """Take up what is due on the ledger: look-ups, prepared operations, what a crash left.

    Several on one ledger share the work, on one machine. Signals end it as they end `serve`.
    """
    from doubtless.cli_running import run_worker

    return run_worker(settings, grace_s=grace_ms / 1000, **keep)
