"""Reading one table: a model, or every problem in it with its mend.

Where a key is wrong the table is read once more without it, so that what else is wrong can be told
in the same run.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from doubtless.core.model import Effect
from doubtless.engine.contracts.file import MATCHES
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import near
from doubtless.errors import Problem

_T = TypeVar("_T", bound=Table)
_Loc = tuple[int | str, ...]

# What is wrong, and the mend, by the validator's own name for it.
_WRONG_TYPES: Final[Mapping[str, tuple[str, str]]] = {
    "string_type": ("it must be text.", "write it in quotes."),
    "bool_type": ("it must be true or false.", "write true or false, without quotes."),
    "int_type": ("it must be a whole number.", "write digits, without quotes."),
    "list_type": ("it must be a list.", "write it as [ … ]."),
    "dict_type": ("it must be a table.", "write it as a table of its own, or as { … }."),
    "model_type": ("it must be a table.", "write it as a table of its own, or as { … }."),
    "invalid-json-value": ("it is nothing that JSON has.", "write dates and times as text."),
}
_MUST_BE_SAID: Final[Mapping[str, str]] = {
    "effect": f"say what it does to the world: {', '.join(effect.value for effect in Effect)}.",
    "base_url": 'say where its calls go: base_url = "https://…".',
    "types": "name the event types that speak about this tool.",
    "match": f"say where an event carries one of {', '.join(MATCHES)}.",
    "credential": "name a credential of the credential store.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[_T]):
    """What came of one table. `whole` is False where `table` lacks what was wrong."""

    table: _T | None
    problems: tuple[Problem, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether everything that was written is in `table`."""
        return not self.problems


def read_table(model: type[_T], data: object, *, file: str, table: str) -> Reading[_T]:
    """Validate one table of the file; `table` is its dotted name."""
    try:
        return Reading(table=model.model_validate(data))
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = [_problem(model, data, detail, file, table) for detail in details]
    pruned = copy.deepcopy(data)
    for detail in sorted(details, key=lambda each: str(each["loc"]), reverse=True):
        _prune(pruned, detail["loc"])
    try:
        rest = model.model_validate(pruned)
    except ValidationError:
        rest = None
    return Reading(table=rest, problems=tuple(problems))


def _prune(data: object, loc: _Loc) -> None:
    """Take the wrong value out, or leave all as it is where there is none to take."""
    if not loc:
        return
    for step in loc[:-1]:
        if isinstance(data, dict) and isinstance(step, int):
            continue  # a single table stands for a list of one
        try:
            data = data[step]  # type: ignore[index]
        except (LookupError, TypeError):
            return
    last = loc[-1]
    if isinstance(data, dict):
        data.pop(last, None)
    elif isinstance(data, list) and isinstance(last, int) and last < len(data):
        del data[last]


def _problem(
    model: type[Table], data: object, detail: ErrorDetails, file: str, table: str
) -> Problem:
    tables, keys, owner = _place(model, data, detail["loc"])
    wrong, mend = _text(detail, owner)
    return Problem(
        file=file, table=".".join([table, *tables]), key=".".join(keys), wrong=wrong, mend=mend
    )


def _place(model: type[Table], data: object, loc: _Loc) -> tuple[list[str], list[str], type[Table]]:
    """Split a location into tables below the given one, the key, and the model that owns it."""
    tables: list[str] = []
    rest = list(loc)
    while len(rest) > 1:
        field = next((name for name in model.model_fields if _name(model, name) == rest[0]), None)
        inner = _table_in(model.model_fields[field].annotation) if field else None
        if inner is None:
            break
        model, step = inner, str(rest.pop(0))
        data = data.get(step) if isinstance(data, dict) else None
        if isinstance(rest[0], int):
            index = rest.pop(0)
            many = isinstance(data, list) and len(data) > 1
            step = numbered(step, int(index)) if many else step
            data = data[int(index)] if isinstance(data, list) else data
        tables.append(step)
    return tables, [str(step) for step in rest], model


def numbered(table: str, index: int) -> str:
    """Name one of several tables of an array; the file's reader counts from 1."""
    return f"{table}#{index + 1}"


def _name(model: type[Table], field: str) -> str:
    return model.model_fields[field].alias or field


def _table_in(annotation: object) -> type[Table] | None:
    """Find the table that an annotation speaks of, through lists and unions."""
    if isinstance(annotation, type) and issubclass(annotation, Table):
        return annotation
    return next((found for each in get_args(annotation) if (found := _table_in(each))), None)


def _text(detail: ErrorDetails, owner: type[Table]) -> tuple[str, str]:
    kind, loc, context = detail["type"], detail["loc"], detail.get("ctx", {})
    key = str(loc[-1]) if loc else ""
    if kind == "contract":
        return str(context["wrong"]), str(context["mend"])
    if kind == "extra_forbidden":
        known = [_name(owner, field) for field in owner.model_fields]
        return f"there is no key {key!r} here.", near(key, known)
    if kind == "missing":
        return "it must be said.", _MUST_BE_SAID.get(key, f"add {key} = … here.")
    if kind in {"literal_error", "enum"}:
        known = re.findall(r"'([^']*)'", str(context["expected"]))
        return f"{_shown(detail['input'])} is not allowed.", near(str(detail["input"]), known)
    if kind in {"greater_than_equal", "less_than_equal"}:
        bound = f"at least {context['ge']}" if "ge" in context else f"at most {context['le']}"
        return f"{_shown(detail['input'])} is out of range.", f"use {bound}."
    return _WRONG_TYPES.get(kind, (f"{detail['msg']}.", "see the contract reference."))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def unknown_keys(
    data: Mapping[str, object], known: Sequence[str], *, file: str, table: str
) -> list[Problem]:
    """Tell which keys of a table are none of `known`."""
    return [
        Problem(
            file=file,
            table=table,
            key=key,
            wrong=f"there is no key {key!r} here.",
            mend=near(key, known),
        )
        for key in data
        if key not in known
    ]
