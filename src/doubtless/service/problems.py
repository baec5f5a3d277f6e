"""Errors over HTTP: problem documents as RFC 9457 has them, each with a `code` for programs."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from doubtless.core.model import Json

MEDIA_TYPE: Final = "application/problem+json"


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **members: Json,
) -> Response:
    """Return a problem document.

    Args:
        status: The HTTP status.
        code: What programs tell it by. Never changes its meaning.
        detail: For people: what is wrong, and how to mend it. Never a secret or another's data.
        headers: Further headers.
        members: Further members of the document.
    """
    content = document(status, code, detail, **members)
    return Response(to_bytes(content), status, dict(headers or {}), MEDIA_TYPE)


def document(status: int, code: str, detail: str, **members: Json) -> dict[str, Json]:
    """Return the members of a problem document."""
    title = HTTPStatus(status).phrase
    return {
        "type": "about:blank",
        "title": title,
        "status": status,
        "code": code,
        "detail": detail,
        **members,
    }


def to_bytes(value: Json) -> bytes:
    """Write JSON in UTF-8. What UTF-8 can't carry, a lone surrogate, is escaped."""
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


class Refused(Exception):
    """A request is answered with a problem document. Raised and caught within the service."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        members: Mapping[str, Json] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail
        self.headers, self.members = dict(headers or {}), dict(members or {})

    def response(self) -> Response:
        """Return the answer."""
        return problem(self.status, self.code, self.detail, headers=self.headers, **self.members)
