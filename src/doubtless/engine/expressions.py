"""Expressions over JSON: JMESPath, over a body or, where they begin with `headers.`, over headers.

Expressions come from contracts, which are trusted, but a long or deeply nested one can cost more
than any answer is worth: they are capped at `EXPRESSION_CHARS_MAX` characters. What they read comes
from a provider, so that any fault while evaluating is a typed error and never a false.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.parser import ParsedResult

from doubtless.core.model import Json
from doubtless.errors import DoubtlessError

EXPRESSION_CHARS_MAX: Final = 1000
HEADERS_PREFIX: Final = "headers."

# Besides its own errors, the library lets these through for values that it did not foresee.
_FAULTS: Final = (
    JMESPathError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ExpressionError(DoubtlessError):
    """An expression does not compile, or can't be evaluated over this answer.

    Over an answer it means that the answer was not understood: could not ask, or unreadable.
    """

    def __init__(self, expression: str, wrong: str) -> None:
        shown = expression if len(expression) <= 80 else expression[:79] + "…"
        super().__init__(f"expression {shown!r}: {wrong}")
        self.expression, self.wrong = expression, wrong


@lru_cache(maxsize=2048)
def compile_expression(expression: str) -> ParsedResult:
    """Compile, and keep what was compiled.

    Raises:
        ExpressionError: It is empty, too long, or no JMESPath.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise ExpressionError(
            expression, f"{len(expression)} characters; at most {EXPRESSION_CHARS_MAX} are allowed"
        )
    try:
        return jmespath.compile(expression)
    except _FAULTS as error:
        raise ExpressionError(expression, _first_line(error)) from error


def evaluate(expression: str, body: Json, headers: Mapping[str, str] | None = None) -> Json:
    """Evaluate over `body`; where it begins with `headers.`, over the lower-case header names.

    A name that the value does not have gives None, as JMESPath says. `@.headers.x` reaches a
    member of the body that is called `headers`.

    Raises:
        ExpressionError: It does not compile, or a function in it was given what it can't take.
    """
    compiled = compile_expression(expression)
    value: Json = body
    if expression.lstrip().startswith(HEADERS_PREFIX):
        value = {"headers": {name.lower(): text for name, text in (headers or {}).items()}}
    try:
        found: Json = compiled.search(value)
    except _FAULTS as error:
        raise ExpressionError(expression, _first_line(error)) from error
    # Only a function can make a number that JSON does not have: to_number('nan').
    if "(" in expression and not _is_finite(found):
        raise ExpressionError(expression, "the result is not a number that JSON has")
    return found


def truthy(value: Json) -> bool:
    """Tell true from false as JMESPath does: false, null and what is empty are false; 0 is true."""
    return not (value is None or value is False or value in ("", [], {}, ()))


def holds(expression: str, body: Json, headers: Mapping[str, str] | None = None) -> bool:
    """Evaluate as a condition. Raises as `evaluate` does."""
    return truthy(evaluate(expression, body, headers))


def _is_finite(value: Json) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return True
    if isinstance(value, Mapping):
        return all(_is_finite(member) for member in value.values())
    if isinstance(value, Sequence):
        return all(_is_finite(member) for member in value)
    return True


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
