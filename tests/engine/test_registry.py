"""The tools that a process knows: by name, by the digest of their contract, and with their code."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from doubtless import Absent, Lookup, Operation
from doubtless.core.contract import Contract, Kind, LookupRules, RequestRules
from doubtless.engine.contracts import build_contract, dump_contract
from doubtless.engine.registry import Registry, Tool, code_lookups
from doubtless.errors import BadArguments, SettingsError, UnknownTool
from doubtless.transports.function import Body

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["charge"],
    "additionalProperties": False,
    "properties": {
        "charge": {"type": "string", "format": "email"},
        "lines": {"type": "array", "items": {"type": "object", "required": ["sku"]}},
    },
}


def built(tool: str = "act", **keys: Any) -> Contract:
    return build_contract(tool, arguments_schema=SCHEMA, **{"effect": "write", **keys})


async def find(operation: Operation) -> Absent:
    return Absent()


def act(call: object) -> None:
    """Stand for a tool's function."""


def looking(function: Any) -> Lookup:
    return Lookup(function, authoritative=True, lag="0s", in_flight_horizon="1m")


# --- names and digests ---------------------------------------------------------------------------


@pytest.mark.proves("ENGINE-23")
def test_a_tool_is_found_by_its_name_and_another_of_that_name_is_refused():
    registry, tool = Registry(), Tool(contract=built())
    registry.add(tool)
    assert (registry.tool("act"), registry.find("act"), list(registry)) == (tool, tool, [tool])
    assert registry.find("other") is None
    with pytest.raises(SettingsError, match="two tools are called 'act'"):
        registry.add(Tool(contract=built(effect="message")))
    assert registry.tool("act") is tool


@pytest.mark.proves("ENGINE-23")
def test_a_tool_that_is_not_there_is_told_with_those_that_are():
    registry = Registry()
    with pytest.raises(UnknownTool, match=r"Declared tools: none"):
        registry.tool("act")
    for name in ("b", "a"):
        registry.add(Tool(contract=built(name)))
    with pytest.raises(UnknownTool, match=r"'c' is declared\. Declared tools: a, b$"):
        registry.tool("c")


@pytest.mark.proves("ENGINE-23")
def test_an_operation_goes_on_under_the_contract_that_it_was_prepared_with():
    registry = Registry()
    old, new = Tool(contract=built(timeout="5s")), Tool(contract=built(timeout="7s"))
    registry.add(new)
    reads: list[str] = []

    def snapshot() -> str:
        reads.append(old.digest)
        return old.snapshot

    assert registry.contract(new.digest, snapshot) is new.contract
    assert registry.by_digest(old.digest) is None
    assert [registry.contract(old.digest, snapshot).timeout_ms for _ in range(2)] == [5_000, 5_000]
    assert registry.by_digest(old.digest) == old.contract
    assert reads == [old.digest]
    assert old.digest != new.digest
    assert dump_contract(old.contract) == old.snapshot


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.proves("ENGINE-23")
@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({}, ""),
        ({"charge": 1}, "charge"),
        ({"charge": "a@b.example", "more": 1}, ""),
        ({"charge": "no address"}, "charge"),
        ({"charge": "a@b.example", "lines": [{"sku": 1}, {}]}, "lines.1"),
    ],
    ids=range(5),
)
def test_arguments_that_do_not_fit_are_told_with_their_place(arguments, where):
    with pytest.raises(BadArguments) as caught:
        Tool(contract=built()).check(arguments)
    assert (caught.value.tool, caught.value.where) == ("act", where)
    assert caught.value.wrong


@pytest.mark.proves("ENGINE-23")
def test_arguments_may_be_any_mapping_and_sequence():
    said: Mapping[str, Any] = MappingProxyType({"charge": "a@b.example", "lines": ({"sku": 1},)})
    Tool(contract=built()).check(said)


# --- code ----------------------------------------------------------------------------------------


@pytest.mark.proves("ENGINE-23")
def test_a_function_is_carried_out_where_it_is_registered_and_a_request_anywhere():
    registry = Registry()
    http = Contract(tool="http", effect=built().effect, source=built().source, kind=Kind.HTTP)
    assert registry.can_act(http)
    assert not registry.can_act(built())
    registry.add(Tool(contract=built()))
    assert not registry.can_act(built())
    other = Registry()
    other.add(Tool(contract=built(), body=Body(function=act)))
    assert other.can_act(built())
    assert other.can_act(built(timeout="7s"))  # an older contract of the same tool


@pytest.mark.proves("ENGINE-23")
def test_the_code_of_a_look_up_is_the_registered_one_or_is_imported_by_its_name():
    contract = built(lookup=[looking(find), looking("os.path:basename")])
    registry = Registry()
    first, second = contract.lookups
    assert registry.asker(contract, first) is find  # by its module and name
    assert registry.can_ask(contract)

    async def local(operation: Operation) -> Absent:
        return Absent()

    keys = [looking(local), looking("os.path:basename")]
    contract = built(lookup=keys)
    first, second = contract.lookups
    assert registry.asker(contract, first) is None
    assert not registry.can_ask(contract)
    registry.add(Tool(contract=contract, lookups=code_lookups(contract, keys)))
    assert registry.asker(contract, first) is local
    assert registry.asker(contract, second).__name__ == "basename"  # type: ignore[union-attr]
    assert registry.can_ask(contract)


@pytest.mark.proves("ENGINE-23")
@pytest.mark.parametrize(
    "place",
    [
        "no_such_module_here:find",
        "os.path:no_such_name",
        "os:sep",
        "os",
        ":find",
        "",
        "tests.engine.broken_lookup:find",
    ],
    ids=range(7),
)
def test_what_can_not_be_imported_can_not_be_asked(place):
    contract, registry = built(), Registry()
    rules = LookupRules(name="lookup", python=place)
    assert registry.asker(contract, rules) is None


@pytest.mark.proves("ENGINE-23")
def test_a_request_can_be_asked_by_anybody():
    contract = built()
    rules = LookupRules(name="lookup", request=RequestRules(method="GET", path="/"))
    assert Registry().asker(contract, rules) is None
    assert Registry().can_ask(contract)
    assert code_lookups(contract, None) == {}
