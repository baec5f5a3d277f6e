"""The command line: `doubtless --help`. Commands are thin; what they need is imported when used."""

import json
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import click

from doubtless.cli_approve import approve, deny
from doubtless.cli_doctor import doctor
from doubtless.cli_events import events
from doubtless.cli_exhibit import exhibit, write_exhibits
from doubtless.cli_explain import explain_contracts
from doubtless.cli_mcp import mcp
from doubtless.cli_migrate import migrate
from doubtless.cli_retention import retention
from doubtless.cli_serve import serve, worker
from doubtless.cli_settings import ARGUMENTS, DURATION, Settings, with_settings
from doubtless.cli_token import token
from doubtless.errors import (
    BadRequest,
    ContractError,
    DecisionRefused,
    DoubtlessError,
    SettingsError,
)

if TYPE_CHECKING:
    from doubtless.core.model import Json, State

EXITS: Final = {"success": 0, "unknown": 3, "pending": 3, "failure": 4, "rejected": 5}
"""What `call` exits with, by the outcome."""
STATES: Final = (
    "unresolved", "prepared", "awaiting_approval", "executing", "accepted", "unknown",
    "reconciling", "manual_review", "succeeded", "failed", "rejected", "cancelled",
)  # fmt: skip
"""Written out, because asking the model for them would slow down every start."""
DECISIONS: Final = ("done", "not_done", "unsure", "retry", "look_again", "again")

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. Errors are told without a traceback."""
    state = {"debug": False}
    try:
        code = cli.main(arguments, prog_name="doubtless", standalone_mode=False, obj=state)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo("doubtless: interrupted", err=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # whoever read it is gone
        return 141
    except Exception as error:  # noqa: BLE001 - whatever it is, a person is told in a line
        return _told(error, debug=state["debug"])


def _told(error: Exception, *, debug: bool) -> int:
    """Say what is wrong, and return the exit code."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if debug:
        traceback.print_exception(error)
    if not isinstance(error, DoubtlessError | OSError):
        click.echo(
            f"doubtless: a fault of ours: {type(error).__name__}: {_line(error)}\n"
            "Run it again as `doubtless --debug …` and report what it prints.",
            err=True,
        )
        return 1
    for line in str(error).splitlines() or [type(error).__name__]:
        click.echo(f"doubtless: {_line(line)}", err=True)
    match error:
        case DecisionRefused():
            return 5
        case BadRequest() | SettingsError() | ContractError():
            return 2
        case _:
            return 1


def _line(text: object) -> str:
    return "".join(part if part.isprintable() else " " for part in str(text))


class _NoTraceback(logging.Formatter):
    """What the worker reports, in a line."""

    def format(self, record: logging.LogRecord) -> str:
        return f"doubtless: {_line(record.getMessage())}"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="doubtless", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Print the traceback of an error.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Durable operations for the external actions of AI agents.

    Settings come from options, then from variables (DOUBTLESS_LEDGER, …), then from doubtless.toml
    in the current folder.
    """
    context.obj["debug"] = debug
    handler = logging.StreamHandler()
    if not debug:
        handler.setFormatter(_NoTraceback())
    logging.getLogger("doubtless").addHandler(handler)


# --- acting --------------------------------------------------------------------------------------


@cli.command(short_help="Carry out one operation, at most once.")
@click.argument("tool")
@click.option(
    "--json",
    "arguments",
    type=ARGUMENTS,
    required=True,
    help="Its arguments; - reads standard input.",
)
@click.option("--operation-id", metavar="ID", help="Your own identity of the intent.")
@click.option("--session", "session_id", metavar="ID", help="The session it belongs to.")
@click.option("--after", multiple=True, metavar="ID", help="What must have succeeded first.")
@click.option(
    "--on-unknown",
    type=click.Choice(("stop", "continue")),
    default="stop",
    help="With --after: wait for one that is unknown, or go on.  [default: stop]",
)
@click.option("--supersedes", metavar="ID", help="What it stands in for. A link, no more.")
@click.option("--wait", "wait_ms", type=DURATION, help="Look it up for so long if it is unknown.")
@with_settings("ledger", "tenant", "contracts", "secrets", "principal", "app")
def call(settings: Settings, *, tool: str, arguments: "dict[str, Json]", **said: object) -> int:
    """Carry out one operation with TOOL, at most once, and print its outcome as JSON.

    Exits with 0 if it succeeded, 3 if that is unknown or pending, 4 if it failed, 5 if policy
    refused it, 2 if it can't be carried out as it was written. The same call with the same
    operation id joins what is there, and sends nothing twice.
    """
    from doubtless.cli_act import carry_out

    outcome = carry_out(settings, tool, arguments, **said)  # type: ignore[arg-type]
    _print_json(outcome.to_json())
    return EXITS[outcome.outcome]


@cli.command(short_help="Record an operator's decision.")
@click.argument("operation_id", metavar="ID")
@click.argument("decision", metavar="DECISION")
@click.option("--note", required=True, help="What you saw, and where.")
@click.option("--version", type=int, help="The version that you saw; a newer one is refused.")
@click.option("--provider-operation-id", metavar="ID", help="The provider's id of what you found.")
@click.option("--mark-duplicate", is_flag=True, help="With again: the new one may be a duplicate.")
@click.option("--wait", "wait_ms", type=DURATION, help="Look it up for so long afterwards.")
@as_json
@with_settings("ledger", "tenant", "contracts", "secrets", "operator", "app")
def resolve(
    settings: Settings,
    *,
    operation_id: str,
    decision: str,
    as_json: bool,
    **said: object,
) -> int:
    """Record an operator's DECISION about the operation ID, and carry it out.

    done and not-done say what you found. unsure says that you looked and can't tell. retry sends
    the same request again under the same key. look-again asks the look-ups once more. again closes
    the operation as not done and starts a new one in its place.
    """
    from doubtless.cli_act import decide

    word = decision.replace("-", "_")
    if word not in DECISIONS:
        raise click.UsageError(
            f"no decision {decision!r}: it is one of {', '.join(DECISIONS).replace('_', '-')}."
        )
    if not str(said["note"]).strip():
        raise click.UsageError("--note is empty: say what you saw, and where.")
    outcome = decide(settings, operation_id, word, **said)  # type: ignore[arg-type]
    if as_json:
        _print_json(outcome.to_json())
    else:
        click.echo(f"{outcome.operation_id}: {outcome.state}. {outcome.message}")
        if word == "look_again" and not said["wait_ms"]:
            click.echo("A running application looks it up; --wait 30s does it here.")
    return 0


# --- reading -------------------------------------------------------------------------------------


@cli.group()
def operations() -> None:
    """Find, read and stop operations. Reading asks no provider, and changes nothing."""


@operations.command("list")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these.")
@click.option("--tool", help="Only this tool's.")
@click.option("--session", "session_id", metavar="ID", help="Only this session's.")
@click.option("--older-than", "older_than_ms", type=DURATION, help="Only those asked for before.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True)
@as_json
@with_settings("ledger", "tenant")
def list_operations(
    settings: Settings, *, states: tuple[str, ...], limit: int, as_json: bool, **filters: object
) -> int:
    """List operations, newest first.

    The state "unresolved" means every one that has not ended.
    """
    from doubtless.cli_list import write_list
    from doubtless.cli_read import open_reader

    with open_reader(settings.ledger, tenant=settings.tenant) as reader:
        found = reader.operations(states=_states(states), limit=limit, **filters)  # type: ignore[arg-type]
    if as_json:
        _print_json([each.outcome.to_json() for each in found])
    else:
        write_list(found, limit=limit)
    return 0


def _states(said: Sequence[str]) -> "tuple[State, ...]":
    from doubtless.core.model import State

    unresolved = tuple(state for state in State if not state.ends) if "unresolved" in said else ()
    named = tuple(State(name) for name in said if name != "unresolved")
    return tuple(dict.fromkeys((*named, *unresolved)))


@operations.command("show")
@click.argument("operation_id", metavar="ID")
@click.option("--brief", is_flag=True, help="Only what happened, without what it was decided from.")
@as_json
@with_settings("ledger", "tenant")
def show_operation(settings: Settings, *, operation_id: str, brief: bool, as_json: bool) -> int:
    """Explain the operation ID: where it stands and why, what happened, what you can decide."""
    from doubtless.cli_read import open_reader
    from doubtless.cli_show import shown_data, write_operation, write_timeline

    with open_reader(settings.ledger, tenant=settings.tenant) as reader:
        shown = reader.operation(operation_id)
    if as_json:
        left: list[Json] = [each.to_json() for each in shown.exhibits]
        _print_json({**shown_data(shown, settings), "exhibits": left})
    elif brief:
        write_timeline(shown)
    else:
        write_operation(shown, settings)
        write_exhibits(shown, settings)
    return 0


operations.add_command(exhibit)


@operations.command("stop")
@click.argument("operation_id", metavar="ID")
@click.option("--note", required=True, help="Why.")
@as_json
@with_settings("ledger", "tenant", "operator", "app")
def stop_operation(settings: Settings, *, operation_id: str, note: str, as_json: bool) -> int:
    """End the processes that run for the operation ID, on the host where they run.

    They are asked to end, then killed, and it is made sure that none is left. That says nothing
    about the effect: what was done until then is done.
    """
    from doubtless.cli_act import end_processes

    outcome = end_processes(settings, operation_id, note=note)
    if as_json:
        _print_json(outcome.to_json())
    else:
        click.echo(f"{outcome.operation_id}: {outcome.state}. {outcome.message}")
        click.echo("What was signalled, and whether any is left: doubtless operations show ID")
    return 0


@cli.group()
def sessions() -> None:
    """Read what an agent did in a session."""


@sessions.command("show")
@click.argument("session_id", metavar="ID")
@as_json
@with_settings("ledger", "tenant", "principal")
def show_session(settings: Settings, *, session_id: str, as_json: bool) -> int:
    """Show what a principal did in the session ID: what a restarted agent reads first."""
    from doubtless.cli_list import write_session
    from doubtless.cli_read import open_reader

    with open_reader(settings.ledger, tenant=settings.tenant) as reader:
        record = reader.session(session_id, settings.principal)
    if as_json:
        _print_json(record.to_json())
    else:
        write_session(record)
    return 0


# --- the rest ------------------------------------------------------------------------------------


@cli.group()
def contracts() -> None:
    """Work with contract files."""


@contracts.command("check")
@click.argument("file", required=False)
@as_json
@with_settings("contracts")
def check_contracts(settings: Settings, *, file: str | None, as_json: bool) -> int:
    """Check a contract file, and say of each tool what is known after a broken connection.

    Exits with 2 if something in the file is wrong: all of it is told at once.
    """
    from doubtless.engine.contracts import load_contracts
    from doubtless.engine.contracts.report import check_data, check_report

    path = file or settings.contracts
    try:
        found = load_contracts(path)
    except ContractError as error:
        if not as_json:
            raise
        names = ("file", "table", "key", "wrong", "mend")
        errors = [{name: getattr(each, name) for name in names} for each in error.problems]
        _print_json({"file": path, "errors": errors})
        return 2
    if as_json:
        _print_json(check_data(found))
    else:
        click.echo(check_report(found))
    return 0


contracts.add_command(explain_contracts)


@cli.command(short_help="Show the main job on loopback.")
@as_json
def demo(*, as_json: bool) -> int:
    """Show the main job on loopback: answers that get lost, and one effect all the same.

    It starts a simulated payment API as a process of its own, and asks that API for every count.
    Exits with 1 if a count is not what is claimed. It leaves nothing behind.
    """
    from doubtless.testing.demo import run

    return run(as_json=as_json)


for command in (approve, deny, doctor, events, mcp, migrate, retention, serve, worker, token):
    cli.add_command(command)


def _print_json(value: "Json | Mapping[str, Json]") -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
