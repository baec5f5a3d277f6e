"""A service's problem documents, as the exceptions that the local application raises.

The service names each by its class, in words: `OperationNotFound` is `operation_not_found`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from doubtless import errors
from doubtless.engine.remote.wire import Answer
from doubtless.errors import BadRequest, DoubtlessError, NotPermitted, ServiceUnavailable


def _classes(root: type[DoubtlessError]) -> Iterator[type[DoubtlessError]]:
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield kind
            yield from _classes(kind)


def code_of(kind: type[Exception]) -> str:
    """Return the code of an exception's problem."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


BY_CODE: Final[Mapping[str, type[DoubtlessError]]] = {
    code_of(kind): kind for kind in _classes(DoubtlessError)
}


def error_of(answer: Answer, **known: object) -> DoubtlessError:
    """Return what the local application raises where the service answers so.

    Args:
        answer: A problem.
        known: What the exception is about, by the names of its attributes.
    """
    if answer.status in (401, 403):
        return NotPermitted(answer.detail)
    kind = BY_CODE.get(answer.code)
    if kind is None:
        return BadRequest(answer.detail) if answer.status < 500 else _failed(answer)
    error = kind.__new__(kind)
    Exception.__init__(error, answer.detail)
    for name, value in {**known, **_said(answer)}.items():
        setattr(error, name, value)
    return error


def _failed(answer: Answer) -> DoubtlessError:
    return ServiceUnavailable(f"the service failed: {answer.detail}")


def _said(answer: Answer) -> dict[str, object]:
    """Return the attributes that the problem itself tells."""
    found: dict[str, object] = {"why": answer.detail.partition(": ")[2] or answer.detail}
    if answer.code == "bad_arguments":
        _, where, wrong = (*answer.detail.split(": ", 2), "", "")[:3]
        found |= {"where": "" if where == "(top)" else where, "wrong": wrong}
    outcome = answer.body.get("outcome")
    if isinstance(outcome, Mapping):
        found["version"] = outcome.get("version")
    return found
