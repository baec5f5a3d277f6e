"""What a look-up by another tool found: this operation's effect, none, or nothing that counts."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.parser import ParsedResult

from doubtless.core.model import Json, Shows
from doubtless.transports.base import Sighting, could_not_ask

_FAULTS: Final = (
    JMESPathError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class _NotUnderstood(Exception):
    """The answer is not what the contract expects; the text says why, without quoting it."""


def seen_in(value: Json, look: Mapping[str, Json], marks: Sequence[str]) -> Sighting:
    """Say what an answer shows.

    An item is this operation's if all of `where` is equal in it; without `where`, if one of `marks`
    stands somewhere in its text. Items of which none is ours, where all that was asked for is ours,
    are an answer to another question: then it could not be asked.

    Args:
        value: What the tool answered.
        look: `arguments`, `items`, `complete`, `where`, `equal` and `id` of the contract, as
            rendered.
        marks: What stands for this operation alone.
    """
    try:
        return _seen(value, look, marks)
    except _NotUnderstood as error:
        return could_not_ask(str(error))


def _seen(value: Json, look: Mapping[str, Json], marks: Sequence[str]) -> Sighting:
    items = _items(value, str(look.get("items", "@")))
    complete = look.get("complete")
    whole = complete is None or bool(_search(str(complete), value))
    where = look.get("where")
    ours = [item for item in items if _is_ours(item, where, marks)]
    if len(ours) > 1:
        told = f"{len(ours)} were found that are this operation's"
        return Sighting(shows=Shows.CONFLICT, detail=told)
    if not ours:
        asked_for_ours = where is None or _holds(look.get("arguments"), marks)
        return _nothing(others=bool(items) and asked_for_ours, whole=whole)
    found = ours[0]
    for path, wanted in _members(look.get("equal")):
        if not _equal(_search(path, found), wanted):
            told = f"it was found, but its {path} is another"
            return Sighting(shows=Shows.CONFLICT, detail=told)
    name = _search(str(look["id"]), found) if look.get("id") is not None else None
    return Sighting(
        shows=Shows.APPLIED,
        detail="it was found",
        provider_operation_id=str(name) if isinstance(name, str | int) else None,
        result=found,
    )


def _nothing(*, others: bool, whole: bool) -> Sighting:
    if not whole:
        return could_not_ask("what was found is not all there is, and none of it is ours")
    if others:
        return could_not_ask("what was found does not carry our mark: it may be anybody's")
    return Sighting(shows=Shows.ABSENT, detail="it was not found")


def _items(value: Json, path: str) -> Sequence[Json]:
    found = _search(path, value)
    if found is None and path != "@":
        raise _NotUnderstood(f"the answer has no {path}")
    if isinstance(found, Sequence) and not isinstance(found, str):
        return found
    return [] if found is None or found == {} else [found]


def _is_ours(item: Json, where: Json, marks: Sequence[str]) -> bool:
    if where is None:
        return _holds(item, marks)
    return all(_equal(_search(path, item), wanted) for path, wanted in _members(where))


def _holds(value: Json, marks: Sequence[str]) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    return any(mark in text for mark in marks)


def _equal(one: Json, other: Json) -> bool:
    """Compare as JSON does: true is no number."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def _members(value: Json) -> Sequence[tuple[str, Json]]:
    return list(value.items()) if isinstance(value, Mapping) else []


def _search(path: str, value: Json) -> Json:
    try:
        found: Json = _compiled(path).search(value)
    except _FAULTS as error:
        raise _NotUnderstood(f"the answer does not fit {path!r}") from error
    return found


@lru_cache(maxsize=256)
def _compiled(path: str) -> ParsedResult:
    return jmespath.compile(path)
