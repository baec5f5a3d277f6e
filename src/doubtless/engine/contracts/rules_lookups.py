"""Checks of look-ups: what one may ask, and what its answer may be taken for."""

import re
from collections.abc import Iterator
from typing import Final

from doubtless.core.effects import NO_EFFECT, Resend
from doubtless.core.model import Effect
from doubtless.engine.contracts.draft import Check, Draft
from doubtless.engine.contracts.file import LookupTable
from doubtless.errors import Problem

HORIZON_SAID: Final = frozenset({Effect.MONEY, Effect.ORDER, Effect.BOOKING, Effect.PHYSICAL})
HTTP_KEYS: Final = ("method", "path", "items", "where", "next_page", "complete", "not_found")

_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _asked(draft: Draft) -> Iterator[Problem]:
    if draft.said.lookup and draft.rule.resend is Resend.NEVER:
        yield draft.problem(
            "",
            "lookup",
            f"{draft.contract.effect.value} is never looked up: it goes straight to a person.",
            "leave it out, or declare the effect that it has.",
        )
    accepted = draft.said.response.accepted is not None
    if accepted and not draft.said.lookup and draft.said.events is None:
        yield draft.problem(
            "response",
            "accepted",
            "accepted work has neither a look-up nor events to tell how it ends.",
            "declare [….lookup] or [….events].",
        )


def _horizon(draft: Draft) -> Iterator[Problem]:
    if draft.contract.effect not in HORIZON_SAID or draft.said.in_flight_horizon is not None:
        return
    horizons = [(table, look.in_flight_horizon) for table, look in draft.lookups()]
    if draft.said.mcp is not None and draft.said.mcp.lookup is not None:
        horizons.append(("mcp.lookup", draft.said.mcp.lookup.in_flight_horizon))
    for table, horizon_ms in horizons:
        if horizon_ms is None:
            yield draft.problem(
                table,
                "in_flight_horizon",
                f"for {draft.contract.effect.value} it must be said how long a request that we "
                "gave up on may still take effect.",
                'say it here or at the tool: in_flight_horizon = "2m".',
            )


def _kinds(draft: Draft) -> Iterator[Problem]:
    for table, look in draft.lookups():
        if look.python is None:
            if look.path is None:
                yield draft.problem(
                    table, "path", "nothing says what to ask.", 'say path = "/…", or python = "…".'
                )
            continue
        for key in HTTP_KEYS:
            if getattr(look, key) is not None:
                yield draft.problem(
                    table, key, "the function answers instead.", "take it out, or python."
                )
        if not draft.is_code and not _FUNCTION.fullmatch(look.python):
            yield draft.problem(
                table,
                "python",
                f"{look.python!r} names no function.",
                'write "module:function", as in "shop.orders:refund_of".',
            )


def _matches(draft: Draft) -> Iterator[Problem]:
    for table, look in draft.lookups():
        if look.where == {} or (_lists(look) and look.where is None):
            yield draft.problem(
                table,
                "where",
                "nothing says which item is this operation's, so that any would do.",
                'say where = { "metadata.operation" = "{operation.ref}" }.',
            )


def _absence(draft: Draft) -> Iterator[Problem]:
    for table, look in draft.lookups():
        if look.authoritative and look.lag is None:
            yield draft.problem(
                table,
                "lag",
                "an absence is claimed as proof, and nothing says how far the read side trails.",
                'say it: lag = "30s" ("0s" if reads follow writes at once).',
            )


def _repeated_names(draft: Draft) -> Iterator[Problem]:
    seen: set[str] = set()
    for table, look in draft.looks():
        if look.name in seen:
            yield draft.problem(
                table, "name", f"{look.name!r} is taken.", "give each look-up its own name."
            )
        seen.add(look.name)


def _not_attributed(draft: Draft) -> Iterator[Problem]:
    for table, look in draft.looks():
        if not look.attributes and draft.contract.effect not in NO_EFFECT:
            yield draft.problem(
                table,
                "where",
                "no {operation.…} ties a match to this operation: it is present, but may be "
                "somebody else's, and goes to a person.",
                "put {operation.ref} into the object, and ask for it here.",
            )


def _unasked(draft: Draft) -> Iterator[Problem]:
    url = draft.said.response.status_url is not None
    if url and not draft.said.lookup and draft.said.events is None:
        yield draft.problem(
            "response",
            "status_url",
            "nobody asks it.",
            'add a look-up with path = "{operation.status_url}".',
        )


def _partial(draft: Draft) -> Iterator[Problem]:
    for table, look in draft.lookups():
        if look.authoritative and _lists(look) and not (look.complete or look.next_page):
            yield draft.problem(
                table,
                "complete",
                "an absence from a list counts even if the list has more pages.",
                'say complete = "!has_more" and next_page, if the provider pages.',
            )


def _lists(look: LookupTable) -> bool:
    return look.items is not None and look.items.strip() != "@"


LOOKUP_ERRORS: Final[tuple[Check, ...]] = (
    _asked,
    _horizon,
    _kinds,
    _matches,
    _absence,
    _repeated_names,
)
LOOKUP_WARNINGS: Final[tuple[Check, ...]] = (_not_attributed, _unasked, _partial)
