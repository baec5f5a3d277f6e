"""The composition root: one application and its routes, as an ASGI application."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute

from doubtless.engine.app import Doubtless
from doubtless.ledger.store import Ledger
from doubtless.service import api, metrics, openapi, webhooks
from doubtless.service.intake import Intake, on_http_exception
from doubtless.service.logs import AccessLog
from doubtless.service.routing import routes_of
from doubtless.service.settings import ServiceSettings


class Service:
    """What the routes stand on."""

    def __init__(self, application: Doubtless, settings: ServiceSettings) -> None:
        self.application: Final = application
        self.settings: Final = settings
        self.is_draining = False
        self.drained: Final = anyio.Event()

    @property
    def ledger(self) -> Ledger:
        """The application's ledger, while it is open."""
        return self.application.ledger

    async def drain(self) -> None:
        """Take no new work, let open attempts end, and answer whoever waits."""
        self.is_draining = True
        await self.application.drain(grace_s=self.settings.grace_s)
        self.drained.set()


def create_app(
    application: Doubtless,
    settings: ServiceSettings | None = None,
    *,
    more: Sequence[BaseRoute] = (),
) -> Starlette:
    """Return the service as an ASGI application. Its lifespan opens and closes `application`.

    Args:
        application: Not open yet. Its worker, if it has one, runs within the service.
        settings: How the service is run.
        more: Further routes.

    Raises:
        SettingsError: A source's webhook has no secret.
    """
    service = Service(application, settings or ServiceSettings())

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with application:
            yield

    asgi = Starlette(
        routes=[
            *routes_of((*api.ROWS, openapi.row(api.ROWS)), service),
            *metrics.routes(application),
            *webhooks.routes(application, body_bytes_max=service.settings.limits.body_bytes_max),
            *more,
        ],
        middleware=[
            Middleware(AccessLog),
            Middleware(Intake, limits=service.settings.limits),
        ],
        exception_handlers={HTTPException: on_http_exception},
        lifespan=lifespan,
    )
    asgi.router.redirect_slashes = False  # a redirect would lose a body, and hide a mistake
    asgi.state.service = service
    return asgi
