"""Expressions: JMESPath, with typed errors in place of surprises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.core.model import Json
from doubtless.engine.expressions import (
    EXPRESSION_CHARS_MAX,
    ExpressionError,
    compile_expression,
    evaluate,
    holds,
    truthy,
)

BODY: Json = {
    "status": "pending",
    "has_more": False,
    "data": [{"id": 1, "n": 0}],
    "headers": {"etag": "no"},
}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("status == 'pending'", True),
        ("!has_more", True),
        ("data[0].id", 1),
        ("absent.deep", None),
        ("@.headers.etag", "no"),
        ("length(data)", 1),
    ],
)
def test_expressions_read_the_body(expression, value):
    assert evaluate(expression, BODY) == value


def test_an_expression_that_begins_with_headers_reads_lower_case_names():
    headers = {"ETag": "v1", "Idempotent-Replayed": "true"}
    assert evaluate("headers.etag", BODY, headers) == "v1"
    assert evaluate('headers."idempotent-replayed"', BODY, headers) == "true"
    assert evaluate("headers.etag", BODY) is None


@pytest.mark.parametrize("value", [None, False, "", [], {}])
def test_null_false_and_what_is_empty_do_not_hold(value):
    assert not truthy(value)
    assert not holds("x", {"x": value})


@pytest.mark.parametrize("value", [0, 0.0, True, "false", [None], {"a": None}])
def test_all_else_holds_zero_too(value):
    assert holds("x", {"x": value})


@pytest.mark.parametrize(
    "expression",
    ["", "a ==", "a[", "'a", "a" * (EXPRESSION_CHARS_MAX + 1)],
)
def test_an_expression_that_does_not_compile_is_an_error(expression):
    with pytest.raises(ExpressionError):
        compile_expression(expression)


def test_the_cap_on_the_length_is_said():
    with pytest.raises(ExpressionError, match="at most 1000"):
        compile_expression("a" * 1001)


@pytest.mark.parametrize(
    "expression", ["length(`1`)", "sort(data)", "to_number('nan')", "[to_number('inf')]", "nope(@)"]
)
def test_an_answer_that_an_expression_can_not_take_is_an_error_and_never_false(expression):
    with pytest.raises(ExpressionError):
        evaluate(expression, BODY)


@pytest.mark.parametrize("expression", ["[" * 490 + "a" + "]" * 490, "!" * 999 + "a"])
def test_deep_nesting_never_ends_in_anything_but_the_typed_error(expression):
    with pytest.raises(ExpressionError):
        evaluate(expression, {"a": {}})


@given(st.text(max_size=30), st.recursive(st.none() | st.text(), st.lists, max_leaves=4))
def test_nothing_but_the_typed_error_ever_escapes(expression, body):
    try:
        evaluate(expression, body)
    except ExpressionError:
        return
