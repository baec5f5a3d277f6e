"""The command that checks what this machine has."""

import click

from doubtless.cli_settings import Settings, with_settings


@click.command(short_help="Check clocks, ledger, libraries, credentials and ports.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where `serve` would listen.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8787,
    show_default=True,
    help="The port that `serve` would take.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@with_settings("ledger", "contracts", "secrets")
def doctor(settings: Settings, *, host: str, port: int, as_json: bool) -> int:
    """Check clocks, ledger, libraries, contracts, credentials and the port, and say what to mend.

    Nothing is created or changed, and no secret is shown. Exits with 1 if there is an error.
    Warnings, of what works but may not last, leave it at 0.
    """
    from doubtless.cli_checkup import run

    return run(settings, host=host, port=port, as_json=as_json)
