"""`POST /webhooks/{source}`: what a provider tells by itself.

The signature comes first, and what it doesn't cover is stored nowhere; a 2xx goes out only once the
event is durable, so that a provider which hears nothing, or an error, sends it again.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from doubtless.core.model import Json, Principal, Role
from doubtless.engine.app import Doubtless
from doubtless.engine.contracts import WebhookRules
from doubtless.engine.event_reading import body_of
from doubtless.errors import BadEvent, LedgerUnavailable
from doubtless.service import logs
from doubtless.service.problems import problem
from doubtless.service.signatures import BadSignature, check_secrets, verify

PATH: Final = "/webhooks/{source}"
BODY_BYTES_MAX: Final = 1_048_576


def routes(
    app: Doubtless,
    *,
    body_bytes_max: int = BODY_BYTES_MAX,
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> list[Route]:
    """Return the route that takes events in.

    Args:
        app: The application; it need not be open yet.
        body_bytes_max: A longer event is answered with 413.
        wall_ms: The clock that signed time stamps are held against.

    Raises:
        SettingsError: A source's webhook has no secret, or one that can't be used.
    """
    app.check_webhooks()
    for source, rules in app.registry.webhooks.items():
        check_secrets(rules, app.webhook_secrets(source))

    async def receive(request: Request) -> Response:
        answer = await _received(app, request, body_bytes_max, wall_ms)
        source = request.path_params["source"]
        known = source in app.registry.webhooks  # what else stands there is a stranger's text
        logs.note(request.scope, route=PATH, source=source if known else None)
        return answer

    return [Route(PATH, receive, methods=["POST"], name="webhook")]


async def _received(
    app: Doubtless, request: Request, body_bytes_max: int, wall_ms: Callable[[], int]
) -> Response:
    source: str = request.path_params["source"]
    rules = app.registry.webhooks.get(source)
    if rules is None:
        return problem(404, "unknown_source", "no webhook is declared of a source of that name")
    body = await _body(request, body_bytes_max)
    if body is None:
        detail = f"an event may be {body_bytes_max} bytes long"
        return problem(413, "too_large", detail, headers={"Connection": "close"})
    headers = [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw
    ]
    try:
        # Found anew each time, so that a secret can be replaced while the service runs.
        verify(rules, app.webhook_secrets(source), headers, body, now_ms=wall_ms())
    except BadSignature as error:
        logs.note(request.scope, refused="bad_signature")
        return problem(401, "bad_signature", f"{error}: nothing was stored")
    return await _stored(app, source, rules, dict(reversed(headers)), body)


async def _body(request: Request, body_bytes_max: int) -> bytes | None:
    """Read a body, up to a limit; None above it, or where the client went away."""
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > body_bytes_max:
                return None
            parts.append(part)
    except ClientDisconnect:
        return None
    return b"".join(parts)


async def _stored(
    app: Doubtless, source: str, rules: WebhookRules, headers: Mapping[str, str], body: bytes
) -> Response:
    """Store what is signed, and say so once it is durable."""
    provider = app.actor(Principal(name=source, role=Role.PROVIDER))
    try:
        if (challenge := _challenge(rules, body)) is not None:
            return JSONResponse({"challenge": challenge})
        taken = await provider.ingest(source, body, headers=headers)
    except BadEvent as error:
        return problem(400, "bad_event", str(error))
    except LedgerUnavailable:
        detail = "the event could not be stored: send it again"
        return problem(503, "ledger_unavailable", detail, headers={"Retry-After": "1"})
    # Nothing of ours is told to a provider: neither operations nor whether one was found.
    return JSONResponse({"id": taken.event_id, "new": taken.new})


def _challenge(rules: WebhookRules, body: bytes) -> str | None:
    """Return what Slack wants to hear when an address is entered there. It is no event."""
    if rules.scheme != "slack":
        return None
    said: Json = body_of(body)
    if not isinstance(said, Mapping) or said.get("type") != "url_verification":
        return None
    challenge = said.get("challenge")
    return challenge if isinstance(challenge, str) else None
