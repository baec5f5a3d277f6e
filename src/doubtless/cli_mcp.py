"""The command that puts the gateway in front of MCP servers."""

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from doubtless.cli_settings import DURATION, LEDGER, TENANT, Settings, with_settings
from doubtless.errors import SettingsError

if TYPE_CHECKING:
    from doubtless.integrations.mcp_config import GatewayFile
    from doubtless.integrations.mcp_place import GatewaySettings

HTTP_PORT = 8788


@click.command(short_help="Put a gateway in front of MCP servers.")
@click.argument("command", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--scope", metavar="NAME", help="The session of all calls: an agent, a task, a user.")
@click.option("--config", "file", metavar="FILE", help="A gateway file, for several servers.")
@click.option("--http", "address", metavar="HOST:PORT", help="Serve over HTTP, in the foreground.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="With --http: a name.")
@click.option(
    "--errors",
    type=click.Choice(("definitive", "unknown")),
    help="What isError of COMMAND's tools proves.  [default: unknown]",
)
@click.option("--approve-at", metavar="URL", help="Where a person approves; {id} is put in.")
@click.option("--idle", "idle_ms", type=DURATION, help="End the service then.  [default: 10m]")
@click.option("--check", is_flag=True, help="Say what each tool lacks, and end.")
@click.option("--stop", is_flag=True, help="End the service of the same settings.")
@with_settings("ledger", "tenant", "contracts", "secrets", "principal")
def mcp(
    settings: Settings,
    *,
    address: str | None,
    hosts: tuple[str, ...],
    check: bool,
    stop: bool,
    **said: object,
) -> int:
    """Serve the tools of MCP servers, each call at most once, with no change to them.

    COMMAND starts an MCP server that speaks over its standard streams; --config names several. The
    tools of the contract file are served as well. What a client starts is only a link to a service
    on this machine, which goes on when the client ends, and ends itself when nobody uses it.

    With --http whoever calls needs a token of role agent: see `doubtless token create`.
    """
    from doubtless.integrations import mcp_shim

    if find_spec("mcp") is None:
        raise SettingsError("the gateway needs mcp: pip install 'doubtless[mcp]'")
    found = _settings(settings, needs_scope=address is None and not check, **said)  # type: ignore[arg-type]
    if check:
        from doubtless.cli_gateway import check_tools

        return check_tools(found)
    if address is not None:
        from doubtless.cli_gateway import run_http

        return run_http(found, _address(address), hosts)
    if hosts:
        raise click.UsageError("--allow-host belongs to --http.")
    if stop:
        return mcp_shim.stop(found, _say)
    return mcp_shim.run(found, _say)


def _say(line: str) -> None:
    """Tell people. Standard output is the protocol's."""
    click.echo(f"doubtless: {line}", err=True)


def _settings(
    settings: Settings,
    *,
    needs_scope: bool,
    command: tuple[str, ...],
    scope: str | None,
    file: str | None,
    errors: str | None,
    approve_at: str | None,
    idle_ms: int | None,
) -> "GatewaySettings":
    """Put together what flags, variables, the gateway's file and doubtless.toml say."""
    from doubtless.integrations.mcp_config import GatewayFile, read_gateway_file
    from doubtless.integrations.mcp_place import GatewaySettings

    if file is not None and command:
        raise click.UsageError("say --config or COMMAND: a file names its servers itself.")
    if errors is not None and not command:
        raise click.UsageError("--errors is COMMAND's: a file says it of each server.")
    found = GatewayFile(folder=Path.cwd()) if file is None else read_gateway_file(file)
    scope = scope or found.values.get("scope")
    if scope is None and needs_scope:
        raise click.UsageError("--scope is missing: name the agent, task or user that calls.")
    if idle_ms is None:
        try:
            idle_ms = DURATION.convert(found.values.get("idle", "10m"), None, None)
        except click.BadParameter as error:
            raise SettingsError(f"{file}: idle: {error.message}") from error
    return GatewaySettings(
        ledger=_value(settings, found, "ledger") or LEDGER,
        tenant=_value(settings, found, "tenant") or TENANT,
        principal=_value(settings, found, "principal") or "local",
        contracts=_contracts(settings, found),
        secrets=_value(settings, found, "secrets"),
        scope=scope,
        folder=str(found.folder),
        config=None if file is None else str(Path(file).absolute()),
        command=command,
        errors_definitive=errors == "definitive",
        approve_at=approve_at or found.values.get("approve_at"),
        idle_ms=idle_ms,
    )


def _value(settings: Settings, found: "GatewayFile", name: str) -> str | None:
    """Return a setting: flags and variables come before the gateway's file, and that before ours.

    A relative path begins where it was said.
    """
    here: str | None = getattr(settings, name)
    if name in settings.flags or f"DOUBTLESS_{name.upper()}" in os.environ:
        return _placed(name, here, Path.cwd())
    if name in found.values:
        return _placed(name, found.values[name], found.folder)
    return _placed(name, here, Path.cwd())


def _placed(name: str, value: str | None, folder: Path) -> str | None:
    from doubtless.integrations.mcp_config import absolute, absolute_ledger

    if value is None:
        return None
    if name == "ledger":
        return absolute_ledger(value, folder)
    return absolute(value, folder) if name in ("contracts", "secrets") else value


def _contracts(settings: Settings, found: "GatewayFile") -> str | None:
    """Return the contract file; none where none was named and there is none."""
    path = _value(settings, found, "contracts")
    if path is None or Path(path).exists():
        return path
    if "contracts" in settings.said or "contracts" in found.values:
        raise SettingsError(f"{path}: there is no such contract file")
    return None


def _address(said: str) -> tuple[str, int]:
    host, colon, port = said.rpartition(":")
    if not colon:
        host, port = said, str(HTTP_PORT)
    if not port.isdigit() or int(port) > 65_535 or not host:
        raise click.UsageError(f"--http {said}: write HOST:PORT, such as 127.0.0.1:{HTTP_PORT}.")
    return host.strip("[]"), int(port)
