"""Asking a running service: requests that may be repeated are, within a bounded time.

Whether one may be is the caller's to say. What was refused before it was sent, or refused by the
service before it did anything, is tried again in any case.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import anyio
import httpx2

from doubtless.core.model import Json
from doubtless.errors import ServiceUnavailable, SettingsError

RETRY_FOR_S: Final = 15.0  # how long a service that isn't there is tried again
PAUSE_MIN_S: Final = 0.1  # between two tries; it doubles
PAUSE_MAX_S: Final = 2.0
CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0  # within which an answer has to come, unless more is said
CONNECTIONS_MAX: Final = 100

NEVER_LEFT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
NOTHING_DONE: Final = frozenset({429, 503})  # our service says so before it does anything
IN_BETWEEN: Final = frozenset({502, 504})  # of something before the service, which knows nothing

_log: Final = logging.getLogger("doubtless.remote")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the service said."""

    status: int
    body: Mapping[str, Json]
    repeated: bool  # an earlier try's answer was lost
    content: bytes = b""  # where something else than JSON was asked for

    @property
    def code(self) -> str:
        """The problem's code; "" where it is none."""
        return str(self.body.get("code", ""))

    @property
    def detail(self) -> str:
        """What people are told of the problem."""
        return str(self.body.get("detail", f"HTTP status {self.status}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request."""

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: Mapping[str, Json] | None = None
    is_of_bytes: bool = False  # whether something else than JSON is asked for
    repeatable: bool = True  # doing it twice is doing it once
    answer_s: float = ANSWER_S


class Wire:
    """Connections to one service. Not used before `open`, nor after `aclose`."""

    def __init__(self, url: str, token: str, *, retry_for_s: float = RETRY_FOR_S) -> None:
        self.url = checked_url(url)
        self._token, self._retry_for_s = checked_token(token), retry_for_s
        self._client: httpx2.AsyncClient | None = None

    def open(self) -> None:
        """Make ready to ask. Nothing is asked yet."""
        self._client = httpx2.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._token}", "Accept": "application/json"},
            limits=httpx2.Limits(max_connections=CONNECTIONS_MAX),
            follow_redirects=False,  # the token is for this address alone
            trust_env=False,
        )

    async def aclose(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    @property
    def is_open(self) -> bool:
        """Whether it can be asked."""
        return self._client is not None

    async def ask(self, ask: Ask) -> Answer:
        """Return the service's answer, whatever its status.

        Raises:
            ServiceUnavailable: There was none in time; what was asked may have been done.
        """
        lost, pause_s = False, PAUSE_MIN_S
        until_s: float | None = None
        while True:
            answer: Answer | None = None
            try:
                answer = await self._send(ask, repeated=lost)
            except httpx2.TransportError as error:
                left = isinstance(error, NEVER_LEFT)
                why = f"{self.url} was not reached: {_told(error)}"
                again, lost = left or ask.repeatable, lost or not left
            else:
                why = f"{self.url} answered {answer.status}: {answer.detail}"
                again = answer.status in NOTHING_DONE or (
                    ask.repeatable and answer.status in IN_BETWEEN
                )
                if not again and answer.status not in IN_BETWEEN:
                    return answer
                lost = lost or answer.status in IN_BETWEEN
            now_s = anyio.current_time()
            until_s = now_s + self._retry_for_s if until_s is None else until_s
            if not again or now_s + pause_s > until_s:
                if answer is not None and answer.status in NOTHING_DONE:
                    return answer
                raise ServiceUnavailable(why)
            _log.info("%s %s is tried again: %s", ask.method, ask.path, why)
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    async def _send(self, ask: Ask, *, repeated: bool) -> Answer:
        if self._client is None:
            raise ServiceUnavailable("the application is not open: use `async with` or `with`")
        content = None if ask.body is None else json.dumps(ask.body, allow_nan=False).encode()
        response = await self._client.request(
            ask.method,
            ask.path,
            params=dict(ask.query or {}),
            content=content,
            headers=_headers(ask),
            timeout=httpx2.Timeout(ask.answer_s, connect=CONNECT_S),
        )
        if response.is_redirect:
            where = response.headers.get("location", "?")
            raise SettingsError(f"{self.url} leads on to {where[:200]}: use that address itself")
        plain = ask.is_of_bytes and response.is_success
        return Answer(
            status=response.status_code,
            body={} if plain else _read(response),
            repeated=repeated,
            content=response.content if plain else b"",
        )


def _headers(ask: Ask) -> dict[str, str]:
    said = {} if ask.body is None else {"Content-Type": "application/json"}
    return {**said, "Accept": "*/*"} if ask.is_of_bytes else said


def _read(response: httpx2.Response) -> Mapping[str, Json]:
    """Return the answer's JSON object; something else is none of our service's."""
    try:
        found = json.loads(response.content)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if response.is_success:
        raise SettingsError(f"{response.url.host}: what answers there is no doubtless service")
    return {}


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".rstrip(": ")


def checked_url(url: str) -> str:
    """Return the address of a service.

    Raises:
        SettingsError: It is none.
    """
    parts = urlsplit(url)
    if not parts.hostname or parts.username or parts.query or parts.fragment:
        raise SettingsError(f"{url!r} is no address of a service: write https://host:8787")
    if parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        _log.warning("%s: the token crosses the network in the clear; use https", url)
    return url.rstrip("/")


def checked_token(token: str | None) -> str:
    """Return a token.

    Raises:
        SettingsError: There is none, or it can't be one.
    """
    if not token:
        raise SettingsError(
            "a service asks for a token: Doubtless(url, token=…), made by `doubtless token create`"
        )
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError("the token holds characters that no token has")
    return token
