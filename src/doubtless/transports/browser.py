"""A script in a page of Chromium, by Playwright: it prepares, acts once, and waits.

What is proven: until the script says that it acts, nothing leaves the page that could act, so that
whatever fails before is not sent. After that only the confirmation counts which the script has
named beforehand: it was not there before, it is shown now, and the server took every request that
acted. Everything else is unknown, and for a person: how the page looked before, after and at the
end is stored, and the page stays open for a while. Nothing is ever repeated by itself.
"""

import importlib
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

import anyio
import rfc8785
from playwright.async_api import Error, Page
from playwright.async_api import TimeoutError as TookTooLong

from doubtless.core.model import Cause, Json, Seen, Stage
from doubtless.errors import DoubtlessError, GateClosed, NotSent
from doubtless.transports.base import (
    Errand,
    Gate,
    Reply,
    Sighting,
    Watch,
    Workplace,
    could_not_ask,
)
from doubtless.transports.browser_form import Form
from doubtless.transports.browser_guard import Guard
from doubtless.transports.browser_pages import Opened, Pages, Program

LAST_S: Final = 6.0  # for the last picture of an attempt that ran out of time

Script: TypeAlias = Callable[[Page, Form], Awaitable[Json]]

_log = logging.getLogger("doubtless.transports.browser")


@dataclass(slots=True)
class _Trial:
    """One attempt at work."""

    errand: Errand
    opened: Opened
    form: Form
    watch: Watch

    async def carried_out(self, script: Script) -> Reply:
        """Run the script, and judge what was seen."""
        error: Exception | None = None
        value: Json = None
        try:
            await self.opened.view.page.goto(str(self.errand.action.members["start_url"]))
            value = await script(self.opened.view.page, self.form)
        except Exception as caught:  # noqa: BLE001 - the script's own code may raise anything
            error = caught
        self.opened.guard.shut()
        reply = self._judged(value, error)
        if self.form.has_acted:
            await self.keep_the_end()
        return reply

    def _judged(self, value: Json, error: Exception | None) -> Reply:
        """Say what is proven."""
        guard, told = self.opened.guard, self._told(error)
        if not self.form.has_acted:
            detail = told or "the script ended, and never said that it acts"
            if guard.held:
                detail += f"; held back: {guard.held[-1]}"
            stage = Stage.GATE if isinstance(error, GateClosed) else Stage.OPENED
            return Reply(stage=stage, proof=Seen.NOT_SENT, detail=self._shown(detail))
        if guard.is_late and not guard.sent:
            detail = "the time to begin was over when the page began to send"
            return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=detail)
        why = told or self._doubt()
        if why is not None:
            detail = self._shown(f"{why}; the page is {self.opened.view.page.url}")
            return Reply(stage=self.watch.stage, cause=self._cause(error), detail=detail)
        detail = f"the page confirmed it at {self.opened.view.page.url}"
        return Reply(
            stage=Stage.READ,
            proof=Seen.SUCCEEDED,
            detail=self._shown(detail),
            body=_result(value),
            complete=True,
        )

    def _doubt(self) -> str | None:
        """Say why what the page shows proves nothing; None: it proves that it was done."""
        guard = self.opened.guard
        if not self.form.is_confirmed:
            return "the script named no confirmation that it saw"
        if not guard.has_asked:
            return "the page shows a confirmation, and has sent nothing"
        if guard.spoilt is not None:
            return f"the page shows a confirmation, but {guard.spoilt}"
        return None

    def _cause(self, error: Exception | None) -> Cause:
        """Say why it is not known."""
        bad = next((each for each in self.opened.guard.sent if not each.is_good), None)
        if bad is not None:
            return Cause.UNPROVEN_STATUS if bad.status is not None else Cause.CONNECTION_RESET
        if isinstance(error, TookTooLong):
            return Cause.TIMEOUT
        return Cause.UNREADABLE if error is None else Cause.TOOL_ERROR

    async def keep_the_end(self) -> None:
        """Store how it ended. Nothing depends on it."""
        view, keep = self.opened.view, self.errand.keep
        await self.form.end()
        try:
            await keep("requests.json", view.requests(self.opened.guard))
            await view.keep("end", keep)
        except DoubtlessError as error:
            _log.warning("operation %s: its last page: %s", self.errand.operation_id, error)

    def _told(self, error: Exception | None) -> str:
        if error is None:
            return ""
        if isinstance(error, DoubtlessError):
            return str(error)
        # The rest of a driver's error is its log.
        return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"

    def _shown(self, detail: str) -> str:
        return self.opened.view.redacted(detail)


class BrowserTransport:
    """Runs scripts in pages of a Chromium of this host."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self._pages = Pages(workplace.boot_s)

    async def survey(self, errand: Errand) -> Json:
        """Be sure that there are a script and a browser.

        Raises:
            NotSent: One is missing here.
        """
        members = errand.action.members
        _script(str(members["script"]))
        Program.of(members)
        return {"script": members["script"]}

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Run the script once; see `ActionTransport.perform`."""
        members = errand.action.members
        async with self._pages.running:
            try:
                script, program = _script(str(members["script"])), Program.of(members)
                guard = self._guard(members, watch)
                opened = await self._pages.open(
                    errand.operation_id, program, guard, limit_s=limit_s
                )
            except (NotSent, Error, OSError) as error:
                why = f"no page could be opened: {str(error).partition(chr(10))[0]}"
                return Reply(stage=Stage.OPENED, proof=Seen.NOT_SENT, detail=why)
            form = Form(errand, opened.view, guard, gate, watch, self._workplace)
            return await self._tried(_Trial(errand, opened, form, watch), script)

    async def _tried(self, trial: _Trial, script: Script) -> Reply:
        """Carry out, and leave the page open where it is not known what came of it."""
        reply: Reply | None = None
        try:
            reply = await trial.carried_out(script)
            return reply
        finally:
            opened, operation_id = trial.opened, trial.errand.operation_id
            opened.guard.shut()
            with anyio.CancelScope(shield=True):
                if reply is None and trial.form.has_acted:
                    with anyio.move_on_after(LAST_S):
                        await trial.keep_the_end()
                keep_ms = cast("int", trial.errand.action.members["keep_open_ms"])
                if trial.form.has_acted and (reply is None or reply.proof is None) and keep_ms:
                    self._pages.keep(operation_id, opened, keep_s=keep_ms / 1000)
                else:
                    await self._pages.close(operation_id, opened)

    def _guard(self, members: Mapping[str, Json], watch: Watch) -> Guard:
        def left() -> None:
            watch.sent_bytes += 1
            watch.first_byte_s = self._workplace.boot_s()  # the last that left: the later bound

        return Guard(
            origins=frozenset(cast("list[str]", members["origins"])),
            harmless=tuple(cast("list[str]", members["harmless"])),
            boot_s=self._workplace.boot_s,
            left=left,
        )

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Say that nobody can be asked: what a click led to is for a person to find out."""
        return could_not_ask("a page can't be asked what became of a click")

    async def picture(self, operation_id: str) -> bytes | None:
        """Return the page of an operation as it is now, as a JPEG; None: it isn't open here."""
        opened = self._pages.shown(operation_id)
        return None if opened is None else await opened.view.picture()

    async def let_go(self, operation_id: str) -> None:
        """Close the page that was left open for an operation: nobody needs it any more."""
        opened = self._pages.shown(operation_id)
        if opened is not None and opened.ends is not None:
            await self._pages.close(operation_id, opened)

    async def aclose(self) -> None:
        """Close all pages, and end the browsers."""
        await self._pages.aclose()


def _script(place: str) -> Script:
    """Import `module:function`.

    Raises:
        NotSent: There is no such asynchronous function here.
    """
    module, _, name = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:
        why = f"the script {place} can't be imported: {type(error).__name__}: {error}"
        raise NotSent(why) from error
    if not inspect.iscoroutinefunction(found):
        raise NotSent(
            f"the script {place} is no asynchronous function: async def {name}(page, form)"
        )
    return cast("Script", found)


def _result(value: Json) -> bytes:
    """Write what the script returned; what is no JSON is told in words."""
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError:
        return rfc8785.dumps({"returned": f"{type(value).__name__}, which is no JSON"})
