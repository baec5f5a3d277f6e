"""JSON that means one thing only, read at a bounded cost."""

import json
import re
from collections.abc import Iterator
from typing import Final

from doubtless.core.model import Json

INTEGER_MAX: Final = 2**53 - 1
INTEGER_DIGITS_MAX: Final = 16

# A text that is not closed is taken to the end all the same: else each quote in it would be tried.
_SIGNS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|([\[{])|([\]}])|(,)', re.DOTALL)


class NotJson(ValueError):
    """It is no JSON, or none that everybody reads in the same way. The text never quotes it."""


def parse(content: bytes, *, depth_max: int, values_max: int) -> Json:
    """Read JSON in UTF-8 (RFC 8259, and I-JSON where it is stricter).

    Raises:
        NotJson: It isn't, or is nested deeper than `depth_max`, has more than `values_max` values,
            a member twice, an integer beyond ±(2**53 - 1), a number beyond a double, NaN, an
            infinity, NUL or half a surrogate pair.
    """
    _check_size(content, depth_max, values_max)
    try:
        found: Json = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_members,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except UnicodeDecodeError as error:
        raise NotJson(f"it is not UTF-8: byte {error.start} can't be read") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise NotJson(f"{error.msg} at {place}") from None
    except RecursionError:
        raise NotJson(f"it is nested deeper than {depth_max} levels") from None
    if b"\\u" in content:  # the only way to write what is looked for
        _check_texts(found)
    return found


def _check_size(content: bytes, depth_max: int, values_max: int) -> None:
    """Bound what reading costs, before anything is built of it."""
    depth, values = 0, 1
    for found in _SIGNS.finditer(content):
        if found[1]:
            depth += 1
            values += 1
            if depth > depth_max:
                raise NotJson(f"it is nested deeper than {depth_max} levels")
        elif found[2]:
            depth -= 1
        elif found[3]:
            values += 1
        if values > values_max:
            raise NotJson(f"it has more than {values_max} values")


def _members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise NotJson(f"it says {shown(twice)} twice")
    return members


def _integer(text: str) -> int:
    digits = text.removeprefix("-")
    if len(digits) > INTEGER_DIGITS_MAX or abs(int(text)) > INTEGER_MAX:
        raise NotJson("an integer is beyond ±(2**53 - 1), which not every reader keeps exactly")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise NotJson("a number is beyond what a double can hold")
    return value


def _constant(name: str) -> Json:
    raise NotJson(f"{name} is not JSON")


def _check_texts(value: Json) -> None:
    for text in _texts(value):
        if "\0" in text:
            raise NotJson("a text holds U+0000")
        if not text.isascii() and any("\ud800" <= part <= "\udfff" for part in text):
            raise NotJson("a text holds half a surrogate pair")


def _texts(value: Json) -> Iterator[str]:
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case dict() as members:
                yield from members
                waiting.extend(members.values())
            case list() as items:
                waiting.extend(items)


def shown(name: str) -> str:
    """Quote a client's own word, so that it is short and harmless to show."""
    return ascii(name[:60]) + ("…" if len(name) > 60 else "")
