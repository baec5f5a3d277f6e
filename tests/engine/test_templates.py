"""Templates keep values out of syntax, and render the same bytes every time."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.core.contract import ConditionRules, KeyRules, RequestRules
from doubtless.core.model import Json
from doubtless.engine.templates import (
    TemplateError,
    TemplateValues,
    names_in,
    render,
    render_path,
    render_request,
    request_digest,
    same_origin,
)

BASE = "https://api.example.com"
VALUES = TemplateValues(
    args={
        "charge": "ch_1",
        "amount": 500,
        "rate": 1.5,
        "urgent": True,
        "note": None,
        "tags": ["a b", "c"],
        "customer": {"id": "cu_1", "name": "Ana"},
    },
    id="refund_74219_01",
    ref="00000000000000000000000000",
    idempotency_key="0c2b7c1e-0000-4000-8000-000000000000",
    session_id="run_42",
)
KEY = KeyRules(place="header", name="Idempotency-Key")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
segments = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


def request(**changes):
    return RequestRules(**{"method": "POST", "path": "/v1/refunds", **changes})


@given(json_values)
def test_a_string_that_is_one_whole_template_keeps_the_type(value):
    assert render("{args.x}", TemplateValues(args={"x": value})) == value


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("refund of {args.charge}", "refund of ch_1"),
        ("{args.amount} cents", "500 cents"),
        ("{args.rate}%", "1.5%"),
        ("urgent: {args.urgent}", "urgent: true"),
        ("{args.customer.name}!", "Ana!"),
        ("{{args.charge}}", "{args.charge}"),
        ("{{{args.charge}}}", "{ch_1}"),
        ("plain", "plain"),
    ],
)
def test_a_place_within_a_longer_text_takes_text_numbers_and_booleans(template, text):
    assert render(template, VALUES) == text


@pytest.mark.parametrize("name", ["note", "tags", "customer", "absent"])
def test_null_lists_objects_and_what_is_missing_can_not_stand_within_a_text(name):
    with pytest.raises(TemplateError):
        render(f"x {{args.{name}}}", VALUES)


@pytest.mark.parametrize(
    "name", ["{args.absent}", "{args.customer.absent}", "{args.note.x}", "{operation.duplicate_of}"]
)
def test_a_missing_optional_value_drops_the_member_whose_whole_value_it_is(name):
    assert render({"a": name, "b": {"c": name}, "d": 1}, VALUES) == {"b": {}, "d": 1}


def test_null_is_a_value_and_not_missing():
    assert render({"note": "{args.note}"}, VALUES) == {"note": None}


def test_a_missing_item_of_a_list_is_an_error_because_the_others_would_move():
    with pytest.raises(TemplateError):
        render(["{args.absent}"], VALUES)


@pytest.mark.parametrize("name", ["provider_operation_id", "status_url"])
def test_what_only_the_provider_can_tell_is_an_error_until_it_did(name):
    with pytest.raises(TemplateError, match="not known yet"):
        render({"q": f"{{operation.{name}}}"}, VALUES)


def test_a_strict_rendering_drops_nothing():
    with pytest.raises(TemplateError):
        render({"customer": "{args.absent}"}, VALUES, strict=True)


def test_reaching_into_a_value_that_is_no_object_is_an_error():
    with pytest.raises(TemplateError, match="no object"):
        render("{args.charge.id}", VALUES)


@pytest.mark.parametrize(
    "template",
    [
        "{",
        "}",
        "{args}",
        "{args.}",
        "{}",
        "{operation.secret}",
        "{env.HOME}",
        "{+args.x}",
        "{a{b}}",
    ],
)
def test_a_malformed_template_is_an_error(template):
    with pytest.raises(TemplateError):
        names_in({"x": [template]})


def test_names_are_found_at_any_depth():
    template: Json = {
        "a": "{args.x}",
        "b": ["{operation.ref} {page}", {"c": 1}],
        "{args.key}": None,
    }
    assert names_in(template) == {"args.x", "operation.ref", "page"}


@given(segments)
def test_a_value_never_leaves_its_segment_of_the_path(value):
    values = TemplateValues(args={"id": value})
    if value in {".", ".."}:
        with pytest.raises(TemplateError):
            render_path("/v1/{args.id}/items", values)
        return
    path = render_path("/v1/{args.id}/items", values)
    assert path.split("/")[1::2] == ["v1", "items"]
    assert urlsplit(BASE + path).path == path


@pytest.mark.parametrize(
    ("path", "args"),
    [
        ("/v1/{args.a}", {"a": ""}),
        ("/v1/{args.a}", {"a": None}),
        ("/v1/{args.a}", {}),
        ("/v1/{args.a}", {"a": ["x"]}),
        ("/v1/{args.a}", {"a": "\ud800"}),
        ("/v1/{args.a}{args.b}/x", {"a": ".", "b": "."}),
        ("/v1/.{args.a}", {"a": "."}),
    ],
)
def test_a_value_that_would_name_another_path_is_refused(path, args):
    with pytest.raises(TemplateError):
        render_path(path, TemplateValues(args=args))


@given(st.permutations(["charge", "amount", "rate", "urgent"]))
def test_the_bytes_do_not_depend_on_the_order_of_members(names):
    members = {name: f"{{args.{name}}}" for name in names}
    usual = {name: f"{{args.{name}}}" for name in sorted(names)}
    for place in ("json", "form", "query"):
        first = render_request(request(**{place: members}), BASE, VALUES, key=KEY)
        assert first == render_request(request(**{place: usual}), BASE, VALUES, key=KEY)


def test_a_json_body_is_canonical_and_says_its_type():
    rendered = render_request(
        request(json={"b": "{args.amount}", "a": "{args.charge}"}), BASE + "/", VALUES, key=KEY
    )
    assert rendered.url == "https://api.example.com/v1/refunds"
    assert rendered.body == b'{"a":"ch_1","b":500}'
    assert rendered.headers == (
        ("content-type", "application/json"),
        ("idempotency-key", VALUES.idempotency_key),
    )


def test_a_query_and_a_form_repeat_the_name_of_a_list_and_leave_null_and_missing_out():
    members = {"tag": "{args.tags}", "note": "{args.note}", "x": "{args.absent}", "n": 1}
    rendered = render_request(request(query=members, form=members), BASE, VALUES)
    assert rendered.url.endswith("?n=1&tag=a%20b&tag=c")
    assert rendered.body == b"n=1&tag=a+b&tag=c"


@given(st.dictionaries(segments, segments, max_size=4))
def test_a_query_carries_every_value_unchanged(members):
    values = TemplateValues(
        args={f"a{index}": value for index, value in enumerate(members.values())}
    )
    query = {name: f"{{args.a{index}}}" for index, name in enumerate(members)}
    url = render_request(request(query=query), BASE, values).url
    assert parse_qs(urlsplit(url).query) == {name: [value] for name, value in members.items()}


@pytest.mark.parametrize(
    ("key", "rules", "body"),
    [
        ("token", {"json": {"a": 1}}, {"a": 1, "token": VALUES.idempotency_key}),
        ("token", {}, {"token": VALUES.idempotency_key}),
        ("in.token", {"json": {"in": {"a": 1}}}, {"in": {"a": 1, "token": VALUES.idempotency_key}}),
    ],
)
def test_a_key_in_the_body_stands_where_its_dots_lead(key, rules, body):
    rendered = render_request(request(**rules), BASE, VALUES, key=KeyRules(place="field", name=key))
    assert json.loads(rendered.body) == body


def test_a_key_can_stand_in_the_form_or_the_query():
    form = render_request(request(form={}), BASE, VALUES, key=KeyRules(place="field", name="k"))
    query = render_request(request(), BASE, VALUES, key=KeyRules(place="query", name="k"))
    assert form.body == f"k={VALUES.idempotency_key}".encode()
    assert query.url.endswith(f"?k={VALUES.idempotency_key}")


def test_a_keyed_request_without_a_key_is_never_rendered():
    with pytest.raises(TemplateError):
        render_request(request(), BASE, TemplateValues(), key=KEY)


def test_the_condition_is_sent_as_a_header():
    condition = ConditionRules(header="If-Match", value='"{args.charge}"', version_reuse=False)
    rendered = render_request(request(), BASE, VALUES, condition=condition)
    assert rendered.headers == (("if-match", '"ch_1"'),)


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "\x00", " a", "a ", "é", "a\x7f"])
def test_a_value_can_not_break_out_of_its_header(value):
    with pytest.raises(TemplateError):
        render_request(
            request(headers={"X-Note": "{args.note}"}), BASE, TemplateValues(args={"note": value})
        )


def test_the_status_url_is_followed_on_its_own_origin_only():
    rules = request(method="GET", path="{operation.status_url}", query={"p": "{page}"})
    near = render_request(rules, BASE, TemplateValues(status_url="/jobs/1?x=1", page=2))
    assert near.url == "https://api.example.com/jobs/1?x=1&p=2"
    with pytest.raises(TemplateError, match="origin"):
        render_request(rules, BASE, TemplateValues(status_url="https://evil.example/jobs/1"))


@pytest.mark.parametrize(
    ("url", "resolved"),
    [
        ("https://api.example.com:443/a#b", "https://api.example.com:443/a"),
        ("/a?b=c", "https://api.example.com/a?b=c"),
        ("http://api.example.com/a", None),
        ("https://api.example.com:444/a", None),
        ("https://me@api.example.com/a", None),
        ("https://@api.example.com/a", None),
        ("//evil.example/a", None),
        ("\\\\evil.example/a", None),
        ("https://api.example.com\\@evil.example/a", None),
        ("https://api.example.com:x/a", None),
        (" https://api.example.com/a", None),
    ],
)
def test_an_origin_is_scheme_host_and_port(url, resolved):
    assert same_origin(BASE, url) == resolved


def test_the_digest_changes_with_everything_that_is_sent():
    rules = [
        request(),
        request(method="PUT"),
        request(path="/v1/refund"),
        request(query={"a": 1}),
        request(headers={"X-A": "1"}),
        request(json={}),
        request(json={"a": 1}),
    ]
    digests = [request_digest(render_request(each, BASE, VALUES)) for each in rules]
    assert len(set(digests)) == len(rules)
    assert all(digest.startswith("sha256:") and len(digest) == 71 for digest in digests)
    assert digests[0] == request_digest(render_request(request(), BASE, VALUES))


@pytest.mark.parametrize("value", [2**60, float("nan"), "\ud800"])
def test_a_body_that_canonical_json_can_not_write_is_refused(value):
    with pytest.raises(TemplateError):
        render_request(request(json={"a": "{args.x}"}), BASE, TemplateValues(args={"x": value}))
