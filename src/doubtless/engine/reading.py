"""Replies read with a contract's expressions: what an answer says, and what a look-up found.

Transports witness and the core judges; in between, this module only finds the places in a body.
What can't be read is said to be unreadable, or not asked: never absent, and never a failure.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import cast

from doubtless.core.answers import Answer
from doubtless.core.contract import Contract, LookupRules, ResponseRules
from doubtless.core.model import Effect, Json, Shows
from doubtless.engine.expressions import ExpressionError, evaluate, holds, truthy
from doubtless.engine.templates import TemplateError, TemplateValues, render
from doubtless.transports.base import Reply, Sighting, could_not_ask

RETRY_AFTER_MAX_MS = 86_400_000


class Unreadable(Exception):
    """A body is not what the contract expects; the text says why, without quoting it."""


def body_of(reply: Reply) -> Json:
    """Parse a complete body as JSON; nothing at all is null.

    Raises:
        Unreadable: It is no JSON that can be kept: a log-in page, a fragment, NaN.
    """
    if not reply.body.strip():
        return None
    try:
        found: Json = json.loads(reply.body, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        kind = reply.headers.get("content-type", "no content type")
        raise Unreadable(f"its body is not JSON ({kind.partition(';')[0]})") from error
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is beyond what a number can hold")
    return number


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _is_text(reply: Reply) -> bool:
    """Whether the provider says that its answer is text, and it is no page for people."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind.startswith("text/") and kind != "text/html"


# --- answers -------------------------------------------------------------------------------------


def answer_of(reply: Reply, contract: Contract, *, now_ms: int) -> tuple[Answer, Json]:
    """Return what an answer says, and the result for the agent (null where there is none)."""
    rules = contract.response
    body: Json = None
    unreadable: str | None = None
    if reply.status is not None and reply.complete:
        try:
            body = body_of(reply)
        except Unreadable as error:
            unreadable = None if _is_text(reply) and not _reads_body(rules) else str(error)
            body = reply.body.decode("utf-8", "replace") if unreadable is None else None
    found = _Found(body, reply.headers)
    if unreadable is None and body is None and reply.complete and _needs_body(rules, reply):
        unreadable = "its body is empty, and the contract reads it"
    replayed = contract.key.replayed if contract.key else None
    identifies = contract.effect is Effect.TIME_SENSITIVE or 200 <= (reply.status or 0) < 300
    answer = Answer(
        stage=reply.stage,
        proof=reply.proof,
        cause=reply.cause,
        detail=reply.detail,
        status=reply.status,
        complete=reply.complete,
        accepted=found.holds(rules.accepted),
        failed=found.holds(rules.failed),
        replayed=found.holds(replayed),
        provider_operation_id=found.text(rules.provider_operation_id) if identifies else None,
        status_url=found.text(rules.status_url),
        retry_after_ms=retry_after_ms(reply.headers.get("retry-after"), now_ms=now_ms),
        unreadable=unreadable or found.wrong,
    )
    return answer, found.value(rules.result)


def _reads_body(rules: ResponseRules) -> bool:
    said = (rules.accepted, rules.failed, rules.provider_operation_id)
    return rules.result != "@" or any(
        text is not None and not text.startswith("headers.") for text in said
    )


def _needs_body(rules: ResponseRules, reply: Reply) -> bool:
    """Whether an empty success would leave a declared question about it unanswered."""
    asked = [text for text in (rules.failed, rules.accepted) if text is not None]
    reads = any(not text.startswith("headers.") for text in asked)
    return 200 <= (reply.status or 0) < 300 and reads


class _Found:
    """Expressions over one answer. The first that can't be evaluated makes it unreadable."""

    def __init__(self, body: Json, headers: Mapping[str, str]) -> None:
        self._body, self._headers = body, headers
        self.wrong: str | None = None

    def value(self, expression: str | None) -> Json:
        if expression is None:
            return None
        try:
            return evaluate(expression, self._body, self._headers)
        except ExpressionError as error:
            self.wrong = self.wrong or f"it doesn't fit the contract: {error.wrong}"
            return None

    def holds(self, expression: str | None) -> bool:
        return truthy(self.value(expression))

    def text(self, expression: str | None) -> str | None:
        return as_text(self.value(expression))


def as_text(value: Json) -> str | None:
    """Return an id as text; ids that are numbers are written as JSON does."""
    if isinstance(value, str):
        # A lone surrogate is no text that could be kept or sent back.
        return value if value and value.isprintable() else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return str(value)


def retry_after_ms(text: str | None, *, now_ms: int) -> int | None:
    """Read `Retry-After` (RFC 9110): seconds or a date; None where it is neither."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            until = parsedate_to_datetime(text)
            if until.tzinfo is None:
                until = until.replace(tzinfo=UTC)
            seconds = (until - datetime.fromtimestamp(now_ms / 1000, tz=UTC)).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None
    if not math.isfinite(seconds):
        return None
    return min(max(0, int(seconds * 1000)), RETRY_AFTER_MAX_MS)


def read_of(reply: Reply, contract: Contract, *, now_ms: int) -> dict[str, Json] | None:
    """Say how far a read's answer may be relied on; None where the contract doesn't ask."""
    rules = contract.read
    if rules is None or reply.status is None:
        return None
    try:
        body = body_of(reply)
        value = evaluate(rules.value, body, reply.headers) if rules.value else None
        complete = rules.complete is None or holds(rules.complete, body, reply.headers)
    except (Unreadable, ExpressionError):
        value, complete = None, False
    settles_ms = None if rules.settles_within_ms is None else now_ms + rules.settles_within_ms
    cached = int(reply.headers.get("age", "0") or 0) > 0 if _is_age(reply) else False
    versioned = rules.consistency == "none" or value is not None
    return {
        "consistency": rules.consistency,
        "value": value,
        "as_of": now_ms,
        "complete": complete,
        "settles_at": settles_ms,
        "sound": complete and not cached and versioned,  # usable, once it has settled
    }


def _is_age(reply: Reply) -> bool:
    return reply.headers.get("age", "").isdecimal()


# --- look-ups ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a look-up's answer: the items on it, and where the next one is."""

    items: tuple[Json, ...]
    complete: bool
    next_page: Json


def page_of(reply: Reply, look: LookupRules) -> Page | Sighting:
    """Read one answer of a look-up. A `Sighting` ends the look: absent, or it couldn't be asked."""
    if reply.status is None:
        return could_not_ask(reply.detail or "no answer came")
    if not reply.complete:
        return could_not_ask(f"status {reply.status}, and the answer broke off")
    if reply.status in look.not_found:
        return Sighting(shows=Shows.ABSENT, detail=f"status {reply.status}: not found")
    if not 200 <= reply.status < 300:
        return could_not_ask(f"status {reply.status}")
    try:
        body = body_of(reply)
        found = evaluate(look.items, body, reply.headers)
        complete = look.complete is None or holds(look.complete, body, reply.headers)
        next_page = evaluate(look.next_page, body, reply.headers) if look.next_page else None
    except (Unreadable, ExpressionError) as error:
        return could_not_ask(f"status {reply.status}, but {error}")
    if isinstance(found, Mapping):
        items: tuple[Json, ...] = (found,)
    elif isinstance(found, Sequence) and not isinstance(found, str):
        items = tuple(found)
    else:
        return could_not_ask(f"status {reply.status}, and there is no {look.items!r} in the body")
    return Page(items=items, complete=complete, next_page=next_page)


def find(pages: Sequence[Page], look: LookupRules, values: TemplateValues) -> Sighting:
    """Say what all pages of one look-up show. Only a complete answer can say "absent"."""
    try:
        where = _rendered(look.where, values)
        equal = cast("Mapping[str, Json]", render(dict(look.equal), values))
        matches = [item for page in pages for item in page.items if _fits(item, where)]
    except (TemplateError, ExpressionError) as error:
        return could_not_ask(f"its conditions can't be evaluated: {error}")
    if len(matches) > 1:
        return Sighting(shows=Shows.CONFLICT, detail=f"{len(matches)} objects match, not one")
    if matches:
        return _judged(matches[0], look, equal)
    if not pages or not pages[-1].complete:
        return could_not_ask("the answer is only a part, and nothing on it matches")
    stray = _ignored_filter(pages, look, values)
    if stray is not None:
        return could_not_ask(f"the provider ignored the filter {stray!r}")
    return Sighting(shows=Shows.ABSENT, detail="nothing matches")


def _rendered(conditions: Mapping[str, Json], values: TemplateValues) -> dict[str, Json]:
    return {place: render(value, values, strict=True) for place, value in conditions.items()}


def _fits(item: Json, conditions: Mapping[str, Json]) -> bool:
    return all(_same(evaluate(place, item), wanted) for place, wanted in conditions.items())


def _same(found: Json, wanted: Json) -> bool:
    """Compare as JSON: 1 is 1.0, but true is not 1, and text is never a number."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    return found == wanted


def _judged(item: Json, look: LookupRules, equal: Mapping[str, Json]) -> Sighting:
    """Say what the one matching object shows."""
    try:
        found = as_text(evaluate(look.provider_operation_id or "id", item))
        result = evaluate(look.result, item)
        differs = [p for p, wanted in equal.items() if not _same(evaluate(p, item), wanted)]
        shows = Shows.CONFLICT if differs else _state(item, look)
    except ExpressionError as error:
        return Sighting(shows=Shows.PRESENT, detail=f"found, but it can't be read: {error.wrong}")
    words = {
        Shows.APPLIED: "found",
        Shows.IN_PROGRESS: "found, still in progress",
        Shows.NOT_APPLIED: "found, ended in failure",
        Shows.CONFLICT: f"found, but with another {', '.join(differs)}",
        Shows.PRESENT: "found, but nothing ties it to this operation",
    }
    if look.attributes or shows is Shows.CONFLICT:
        detail = words[shows]
    else:
        shows, detail = Shows.PRESENT, words[Shows.PRESENT]
    named = f"{detail} ({found})" if found else detail
    return Sighting(shows=shows, detail=named, provider_operation_id=found, result=result)


def _state(item: Json, look: LookupRules) -> Shows:
    """Failure and progress first: an object that says both isn't done."""
    if look.failed is not None and holds(look.failed, item):
        return Shows.NOT_APPLIED
    if look.in_progress is not None and holds(look.in_progress, item):
        return Shows.IN_PROGRESS
    if look.applied is None or holds(look.applied, item):
        return Shows.APPLIED
    return Shows.PRESENT


def _ignored_filter(pages: Sequence[Page], look: LookupRules, values: TemplateValues) -> str | None:
    """Name a filter of the query that items on the pages contradict, if there is one."""
    if look.request is None:
        return None
    wanted = cast("Mapping[str, Json]", render(look.request.query, values))
    for name, value in wanted.items():
        for page in pages:
            for item in page.items:
                found = item.get(name) if isinstance(item, Mapping) else None
                if isinstance(found, bool) or not isinstance(found, str | int):
                    continue  # there is more than one way to write these in a query
                many = (
                    value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
                )
                if as_text(found) not in [as_text(each) for each in many]:
                    return name
    return None
