"""The command that changes the schema of a ledger, in two steps."""

import click

from doubtless.cli_settings import Settings, with_settings


@click.command(short_help="Bring the schema of an existing ledger up to date, in two steps.")
@click.option("--check", is_flag=True, help="Change nothing; exit with 1 if something is missing.")
@click.option("--post", is_flag=True, help="Apply the last post steps too.")
@click.option(
    "--force",
    is_flag=True,
    help="With --post: even while processes are at work that don't know the step. Whatever they do "
    "from then on fails, and what they have sent becomes unknown.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@with_settings("ledger")
def migrate(settings: Settings, *, check: bool, post: bool, force: bool, as_json: bool) -> int:
    """Bring the schema of an existing ledger up to date, in two steps.

    Without --post it applies what processes of the release before can live with, while they are at
    work. Then replace them, and run it again with --post: it refuses while one of them is left.

    --check says what is applied and what is missing, and whether this release can run as it is.
    """
    from doubtless.cli_read import be_there
    from doubtless.cli_schema import apply, show

    if force and not post:
        raise click.UsageError("--force is for post steps: say --post too")
    if check and post:
        raise click.UsageError("--check changes nothing: leave --post out")
    be_there(settings.ledger)
    if check:
        return show(settings.ledger, as_json=as_json)
    return apply(settings.ledger, post=post, force=force, as_json=as_json)
