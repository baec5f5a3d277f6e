"""What may leave a page, and when: every request of it passes here.

Until the gate is open nothing leaves but safe methods (RFC 9110, 9.2.1) and what the contract calls
harmless; so whatever fails before it is proven not sent. When the attempt is over, the same is true
again: a page that stays open for people to look at sends nothing more by itself.

Whatever acts is sent by the driver in the browser's place, once. A browser sends a request again by
itself where a kept connection broke before the answer, a POST too, and tells nobody.
"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final
from urllib.parse import urlsplit

import anyio
from playwright.async_api import Error, Request, Route, WebSocketRoute

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
RESUBMITS: Final = frozenset({307, 308})  # a browser would send the same body elsewhere
LOCAL: Final = ("about", "blob", "data")  # schemes that reach nobody
SHOWN_MAX: Final = 50  # requests that are told of
_BOUNDARY: Final = re.compile(r'^multipart/.*;\s*boundary="?([^";]+)', re.IGNORECASE)
_FILE: Final = re.compile(rb'filename="[^"]', re.IGNORECASE)


class _State(Enum):
    HELD = auto()  # nothing may act yet
    OPEN = auto()
    SHUT = auto()  # nothing may act any more


@dataclass(slots=True, kw_only=True)
class Sent:
    """One request that was let through, and what came back."""

    method: str
    url: str
    status: int | None = None
    failed: str | None = None
    is_answerable: bool = True  # False for what the page alone can confirm

    @property
    def is_answered(self) -> bool:
        """Whether nothing more comes back."""
        return not self.is_answerable or self.status is not None or self.failed is not None

    @property
    def came(self) -> str:
        """What came back, in words."""
        return self.failed or f"the status {self.status}"

    @property
    def is_good(self) -> bool:
        """Whether the server took it, by its own answer."""
        if self.status is None:
            return not self.is_answerable
        return self.status < 400 and self.status not in RESUBMITS


@dataclass(eq=False)  # no slots: the driver keeps something of its own with its handlers
class Guard:
    """The barrier of one page.

    Args:
        origins: Where anything may go at all.
        harmless: Requests that act on nothing, as "POST https://…", with `*` for any text.
        boot_s: The boot-time clock, in seconds.
        left: Called once something that acts has left.
    """

    origins: Collection[str]
    harmless: Collection[str]
    boot_s: Callable[[], float]
    left: Callable[[], None]
    sent: list[Sent] = field(default_factory=list)  # what acted, in order
    held: list[str] = field(default_factory=list)  # what was not let through, and why
    is_late: bool = False  # the time to begin was over before anything had left
    spoilt: str | None = None  # why no confirmation can count any more
    has_asked: bool = False  # whether anything at all left since the gate was open
    _state: _State = _State.HELD
    _write_by_s: float = 0.0
    _bodies: set[tuple[str, str, bytes]] = field(default_factory=set)
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _spoilt: anyio.Event = field(default_factory=anyio.Event)

    def open(self, write_by_s: float) -> None:
        """Let what acts pass. The first of it must leave by `write_by_s`, on the boot clock."""
        self._state, self._write_by_s = _State.OPEN, write_by_s

    def shut(self) -> None:
        """Let nothing pass any more that acts."""
        self._state = _State.SHUT

    async def answered(self) -> None:
        """Wait until whatever acted has its answer, or won't get one."""
        while not all(each.is_answered for each in self.sent):
            self._answered = anyio.Event()
            await self._answered.wait()

    async def is_spoilt(self) -> str:
        """Wait until no confirmation can count any more, and say why."""
        await self._spoilt.wait()
        return self.spoilt or ""

    def _spoil(self, why: str) -> None:
        self.spoilt = self.spoilt or why
        self._spoilt.set()

    # --- requests --------------------------------------------------------------------------------

    async def request(self, route: Route) -> None:
        """Let a request pass, send it in the browser's place, or hold it back."""
        request = route.request
        try:
            await self._judged(route, request)
        except Error as error:
            # The page was closed under it, or the browser died.
            self._note(f"{_told(request)}: {_line(error)}")

    async def _judged(self, route: Route, request: Request) -> None:
        why = self._why_not(request)
        if why is not None:
            self._note(f"{_told(request)}: {why}")
            await route.abort("blockedbyclient")
            return
        is_open = self._state is _State.OPEN
        self.has_asked |= is_open
        if request.method not in SAFE:
            is_harmless = self._is_harmless(request)
            await self._relay(route, request, acts=is_open and not is_harmless, is_open=is_open)
        elif is_open and request.is_navigation_request() and origin_of(request.url):
            # A link may be what acts.
            await self._relay(route, request, acts=False, is_open=True)
        else:
            await route.continue_()

    def _why_not(self, request: Request) -> str | None:
        """Say why a request may not leave; None: it may. Judged in the call that sends it."""
        if urlsplit(request.url).scheme in LOCAL:
            return None
        if origin_of(request.url) not in self.origins:
            return "its origin is none of the contract's"
        if request.method in SAFE or self._is_harmless(request):
            return None
        if self._state is _State.HELD:
            return "nothing may act yet"
        if not self.sent and self.boot_s() > self._write_by_s:
            self.is_late = self._state is _State.OPEN
            self.shut()
        if self._state is _State.SHUT:
            return "nothing may act any more"
        return self._why_not_this(request)

    def _why_not_this(self, request: Request) -> str | None:
        body, kind = request.post_data_buffer, request.headers.get("content-type")
        if (body is None and kind is not None) or _FILE.search(body or b""):
            self._spoil(f"{_told(request)} carries a file, which can't be sent from here")
            return "it carries a file, which can't be seen here"
        boundary = _BOUNDARY.match(kind or "")  # chosen by the browser, anew for each request
        plain = (body or b"").replace(boundary[1].encode(), b"") if boundary else body or b""
        same = (request.method, request.url, plain)
        if same in self._bodies:
            return "the same was sent already"
        self._bodies.add(same)
        return None

    async def _relay(self, route: Route, request: Request, *, acts: bool, is_open: bool) -> None:
        """Send a request once, and hand its answer to the page."""
        one = Sent(method=request.method, url=request.url)
        if acts:
            self.sent.append(one)
        try:
            try:
                answer = await route.fetch(max_redirects=0, max_retries=0, timeout=0)
            finally:
                if is_open:
                    self.left()
            one.status = answer.status
            if request.method not in SAFE and answer.status in RESUBMITS:
                self._note(f"{_told(request)}: sent elsewhere with {answer.status}, not followed")
                await route.abort("blockedbyclient")
            else:
                await route.fulfill(response=answer)
        except Error as error:
            one.failed = None if one.status is not None else _line(error)
            await route.abort("connectionreset")
        finally:
            if not one.is_answered:
                one.failed = "it was not waited for"
            self._answered.set()
            if acts and not one.is_good:
                self._spoil(f"{_told(request)} got {one.came}")

    def _is_harmless(self, request: Request) -> bool:
        said = f"{request.method} {request.url.partition('#')[0].partition('?')[0]}"
        return any(_matches(pattern, said) for pattern in self.harmless)

    # --- sockets ---------------------------------------------------------------------------------

    def socket(self, socket: WebSocketRoute) -> None:
        """Connect a WebSocket; what the page says on it acts."""
        if origin_of(socket.url.replace("ws", "http", 1)) not in self.origins:
            self._note(f"WebSocket {socket.url}: its origin is none of the contract's")
            return
        server = socket.connect_to_server()

        def say(message: str | bytes) -> None:
            if not self.sent and self.boot_s() > self._write_by_s:
                self.is_late |= self._state is _State.OPEN
                self.shut()
            if self._state is not _State.OPEN:
                self._note(f"WebSocket {socket.url}: a message was held back")
                return
            self.sent.append(Sent(method="MESSAGE", url=socket.url, is_answerable=False))
            self.has_asked = True
            server.send(message)
            self.left()

        socket.on_message(say)

    def _note(self, told: str) -> None:
        if len(self.held) < SHOWN_MAX:
            self.held.append(told)


def origin_of(url: str) -> str | None:
    """Return scheme, host and port of an address, as a browser writes them; None: it has none."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (
        f":{parts.port}" if parts.port not in (None, usual) else ""
    )


def _matches(pattern: str, said: str) -> bool:
    """Compare, with `*` for any text; nothing else in a pattern is special."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), said) is not None


def _told(request: Request) -> str:
    return f"{request.method} {request.url}"


def _line(error: Exception) -> str:
    """Return the first line of an error: the rest is the driver's own log, with what was sent."""
    return str(error).partition("\n")[0][:200]
