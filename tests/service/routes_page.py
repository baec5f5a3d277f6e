"""The table of routes in docs/routes.md, made of the route table itself."""

from collections.abc import Iterator

from doubtless.service import api, openapi
from doubtless.service.openapi import document
from doubtless.service.routing import Row


def lines() -> Iterator[str]:
    """Yield the page's lines below its title."""
    yield "JSON in, JSON out; errors are problem documents. More in [service.md](service.md)."
    yield ""
    yield "| route | role | does |"
    yield "| --- | --- | --- |"
    rows = (*api.ROWS, openapi.row(api.ROWS))
    for row in rows:
        roles = ", ".join(sorted(row.roles)) or "none"
        yield f"| `{row.method} {row.path}` | {roles} | {row.summary} |"
    described = document(rows)["paths"]
    for path, method, role in (
        ("/webhooks/{source}", "post", "a signature"),
        ("/metrics", "get", "none"),
    ):
        summary = described[path][method]["summary"]  # type: ignore[call-overload,index]
        yield f"| `{method.upper()} {path}` | {role} | {summary} |"
    for row in rows:
        yield from _row(row)


def _row(row: Row) -> Iterator[str]:
    yield from ("", f"## {row.method} {row.path}", "", row.summary)
    said = [
        *(f"`{name}`" for name in row.headers),
        *(f"`?{name}=`" for name in row.query.model_fields),
    ]
    if said:
        yield from ("", f"May say {', '.join(said)}.")
    if row.body is not None and row.body.model_fields:
        yield from ("", "| member of the body | |", "| --- | --- |")
        for name, field in row.body.model_fields.items():
            yield f"| `{name}` | {'must be said' if field.is_required() else ''} |"
    yield from ("", "| status | means |", "| --- | --- |")
    for status, text in sorted(row.answers.items()):
        yield f"| {status} | {text} |"
