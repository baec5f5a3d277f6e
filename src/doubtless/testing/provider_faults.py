"""The simulated provider's faults: what each action does to one exchange, on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from doubtless.testing.provider_app import PLAIN, Application, Pending, Plan, refusal
from doubtless.testing.provider_http import Answer, Connection, Head, Incomplete, Malformed, Request
from doubtless.testing.provider_http import announced as announced_length
from doubtless.testing.provider_rules import Action, Json
from doubtless.testing.provider_store import Arrival

LOGIN_PAGE: Final = (
    "<!doctype html><html><head><title>Log in</title></head><body>"
    '<form method="post" action="/login"><input name="user"><input name="password"></form>'
    "</body></html>"
)


class Door(Protocol):
    """The listening socket, as far as a fault may move it."""

    async def close_for(self, duration_s: float | None) -> None:
        """Refuse connections for `duration_s` seconds; None: until opened again."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request on its connection, from its head to its answer or its end."""

    connection: Connection
    head: Head
    arrival: Arrival
    app: Application
    door: Door

    async def request(self) -> Request:
        """Read the body. Raises Incomplete or Malformed, as the connection does."""
        body = await self.connection.body(self.head)
        self.arrival.body_complete = True
        return Request(number=self.arrival.number, head=self.head, body=body)

    async def answer(self, answer: Answer) -> None:
        """Send `answer`, and keep the connection if the client does."""
        await self.connection.send(answer.wire(closes=self.head.closes))
        self.arrival.status = answer.status
        if self.head.closes:
            self.connection.fin()


async def serve(exchange: Exchange, action: Action | None) -> None:
    """Serve one request, with the fault that `action` asks for."""
    exchange.arrival.action = action.name if action else None
    try:
        if action is not None and action.name == "half_body_read_then_rst":
            await _half_body_read_then_rst(exchange, action)
            return
        request = await exchange.request()
        if action is None:
            await exchange.answer(await exchange.app.run(request))
        else:
            await _ON_REQUEST[action.name](exchange, request, action)
    except Incomplete as error:
        # A partial body never reaches the application; who only half-closed is told so.
        await _last_word(exchange, refusal(400, "incomplete_body", str(error)))
    except Malformed as error:
        await _last_word(exchange, refusal(400, "malformed", str(error)))


async def _last_word(exchange: Exchange, answer: Answer) -> None:
    await exchange.connection.send(answer.wire(closes=True))
    exchange.arrival.status = answer.status
    exchange.connection.fin()


async def _half_body_read_then_rst(exchange: Exchange, action: Action) -> None:
    count = action.byte_count
    await exchange.connection.skip(announced_length(exchange.head) // 2 if count is None else count)
    exchange.connection.rst()


async def _commit_then_fin(exchange: Exchange, request: Request, _: Action) -> None:
    await exchange.app.run(request)
    exchange.connection.fin()


async def _commit_then_rst(exchange: Exchange, request: Request, _: Action) -> None:
    await exchange.app.run(request)
    exchange.connection.rst()


async def _drop_before_commit(exchange: Exchange, _: Request, action: Action) -> None:
    if action.close == "rst":
        exchange.connection.rst()
    else:
        exchange.connection.fin()


async def _commit_then_status(exchange: Exchange, request: Request, action: Action) -> None:
    own = _told(action)
    # 502 to 504 come from something in front of the application, which knows nothing of keys.
    by = action.by or ("gateway" if action.status in (502, 503, 504) else "application")
    if by == "gateway":
        await exchange.app.run(request)
        await exchange.answer(own)
    else:
        await exchange.answer(await exchange.app.run(request, Plan(own_answer=own)))


async def _commit_then_delay(exchange: Exchange, request: Request, action: Action) -> None:
    delay_s = action.delay_s or 0.0
    held = action.key_in_progress is not False
    answer = await exchange.app.run(request, Plan(hold_key_s=delay_s) if held else PLAIN)
    if not held:
        await asyncio.sleep(delay_s)
    await exchange.answer(answer)


async def _delay_then_commit(exchange: Exchange, request: Request, action: Action) -> None:
    plan = Plan(ignore_key=action.ignore_key)
    if action.key_in_progress:
        plan = replace(plan, work_s=action.delay_s or 0.0)
    else:
        await asyncio.sleep(action.delay_s or 0.0)
    # Nobody looks whether the client is still there: that is what makes it a zombie.
    await exchange.answer(await exchange.app.run(request, plan))


async def _status(exchange: Exchange, request: Request, action: Action) -> None:
    told = _told(action)
    if action.stored:
        told = await exchange.app.run(request, Plan(own_answer=told, commits=False))
    await exchange.answer(told)


async def _truncate_response(exchange: Exchange, request: Request, action: Action) -> None:
    answer = await exchange.app.run(request)
    count = len(answer.payload) // 2 if action.byte_count is None else action.byte_count
    cut = replace(answer, payload=answer.payload[:count])
    await exchange.connection.send(cut.wire(closes=True, length=len(answer.payload)))
    exchange.arrival.status = answer.status
    exchange.connection.fin()


async def _garbage_response(exchange: Exchange, request: Request, action: Action) -> None:
    await exchange.app.run(request)
    garbage = action.body if isinstance(action.body, str) else '{"id": "re_'
    await exchange.answer(Answer(status=200, payload=garbage.encode()))


async def _accept_pending(exchange: Exchange, request: Request, action: Action) -> None:
    pending = Pending(completes_in_s=action.completes_in_s, status_then=action.status_then)
    await exchange.answer(await exchange.app.run(request, Plan(pending=pending)))


async def _ok_with_error_inside(exchange: Exchange, _: Request, action: Action) -> None:
    inside: Json = {"status": "failed", "error": {"code": "processing_error"}}
    await exchange.answer(Answer.of(200, inside if action.body is None else action.body))


async def _not_found_lie(exchange: Exchange, request: Request, _: Action) -> None:
    await exchange.app.run(request)
    await exchange.answer(refusal(404, "not_found"))


async def _close_listener(exchange: Exchange, request: Request, action: Action) -> None:
    answer = await exchange.app.run(request)
    await exchange.door.close_for(action.delay_s)
    await _last_word(exchange, answer)


async def _slow_drip(exchange: Exchange, request: Request, action: Action) -> None:
    answer = await exchange.app.run(request)
    data = answer.wire(closes=True)
    step = max(1, action.byte_count or 1)
    for start in range(0, len(data), step):
        await exchange.connection.send(data[start : start + step])
        await asyncio.sleep(action.interval_s)
    exchange.arrival.status = answer.status
    exchange.connection.fin()


async def _hang(exchange: Exchange, _: Request, action: Action) -> None:
    await exchange.connection.until_closed(action.delay_s)
    exchange.connection.fin()


async def _login_page(exchange: Exchange, _: Request, __: Action) -> None:
    page = Answer(status=200, payload=LOGIN_PAGE.encode(), content_type="text/html; charset=utf-8")
    await exchange.answer(page)


async def _empty_page(exchange: Exchange, _: Request, __: Action) -> None:
    await exchange.answer(Answer.of(200, {"data": [], "has_more": False, "next_cursor": None}))


async def _incomplete_page(exchange: Exchange, request: Request, action: Action) -> None:
    answer = await exchange.app.run(request)
    body: Json = json.loads(answer.payload)
    if isinstance(body, dict) and isinstance(body.get("data"), list):
        kept = body["data"]
        assert isinstance(kept, list)
        # There is more, and no cursor that would lead to it.
        body = {"data": kept[: action.keep], "has_more": True, "next_cursor": None}
        answer = Answer.of(200, body)
    await exchange.answer(answer)


def _told(action: Action) -> Answer:
    headers = dict(action.headers)
    if action.retry_after_s is not None:
        headers["retry-after"] = str(action.retry_after_s)
    if isinstance(action.body, str):
        kind = "text/html" if action.body.lstrip().startswith("<") else "text/plain"
        payload = action.body.encode()
        return Answer(
            status=action.status,
            payload=payload,
            content_type=f"{kind}; charset=utf-8",
            headers=headers,
        )
    default: Json = {"error": {"code": f"status_{action.status}", "message": "as told by a rule"}}
    body = default if action.body is None else action.body
    return Answer.of(action.status, body, headers)


_ON_REQUEST: Final[Mapping[str, Callable[[Exchange, Request, Action], Awaitable[None]]]] = {
    "commit_then_fin": _commit_then_fin,
    "commit_then_rst": _commit_then_rst,
    "drop_before_commit": _drop_before_commit,
    "commit_then_status": _commit_then_status,
    "commit_then_delay": _commit_then_delay,
    "delay_then_commit": _delay_then_commit,
    "status": _status,
    "truncate_response": _truncate_response,
    "garbage_response": _garbage_response,
    "accept_pending": _accept_pending,
    "ok_with_error_inside": _ok_with_error_inside,
    "not_found_lie": _not_found_lie,
    "close_listener": _close_listener,
    "slow_drip": _slow_drip,
    "hang": _hang,
    "login_page": _login_page,
    "empty_page": _empty_page,
    "incomplete_page": _incomplete_page,
}
