"""The report says what is known after a broken connection, in words that fit a terminal."""

import json

import pytest
from tests.engine.contract_texts import FILE, PLAIN, WEBHOOK, file_text, refund

from doubtless.engine.contracts import Contracts, Lookup, build_contract, parse_contracts
from doubtless.engine.contracts.answers import answers_of
from doubtless.engine.contracts.report import check_data, check_report

WITH_WEBHOOK = {f"webhook.{key}": value for key, value in WEBHOOK["webhook"].items()}
EVENTS = {"events.types": '["refund.done"]', "events.match": '{ ref = "data.ref" }'}
REPLAYED = {"effect": '"idempotent_call"', "lookup": None}
UNCLAIMED = {"lookup.authoritative": "false"}


def report(changes=None, source=None):
    return check_report(parse_contracts(file_text(changes, source), FILE))


def test_the_report_reads_like_this():
    assert (
        report({"timeout": '"10s"', "response.rejected": "[400]"})
        == """\
refund  [money]  fully automatic
  POST https://api.example.com/v1/refunds
  What ties retries to one operation?
    a key in the header Idempotency-Key, kept for 24h after the first send
    {operation.ref}, carried in the request
  Where can the caller ask for the result?
    GET /v1/refunds at payments (provider)
  What proof remains when the connection breaks?
    lookup: a match by ref proves presence
    lookup: 3 absences, 5s apart, prove absence after 2m in flight and 30s of lag
  What happens with an unknown?
    it is looked up within 15m; a confirmed absence makes it failed, safe to retry; if
      nothing settles it, a person decides
  Defaults in force
    valid_for                 = "1h"
    correlation.header        = "X-Correlation-ID"
    on_absent                 = "report"
    review                    = "people"
    response.not_processed    = [307, 308, 421, 425, 429]
    response.result           = "@"
    idempotency.format        = "uuid"
    lookup.interval           = "5s"
    lookup.boundary           = "provider"
    lookup.not_found          = [404]
    lookup.confirmations      = 3
    lookup.interval_max       = "1m"
    lookup.timeout            = "10s"
    retry.backoff             = "1s"
    retry.attempts            = 3
    retry.resend              = 1
    recovery_deadline         = "15m"
    response.completes_within = "24h"

contracts.toml: 1 tool, 1 fully automatic, 0 warnings."""
    )


def test_warnings_stand_with_their_tool_and_those_of_sources_at_the_end():
    text = report({"business_key": None}, {"tls.verify": "false"})
    assert "  Warnings\n    tools.refund.business_key: money is irreversible" in text
    assert "Sources\n  Warnings\n    sources.payments.tls.verify: " in text
    assert text.endswith("1 tool, 1 fully automatic, 2 warnings.")


def test_an_unanswered_question_says_what_would_answer_it():
    text = report({**PLAIN, "request.json": None})
    assert text.startswith("refund  [write]  not fully automatic")
    assert "    nothing: declare the provider's key, or put {operation.ref} into" in text
    assert "    nowhere: declare a look-up, or events" in text
    assert "    none: let a look-up match {operation.ref}" in text
    assert "nothing is left to ask: a person decides at once" in text


@pytest.mark.parametrize(
    "changes", [None, PLAIN, {"effect": '"read"'}, {"lookup.where": '{ a = "{args.charge}" }'}]
)
def test_the_report_fits_a_terminal(changes):
    assert max(len(line) for line in report(changes).splitlines()) <= 100


@pytest.mark.parametrize(
    ("changes", "automatic"),
    [
        ({}, True),
        (REPLAYED, True),
        ({**REPLAYED, "idempotency.stores": '"current_state"'}, True),
        ({**REPLAYED, "idempotency.stores": '"success_only"'}, False),
        ({**REPLAYED, "idempotency.ttl": None}, False),
        ({**REPLAYED, "retry.resend": "0"}, False),
        ({**PLAIN, "effect": '"keyed_create"', "condition.id": '"{operation.ref}"'}, True),
        ({"effect": '"read"'}, True),
        ({"effect": '"compute"'}, True),
        (UNCLAIMED, False),
        ({"on_absent": '"review"'}, False),
        ({"lookup.where": '{ a = "{args.charge}" }', **UNCLAIMED}, False),
        ({"idempotency": None, "request.json": None}, False),
        ({"effect": '"browser"', "lookup": None}, False),
        ({"effect": '"time_sensitive"', "lookup": None, "valid_for": '"5m"'}, False),
    ],
)
def test_a_tool_is_fully_automatic_where_all_questions_have_an_answer(changes, automatic):
    assert answers_of(refund(changes)).automatic is automatic


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"on_absent": '"resend"'}, "a confirmed absence sends it again"),
        ({"on_absent": '"review"'}, "a confirmed absence goes to a person"),
        ({"review": '"none"'}, "it stays unknown, alerted and never sent"),
        (UNCLAIMED, "no absence can be proven"),
        (REPLAYED, "it is sent again, up to 4 times"),
        ({**REPLAYED, "lookup": "[]"}, "it is sent again, up to 4 times"),
        ({"effect": '"idempotent_call"'}, "then it is sent again"),
        ({"effect": '"read"'}, "never unknown: tried up to 3 times"),
        ({**PLAIN, **EVENTS}, "an event within 15m settles it"),
        ({"effect": '"browser"', "lookup": None}, "a person decides at once"),
    ],
)
def test_what_happens_with_an_unknown_is_said(changes, sentence):
    assert sentence in answers_of(refund(changes, WITH_WEBHOOK)).unknown


def test_a_version_ties_and_so_does_a_key_that_is_handed_over():
    condition = '{ header = "If-Match", value = "{args.note}", version_reuse = false }'
    changes = {**PLAIN, "effect": '"conditional_update"', "condition": condition}
    assert answers_of(refund(changes)).ties[0] == (
        "the version that it is conditional on, in If-Match"
    )


def test_a_tool_in_code_is_tied_by_what_its_look_up_recognises():
    look = Lookup("shop.orders:find", authoritative=True, lag="0s")
    contract = build_contract("ticket", effect="write", lookup=look)
    answers = answers_of(contract)
    assert answers.ties == ("what the look-up's own code recognises the operation by",)
    assert answers.asks == ("shop.orders:find at ticket (provider)",)
    assert answers.automatic
    text = check_report(Contracts(file="shop", tools={"ticket": contract}))
    assert "  Python, at ticket\n" in text


def test_a_read_is_not_asked_the_questions():
    assert "What ties" not in report({**PLAIN, "effect": '"read"'})


def test_the_same_is_there_for_machines():
    loaded = parse_contracts(file_text({"business_key": None}), FILE)
    (tool,) = json.loads(json.dumps(check_data(loaded)))["tools"]
    assert tool["tool"] == "refund"
    assert tool["fully_automatic"] is True
    assert tool["target"] == "POST https://api.example.com/v1/refunds"
    assert tool["defaults"]["timeout"] == '"30s"'
    assert [warning["key"] for warning in tool["warnings"]] == ["business_key"]


def test_a_warning_of_a_tool_whose_name_begins_alike_is_not_taken_for_its_own():
    text = file_text({"business_key": None}) + file_text().replace("tools.refund", "tools.refund_2")
    text = text.replace("[sources.payments]", "[sources.other]", 1)
    loaded = parse_contracts(text, FILE)
    first, second = json.loads(json.dumps(check_data(loaded)))["tools"]
    assert len(first["warnings"]) == 1
    assert second["warnings"] == []
