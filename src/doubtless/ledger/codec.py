"""How values of the model become rows and JSON, and come back equal."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import StrEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import (
    Final,
    Generic,
    TypeAlias,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from doubtless.core.model import Json

Value: TypeAlias = str | int | float | bytes | None
Row: TypeAlias = tuple[Value, ...]
T = TypeVar("T")

INTEGER_MAX: Final = 2**53 - 1  # beyond it, readers of JSON elsewhere round without a word

_HARMLESS: Final = frozenset({str, NoneType, bool, float})
_write: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
).encode


def encode(value: Json) -> str:
    """Write `value` as JSON text.

    Raises:
        ValueError: it holds an integer beyond ±(2**53 − 1), a NaN or an infinity.
    """
    _refuse_long((value,))
    return _write(value)


def decode(text: str) -> dict[str, Json]:
    """Read back a JSON object that `encode` wrote."""
    return cast("dict[str, Json]", json.loads(text))


def decode_list(text: str) -> list[Json]:
    """Read back a JSON array that `encode` wrote."""
    return cast("list[Json]", json.loads(text))


def _refuse_long(values: Iterable[Json]) -> None:
    for value in values:
        if type(value) in _HARMLESS:
            continue
        if isinstance(value, int):
            if not -INTEGER_MAX <= value <= INTEGER_MAX:
                raise ValueError(f"{value} is beyond ±(2**53 - 1): JSON doesn't carry it exactly")
        elif isinstance(value, dict):
            _refuse_long(value.values())
        elif isinstance(value, list | tuple):
            _refuse_long(value)


class Shape(Generic[T]):
    """One dataclass of the model as columns and as a JSON object. Names are kept as they are."""

    def __init__(self, cls: type[T]) -> None:
        if not is_dataclass(cls) or hasattr(cls, "__post_init__"):
            raise TypeError(f"{cls.__name__} is no plain dataclass")
        hints = {name: _bare(hint) for name, hint in get_type_hints(cls).items()}
        self.names: Final = tuple(field.name for field in fields(cls))
        self.columns: Final = ", ".join(self.names)
        self.places: Final = ", ".join(f":{name}" for name in self.names)
        self.read: Final = cast("Callable[[T], tuple[Json, ...]]", attrgetter(*self.names))
        self._class: Final = cast("type[T]", cls)
        self._setters: Final = tuple(getattr(cls, name).__set__ for name in self.names)
        self._places: Final = {name: place for place, name in enumerate(self.names)}
        self._enums: Final = tuple(
            (name, {str(member): member for member in hint})
            for name, hint in hints.items()
            if issubclass(hint, StrEnum)
        )
        self._flags: Final = tuple(name for name, hint in hints.items() if hint is bool)
        self._nested: Final = tuple(
            (name, cast("Shape[object]", Shape(hint)))
            for name, hint in hints.items()
            if is_dataclass(hint)
        )
        self._missing: Final = {field.name: _default(field) for field in fields(cls)}

    def params(self, value: T) -> dict[str, Value]:
        """The columns of `value`, ready to bind: text, integers, and JSON for what nests."""
        found = cast("dict[str, Value]", dict(zip(self.names, self.read(value), strict=True)))
        for name in self._flags:
            found[name] = int(cast("bool", found[name]))
        for name, shape in self._nested:
            if (inner := found[name]) is not None:
                found[name] = encode(shape.to_json(inner))
        return found

    def from_row(self, row: Sequence[Value]) -> T:
        """Build a value from a row of `columns`, in that order."""
        found = cast("dict[str, Json]", dict(zip(self.names, row, strict=True)))
        for name, _ in self._nested:
            if (text := found[name]) is not None:
                found[name] = decode(cast("str", text))
        return self._build(found)

    def to_json(self, value: T) -> dict[str, Json]:
        """The fields of `value` that aren't None."""
        found: dict[str, Json] = {
            name: item
            for name, item in zip(self.names, self.read(value), strict=True)
            if item is not None
        }
        for name, shape in self._nested:
            if name in found:
                found[name] = shape.to_json(found[name])
        return found

    def from_json(self, data: Mapping[str, Json]) -> T:
        """Build a value from what `to_json` gave; what is missing gets its default, or None."""
        return self._build({**self._missing, **data})

    def replace(self, value: T, **changes: Json) -> T:
        """Do as `dataclasses.replace` does, in a fifth of the time.

        Raises:
            TypeError: there is no such field.
        """
        values = list(self.read(value))
        for name, item in changes.items():
            if (place := self._places.get(name)) is None:
                raise TypeError(f"{self._class.__name__} has no {name}")
            values[place] = item
        return self._make(values)

    def _build(self, found: dict[str, Json]) -> T:
        for name, members in self._enums:
            if (text := found[name]) is not None:
                found[name] = members[cast("str", text)]
        for name in self._flags:
            found[name] = bool(found[name])
        for name, shape in self._nested:
            if (inner := found[name]) is not None:
                found[name] = cast("Json", shape.from_json(cast("Mapping[str, Json]", inner)))
        return self._make(found.values())

    def _make(self, values: Iterable[Json]) -> T:
        # The generated constructor of a frozen class takes five times as long for the same slots.
        made = object.__new__(self._class)
        for setter, value in zip(self._setters, values, strict=True):
            setter(made, value)
        return made


def _bare(hint: object) -> type:
    """Return the class behind an annotation such as `Cause | None`."""
    if get_origin(hint) in {Union, UnionType}:
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    return cast("type", hint)


def _default(field: "Field[object]") -> Json:
    return None if field.default is MISSING else cast("Json", field.default)


def statement(template: str, shape: "Shape[T]") -> str:
    """Fill the columns of `shape` into the text of a statement."""
    return template.replace("{columns}", shape.columns).replace("{places}", shape.places)


def text_of(value: Value) -> str:
    """Narrow a column that the schema declares as text, not null."""
    if not isinstance(value, str):
        raise TypeError(f"text expected, found {type(value).__name__}")
    return value


def integer_of(value: Value) -> int:
    """Narrow a column that the schema declares as integer, not null."""
    if not isinstance(value, int):
        raise TypeError(f"an integer expected, found {type(value).__name__}")
    return value
