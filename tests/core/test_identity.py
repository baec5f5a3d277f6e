"""Hashes, keys, references and ids: what makes one intent one operation."""

import hashlib
import json
import re
import uuid
from collections import ChainMap, OrderedDict, UserDict
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.core.contract import KeyFormat
from doubtless.core.identity import (
    DEPTH_MAX,
    NotCanonical,
    business_key,
    canonical,
    claim_of,
    derive,
    encode_key,
    hash_of,
    is_operation_id,
    payload_hash,
    reference,
    sha256,
)
from doubtless.core.model import Json

LEDGER = bytes(range(16))
BITS = derive(LEDGER, "refund_1")
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-(2**53) + 1, 2**53 - 1)  # a greater one is read back as an integer
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


# --- canonical JSON ------------------------------------------------------------------------------


@pytest.mark.proves("CORE-42")
@pytest.mark.parametrize(
    ("value", "written"),
    [
        # RFC 8785, section 3.2.2 and 3.2.3
        (
            {
                "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
                "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
                "literals": [None, True, False],
            },
            (
                '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
                '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
            ),
        ),
        (
            {
                "\u20ac": "Euro Sign",
                "\r": "Carriage Return",
                "\ufb33": "Hebrew Letter Dalet With Dagesh",
                "1": "One",
                "\U0001f600": "Emoji: Grinning Face",
                "\u0080": "Control",
                "\u00f6": "Latin Small Letter O With Diaeresis",
            },
            (
                '{"\\r":"Carriage Return","1":"One","\u0080":"Control","ö":"Latin Small Letter O '
                'With Diaeresis","€":"Euro Sign","\U0001f600":"Emoji: Grinning Face","\ufb33":'
                '"Hebrew Letter Dalet With Dagesh"}'
            ),
        ),
        ([1.0, -0.0, 0, 1e21, 5e-324], "[1,0,0,1e+21,5e-324]"),
        ([2**53 - 1, -(2**53) + 1], "[9007199254740991,-9007199254740991]"),
        ([], "[]"),
        ({}, "{}"),
    ],
)
def test_canonical_json_is_that_of_rfc_8785(value, written):
    assert canonical(value) == written.encode()


@pytest.mark.proves("CORE-42")
@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        2**53,
        -(2**53),
        10**400,
        "\ud800",
        {"\udfff": 1},
        {1: "a number as a name"},
        {"a": {1, 2}},
        b"bytes",
        [[[float("nan")]]],
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_json_can_not_say_is_refused(value):
    with pytest.raises(NotCanonical):
        canonical(value)


@pytest.mark.parametrize("value", [b"ab", bytearray(b"ab")])
def test_bytes_are_refused_and_not_taken_for_a_list_of_numbers(value):
    with pytest.raises(NotCanonical):
        canonical(value)


def nested(depth: int, *, named: bool):
    value: Json = {} if named else []
    for _ in range(depth - 1):
        value = {"a": value} if named else [value]
    return value


@pytest.mark.proves("CORE-42")
@pytest.mark.parametrize("named", [True, False])
def test_what_is_nested_too_deep_is_refused_before_anything_recurses(named):
    assert canonical(nested(DEPTH_MAX, named=named))
    for depth in (DEPTH_MAX + 1, 100_000):
        with pytest.raises(NotCanonical, match="deeper"):
            canonical(nested(depth, named=named))


def test_what_contains_itself_is_refused():
    knot: list[Json] = []
    knot.append(knot)
    with pytest.raises(NotCanonical):
        canonical(knot)


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(b=1, a=2),
        MappingProxyType({"b": 1, "a": 2}),
        ChainMap({"b": 1}, {"a": 2}),
        UserDict({"b": 1, "a": 2}),
    ],
)
def test_every_mapping_is_an_object_and_every_sequence_a_list(value):
    assert canonical(value) == b'{"a":2,"b":1}'
    assert canonical((value, (1, 2))) == b'[{"a":2,"b":1},[1,2]]'


@given(JSON)
def test_canonical_json_says_the_same_when_it_is_read_back(value):
    assert canonical(json.loads(canonical(value))) == canonical(value)


# --- hashes --------------------------------------------------------------------------------------


@pytest.mark.proves("CORE-43")
def test_the_payload_hash_is_over_the_canonical_form_of_tool_and_arguments():
    text = b'{"arguments":{"amount":500,"charge":"ch_1"},"tool":"create_refund"}'
    expected = "sha256:" + hashlib.sha256(text).hexdigest()
    assert payload_hash("create_refund", {"charge": "ch_1", "amount": 500}) == expected


def test_the_payload_hash_of_a_known_payload_never_changes():
    expected = "sha256:8fd627452e8a504048e4617df4e2cda85034bf48d3e7df4c3e2eb4a4acb0133e"
    assert payload_hash("t", {}) == expected


@given(st.text(), st.dictionaries(st.text(), JSON, max_size=4))
def test_a_hash_of_canonical_arguments_is_the_payload_hash(tool, arguments):
    whole = canonical({"tool": tool, "arguments": arguments})
    assert payload_hash(tool, arguments) == sha256(whole)
    assert hash_of(tool, canonical(arguments)) == sha256(whole)


@pytest.mark.proves("CORE-43")
def test_volatile_arguments_are_left_out_of_the_hash_and_no_others():
    stable = payload_hash("t", {"a": 1})
    assert payload_hash("t", {"a": 1, "asked_at": 5}, ["asked_at"]) == stable
    assert payload_hash("t", {"a": 1, "asked_at": 5}) != stable
    assert payload_hash("t", {"a": {"asked_at": 5}}, ["asked_at"]) != payload_hash("t", {"a": {}})


@pytest.mark.parametrize(
    ("tool", "arguments"), [("u", {"a": 1}), ("t", {"a": 2}), ("t", {"a": "1"}), ("t", {})]
)
def test_another_tool_or_another_argument_is_another_payload(tool, arguments):
    assert payload_hash(tool, arguments) != payload_hash("t", {"a": 1})


# --- keys and references -------------------------------------------------------------------------


@pytest.mark.proves("CORE-44", "INV-7")
def test_the_key_is_derived_from_ledger_and_operation_alone():
    assert hashlib.sha256(LEDGER + b"refund_1").digest()[:16] == BITS
    assert derive(LEDGER, "refund_1") == BITS
    assert derive(LEDGER, "refund_2") != BITS
    assert derive(bytes(16), "refund_1") != BITS


ZEROS, ONES = bytes(16), b"\xff" * 16


@pytest.mark.proves("CORE-44")
@pytest.mark.parametrize(
    ("bits", "form", "key"),
    [
        (ZEROS, KeyFormat.UUID, "00000000-0000-4000-8000-000000000000"),
        (ONES, KeyFormat.UUID, "ffffffff-ffff-4fff-bfff-ffffffffffff"),
        (ZEROS, KeyFormat.HEX32, "0" * 32),
        (ONES, KeyFormat.HEX32, "f" * 32),
        (ZEROS, KeyFormat.BASE32HEX, "0" * 26),
        (ONES, KeyFormat.BASE32HEX, "v" * 25 + "s"),
        (ZEROS, KeyFormat.BASE36, "0" * 25),
        (ONES, KeyFormat.BASE36, "f5lxx1zz5pnorynqglhzmsp33"),
    ],
)
def test_a_key_is_written_in_the_providers_alphabet(bits, form, key):
    assert encode_key(bits, form) == key


@given(st.binary(min_size=16, max_size=16), st.sampled_from(KeyFormat))
def test_a_key_keeps_all_its_bits(bits, form):
    key = encode_key(bits, form)
    assert key == key.lower()
    match form:
        case KeyFormat.UUID:
            read = uuid.UUID(key)
            assert (read.version, read.variant, len(key)) == (4, uuid.RFC_4122, 36)
        case KeyFormat.HEX32:
            assert bytes.fromhex(key) == bits
        case KeyFormat.BASE36:
            assert (int(key, 36), len(key)) == (int.from_bytes(bits, "big"), 25)
        case _:
            assert (int(key, 32) >> 2, len(key)) == (int.from_bytes(bits, "big"), 26)


@pytest.mark.proves("CORE-44")
@given(st.binary(min_size=16, max_size=16))
def test_the_reference_is_the_untouched_bits_in_base32hex(bits):
    ref = reference(bits)
    assert re.fullmatch("[0-9a-v]{26}", ref)
    assert int(ref, 32) >> 2 == int.from_bytes(bits, "big")
    assert ref == encode_key(bits, KeyFormat.BASE32HEX)


# --- ids, objects, claims ------------------------------------------------------------------------


@pytest.mark.proves("CORE-45")
@pytest.mark.parametrize("text", ["a", "refund_74219_01", "A.b:c-d_9", "x" * 128, "-", "..."])
def test_an_operation_id_is_1_to_128_of_a_small_alphabet(text):
    assert is_operation_id(text)


@pytest.mark.proves("CORE-45")
@pytest.mark.parametrize(
    "text", ["", "x" * 129, "a b", "a/b", "ä", "a\n", "\na", "a\x00", "{a}", "a%20", "\uff11"]
)
def test_anything_else_is_no_operation_id(text):
    assert not is_operation_id(text)


def test_the_object_acted_on_is_the_named_arguments():
    arguments: dict[str, Json] = {"charge": "ch_1", "amount": 500}
    assert business_key(arguments, []) is None
    assert business_key(arguments, ["charge"]) == '{"charge":"ch_1"}'
    assert business_key(arguments, ["charge", "part"]) == '{"charge":"ch_1","part":null}'
    assert business_key(arguments, ["charge", "amount"]) == business_key(
        arguments, ["amount", "charge"]
    )


@pytest.mark.proves("CORE-46")
def test_the_object_is_claimed_across_sessions_and_tools_and_the_payload_within_a_session():
    who = {"principal": "a", "session_id": "s", "payload": "p"}
    assert claim_of('{"charge":"ch_1"}', **who) == '{"charge":"ch_1"}'
    claims = {claim_of(None, **{**who, name: "x"}) for name in who} | {claim_of(None, **who)}
    assert len(claims) == 4
    assert not any(claim.startswith("{") for claim in claims)
