"""The OpenAPI document is made of the routes, and a running service keeps to it."""

import contextlib
import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from starlette.routing import Route
from tests.service.serving import ROLES

from doubtless.core.outcome import Outcome
from doubtless.engine.app import Doubtless
from doubtless.service import api, openapi
from doubtless.service.app import create_app

EXAMPLES = 5  # for each route and mode: some 250 requests


ROWS = (*api.ROWS, openapi.row(api.ROWS))
STRICTER = {
    "submit": "what not every reader of JSON reads alike is refused within arguments",
    "ingest": "the same within events",
    "subscription": "a name must be printable",
    "subscribe": "a name must be printable",
    "find": "a cursor must be that of a page, and a business key a JSON object",
}
"""Routes that refuse what their schemas can't express."""


@pytest.fixture(scope="module")
def document():
    """The document, as a source of requests. Its library takes long to import, for a few tests."""
    import schemathesis  # noqa: PLC0415 - see above

    return schemathesis.openapi.from_dict(openapi.document(ROWS))


@pytest.mark.proves("SERVICE-21")
@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_service_answers_as_its_document_says(stage, document, row, mode):
    from schemathesis import GenerationMode  # noqa: PLC0415 - as above
    from schemathesis.specs.openapi.checks import positive_data_acceptance  # noqa: PLC0415

    operation = document[row.path][row.method]
    roles = {role: short for short, (_, role) in ROLES.items()}
    token = next((stage.tokens[roles[role]] for role in sorted(row.roles)), "")

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(GenerationMode(mode)))
    def run(case):
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        case.call_and_validate(
            base_url=stage.serving.url,
            headers=headers,
            timeout=10,
            excluded_checks=[positive_data_acceptance] if row.name in STRICTER else [],
        )

    with contextlib.suppress(Unsatisfiable):  # nothing about this route can be said wrongly
        run()


@pytest.mark.proves("SERVICE-21")
def test_every_route_of_the_service_is_in_the_document(stage):
    asgi = create_app(Doubtless("sqlite://"))
    routes = {route.path for route in asgi.routes if isinstance(route, Route)}
    document = stage.serving.ask("GET", openapi.PATH).json
    assert document["paths"].keys() == routes
    for row in api.ROWS:
        assert document["paths"][row.path][row.method.lower()]["operationId"] == row.name
    names = [row.name for row in api.ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.proves("SERVICE-21")
def test_every_schema_that_is_named_is_there():
    document: Any = openapi.document(api.ROWS)
    named = set(re.findall(rf"{openapi.REF}(\w+)", str(document)))
    assert named <= document["components"]["schemas"].keys()


@pytest.mark.proves("SERVICE-21")
def test_the_outcomes_schema_has_the_outcomes_fields():
    schema: Any = openapi.SCHEMAS["Outcome"]
    assert schema["properties"].keys() == {each.name for each in fields(Outcome)} | {"status_url"}
    assert set(schema["required"]) == {each.name for each in fields(Outcome)} - {"read"}
