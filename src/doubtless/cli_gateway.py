"""What `doubtless mcp` does besides linking a client: serving over HTTP, and checking."""

import time
from collections.abc import Sequence
from pathlib import Path

import anyio
import click

from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Principal
from doubtless.engine.credentials import Credentials
from doubtless.engine.registry import Registry, Tool
from doubtless.integrations.mcp_building import GatewayApp, Plan, plan
from doubtless.integrations.mcp_http import serve_http
from doubtless.integrations.mcp_place import GatewaySettings
from doubtless.integrations.mcp_service import log_to_stderr
from doubtless.integrations.mcp_tools import Catalogue, Unlisted
from doubtless.service import auth
from doubtless.transports.mcp_upstream import Upstreams


def run_http(settings: GatewaySettings, address: tuple[str, int], hosts: Sequence[str]) -> int:
    """Serve over HTTP until a signal."""
    log_to_stderr()
    of = plan(settings)

    def listening(app: GatewayApp, url: str) -> None:
        _say(f"listening on {url}")
        if not auth.all_tokens(app.ledger, tenant=app.tenant):
            _say(
                "the ledger has no token yet, so nobody may use it: make one with"
                " `doubtless token create --role agent --name NAME`"
            )

    async def run() -> None:
        await serve_http(of, address, hosts=hosts, verify=whose, listening=listening)

    anyio.run(run)
    return 0


def whose(app: GatewayApp, token: str) -> Principal | None:
    """Return whose a bearer token is, by the ledger as it is now."""
    return auth.principal_of(app.ledger, f"Bearer {token}", tenant=app.tenant)


def check_tools(settings: GatewaySettings) -> int:
    """Say of each tool how it is served and what it lacks. No ledger is opened, and no tool called.

    Returns:
        0, or 1 where a server can't say what its tools are.
    """
    return anyio.run(_check, plan(settings))


async def _check(of: Plan) -> int:
    registry = Registry()
    for contract in () if of.contracts is None else of.contracts.tools.values():
        registry.add(Tool(contract=contract))
    secrets = of.settings.secrets
    credentials = Credentials(None if secrets is None else Path(secrets))
    upstreams = Upstreams(credentials.find, time.monotonic)
    told: list[str] = []
    catalogue = Catalogue(registry, upstreams, of.servers, say=told.append)
    try:
        await catalogue.tools()
    except Unlisted as error:
        _say(str(error))
        return 1
    finally:
        await upstreams.aclose()
    served = catalogue.served()
    for each in served:
        kind = "reads" if each.effect in NO_EFFECT else each.effect.value
        _say(f"{each.name}: {kind}, {'declared' if each.is_declared else 'not declared'}")
    for line in told:
        _say(line)
    _say(f"{len(served)} tools are served")
    return 1 if catalogue.failures else 0


def _say(line: str) -> None:
    click.echo(f"doubtless: {line}", err=True)
