"""What a person sees of a page: a picture, its text and its address. Nothing of it takes input."""

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, quote_plus

import anyio
import rfc8785
from playwright.async_api import CDPSession, Error, Page

from doubtless.core.model import Json
from doubtless.transports.base import Keep
from doubtless.transports.browser_guard import Guard

PICTURE_S: Final = 3.0  # a page whose script hangs can't be painted
TEXT_S: Final = 1.0  # nor says it anything while it goes to another address
TEXT_MAX: Final = 65_536  # characters of a page that are kept
FRESH_S: Final = 1.0  # a picture as old as this is shown again
FRAMES_MAX: Final = 20  # a page with more is not painted once a secret was filled in
REDACTED: Final = "[redacted]"
READABLE: Final = """() => [
  document.body?.innerText ?? '',
  ...[...document.querySelectorAll('input, textarea')]
    .filter(field => field.type !== 'password'
      && getComputedStyle(field).webkitTextSecurity === 'none')
    .map(field => field.value),
].join(' ')"""


@dataclass(slots=True)
class View:
    """One page, as people may see it: without what was filled in as a secret.

    Args:
        page: The page.
        painter: Paints it even while it goes to another address.
        boot_s: The boot-time clock, in seconds.
    """

    page: Page
    painter: CDPSession
    boot_s: Callable[[], float]
    secrets: set[str] = field(default_factory=set)  # never shown, wherever they stand
    _last: tuple[float, bytes] | None = None

    async def picture(self) -> bytes | None:
        """Return the page as it is now, as a JPEG.

        None where it can't be painted, or where a secret could be read in it.
        """
        now_s = self.boot_s()
        if self._last is not None and now_s - self._last[0] < FRESH_S:
            return self._last[1]
        if self.secrets and await self._may_show_a_secret():
            return None
        try:
            with anyio.fail_after(PICTURE_S):
                said = {"format": "jpeg", "quality": 60}
                found = await self.painter.send("Page.captureScreenshot", said)
        except (Error, TimeoutError):
            return None
        picture = base64.b64decode(found["data"])
        self._last = (self.boot_s(), picture)
        return picture

    async def _may_show_a_secret(self) -> bool:
        """Whether a secret can be read in the page, or it can't be told."""
        frames = self.page.frames
        if len(frames) > FRAMES_MAX:
            return True
        try:
            with anyio.fail_after(TEXT_S):
                said = [str(await each.evaluate(READABLE)) for each in frames]
        except (Error, TimeoutError):
            return True
        return any(secret in text for secret in self.secrets for text in said)

    async def text(self) -> bytes:
        """Return the page's address, title and text. What stands in fields is no part of it."""
        try:
            with anyio.fail_after(TEXT_S):
                title = await self.page.title()
                text = await self.page.evaluate("() => document.body?.innerText ?? ''")
        except (Error, TimeoutError):
            title, text = "", "(the page did not say its text: it was busy, or on its way)"
        said = f"{self.page.url}\n{title}\n\n{str(text)[:TEXT_MAX]}"
        return self.redacted(said).encode()

    async def keep(self, when: str, keep: Keep) -> None:
        """Store how the page looks, durably.

        Raises:
            LedgerError: It can't be stored.
        """
        self._last = None
        picture = await self.picture()
        if picture is not None:
            await keep(f"{when}.jpg", picture)
        await keep(f"{when}.txt", await self.text())

    def redacted(self, text: str) -> str:
        """Return a text without the secrets that were filled in."""
        for secret in self.secrets:
            for form in (secret, quote(secret, safe=""), quote_plus(secret)):
                text = text.replace(form, REDACTED)
        return text

    def requests(self, guard: Guard) -> bytes:
        """Return what was sent and what was held back, as JSON."""
        sent: list[Json] = [
            {"request": f"{each.method} {each.url}", "status": each.status, "failed": each.failed}
            for each in guard.sent
        ]
        told: Json = {"sent": sent, "held_back": list(guard.held)}
        return self.redacted(rfc8785.dumps(told).decode()).encode()
