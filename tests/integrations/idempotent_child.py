"""The shop in a process that dies where it is told to: see `tests.integrations.children`."""

import socket
from pathlib import Path
from typing import Any

import uvicorn
from tests.integrations.idempotent_shop import Shop

from doubtless.integrations.asgi_idempotency import (  # noqa: F401 - imported once, then forked
    IdempotencyMiddleware,
)


def run(options: dict[str, Any]) -> None:
    """Serve on `port`, and die at `dies`. An execution is taken for dead after half a second."""
    shop = Shop(Path(options["path"]), options["dies"])
    shop.goes_on.set()
    sock = socket.create_server(("127.0.0.1", options["port"]))
    app = shop.app(run_limit_s=0.5)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    server.run(sockets=[sock])
