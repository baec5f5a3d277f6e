"""What a browser script is given besides its page: what is asked for, and how it says that it acts.

async def submit(page: Page, form: Form) -> Json:
    await page.fill("#name", form.arguments["name"])
    async with form.act(confirmation="#receipt"):
        await page.click("text=Send")
    return {"receipt": await form.confirmed()}
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from playwright.async_api import Locator, Page

from doubtless.core.model import Json, Stage
from doubtless.errors import DoubtlessError, GateClosed, LedgerError, NotSent
from doubtless.transports.base import Errand, Gate, Watch, Workplace
from doubtless.transports.browser_guard import Guard, origin_of
from doubtless.transports.browser_view import View

CONFIRMED_MAX: Final = 10_000  # characters of a confirmation that are returned
SETTLE_S: Final = 0.5  # a page gets it to show what went wrong
LOADS_MAX: Final = 5  # pages after the act of which each is kept in place of the one before


class Form:
    """One attempt, as its script is told of it."""

    def __init__(
        self, errand: Errand, view: View, guard: Guard, gate: Gate, watch: Watch, place: Workplace
    ) -> None:
        self._errand, self._view, self._guard = errand, view, guard
        self._gate, self._watch, self._place = gate, watch, place
        self._confirmation: Locator | None = None
        self._looks: list[asyncio.Task[None]] = []
        self.has_acted = False
        self.is_confirmed = False

    @property
    def arguments(self) -> Mapping[str, Json]:
        """What the tool was called with."""
        return self._errand.arguments

    @property
    def operation_id(self) -> str:
        """The operation's id, in the caller's words."""
        return self._errand.operation_id

    @property
    def ref(self) -> str:
        """Our own reference, unique everywhere: write it into the form, where there is a place."""
        return self._errand.ref

    @property
    def duplicate_of(self) -> str | None:
        """The operation that this one may repeat, where a person was unsure of it: say so."""
        return self._errand.duplicate_of

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1. A second one is a person's decision."""
        return self._errand.attempt

    async def fill_secret(self, selector: str) -> None:
        """Fill the contract's `credential` into a field, which no picture shows.

        Raises:
            DoubtlessError: The contract names no credential.
            SettingsError: There is no such secret.
        """
        name = self._errand.action.members.get("credential")
        if not isinstance(name, str):
            raise DoubtlessError('the contract names no secret: say credential = "…" in its block')
        secret = self._place.secret(name)
        field = self._page.locator(selector)
        self._view.secrets.add(secret)
        await field.evaluate("field => { field.style.webkitTextSecurity = 'disc'; }")
        await field.fill(secret)

    @asynccontextmanager
    async def act(self, *, confirmation: str | None = None) -> AsyncIterator[None]:
        """Say that what is done within acts. Before it nothing may leave that acts; once only.

        Args:
            confirmation: A selector of what the page shows once it is done, and only then.
                Without one, whatever happens goes to a person.

        Raises:
            NotSent: It can't be begun: nothing was done.
            GateClosed: It may not be done any more.
        """
        if self.has_acted:
            raise DoubtlessError("a script acts once: put all of it into one act()")
        if origin_of(self._page.url) not in self._guard.origins:
            raise NotSent(f"the page is at {self._page.url}, which is none of the origins")
        if confirmation is not None:
            self._confirmation = self._page.locator(confirmation).first
            if await self._confirmation.is_visible():
                raise NotSent(
                    f"{confirmation} is shown before anything was done: it proves nothing"
                )
        await self._view.keep("before", self._errand.keep)
        self._watch.stage = Stage.GATE
        write_by_s = await self._gate()
        if not self._place.boot_s() <= write_by_s:
            raise GateClosed("the time to begin was over")
        self._watch.stage = Stage.SENT
        self._watch.sent_bytes = 1  # from here on the page may send, at any time
        self.has_acted = True
        self._guard.open(write_by_s)
        self._page.on("load", self._loaded)
        yield
        await self._keep_what_is_shown("after")

    async def confirmed(self) -> str:
        """Wait until the confirmation is shown and the page's requests are answered.

        Returns: its text. It waits as long as the tool's time-out lets it.

        Raises:
            DoubtlessError: Nothing was done yet, or `act` was told no confirmation; or none can
                count any more, since a request that acted was not taken.
        """
        if not self.has_acted or self._confirmation is None:
            raise DoubtlessError("confirmed() comes after act(confirmation=…)")
        self._watch.stage = Stage.READ
        await self._shown(self._confirmation)
        await self._guard.answered()
        text = await self._confirmation.inner_text()
        self.is_confirmed = True
        return self._view.redacted(text)[:CONFIRMED_MAX]

    async def _shown(self, confirmation: Locator) -> None:
        """Wait until it is shown, or could not count."""
        shown = asyncio.ensure_future(confirmation.wait_for(state="visible"))
        spoilt = asyncio.ensure_future(self._guard.is_spoilt())
        try:
            await asyncio.wait((shown, spoilt), return_when=asyncio.FIRST_COMPLETED)
            if shown.done():
                await shown
            else:
                await asyncio.sleep(SETTLE_S)
                raise DoubtlessError(await spoilt)
        finally:
            shown.cancel()
            spoilt.cancel()
            await asyncio.gather(shown, spoilt, return_exceptions=True)

    async def end(self) -> None:
        """Follow the page no further."""
        self._page.remove_listener("load", self._loaded)
        await asyncio.gather(*self._looks)

    def _loaded(self, _: Page) -> None:
        """Keep where the act has led to: should this process die, it is what is left to look at."""
        if len(self._looks) < LOADS_MAX:
            self._looks.append(asyncio.create_task(self._keep_what_is_shown("after")))

    async def _keep_what_is_shown(self, when: str) -> None:
        """Store how the page looks. Nothing depends on it once something was done."""
        try:
            await self._view.keep(when, self._errand.keep)
        except LedgerError:
            self._guard.held.append(f"how the page looked {when} could not be stored")

    @property
    def _page(self) -> Page:
        return self._view.page
