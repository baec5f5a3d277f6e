"""Asking the declared look-ups about an operation whose outcome is not known. Reads only."""

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread

from doubtless.core.contract import Contract, LookupRules, RequestRules
from doubtless.core.identity import canonical
from doubtless.core.model import Evidence, Json, Record, Shows, Source, Strength
from doubtless.engine import lookups, steps
from doubtless.engine.actions import Actions, Errands
from doubtless.engine.book import Book
from doubtless.engine.credentials import Credentials
from doubtless.engine.reading import Page, find, page_of
from doubtless.engine.registry import Ask
from doubtless.engine.steps import Looking
from doubtless.engine.templates import TemplateError, TemplateValues, render_request
from doubtless.errors import DoubtlessError
from doubtless.ledger.store import Ledger
from doubtless.transports.base import (
    HttpRequest,
    HttpSender,
    Sighting,
    Watch,
    could_not_ask,
    open_gate,
)
from doubtless.transports.function import is_cancelled

_log = logging.getLogger("doubtless.engine")

PAGES_MAX = 20  # of one look-up; a longer list could not be asked
HEARSAY = frozenset({"ingress"})
"""Boundaries that only saw the request pass: what they say is advisory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is known of an operation while its look-ups are asked."""

    record: Record
    contract: Contract
    arguments: dict[str, Json]


class Reconciler:
    """Asks look-ups, and records what they say. One for each open application."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        book: Book,
        credentials: Credentials,
        http: HttpSender,
        actions: Actions,
        changed: Callable[[Record], None],
    ) -> None:
        self._ledger, self._book = ledger, book
        self._actions, self._errands = actions, Errands(ledger, book)
        self._credentials, self._http, self._changed = credentials, http, changed

    async def look(self, looking: Looking) -> None:
        """Ask the look-ups in order, up to the first that finds something, and record it all."""
        operation_id = looking.record.operation.id
        arguments = self._ledger.read(lambda tx: self._book.arguments(tx, operation_id))
        asked = Asked(record=looking.record, contract=looking.contract, arguments=arguments or {})
        items: list[Evidence] = []
        result: bytes | None = None
        for rules in looking.contract.lookups:
            begun_ms = self._ledger.read(lambda tx: tx.now_ms)
            if arguments is None:
                seen = could_not_ask("retention has emptied its arguments")
            else:
                seen = await self._ask(rules, asked)
            items.append(_evidence(rules, seen, begun_ms))
            if seen.shows is Shows.APPLIED:
                result = _kept(seen.result)
            if seen.shows not in (Shows.ABSENT, Shows.COULD_NOT_ASK):
                break
        record = await self._ledger.commit(
            lambda tx: steps.looked(self._book, tx, looking, items, result=result)
        )
        self._changed(record)

    async def _ask(self, rules: LookupRules, asked: Asked) -> Sighting:
        """Ask one look-up, within its time-out. Whatever goes wrong could not be asked."""
        found: Sighting | None = None
        with anyio.move_on_after(rules.timeout_ms / 1000):
            if rules.request is not None:
                found = await self._ask_http(rules, asked)
            elif rules.speaks is not Source.LOOKUP:
                found = await self._ask_there(rules, asked)
            else:
                found = await self._ask_code(rules, asked)
        return found or could_not_ask(f"no answer within {rules.timeout_ms} ms")

    # --- over HTTP -------------------------------------------------------------------------------

    async def _ask_http(self, rules: LookupRules, asked: Asked) -> Sighting:
        pages: list[Page] = []
        page: Json = None
        values = TemplateValues.of(asked.record.operation, asked.arguments)
        try:
            request = lookup_request(rules, asked.contract, values)
            for _ in range(PAGES_MAX):
                found = await self._page(request, rules, asked.contract)
                if isinstance(found, Sighting):
                    ended = find(pages, rules, values) if pages else found
                    # A match that was seen stays seen, even if a later page can't be had.
                    return found if ended.shows in (Shows.ABSENT, Shows.COULD_NOT_ASK) else ended
                pages.append(found)
                if not found.next_page or found.next_page == page:
                    return find(pages, rules, values)
                page = found.next_page
                values = TemplateValues.of(asked.record.operation, asked.arguments, page=page)
                request = next_request(rules, asked.contract, values, page)
        except TemplateError as error:
            return could_not_ask(f"its request can't be made: {error}")
        return could_not_ask(f"the answer has more than {PAGES_MAX} pages")

    async def _page(
        self, request: HttpRequest, rules: LookupRules, contract: Contract
    ) -> Page | Sighting:
        reply = await self._http.perform(
            request,
            source=contract.source,
            private=lambda: self._credentials.headers(contract.source),
            gate=open_gate,
            watch=Watch(),
            limit_s=rules.timeout_ms / 1000,
            fresh=False,
        )
        return page_of(reply, rules)

    # --- by the transport that acted -------------------------------------------------------------

    async def _ask_there(self, rules: LookupRules, asked: Asked) -> Sighting:
        operation, kind = asked.record.operation, asked.contract.kind
        try:
            errand = self._errands.errand(
                operation.id, asked.contract, max(1, len(asked.record.attempts))
            )
            if errand.baseline is None:
                # It is durable before any gate is asked, and none opens for these attempts now.
                told = "no attempt came as far as to note how things stood before"
                return Sighting(shows=Shows.ABSENT, detail=told)
            transport = self._actions.transport(kind)
            return await transport.look(errand, limit_s=rules.timeout_ms / 1000)
        except DoubtlessError as error:
            return could_not_ask(str(error))
        except Exception as error:  # noqa: BLE001 - any exception is could-not-ask
            _log.exception("operation %s could not be asked about", operation.id)
            return could_not_ask(f"{type(error).__name__} on our side")

    # --- in code ---------------------------------------------------------------------------------

    async def _ask_code(self, rules: LookupRules, asked: Asked) -> Sighting:
        code = self._book.registry.asker(asked.contract, rules)
        if code is None:
            return could_not_ask("its code is not registered in this process")
        try:
            return lookups.sighting(await _called(code, _shown(asked)))
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            return could_not_ask("the look-up was cancelled from within")
        except (Exception, SystemExit) as error:  # noqa: BLE001 - any is could-not-ask
            return could_not_ask(f"{type(error).__name__} escaped from the look-up")


async def _called(code: Ask, operation: lookups.Operation) -> object:
    if inspect.iscoroutinefunction(code):
        return await code(operation)

    def work() -> object:
        return code(operation)

    found = await anyio.to_thread.run_sync(work, abandon_on_cancel=True)
    return await found if inspect.isawaitable(found) else found


def _shown(asked: Asked) -> lookups.Operation:
    operation = asked.record.operation
    return lookups.Operation(
        operation_id=operation.id,
        ref=operation.ref,
        idempotency_key=operation.key,
        tool=operation.tool,
        arguments=asked.arguments,
        session_id=operation.session_id,
        provider_operation_id=operation.provider_operation_id,
    )


def lookup_request(rules: LookupRules, contract: Contract, values: TemplateValues) -> HttpRequest:
    """Render a look-up's request.

    Raises:
        TemplateError: It needs something that isn't known yet.
    """
    if rules.request is None:
        raise TemplateError(rules.name, "this look-up is code, not a request")
    return render_request(rules.request, contract.source.base_url, values)


def next_request(
    rules: LookupRules, contract: Contract, values: TemplateValues, page: Json
) -> HttpRequest:
    """Render the request for the next page: by a URL on the same origin, or by a value."""
    if isinstance(page, str) and page.startswith(("http://", "https://", "/")):
        linked = TemplateValues(status_url=page)
        return render_request(_link(rules), contract.source.base_url, linked)
    return lookup_request(rules, contract, values)


def _link(rules: LookupRules) -> RequestRules:
    """Return rules for following a link that the provider gave, without our own query."""
    assert rules.request is not None  # noqa: S101 - only HTTP look-ups have pages
    return replace(rules.request, path="{operation.status_url}", query={})


def _kept(result: Json) -> bytes | None:
    """Return what was found as JSON, or nothing where it is none: the finding itself stands."""
    try:
        return canonical(result)
    except Exception:  # noqa: BLE001 - a value may raise when it is looked at
        return None


def _evidence(rules: LookupRules, seen: Sighting, begun_ms: int) -> Evidence:
    """Return a sighting as evidence. Its number and time of recording are set when stored."""
    hearsay = rules.boundary in HEARSAY
    return Evidence(
        number=0,
        source=rules.speaks,
        shows=seen.shows,
        strength=Strength.ADVISORY if hearsay else Strength.AUTHORITATIVE,
        at_ms=0,
        begun_ms=begun_ms,
        by=rules.name,
        provider_operation_id=seen.provider_operation_id,
        detail=seen.detail,
    )
