"""The browsers of one process, and the pages in them: those at work, and those left open.

A browser hangs on its driver by a pipe, and the driver on this process by another: when this
process dies, however it does, its browsers end and nothing in them goes on.
"""

import asyncio
import os
import re
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from shutil import which
from typing import Final, NamedTuple

import anyio
from playwright.async_api import Browser, BrowserContext, Error, Playwright, async_playwright

from doubtless.core.model import Json
from doubtless.errors import NotSent
from doubtless.transports.browser_guard import Guard
from doubtless.transports.browser_view import View

RUNNING_MAX: Final = 4  # pages at work at once: each is a process of its own
KEPT_MAX: Final = 8  # pages left open for people; the oldest goes
IDLE_S: Final = 60.0  # a browser without a page ends after it
CLOSE_S: Final = 5.0
PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS: Final = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)
# What would send past the guard.
NO_SIDE_DOORS: Final = """
for (const name of ["WebTransport", "RTCPeerConnection", "webkitRTCPeerConnection"])
  delete globalThis[name];
"""
EVERYTHING: Final = re.compile("")


class Program(NamedTuple):
    """Which browser, and how."""

    executable: str
    headless: bool

    @classmethod
    def of(cls, members: Mapping[str, Json]) -> "Program":
        """Return the program that a contract's block means.

        Raises:
            NotSent: It is not installed here.
        """
        said = members.get("executable")
        names = PROGRAMS if said is None else (str(said),)
        found = next((path for name in names if (path := which(name))), None)
        if found is None:
            raise NotSent(
                f"there is no {' or '.join(names)} here: install the package chromium, or say"
                " executable = … in the contract's block"
            )
        return cls(found, members.get("headless") is not False)


@dataclass(slots=True)
class Opened:
    """One page with its barrier."""

    context: BrowserContext
    view: View
    guard: Guard
    ends: asyncio.TimerHandle | None = None  # set where it is left open


class Pages:
    """All of them. For one event loop."""

    def __init__(self, boot_s: Callable[[], float]) -> None:
        self._boot_s = boot_s
        self.running = anyio.Semaphore(RUNNING_MAX)
        self._shown: dict[str, Opened] = {}  # by operation, the latest page of each
        self._driver: asyncio.Task[Playwright] | None = None
        self._browsers: dict[Program, asyncio.Task[Browser]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rest: asyncio.TimerHandle | None = None

    # --- pages -----------------------------------------------------------------------------------

    async def open(
        self, operation_id: str, program: Program, guard: Guard, *, limit_s: float
    ) -> Opened:
        """Open an empty page with nothing of any other in it: no cookies, no storage.

        Raises:
            Error: It can't be.
        """
        if self._rest is not None:
            self._rest.cancel()
        browser = await self._browser(program)
        context = await browser.new_context(service_workers="block", accept_downloads=False)
        try:
            context.set_default_timeout(limit_s * 1000)
            await context.route(EVERYTHING, guard.request)
            await context.route_web_socket(EVERYTHING, guard.socket)
            await context.add_init_script(NO_SIDE_DOORS)
            page = await context.new_page()
            painter = await context.new_cdp_session(page)
            opened = Opened(context, View(page, painter, self._boot_s), guard)
        except BaseException:
            self._soon(context.close)
            raise
        earlier = self._shown.get(operation_id)
        if earlier is not None:
            await self.close(operation_id, earlier)
        self._shown[operation_id] = opened
        return opened

    def keep(self, operation_id: str, opened: Opened, *, keep_s: float) -> None:
        """Leave a page open for people to look at. It sends nothing any more that acts."""
        opened.guard.shut()
        later = asyncio.get_running_loop().call_later
        opened.ends = later(keep_s, self._soon, partial(self.close, operation_id, opened))
        kept = [each for each in self._shown.items() if each[1].ends is not None]
        for old_id, old in kept[: max(0, len(kept) - KEPT_MAX)]:
            self._soon(partial(self.close, old_id, old))

    async def close(self, operation_id: str, opened: Opened) -> None:
        """Close a page."""
        opened.guard.shut()
        if opened.ends is not None:
            opened.ends.cancel()
        if self._shown.get(operation_id) is opened:
            del self._shown[operation_id]
        with suppress(Error), anyio.move_on_after(CLOSE_S):
            await opened.context.close()
        if not self._shown and self._browsers:
            later = asyncio.get_running_loop().call_later
            self._rest = later(IDLE_S, self._soon, self._end_idle)

    def shown(self, operation_id: str) -> Opened | None:
        """Return the page of an operation that is open here."""
        return self._shown.get(operation_id)

    # --- browsers --------------------------------------------------------------------------------

    async def _browser(self, program: Program) -> Browser:
        task = self._browsers.get(program)
        if task is None or _is_gone(task):
            task = self._browsers[program] = asyncio.create_task(self._launched(program))
        # Whoever gives up leaves it to the next one: a launch that is torn leaves processes.
        return await asyncio.shield(task)

    async def _launched(self, program: Program) -> Browser:
        if self._driver is None or _has_failed(self._driver):
            self._driver = asyncio.create_task(async_playwright().start())
        driver = await asyncio.shield(self._driver)
        return await driver.chromium.launch(
            executable_path=program.executable,
            headless=program.headless,
            args=list(ARGUMENTS),
            chromium_sandbox=os.geteuid() != 0,  # it refuses to run as root with one
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )

    async def _end_idle(self) -> None:
        if not self._shown:
            await self._end_browsers()

    async def _end_browsers(self) -> None:
        ended, self._browsers = list(self._browsers.values()), {}
        for task in ended:
            with suppress(Error), anyio.move_on_after(CLOSE_S):
                await (await task).close()

    async def aclose(self) -> None:
        """Close all pages, and end the browsers."""
        if self._rest is not None:
            self._rest.cancel()
        for operation_id, opened in list(self._shown.items()):
            await self.close(operation_id, opened)
        if self._rest is not None:
            self._rest.cancel()
        await asyncio.gather(*self._tasks)
        await self._end_browsers()
        driver, self._driver = self._driver, None
        if driver is not None and not _has_failed(driver):
            with anyio.move_on_after(CLOSE_S):
                await (await driver).stop()

    def _soon(self, close: Callable[[], Coroutine[object, object, None]]) -> None:
        task = asyncio.get_running_loop().create_task(close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _has_failed(task: "asyncio.Task[Playwright] | asyncio.Task[Browser]") -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def _is_gone(task: "asyncio.Task[Browser]") -> bool:
    """Whether a browser could not be started, or has died since."""
    return task.done() and (_has_failed(task) or not task.result().is_connected())
