"""The command that says in plain words what happens on an unknown of a tool, and why."""

import click

from doubtless.cli_settings import Settings, with_settings


@click.command("explain", short_help="Say what happens on an unknown of a tool, and why.")
@click.argument("tools", metavar="[TOOL]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
@with_settings("contracts", "app")
def explain_contracts(settings: Settings, *, tools: tuple[str, ...], as_json: bool) -> int:
    """Say in plain words what TOOL does, what is known if it breaks on its way, and what then.

    Each place on the way is told, with the proof that it gives, or that it gives none. Then what
    happens by itself, step by step, what a person may decide, and why. Without TOOL: all of them.
    """
    from doubtless.cli_explained import run

    return run(settings, tools, as_json=as_json)
