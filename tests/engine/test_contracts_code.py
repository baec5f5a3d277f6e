"""Tools in code carry the same contract, with the same checks."""

from functools import partial

import pytest

from doubtless.core.contract import Kind, OnAbsent, SourceRules, Stores
from doubtless.core.model import Effect, Json
from doubtless.engine.contracts import Key, Lookup, build_contract, dump_contract, read_contract
from doubtless.errors import ContractError

SCHEMA: dict[str, Json] = {
    "type": "object",
    "required": ["charge", "amount"],
    "properties": {"charge": {"type": "string"}, "amount": {"type": "integer"}},
}


async def find_refund(operation):
    """Stand for a look-up."""


FOUND = Lookup(find_refund, authoritative=True, lag="30s", confirmations=3, in_flight_horizon="2m")
refund = partial(
    build_contract,
    "create_refund",
    arguments_schema=SCHEMA,
    declared_in="shop.refunds:create_refund",
    effect=Effect.MONEY,
    business_key=["charge"],
    idempotency=Key(ttl="24h"),
    lookup=FOUND,
)


def places(**changes):
    with pytest.raises(ContractError) as caught:
        refund(**changes)
    assert all(each.file == "shop.refunds:create_refund" for each in caught.value.problems)
    assert all(each.mend for each in caught.value.problems)
    return [
        (each.table.removeprefix("tools.create_refund").removeprefix("."), each.key)
        for each in caught.value.problems
    ]


def test_a_tool_in_code_has_the_same_contract_as_one_in_a_file():
    found = refund()
    assert (found.kind, found.request, found.effect) == (Kind.FUNCTION, None, Effect.MONEY)
    assert found.source == SourceRules(name="create_refund")
    assert found.key is not None
    assert (found.key.place, found.key.name, found.key.ttl_ms) == ("code", "", 86_400_000)
    (look,) = found.lookups
    assert look.python == f"{__name__}:find_refund"
    assert (look.authoritative, look.attributes, look.lag_ms) == (True, True, 30_000)
    assert (look.confirmations, look.in_flight_horizon_ms) == (3, 120_000)
    assert (found.on_absent, found.recovery_deadline_ms) == (OnAbsent.REPORT, 900_000)
    assert read_contract(dump_contract(found)) == found


def test_a_source_is_a_name_or_the_rules_themselves():
    rules = SourceRules(name="payments", base_url="https://api.example.com")
    assert refund(source="payments").source == SourceRules(name="payments")
    assert refund(source=rules).source is rules


def test_several_look_ups_are_asked_in_order():
    found = refund(lookup=(Lookup("shop.log:seen", in_flight_horizon="1m"), FOUND))
    assert [look.python for look in found.lookups] == ["shop.log:seen", f"{__name__}:find_refund"]
    assert [look.name for look in found.lookups] == ["lookup#1", "lookup#2"]


def test_a_callable_object_can_be_asked_too():
    (look,) = refund(lookup=Lookup(partial(find_refund), in_flight_horizon="1m")).lookups
    assert look.python == "functools:partial"


def test_a_key_can_say_where_it_goes_and_what_a_repeat_gets():
    key = refund(idempotency=Key(header="Idempotency-Key", stores="all", ttl="1h")).key
    assert key is not None
    assert (key.place, key.name, key.stores) == ("header", "Idempotency-Key", Stores.ALL)


def test_the_other_keys_of_the_file_are_keywords():
    found = refund(
        on_absent="resend",
        retry={"resend": 2},
        approval={"when": "args.amount > `100`", "people": 2},
        correlation=False,
        review="none",
        timeout="5s",
    )
    assert (found.on_absent, found.retry.resend, found.timeout_ms) == (OnAbsent.RESEND, 2, 5_000)
    assert found.approval is not None
    assert (found.approval.people, found.correlation_header, found.review) == (2, None, False)


def test_none_says_nothing():
    found = refund(idempotency=None, lookup=None, source=None, on_absent=None, events=None)
    assert (found.key, found.lookups) == (None, ())


def test_a_tool_in_code_may_act_on_this_host():
    found = build_contract("save", effect="idempotent_fs")
    assert (found.effect, found.on_absent) == (Effect.FILE, OnAbsent.RESEND)


def test_events_of_a_tool_in_code_need_no_declared_webhook():
    found = refund(events={"types": ["refund.created"], "match": {"ref": "data.ref"}})
    assert found.events is not None


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"effect": "mony"}, ("", "effect")),
        ({"timeout": "10"}, ("", "timeout")),
        ({"tmeout": "10s"}, ("", "tmeout")),
        ({"request": {"method": "POST", "path": "/"}}, ("", "request")),
        ({"business_key": ["order"]}, ("", "business_key")),
        ({"duplicates": "acceptable"}, ("", "duplicates")),
        ({"on_absent": "resend", "idempotency": None}, ("", "on_absent")),
        ({"on_absent": "resend", "idempotency": Key()}, ("", "on_absent")),
        ({"on_absent": "resend", "lookup": None}, ("", "on_absent")),
        ({"idempotency": Key(ttl="x")}, ("idempotency", "ttl")),
        ({"lookup": Lookup(find_refund)}, ("lookup", "in_flight_horizon")),
        ({"recovery_deadline": "1m"}, ("", "recovery_deadline")),
        ({"arguments_schema": {"type": "strin"}}, ("arguments", "")),
        ({"effect": "browser"}, ("", "lookup")),
        ({"retry": {"attempts": 0}}, ("retry", "attempts")),
    ],
)
def test_the_checks_are_those_of_a_file(changes, place):
    assert place in places(**changes)


def test_all_errors_are_told_at_once():
    found = places(timeout="10", business_key=["order"], lookup=Lookup(find_refund, lag="x"))
    assert found == [
        ("", "timeout"),
        ("lookup", "lag"),
        ("", "business_key"),
        ("lookup", "in_flight_horizon"),
    ]
