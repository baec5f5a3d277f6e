"""The gateway over streamable HTTP: bearer tokens say who calls, and nothing else does.

Host and Origin are checked, so that a page in a browser can't reach it under a name of its own.
"""

import contextlib
import ipaddress
import logging
import signal
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from typing import Final

import anyio
import uvicorn
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.routing import Route

from doubtless.core.model import Principal, Role
from doubtless.engine.actor import Actor
from doubtless.engine.sockets import bind, url_of
from doubtless.integrations.mcp_building import GatewayApp, Plan, application, gateway
from doubtless.integrations.mcp_calls import Caller
from doubtless.integrations.mcp_gateway import Context
from doubtless.integrations.mcp_place import GatewaySettings
from doubtless.integrations.mcp_wire import Front

PATH: Final = "/mcp"
GRACE_S: Final = 10.0  # for attempts that are open when it is told to end
RESPONSES_S: Final = 5
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("doubtless.gateway")

Verify = Callable[[GatewayApp, str], Principal | None]
"""Says whose a bearer token is; None if it is nobody's now."""


class Tokens:
    """Holds the tokens of requests against the ledger. As the SDK's `TokenVerifier` wants it."""

    def __init__(self, app: GatewayApp, verify: Verify) -> None:
        self._app, self._verify = app, verify

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return whose a token is; its role is its scope."""
        found = self._verify(self._app, token)
        if found is None:
            return None
        return AccessToken(token=token, client_id=found.name, scopes=[found.role.value])


async def serve_http(
    of: Plan,
    address: tuple[str, int],
    *,
    hosts: Sequence[str],
    verify: Verify,
    listening: Callable[[GatewayApp, str], None],
) -> None:
    """Serve until a signal, then end in order.

    Args:
        of: What is served. Without a scope each principal has a session of its own.
        address: Where to listen.
        hosts: Further names by which it may be called, besides the address itself and loopback.
        verify: Whose a token is.
        listening: Called with the URL once requests are answered.

    Raises:
        SettingsError: The address can't be had.
    """
    with bind(*address, option="--http") as sock:
        async with application(of) as app:
            front = gateway(app, of, Bearers(app, of.settings))
            asgi = asgi_app(front.front(), Tokens(app, verify), names_of(address[0], hosts))
            server = _Server(
                uvicorn.Config(
                    asgi,
                    ws="none",
                    log_config=None,
                    access_log=False,
                    server_header=False,
                    proxy_headers=False,
                    timeout_graceful_shutdown=RESPONSES_S,
                )
            )
            async with anyio.create_task_group() as tasks:
                await tasks.start(_on_signal, app, server)
                listening(app, f"{url_of(sock)}{PATH}")
                await server.serve(sockets=[sock])
                tasks.cancel_scope.cancel()


def asgi_app(front: Front, tokens: Tokens, names: Sequence[str]) -> Starlette:
    """Return the gateway as an ASGI application, for those names of its host alone."""
    hosts = [each for name in names for each in (name, f"{name}:*")]
    manager = StreamableHTTPSessionManager(
        app=front,
        security_settings=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=hosts,
            allowed_origins=[
                f"{scheme}://{each}" for scheme in ("http", "https") for each in hosts
            ],
        ),
    )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with manager.run():
            yield

    guarded = RequireAuthMiddleware(StreamableHTTPASGIApp(manager), [Role.AGENT.value])
    return Starlette(
        routes=[Route(PATH, endpoint=guarded)],
        middleware=[
            Middleware(AuthenticationMiddleware, backend=BearerAuthBackend(tokens)),
            Middleware(AuthContextMiddleware),
        ],
        lifespan=lifespan,
    )


def names_of(host: str, more: Sequence[str]) -> list[str]:
    """Return the names by which clients may call a host."""
    names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else []
    named = f"[{host}]" if ":" in host else host
    return list(dict.fromkeys([*names, named, *more]))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Bearers:
    """Says who calls, by the token that came with the very request."""

    def __init__(self, app: GatewayApp, settings: GatewaySettings) -> None:
        self._app, self._settings = app, settings
        self._actors: dict[str, Actor] = {}

    def __call__(self, context: Context) -> Caller:
        """Return whose request it is, and its session."""
        request = context.request
        if not isinstance(request, Request):
            raise TypeError("a request over HTTP brings its head along")
        name = str(request.user.display_name)
        if name not in self._actors:
            self._actors[name] = self._app.actor(Principal(name=name, role=Role.AGENT))
        return Caller(
            actor=self._actors[name],
            principal=name,
            session_id=self._settings.scope or name,
            is_gone=request.is_disconnected,
        )


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to us: work is drained before the sockets are closed."""
        yield


async def _on_signal(
    app: GatewayApp,
    server: uvicorn.Server,
    *,
    task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    with anyio.open_signal_receiver(*SIGNALS) as signals:
        task_status.started()
        async for _ in signals:
            if server.should_exit:
                server.force_exit = True
                continue
            await app.drain(grace_s=GRACE_S)
            server.should_exit = True
