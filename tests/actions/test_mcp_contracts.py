"""Servers and their tools as contracts, what a look-up's answer counts for, and half a line."""

import json
import os
import time

import anyio
import pytest
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCNotification, JSONRPCRequest

from doubtless.core.model import Effect, Json
from doubtless.engine.contracts import parse_contracts
from doubtless.engine.contracts.explain import explain
from doubtless.engine.contracts.mcp_drafts import contract_of
from doubtless.engine.contracts.report import check_report
from doubtless.errors import ContractError
from doubtless.transports.base import Watch, open_gate
from doubtless.transports.http_exchange import Halted
from doubtless.transports.mcp_found import seen_in
from doubtless.transports.mcp_pipe import PipeWriter
from doubtless.transports.mcp_servers import ServerRules, ToolClaims
from doubtless.transports.mcp_ticket import TICKET, Ticket

FILE = "/shop/contracts.toml"
SERVER = '[servers.pay]\ncommand = ["pay", "--{curly}"]\n'
TOOL = """
[tools.charge]
effect = "money"
business_key = ["charge"]
[tools.charge.arguments]
type = "object"
required = ["charge"]
properties.charge = { type = "string" }
properties.note = { type = "string" }
[tools.charge.mcp]
server = "pay"
tool = "create_charge"
"""
FIND = 'lookup = { tool = "find", in_flight_horizon = "1m", '


def loaded(more="", server=SERVER, tool=TOOL):
    return parse_contracts(f"{server}{tool}{more}\n", FILE)


def wrong(**said):
    with pytest.raises(ContractError) as caught:
        loaded(**said)
    return {(each.table, each.key) for each in caught.value.problems}


# --- what is declared ----------------------------------------------------------------------------


@pytest.mark.proves("MCP-12")
@pytest.mark.parametrize(
    ("said", "place"),
    [
        ({"server": ""}, ("tools.charge.mcp", "server")),
        ({"server": "[servers.pay]\n"}, ("servers.pay", "command")),
        ({"server": '[servers.pay]\nurl = "ftp://x"\n'}, ("servers.pay", "url")),
        ({"server": f'{SERVER}credential = "x"\n'}, ("servers.pay", "credential")),
        ({"server": f'{SERVER}errors = "maybe"\n'}, ("servers.pay", "errors")),
        ({"more": 'headers = { X-Key = "x" }'}, ("tools.charge.mcp", "headers")),
        ({"more": 'meta_key = "io.modelcontextprotocol/key"'}, ("tools.charge.mcp", "meta")),
        ({"more": 'meta = { "tools.mcp.com/key" = "x" }'}, ("tools.charge.mcp", "meta")),
        ({"more": 'meta_key = "doubtless.dev/operation-id"'}, ("tools.charge.mcp", "meta")),
        ({"more": FIND + "authoritative = true }"}, ("tools.charge.mcp", "lookup.lag")),
        (
            {"more": FIND + 'where = { id = "{args.charge}" } }'},
            ("tools.charge.mcp", "lookup.where"),
        ),
        (
            {"more": FIND + 'where = { a = "{operation.ref}", b = "{args.note}" } }'},
            ("tools.charge.mcp", "lookup.where"),
        ),
        ({"more": 'lookup = { tool = "find" }'}, ("tools.charge.mcp.lookup", "in_flight_horizon")),
        ({"tool": TOOL.replace('"money"', '"file"')}, ("tools.charge", "effect")),
        (
            {
                "tool": TOOL.replace('"money"', '"time_sensitive"\nvalid_for = "1h"'),
                "more": 'lookup = { tool = "find" }',
            },
            ("tools.charge.mcp", "lookup"),
        ),
    ],
)
def test_what_can_not_be_meant_is_told_at_its_place(said, place):
    assert place in wrong(**said)


@pytest.mark.proves("MCP-12")
def test_a_tool_whose_errors_are_not_declared_is_warned_of():
    told = [each for each in loaded().warnings if each.key == "errors"]
    assert "wait for a person" in told[0].wrong
    assert "wait for a person" in check_report(loaded())
    for said in ('errors = "definitive"', 'errors = "unknown"'):
        assert not [each for each in loaded(said).warnings if each.key == "errors"]
    server = f'{SERVER}errors = "definitive"\n'
    assert not [each for each in loaded(server=server).warnings if each.key == "errors"]
    read = TOOL.replace('"money"', '"read"')
    assert not [each for each in loaded(tool=read).warnings if each.key == "errors"]


@pytest.mark.proves("MCP-12")
def test_an_absence_from_what_may_be_a_part_is_warned_of():
    proves = f'{FIND} items = "items", authoritative = true, lag = "0s"'
    assert [each for each in loaded(f"{proves} }}").warnings if each.key == "lookup.complete"]
    whole = loaded(f'{proves}, complete = "!more" }}')
    assert not [each for each in whole.warnings if each.key == "lookup.complete"]


@pytest.mark.proves("MCP-12")
def test_how_a_server_is_reached_is_stored_as_it_is_with_names_of_secrets_alone():
    server = f'{SERVER}env = {{ A = "b", TOKEN = {{ credential = "pay" }} }}\ncwd = "there"\n'
    contracts = loaded(server=server)
    action = contracts.tools["charge"].action
    assert action is not None
    assert action["server"] == {
        "name": "pay",
        "command": ["pay", "--{{curly}}"],  # a template, of which the text is made again
        "cwd": "/shop/there",
        "env": {"A": "b", "TOKEN": {"credential": "pay"}},
    }
    rules = contracts.servers["pay"]
    assert ServerRules.from_json(rules.to_json()) == rules
    assert rules.command == ("pay", "--{curly}")


@pytest.mark.proves("MCP-12")
def test_its_way_is_explained_and_what_would_make_it_automatic():
    told = explain(loaded().tools["charge"])
    places = {each.name: (each.known, each.proof) for each in told.path}
    assert places["the server"][0] == "not sent"
    assert places["the call"] == ("unknown", "")
    assert "isError: nothing" in places["the result"][1]
    assert any("{operation.ref}" in each for each in told.more_automatic)
    more = (
        'errors = "definitive"\narguments = { memo = "{operation.ref}" }\n'
        f'{FIND} authoritative = true, lag = "0s" }}'
    )
    told = explain(loaded(more).tools["charge"])
    assert told.fully_automatic
    assert "refused, not done" in {each.name: each.proof for each in told.path}["the result"]


@pytest.mark.proves("MCP-12")
def test_a_key_that_the_server_keeps_lets_a_call_be_sent_again_after_proof():
    more = (
        'arguments = { memo = "{operation.ref}" }\n'
        f'{FIND} authoritative = true, lag = "0s" }}\n'
        '[tools.charge.idempotency]\nttl = "24h"'
    )
    tool = TOOL.replace('"money"', '"money"\non_absent = "resend"')
    told = explain(loaded(more, tool=tool).tools["charge"])
    assert any("in the call's _meta" in each for each in told.why)
    assert "sent again by itself" in " ".join(each.text for each in told.on_unknown)
    more += '\nheader = "Idempotency-Key"'
    assert ("tools.charge.mcp", "arguments") in wrong(more=more, tool=tool)


# --- tools without a contract ---------------------------------------------------------------------


@pytest.mark.proves("MCP-11")
def test_a_tool_without_a_contract_is_what_its_server_claims():
    server = ServerRules(name="pay", command=("pay",))
    schema: dict[str, Json] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"a": {"type": "string"}},
    }
    read = contract_of(server, ToolClaims(name="find", input_schema=schema, read_only=True))
    acts = contract_of(server, ToolClaims(name="pay.out"), errors_definitive=True, name="x_pay")
    assert (read.effect, acts.effect) == (Effect.READ, Effect.TIME_SENSITIVE)
    assert read.arguments == {"type": "object", "properties": {"a": {"type": "string"}}}
    assert (acts.tool, acts.valid_for_ms, acts.lookups) == ("x_pay", 3_600_000, ())
    assert acts.action is not None
    assert (acts.action["tool"], acts.action["errors"]) == ("pay.out", "definitive")


@pytest.mark.proves("MCP-11")
@pytest.mark.parametrize(
    "schema",
    [
        None,
        {},
        {"type": "array"},
        {"type": "object", "properties": {"a": {"type": "no such type"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://example.com/s"}}},
        {"type": "object", "maxProperties": 2**60},
    ],
)
def test_a_schema_that_can_not_be_read_here_is_left_to_the_server(schema):
    server = ServerRules(name="pay", url="https://pay.example/mcp")
    contract = contract_of(server, ToolClaims(name="charge", input_schema=schema))
    assert contract.arguments == {"type": "object"}


# --- what another tool finds ----------------------------------------------------------------------

MARKS = ("ref_1", "op_1")
OURS: Json = {"memo": "for ref_1", "n": 5}
THEIRS: Json = {"memo": "other", "n": 5}


@pytest.mark.proves("MCP-8")
@pytest.mark.parametrize(
    ("value", "look", "shows"),
    [
        ({"items": [OURS]}, {"items": "items"}, "applied"),
        ([OURS], {}, "applied"),
        (OURS, {}, "applied"),
        ({"items": []}, {"items": "items"}, "absent"),
        (None, {}, "absent"),
        # others: the filter was ignored, or the mark is not told
        ({"items": [THEIRS]}, {"items": "items"}, "could_not_ask"),
        ([THEIRS], {"where": {"memo": "ref_1"}, "arguments": {"q": "ref_1"}}, "could_not_ask"),
        # all that there is was asked for, and none is ours
        ([THEIRS], {"where": {"memo": "ref_1"}, "arguments": {"n": 5}}, "absent"),
        ([{"memo": "ref_1"}], {"where": {"memo": "ref_1"}}, "applied"),
        # a part of it
        ({"items": [], "more": True}, {"items": "items", "complete": "!more"}, "could_not_ask"),
        ({"items": [OURS], "more": True}, {"items": "items", "complete": "!more"}, "applied"),
        # not what was expected
        ({"result": []}, {"items": "items"}, "could_not_ask"),
        ("down", {"items": "length(items)"}, "could_not_ask"),
        # contradictions
        ([OURS, OURS], {}, "conflict"),
        ([OURS], {"equal": {"n": 6}}, "conflict"),
        ([OURS], {"equal": {"n": 5}}, "applied"),
        ([{"memo": "ref_1", "n": True}], {"equal": {"n": 1}}, "conflict"),
    ],
)
def test_what_is_found_counts_only_with_our_mark(value, look, shows):
    assert seen_in(value, look, MARKS).shows == shows


@pytest.mark.proves("MCP-8")
def test_what_was_found_brings_its_id():
    assert seen_in([OURS], {"id": "n"}, MARKS).provider_operation_id == "5"


# --- half a line ----------------------------------------------------------------------------------


def message(pad: int = 0) -> SessionMessage:
    params = {"name": "charge", "arguments": {"pad": "x" * pad}}
    return SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params=params))


def ticket(**said) -> Ticket:
    return Ticket(**{"gate": open_gate, "watch": Watch(), "boot_s": time.monotonic, **said})


@pytest.fixture
async def pipe():
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    closed: list[bool] = []
    writer = PipeWriter(ours, lambda: closed.append(True))
    yield theirs, writer, closed
    writer.close()
    os.close(theirs)


@pytest.mark.proves("MCP-14")
async def test_half_a_line_is_never_completed(pipe):
    theirs, writer, closed = pipe
    held = ticket()
    TICKET.set(held)
    with anyio.move_on_after(0.05):
        await writer.send(message(pad=1_000_000))  # more than a pipe holds, and nobody reads
    assert closed == [True]
    assert 0 < held.watch.sent_bytes < 1_000_000
    assert not held.watch.written
    os.set_blocking(theirs, False)
    got = 0
    while chunk := os.read(theirs, 65_536):
        got += len(chunk)
    assert got == held.watch.sent_bytes
    with pytest.raises(anyio.ClosedResourceError):
        await writer.send(message())


@pytest.mark.proves("MCP-14")
async def test_what_was_revoked_or_is_late_is_not_begun(pipe):
    theirs, writer, _ = pipe

    async def over() -> float:
        return 0.0

    for held in (ticket(revoked=True), ticket(gate=over)):
        TICKET.set(held)
        with pytest.raises(Halted):
            await writer.send(message())
        assert held.watch.sent_bytes == 0
    held = ticket()
    TICKET.set(held)
    await writer.send(message())
    assert held.watch.written
    assert json.loads(os.read(theirs, 65_536))["method"] == "tools/call"


@pytest.mark.proves("MCP-13")
async def test_one_call_is_one_line_and_no_cancellation_is_written(pipe):
    theirs, writer, _ = pipe
    TICKET.set(ticket())
    await writer.send(message())
    with pytest.raises(anyio.ClosedResourceError):
        await writer.send(message())
    told = {"requestId": 1}
    gone = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=told)
    await writer.send(SessionMessage(gone))
    assert os.read(theirs, 65_536).count(b"\n") == 1


@pytest.mark.proves("MCP-2")
async def test_a_reader_that_is_gone_got_nothing():
    theirs, ours = os.pipe()
    os.set_blocking(ours, False)
    os.close(theirs)
    writer, held = PipeWriter(ours, lambda: None), ticket()
    TICKET.set(held)
    with pytest.raises(anyio.BrokenResourceError):
        await writer.send(message())
    assert held.revoke()
