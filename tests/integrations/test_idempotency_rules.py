"""What a provider decides of a key: pure, in tables and over all inputs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.integrations.idempotency_desk import Desk, Settings
from doubtless.integrations.idempotency_handle import operation
from doubtless.integrations.idempotency_requests import (
    Said,
    check_window,
    fingerprint,
    parse_key,
)
from doubtless.integrations.idempotency_rules import (
    Answer,
    Ending,
    Record,
    Refused,
    Route,
    State,
    Step,
    decide,
    ending,
    state_of,
)

NOW = 1_000_000
SAID = Said(method="POST", path="/v1/refunds", query=b"", headers=[])
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


def record(state: State, *, mark: str = "f", **changes: Any) -> Record:
    given_: dict[str, Any] = {"until_ms": NOW + 1, "expires_ms": NOW + 1, **changes}
    return Record(fingerprint=mark, state=state, token="t", created_ms=0, **given_)


DONE: dict[str, Any] = {"answer": Answer(status=201)}


@pytest.mark.proves("PROVIDER-1", "PROVIDER-3", "PROVIDER-8", "PROVIDER-9")
@pytest.mark.parametrize(
    ("found", "step"),
    [
        (None, Step.EXECUTE),
        (record(State.IN_PROGRESS), Step.WAIT),
        (record(State.IN_PROGRESS, until_ms=NOW), Step.UNKNOWN),
        (record(State.IN_PROGRESS, until_ms=NOW, atomic=True), Step.TAKE_OVER),
        (record(State.IN_PROGRESS, until_ms=NOW + 1, atomic=True), Step.WAIT),
        (record(State.UNKNOWN), Step.UNKNOWN),
        (record(State.UNKNOWN, **DONE), Step.REPLAY),
        (record(State.SUCCEEDED, **DONE), Step.REPLAY),
        (record(State.FAILED, **DONE), Step.REPLAY),
        (record(State.ACCEPTED, **DONE), Step.REPLAY),
    ],
)
def test_the_step_is_the_row_of_what_is_known_of_the_key(found, step):
    assert decide(found, "f", NOW) is step
    if found is not None:
        assert decide(found, "another", NOW) is Step.MISMATCH
        assert decide(found, "another", NOW + 1) is Step.EXECUTE  # its time is over
        without_end = record(found.state, expires_ms=None, answer=found.answer)
        assert decide(without_end, "f", NOW + 10**12) is not Step.EXECUTE


@pytest.mark.proves("PROVIDER-8")
@given(st.integers(100, 599), st.sampled_from(["all", "success_only"]), st.booleans())
def test_what_may_have_acted_is_never_given_back(status, stores, atomic):
    end = ending(status, stores=stores, atomic=atomic)
    if end is Ending.GIVE_BACK:
        assert stores == "success_only"
        assert atomic or 400 <= status < 500
    if status < 400:
        assert end is (Ending.GIVE_UP if atomic else Ending.KEEP)
    if status >= 500:
        assert state_of(status) is State.UNKNOWN


@pytest.mark.proves("PROVIDER-4")
@given(printable)
def test_every_printable_key_can_be_said_as_the_string_of_a_structured_field(key):
    quoted = '"' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse_key([quoted], form="quoted", key_max=99) == key
    assert parse_key([f"{quoted};a=1;b"], form="any", key_max=99) == key


@pytest.mark.proves("PROVIDER-4")
@given(st.text(max_size=30))
def test_whatever_is_said_is_a_key_without_control_characters_or_is_refused(text):
    try:
        key = parse_key([text], form="any", key_max=20)
    except Refused:
        return
    assert key is not None
    assert 0 < len(key) <= 20
    assert all(" " <= each <= "~" for each in key)


@pytest.mark.proves("PROVIDER-4")
def test_a_bare_key_is_taken_only_where_the_owner_takes_it():
    assert parse_key(["abc"], form="any", key_max=9) == "abc"
    with pytest.raises(Refused):
        parse_key(["abc"], form="quoted", key_max=9)
    assert parse_key([], form="quoted", key_max=9) is None


@pytest.mark.proves("PROVIDER-3")
@given(json_values, json_values)
def test_two_json_bodies_have_one_fingerprint_if_they_are_one_value(one, other):
    first = fingerprint(SAID, json.dumps(one).encode(), None)
    again = fingerprint(SAID, json.dumps(one, indent=1, sort_keys=True).encode(), None)
    assert first == again
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (fingerprint(SAID, json.dumps(other).encode(), None) == first) is same


@pytest.mark.proves("PROVIDER-3")
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b'{"a": {"b": 1}, "c": 2}', b'{"a": {"b": 1, "x": 0}, "c": 3}', True),
        (b'{"a": {"b": 1}}', b'{"a": {"b": 2}}', False),
        (b'{"a": {"b": null}}', b'{"a": {}}', False),  # null is something else than missing
        (b'{"a": {"b": 1}}', b'{"a": {"b": "1"}}', False),
        (b'{"a": {"b": 1}, "a": {"b": 1}}', b'{"a": {"b": 1}}', False),  # a name comes twice
        (b"no json", b"no json ", False),
        (b"", b"", True),
        (b"\xff\x00", b"\xff\x00", True),
        (b'{"a": {"b": 123456789012345678901}}', b'{"a": {"b": 123456789012345678902}}', False),
        (b"[" * 5000, b"[" * 5001, False),
    ],
)
def test_the_fields_that_an_owner_lists_are_what_counts(one, other, same):
    marks = [fingerprint(SAID, body, ("a.b",)) for body in (one, other)]
    assert (marks[0] == marks[1]) is same


@pytest.mark.proves("PROVIDER-3")
@pytest.mark.parametrize(
    ("path", "fits"),
    [
        ("/v1/orders/7/refunds", True),
        ("/v1/orders/7/refunds/", True),
        ("//v1//orders/a b/refunds", True),
        ("/v1/orders/7", False),
        ("/v1/orders/7/refunds/8", False),
        ("/V1/orders/7/refunds", False),
    ],
)
def test_a_route_fits_as_servers_route(path, fits):
    route = Route(path="/v1/orders/{id}/refunds", methods=("POST", "patch"))
    assert route.takes("POST", path) is fits
    assert route.takes("PATCH", path) is fits
    assert not route.takes("GET", path)


@pytest.mark.parametrize(
    "changes",
    [
        {"stores": "some"},
        {"methods": ("GET",)},
        {"keep_s": 0},
        {"wait_s": -1},
        {"keep_s": 5, "run_limit_s": 6},
    ],
)
def test_a_route_that_makes_no_sense_is_refused_at_the_start(changes):
    with pytest.raises(ValueError, match="/v1/refunds: "):
        Route(path="/v1/refunds", **changes)


@pytest.mark.proves("PROVIDER-12")
def test_the_window_of_repeatable_requests_is_what_is_kept():
    check_window(NOW - 9_999, NOW, 10)
    check_window(NOW + 300_000, NOW, 10)
    for at_ms in (NOW - 10_000, NOW + 300_001):
        with pytest.raises(Refused) as refused:
            check_window(at_ms, NOW, 10)
        assert refused.value.status == 412


@pytest.mark.proves("PROVIDER-7")
def test_only_a_read_of_one_segment_is_a_look_up():
    desk = Desk(Settings(operations_path="/ops/by-id"), [])
    assert desk.key_asked_about("GET", "/ops/by-id/a%2Fb") == "a/b"
    assert desk.key_asked_about("HEAD", "/ops/by-id/k") == "k"
    for method, path in (
        ("POST", "/ops/by-id/k"),
        ("GET", "/ops/by-id"),
        ("GET", "/ops/by-id/"),
        ("GET", "/ops/by-id/a/b"),
        ("GET", "/"),
    ):
        assert desk.key_asked_about(method, path) is None


def test_a_handler_on_a_route_without_keys_is_told_so():
    for request in ({}, object()):
        with pytest.raises(LookupError, match="among the middleware's"):
            operation(request)
