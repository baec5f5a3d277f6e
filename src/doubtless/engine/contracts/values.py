"""The kinds of values in a contract file, each with the mend for one that is wrong."""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue
from pydantic_core import PydanticCustomError

from doubtless.core.contract import KeyFormat, OnAbsent, Stores
from doubtless.core.model import Effect
from doubtless.engine.expressions import EXPRESSION_CHARS_MAX, ExpressionError, compile_expression
from doubtless.engine.templates import TemplateError, names_in

UNITS_MS: Final[Mapping[str, int]] = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
DURATION_MAX_MS: Final = 3_660 * UNITS_MS["d"]
EFFECT_ALIASES: Final[Mapping[str, Effect]] = {
    "idempotent_fs": Effect.FILE,
    "idempotent_shell": Effect.SHELL_READ,
}

_DURATION: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def wrong(what: str, mend: str) -> PydanticCustomError:
    """Make an error that carries its mend. Neither text is a format."""
    shown = what.encode("utf-8", "backslashreplace").decode()  # keywords may hold odd text
    return PydanticCustomError("contract", "{wrong}", {"wrong": shown, "mend": mend})


def near(word: str, known: Sequence[str]) -> str:
    """Name the known word that was probably meant, or all of them."""
    found = get_close_matches(word, known, n=1, cutoff=0.6)
    listed = ", ".join(known) or "none"
    return f"did you mean {found[0]!r}? Known: {listed}." if found else f"use one of {listed}."


def duration_ms(value: object) -> int:
    """Read `250ms 10s 15m 24h 30d` as milliseconds."""
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise wrong(
            f"{value!r} is no duration.",
            'write a whole number and a unit, in quotes: "250ms", "10s", "15m", "24h", "30d".',
        )
    ms = int(found[1]) * UNITS_MS[found[2]]
    if ms > DURATION_MAX_MS:
        raise wrong(f"{value!r} is more than ten years.", "say a duration that can run out.")
    return ms


def duration_text(ms: int) -> str:
    """Write milliseconds as `duration_ms` reads them, in the largest unit that fits."""
    unit = next((name for name in ("d", "h", "m", "s") if ms and ms % UNITS_MS[name] == 0), "ms")
    # Days are for long times: a day is better known as 24h.
    if unit == "d" and ms < 3 * UNITS_MS["d"]:
        unit = "h"
    return f"{ms // UNITS_MS[unit]}{unit}" if ms else "0s"


def _more_than_zero(ms: int) -> int:
    if ms == 0:
        raise wrong("it is zero.", 'say a duration of at least "1ms".')
    return ms


def _effect(value: object) -> Effect:
    if isinstance(value, str) and value in EFFECT_ALIASES:
        return EFFECT_ALIASES[value]
    try:
        return Effect(str(value))
    except ValueError:
        known = [*(effect.value for effect in Effect), *EFFECT_ALIASES]
        raise wrong(f"{value!r} is no effect.", near(str(value), known)) from None


def _not_empty(text: str) -> str:
    if not text.strip():
        raise wrong("it is empty.", "say it, or leave the key out where it is optional.")
    return text


def _credential(name: str) -> str:
    if not name.strip():
        raise wrong(
            "the credential is empty, which would mean no check and no authority.",
            "name a credential of the credential store; the secret itself never stands here.",
        )
    return name


def _expression(text: str) -> str:
    try:
        compile_expression(text)
    except ExpressionError as error:
        raise wrong(
            f"{text[:80]!r} is no JMESPath expression: {error.wrong}.",
            f"see jmespath.org; at most {EXPRESSION_CHARS_MAX} characters; a literal stands in "
            "`backticks` or 'quotes'.",
        ) from error
    return text


def _template(value: JsonValue) -> JsonValue:
    _named(value)
    return value


def _template_text(value: str) -> str:
    _named(value)
    return value


def _named(value: JsonValue) -> None:
    try:
        names_in(value)
    except TemplateError as error:
        raise wrong(
            f"{error.template!r} is no template: {error.wrong}.",
            "places are {args.NAME}, {operation.NAME} and, in a look-up, {page}; a brace is "
            "written twice.",
        ) from error


def _expression_keys(members: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for key in members:
        _expression(key)
    return members


def _header_name(name: str) -> str:
    if not _TOKEN.fullmatch(name):
        raise wrong(f"{name!r} is no header name.", "use letters, digits and hyphens.")
    return name


def _header_templates(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        _header_name(name)
        _named(value)
    return headers


Duration = Annotated[int, BeforeValidator(duration_ms)]
Period = Annotated[int, BeforeValidator(duration_ms), AfterValidator(_more_than_zero)]
EffectName = Annotated[Effect, BeforeValidator(_effect)]
Text = Annotated[str, AfterValidator(_not_empty)]
Credential = Annotated[str, AfterValidator(_credential)]
Expression = Annotated[str, AfterValidator(_expression)]
TemplateText = Annotated[str, AfterValidator(_template_text)]
TemplateMembers = dict[str, Annotated[JsonValue, AfterValidator(_template)]]
Criteria = Annotated[TemplateMembers, AfterValidator(_expression_keys)]
TemplateJson = Annotated[JsonValue, AfterValidator(_template)]
HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderTemplates = Annotated[dict[str, str], AfterValidator(_header_templates)]
Statuses = list[Annotated[int, Field(ge=200, le=599)]]
OnAbsentName = Annotated[OnAbsent, Field(strict=False)]
StoresName = Annotated[Stores, Field(strict=False)]
FormatName = Annotated[KeyFormat, Field(strict=False)]
