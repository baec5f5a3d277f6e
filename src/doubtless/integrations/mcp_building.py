"""Putting a gateway together from its settings: application, upstreams, catalogue, front."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

import anyio

from doubtless.core.contract import Kind
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import Contracts, load_contracts
from doubtless.engine.contracts.mcp_tables import ServerTable, errors_in_server, server_rules
from doubtless.engine.contracts.problems import read_table
from doubtless.errors import ContractError, Problem, SettingsError
from doubtless.integrations.mcp_asking import Asking
from doubtless.integrations.mcp_config import GatewayFile, read_gateway_file
from doubtless.integrations.mcp_gateway import Gateway, WhoCalls
from doubtless.integrations.mcp_passing import Passing
from doubtless.integrations.mcp_place import GatewaySettings
from doubtless.integrations.mcp_tools import Catalogue, Fronted
from doubtless.ledger.address import masked
from doubtless.transports.mcp import McpTransport
from doubtless.transports.mcp_servers import ServerRules
from doubtless.transports.mcp_upstream import Upstreams

COMMAND: Final = "upstream"
"""What the one server is called that stands on the command line."""
REST_S: Final = 0.05
SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,32}")


class GatewayApp(Doubtless):
    """An application that also tells of its upstreams, and when it is at rest."""

    async def rest(self) -> None:
        """Wait until no attempt is open in this process."""
        await self._opened.runner.idle()

    async def is_at_rest(self) -> bool:
        """Whether no attempt is open in this process."""
        with anyio.move_on_after(REST_S):
            await self.rest()
            return True
        return False

    @property
    def upstreams(self) -> Upstreams:
        """The connections to upstream servers, while the application is open."""
        return cast("McpTransport", self.actions.transport(Kind.MCP)).upstreams


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a gateway is made of, before anything is opened."""

    settings: GatewaySettings
    contracts: Contracts | None
    servers: tuple[Fronted, ...]


def plan(settings: GatewaySettings) -> Plan:
    """Read the files that the settings name.

    Raises:
        ContractError: The contract file, or a server of the gateway's file, is wrong.
        SettingsError: A file can't be read, a server is declared twice, or nothing is served.
    """
    contracts = None if settings.contracts is None else load_contracts(settings.contracts)
    found: dict[str, tuple[ServerRules, bool]] = {}
    if contracts is not None:
        found = {
            name: (rules, name in contracts.definite) for name, rules in contracts.servers.items()
        }
    if settings.config is not None:
        written = _servers_of(read_gateway_file(settings.config), settings.config)
        if twice := sorted(found.keys() & written.keys()):
            raise SettingsError(
                f"[servers.{twice[0]}] stands in {settings.config} and in {settings.contracts}:"
                " leave it in the contract file"
            )
        found |= written
    if settings.command:
        found = _commanded(settings, found)
    if not found and not (contracts is not None and contracts.tools):
        raise SettingsError(
            "there is nothing to serve: name a server after --, in --config, or a contract file"
        )
    several = len(found) > 1
    servers = tuple(
        Fronted(rules=rules, errors_definitive=definite, prefix=f"{name}_" if several else "")
        for name, (rules, definite) in found.items()
    )
    return Plan(settings=settings, contracts=contracts, servers=servers)


def _servers_of(file: GatewayFile, path: str) -> dict[str, tuple[ServerRules, bool]]:
    problems: list[Problem] = []
    found: dict[str, tuple[ServerRules, bool]] = {}
    for name, table in file.servers.items():
        if not SERVER_NAME.fullmatch(name):
            wrong, mend = f"{name!r} can't be a name.", "use 1 to 32 letters, digits, _ and -."
            problems.append(Problem(file=path, table="servers", key=name, wrong=wrong, mend=mend))
        reading = read_table(ServerTable, table, file=path, table=f"servers.{name}")
        problems += reading.problems
        if reading.table is not None:
            problems += errors_in_server(path, name, reading.table)
            rules = server_rules(name, reading.table, file.folder)
            found[name] = (rules, reading.table.is_definite)
    if problems:
        raise ContractError(problems)
    return found


def _commanded(
    settings: GatewaySettings, found: Mapping[str, tuple[ServerRules, bool]]
) -> dict[str, tuple[ServerRules, bool]]:
    """Return the server of the command line alone: one of the contract file, if it is the same."""
    for name, (rules, definite) in found.items():
        if rules.command == settings.command:
            return {name: (rules, definite or settings.errors_definitive)}
    # A client puts into its environment what the server needs, as it did without us.
    rules = ServerRules(name=COMMAND, command=settings.command, cwd=settings.folder, inherits=True)
    return {COMMAND: (rules, settings.errors_definitive)}


def application(of: Plan) -> GatewayApp:
    """Return the application of a gateway. It is not open yet."""
    settings = of.settings
    return GatewayApp(
        settings.ledger,
        contracts=of.contracts,
        principal=settings.principal,
        secrets=settings.secrets,
        tenant=settings.tenant,
    )


def catalogue_of(app: GatewayApp, of: Plan) -> Catalogue:
    """Return what an open application serves."""
    return Catalogue(app.registry, app.upstreams, of.servers)


def gateway(app: GatewayApp, of: Plan, who_calls: WhoCalls) -> Gateway:
    """Return the gateway of an open application."""
    settings = of.settings
    asking = Asking(settings.approve_at, ledger=masked(settings.ledger), tenant=settings.tenant)
    passing = Passing(app.upstreams, of.servers)
    return Gateway(catalogue_of(app, of), passing, who_calls, asking)
