"""`[tools.X.browser]`: a script in code, that does something once in a page."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final
from urllib.parse import urlsplit

from pydantic import Field

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.model import Effect, Json
from doubtless.engine.contracts.block import BlockTable, Place, Wrong
from doubtless.engine.contracts.boundary import GATE, RECORDED, Way, doubtful, harmless
from doubtless.engine.contracts.values import Credential, Duration, TemplateText, Text
from doubtless.engine.templates import names_in

KEEP_OPEN_MS: Final = 900_000
KEEP_OPEN_MAX_MS: Final = 86_400_000
_SCRIPT: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_HARMLESS: Final = re.compile(r"[A-Z]+ https?://[^\s?#]+")


class BrowserTable(BlockTable):
    """`[tools.X.browser]`."""

    KIND: ClassVar[Kind] = Kind.BROWSER
    EFFECTS: ClassVar[frozenset[Effect]] = frozenset({Effect.BROWSER, Effect.TIME_SENSITIVE})

    script: Text  # module:function
    start_url: TemplateText  # opened before the script is called
    origins: list[Text] = Field(default_factory=list)  # besides that of start_url
    harmless: list[Text] = Field(default_factory=list)  # "POST https://…/login": before the act
    credential: Credential | None = None
    keep_open: Duration | None = None  # of a page whose operation is not settled
    headless: bool = True
    executable: Text | None = None

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is stored: all origins, and how long the page is kept."""
        said = BlockTable.action(self, place)
        said.pop("keep_open", None)
        if self.executable is not None:
            said["executable"] = str(place.folder / self.executable)
        own = _origin(self.start_url) or ""
        return {
            **said,
            "origins": sorted({own, *(_origin(each) or each for each in self.origins)}),
            "keep_open_ms": KEEP_OPEN_MS if self.keep_open is None else self.keep_open,
        }

    def look(self, horizon_ms: int | None) -> LookupRules | None:
        """Return None: what a click led to is for a person to find out."""
        return None

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield a script that can't be one, and addresses that say no origin."""
        if not _SCRIPT.fullmatch(self.script):
            wrong = f"{self.script!r} names no function."
            yield Wrong(key="script", wrong=wrong, mend='write module:function: "shop.forms:send".')
        if (own := _origin(self.start_url)) is None or names_in(own):
            wrong = f"{self.start_url!r} has no origin of its own."
            mend = 'write it whole, with a fixed host: "https://shop.example/form".'
            yield Wrong(key="start_url", wrong=wrong, mend=mend)
        for each in self.origins:
            if _origin(each) is None or urlsplit(each).path not in ("", "/"):
                mend = 'write scheme and host: "https://cdn.example".'
                yield Wrong(key="origins", wrong=f"{each!r} is no origin.", mend=mend)
        for each in self.harmless:
            if not _HARMLESS.fullmatch(each):
                mend = (
                    'write method and address, without a query: "POST https://shop.example/login".'
                )
                yield Wrong(key="harmless", wrong=f"{each!r} names no request.", mend=mend)
        if self.keep_open is not None and self.keep_open > KEEP_OPEN_MAX_MS:
            yield Wrong(key="keep_open", wrong="a page is kept a day at most.", mend='say "24h".')
        if self.pace is not None:
            yield Wrong(key="pace", wrong="there is no look-up in a page.", mend="leave it out.")

    @staticmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered page can't be opened."""
        url, origins = str(members["start_url"]), members["origins"]
        assert isinstance(origins, list)  # noqa: S101 - `action` has made it
        if not url.isprintable() or " " in url or _origin(url) not in origins:
            return f"start_url: {url!r} is not at {', '.join(map(str, origins))}"
        return None

    @staticmethod
    def target(members: Mapping[str, Json]) -> str:
        """Name page and script."""
        return f"the page {members['start_url']}, by {members['script']}"

    @staticmethod
    def question(members: Mapping[str, Json]) -> str:
        """Say what a person would do."""
        return f"open {members['start_url']}, and see what became of it"

    @staticmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Return its way: before the click, the click, the confirmation."""
        held = "our barrier: every request passes it, and none that could act was let through."
        return Way(
            missing="nothing in a page; where the site has an API, declare that as a request",
            path=(
                *RECORDED,
                harmless("the page", f"{members['start_url']} is opened and filled in.", held),
                harmless("the picture before", "How the page looks is kept, for people.", held),
                GATE,
                doubtful("the click", "From here on the page may send what acts. Only once."),
                doubtful("the site's answer", "The site takes it, or does not."),
                doubtful(
                    "the confirmation",
                    "The page shows what the script named beforehand.",
                    "it was not there before, it is there now, and the site took every request "
                    "that acted: done.",
                ),
            ),
        )


def _origin(url: str) -> str | None:
    """Return scheme, host and port of an address, as a browser compares them; None: it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    usual = {"http": 80, "https": 443}[parts.scheme]
    return f"{parts.scheme}://{host}" + (f":{port}" if port not in (None, usual) else "")
