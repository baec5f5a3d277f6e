"""The ways of all kinds of tools: a request's, a function's, and those that blocks say."""

from collections.abc import Iterator
from dataclasses import replace

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.effects import RULES
from doubtless.core.model import Source
from doubtless.engine.contracts.blocks import BLOCKS
from doubtless.engine.contracts.boundary import (
    GATE,
    RECORDED,
    Boundary,
    Way,
    doubtful,
    harmless,
)

_AT_PROVIDER = (
    ("ingress", "the provider's ingress", "It comes in, where the provider's servers begin."),
    ("application", "the provider's application", "Its program takes it up."),
    ("worker", "the provider's worker", "What it leaves for later is done."),
    ("object", "the provider's object", "The effect exists, for whoever asks the provider."),
)


def way_of(contract: Contract) -> Way:
    """Return the way of a tool's action."""
    if contract.action is not None:
        own = BLOCKS[contract.kind].way(contract.action)
        return replace(own, path=(*own.path, *_asked_besides(contract)))
    if contract.kind is Kind.FUNCTION:
        return Way(path=_function(contract))
    return Way(path=_request(contract))


def _asked_besides(contract: Contract) -> Iterator[Boundary]:
    """Yield what look-ups say that were declared beside a block's own."""
    told = _spoken(contract, None)
    if told:
        yield doubtful("whoever else is asked", "The effect exists, for whoever asks.", told)


def _request(contract: Contract) -> tuple[Boundary, ...]:
    return (
        *RECORDED,
        harmless(
            "name, connection, encryption",
            "The host is found, connected to, and proves who it is.",
            "our count: not a byte of the request was written.",
        ),
        GATE,
        doubtful("the first byte", "It leaves. From here on only the other side can tell."),
        *(doubtful(name, means, _spoken(contract, place)) for place, name, means in _AT_PROVIDER),
        doubtful("the answer", "It comes back; one that breaks off is none.", _answers(contract)),
    )


def _function(contract: Contract) -> tuple[Boundary, ...]:
    return (
        *RECORDED,
        GATE,
        doubtful(
            "the function's first line",
            "From here on its code may do anything.",
            "an exception that is declared as not_sent or rejected: not done. No other.",
        ),
        doubtful(
            "call.http, where it is used",
            "Each request leaves once, and is watched.",
            "our count: not a byte was written, so that not_sent can be believed.",
        ),
        doubtful(
            "what it reaches", "The effect exists, for whoever asks.", _spoken(contract, None)
        ),
        doubtful(
            "call.applied(…)",
            "The function says that it was done, which is on disk when it returns.",
            "its word: done, whatever fails after it.",
        ),
        doubtful("what it returns", "The result is recorded.", "it returned: done."),
    )


def _spoken(contract: Contract, place: str | None) -> str:
    """Say which look-ups and events speak for a place of the provider's; None: for any."""
    found = []
    for look in contract.lookups if RULES[contract.effect].looks_up else ():
        # What is asked of the provider as a whole is asked about the effect itself.
        at = "object" if look.boundary == "provider" else look.boundary
        if look.speaks is Source.LOOKUP and place in (at, None):
            found.append(f"{look.name} ({_asked(look)}). {_says(look)}")
    events = contract.events
    if events is not None and place in ("object", None):
        word = "what it says" if events.authoritative else "nothing, but a reason to ask"
        found.append(f"an event ({', '.join(events.types)}): {word}.")
    return " ".join(found)


def _asked(look: LookupRules) -> str:
    if look.request is not None:
        return f"{look.request.method} {look.request.path}"
    return look.python or "code"


def _says(look: LookupRules) -> str:
    found = "Found: done." if look.attributes else "Found: not ours for sure."
    absent = "Not found, once that counts: not done." if look.authoritative else ""
    return f"{found} {absent or 'Not found: nothing.'}"


def _answers(contract: Contract) -> str:
    response = contract.response
    parts = ["the whole answer. 2xx: done, but for 202: taken."]
    if response.accepted or response.status_url:
        parts.append("Others that say so: taken.")
    if response.not_processed:
        parts.append(f"{_listed(response.not_processed)}: nothing was done with it.")
    if response.rejected:
        parts.append(f"{_refusals(response.rejected)}: refused.")
    return f"{' '.join(parts)} Any other: nothing."


def _refusals(statuses: tuple[int, ...]) -> str:
    """Say statuses shortly, where nearly all of 4xx are among them."""
    client = [status for status in statuses if status < 500]
    if len(client) < 50:
        return _listed(statuses)
    others = [str(status) for status in statuses if status >= 500]
    return ", ".join(["most other 4xx", *others])


def _listed(statuses: tuple[int, ...]) -> str:
    return ", ".join(map(str, statuses))
