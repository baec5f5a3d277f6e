"""Answers and look-ups as contracts read them: what is said, what is absent, what is neither."""

from dataclasses import replace
from typing import Any

import pytest

from doubtless.core.contract import Contract, KeyRules, LookupRules, RequestRules, ResponseRules
from doubtless.core.model import Effect, Json, Shows, Stage
from doubtless.engine.contracts import build_contract
from doubtless.engine.reading import Page, answer_of, find, page_of, retry_after_ms
from doubtless.engine.templates import TemplateValues
from doubtless.transports.base import Reply

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain; charset=utf-8"}
HTML = {"content-type": "text/html"}
PLAIN = build_contract("act", effect="write")
EPOCH_MS = 0
DAY_MS = 86_400_000


def reply(body: bytes = b"", status: int | None = 200, **changes: Any) -> Reply:
    said: dict[str, Any] = {"stage": Stage.READ, "complete": True, "headers": JSON, **changes}
    return Reply(status=status, body=body, **said)


def contract(**rules: Any) -> Contract:
    return replace(PLAIN, response=ResponseRules(**rules))


def read(found: Reply, rules: Contract = PLAIN):
    return answer_of(found, rules, now_ms=EPOCH_MS)


# --- answers -------------------------------------------------------------------------------------

BIG = 2**60


@pytest.mark.proves("READ-1")
@pytest.mark.parametrize(
    ("body", "headers", "result"),
    [
        (b'{"id": "re_1"}', JSON, {"id": "re_1"}),
        (b'{"id": "re_1"}', {}, {"id": "re_1"}),
        (b'{"id": "re_1"}', HTML, {"id": "re_1"}),
        (b'\xef\xbb\xbf{"a": 1}', JSON, {"a": 1}),
        (b"%d" % BIG, JSON, BIG),
        (b"[1.5, null, true]", JSON, [1.5, None, True]),
        (b"ok", TEXT, "ok"),
        (b"7", TEXT, 7),
        (b"", JSON, None),
        (b" \r\n", {}, None),
        (b"", HTML, None),
    ],
    ids=range(11),
)
def test_a_success_is_read_as_what_its_body_holds(body, headers, result):
    answer, value = read(reply(body, headers=headers))
    assert (answer.unreadable, value) == (None, result)


@pytest.mark.proves("READ-1")
@pytest.mark.parametrize(
    ("body", "headers", "kind"),
    [
        (b"<html>Log in</html>", HTML, "text/html"),
        (b"<html>Log in</html>", {"content-type": "TEXT/HTML; charset=x"}, "TEXT/HTML"),
        (b'{"id": "re_', JSON, "application/json"),
        (b'{"a": NaN}', JSON, "application/json"),
        (b'{"a": -Infinity}', JSON, "application/json"),
        (b"\xff\xfe\x00", {}, "no content type"),
        (b"[" * 100_000, JSON, "application/json"),
        (b"9" * 5_000, JSON, "application/json"),
        (b"ok", {}, "no content type"),
    ],
    ids=range(9),
)
def test_what_can_not_be_read_is_said_to_be_so_and_is_not_quoted(body, headers, kind):
    answer, value = read(reply(body, headers=headers))
    assert answer.unreadable == f"its body is not JSON ({kind})"
    assert value is None


@pytest.mark.proves("READ-1")
def test_a_number_that_json_can_not_give_back_is_not_read_as_infinity():
    answer, value = read(reply(b'{"amount": 1e999}'))
    assert answer.unreadable is not None
    assert value is None


@pytest.mark.proves("READ-1")
@pytest.mark.parametrize(
    "rules",
    [{"failed": "error"}, {"provider_operation_id": "id"}, {"result": "data"}],
    ids=["failed", "id", "result"],
)
def test_a_text_is_unreadable_where_the_contract_reads_the_body(rules):
    answer, value = read(reply(b"ok", headers=TEXT), contract(**rules))
    assert (answer.unreadable, value) == ("its body is not JSON (text/plain)", None)


@pytest.mark.proves("READ-1")
def test_an_empty_success_is_unreadable_where_it_leaves_a_declared_question_open():
    for rules in ({"failed": "error"}, {"accepted": "status == 'pending'"}):
        assert read(reply(b""), contract(**rules))[0].unreadable is not None
        assert read(reply(b"", 429), contract(**rules))[0].unreadable is None
        assert read(reply(b"", complete=False), contract(**rules))[0].unreadable is None
    assert read(reply(b""), contract(provider_operation_id="id"))[0].unreadable is None


@pytest.mark.proves("READ-1")
def test_an_empty_success_answers_a_question_about_its_headers():
    found = reply(b"", 202, headers={"location": "/jobs/1"})
    answer, _ = read(found, contract(accepted="headers.location"))
    assert (answer.unreadable, answer.accepted) == (None, True)


@pytest.mark.proves("READ-1")
def test_what_an_answer_says_is_found_where_the_contract_says():
    rules = replace(
        contract(
            provider_operation_id="data.number",
            accepted="data.state == 'pending'",
            failed="data.error",
            status_url="headers.location",
            result="data",
        ),
        key=KeyRules(place="header", name="Key", replayed="headers.replayed"),
    )
    body = b'{"data": {"number": %d, "state": "pending", "error": ""}}' % BIG
    headers = {"location": "/jobs/1", "replayed": "true", "retry-after": "7"}
    answer, value = read(reply(body, headers=headers), rules)
    assert (answer.provider_operation_id, answer.status_url) == (str(BIG), "/jobs/1")
    assert (answer.accepted, answer.failed, answer.replayed) == (True, False, True)
    assert (answer.retry_after_ms, answer.unreadable) == (7_000, None)
    assert value == {"number": BIG, "state": "pending", "error": ""}


@pytest.mark.proves("READ-1")
def test_an_expression_that_can_not_be_evaluated_makes_the_answer_unreadable():
    answer, _ = read(reply(b'{"at": "x"}'), contract(failed="abs(at) > `1`"))
    assert str(answer.unreadable).startswith("it doesn't fit the contract: ")
    assert not answer.failed


@pytest.mark.proves("READ-1")
@pytest.mark.parametrize(
    ("effect", "status", "found"),
    [
        (Effect.WRITE, 200, "re_1"),
        (Effect.WRITE, 500, None),
        (Effect.WRITE, 409, None),
        (Effect.TIME_SENSITIVE, 500, "re_1"),
    ],
)
def test_a_refusal_identifies_nothing_but_what_is_worth_doing_only_now(effect, status, found):
    rules = replace(contract(provider_operation_id="id"), effect=effect)
    assert read(reply(b'{"id": "re_1"}', status), rules)[0].provider_operation_id == found


@pytest.mark.proves("READ-1")
@pytest.mark.parametrize(
    "body",
    [b'{"id": ""}', b'{"id": true}', b'{"id": null}', b'{"id": ["x"]}', b'{"id": "a\\nb"}', b"{}"],
    ids=range(6),
)
def test_what_is_no_text_is_no_id(body):
    answer, _ = read(reply(body), contract(provider_operation_id="id"))
    assert (answer.provider_operation_id, answer.unreadable) == (None, None)


# --- Retry-After ---------------------------------------------------------------------------------


@pytest.mark.proves("READ-2")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, None),
        ("120", 120_000),
        ("0", 0),
        ("-5", 0),
        ("100000", DAY_MS),
        ("9" * 400, None),
        ("inf", None),
        ("nan", None),
        ("", None),
        ("soon", None),
        ("Thu, 01 Jan 1970 00:00:30 GMT", 30_000),
        ("Thu, 01 Jan 1970 00:00:30 -0000", 30_000),
        ("Thu, 01 Jan 1970 01:00:30 +0100", 30_000),
        ("Wed, 31 Dec 1969 23:59:00 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", DAY_MS),
        ("Thu, 32 Jan 1970 00:00:30 GMT", None),
        (f"Thu, 01 Jan {'9' * 20} 00:00:00 GMT", None),
        (f"Thu, 01 Jan 1970 00:00:00 +{'9' * 20}", None),
    ],
    ids=range(18),
)
def test_a_pause_is_read_in_seconds_or_as_a_date_and_is_a_day_at_most(text, expected):
    assert retry_after_ms(text, now_ms=EPOCH_MS) == expected


# --- pages ---------------------------------------------------------------------------------------

LOOK = LookupRules(
    name="lookup",
    request=RequestRules(method="GET", path="/v1/refunds", query={"charge": "{args.charge}"}),
    items="data",
    where={"ref": "{operation.ref}"},
    equal={"amount": "{args.amount}", "note": "{args.note}"},
    complete="!has_more",
    next_page="next",
    authoritative=True,
)
VALUES = TemplateValues(args={"charge": "ch_1", "amount": 500}, ref="r1", id="o1")
MATCH: dict[str, Any] = {"id": "re_1", "ref": "r1", "amount": 500, "charge": "ch_1"}
OTHER: dict[str, Any] = {"id": "re_2", "ref": "r2", "amount": 500, "charge": "ch_1"}


@pytest.mark.proves("READ-3")
@pytest.mark.parametrize(
    ("found", "shows", "words"),
    [
        (reply(status=None, detail="reset"), Shows.COULD_NOT_ASK, "reset"),
        (reply(status=None), Shows.COULD_NOT_ASK, "no answer came"),
        (reply(b"{}", complete=False), Shows.COULD_NOT_ASK, "broke off"),
        (reply(b"", 404, complete=False), Shows.COULD_NOT_ASK, "broke off"),
        (reply(b"", 404), Shows.ABSENT, "status 404: not found"),
        (reply(b"{}", 403), Shows.COULD_NOT_ASK, "status 403"),
        (reply(b"{}", 503), Shows.COULD_NOT_ASK, "status 503"),
        (reply(b"{}", 302), Shows.COULD_NOT_ASK, "status 302"),
        (reply(b"", 200), Shows.COULD_NOT_ASK, "there is no 'data' in the body"),
        (reply(b"", 204), Shows.COULD_NOT_ASK, "there is no 'data' in the body"),
        (reply(b'{"data": "x"}'), Shows.COULD_NOT_ASK, "there is no 'data' in the body"),
        (reply(b'{"data": [NaN]}'), Shows.COULD_NOT_ASK, "not JSON"),
        (reply(b"<html>", headers=HTML), Shows.COULD_NOT_ASK, "not JSON (text/html)"),
        (reply(b"ok", headers=TEXT), Shows.COULD_NOT_ASK, "not JSON (text/plain)"),
    ],
    ids=range(14),
)
def test_what_is_no_page_is_absent_only_where_the_provider_says_so(found, shows, words):
    seen = page_of(found, LOOK)
    assert not isinstance(seen, Page)
    assert seen.shows is shows
    assert words in seen.detail


@pytest.mark.proves("READ-3")
def test_a_page_has_its_items_and_says_whether_there_is_more():
    body = b'{"data": [{"id": 1}, {"id": 2}], "has_more": true, "next": "c2"}'
    assert page_of(reply(body), LOOK) == Page(
        items=({"id": 1}, {"id": 2}), complete=False, next_page="c2"
    )
    single = replace(LOOK, items="@", complete=None, next_page=None)
    one = Page(items=({"id": 1},), complete=True, next_page=None)
    assert page_of(reply(b'{"id": 1}'), single) == one
    assert page_of(reply(b"[]"), single) == Page(items=(), complete=True, next_page=None)


@pytest.mark.proves("READ-3")
def test_a_status_is_absent_only_if_the_contract_says_so():
    look = replace(LOOK, not_found=(410,))
    for status, shows in ((404, Shows.COULD_NOT_ASK), (410, Shows.ABSENT)):
        seen = page_of(reply(b"", status), look)
        assert not isinstance(seen, Page)
        assert seen.shows is shows


# --- what the pages show -------------------------------------------------------------------------


def page(*items: Json, complete: bool = True) -> Page:
    return Page(items=items, complete=complete, next_page=None)


def shown(*pages: Page, values: TemplateValues = VALUES, **changes: Any):
    return find(pages, replace(LOOK, **changes), values)


@pytest.mark.proves("READ-4")
def test_only_a_whole_answer_without_a_match_is_absent():
    assert shown(page()).shows is Shows.ABSENT
    assert shown(page(OTHER)).shows is Shows.ABSENT
    assert shown(page(OTHER, complete=False), page()).shows is Shows.ABSENT
    assert shown(page(complete=False)).shows is Shows.COULD_NOT_ASK
    assert shown(page(), page(OTHER, complete=False)).shows is Shows.COULD_NOT_ASK
    assert shown().shows is Shows.COULD_NOT_ASK


@pytest.mark.proves("READ-4")
def test_a_match_counts_on_whatever_page_it_stands_and_two_contradict():
    found = shown(page(OTHER, complete=False), page(MATCH, complete=False))
    assert (found.shows, found.provider_operation_id) == (Shows.APPLIED, "re_1")
    assert (found.result, found.detail) == (MATCH, "found (re_1)")
    assert shown(page(MATCH), page({**OTHER, "ref": "r1"})).shows is Shows.CONFLICT


@pytest.mark.proves("READ-4")
def test_a_filter_that_was_ignored_is_no_absence():
    stray: Json = {"id": "re_3", "ref": "r3", "charge": "ch_2"}
    found = shown(page(OTHER), page(stray))
    assert (found.shows, found.detail) == (
        Shows.COULD_NOT_ASK,
        "the provider ignored the filter 'charge'",
    )
    assert shown(page(stray, MATCH)).shows is Shows.APPLIED
    assert shown(page({"charge": {"id": "ch_2"}}, "text", 7)).shows is Shows.ABSENT
    numbers = RequestRules(method="GET", path="/", query={"charge": 7})
    assert shown(page({"charge": "7"}, {"charge": 7}), request=numbers).shows is Shows.ABSENT
    assert shown(page({"charge": 8}), request=numbers).shows is Shows.COULD_NOT_ASK


@pytest.mark.proves("READ-4")
@pytest.mark.parametrize(
    ("asked", "told"), [("true", True), (["open", "done"], "done")], ids=["a boolean", "a list"]
)
def test_a_filter_that_was_heeded_is_not_said_to_be_ignored(asked, told):
    query = RequestRules(method="GET", path="/", query={"state": asked})
    assert shown(page({"state": told, "ref": "r2"}), request=query).shows is Shows.ABSENT


@pytest.mark.proves("READ-4")
@pytest.mark.parametrize(
    ("changes", "shows"),
    [
        ({"amount": 500.0}, Shows.APPLIED),
        ({"amount": 501}, Shows.CONFLICT),
        ({"amount": "500"}, Shows.CONFLICT),
        ({"amount": None}, Shows.CONFLICT),
        ({"note": "whatever"}, Shows.APPLIED),
        ({"ref": "R1"}, Shows.ABSENT),
        ({"ref": None}, Shows.ABSENT),
    ],
    ids=range(7),
)
def test_a_match_is_compared_as_json_with_what_was_asked_for(changes, shows):
    assert shown(page({**MATCH, **changes})).shows is shows


@pytest.mark.proves("READ-4")
def test_an_optional_argument_that_was_said_is_compared_and_true_is_no_number():
    values = replace(VALUES, args={**VALUES.args, "note": "thanks"})
    assert shown(page(MATCH), values=values).shows is Shows.CONFLICT
    noted: Json = {**MATCH, "note": "thanks"}
    assert shown(page(noted), values=values).shows is Shows.APPLIED
    for said, told in ((1, True), (True, 1), (0, False)):
        values = replace(VALUES, args={**VALUES.args, "amount": said})
        item: Json = {**MATCH, "amount": told}
        assert shown(page(item), values=values).shows is Shows.CONFLICT


@pytest.mark.proves("READ-4")
def test_a_condition_that_can_not_be_told_asks_nobody():
    assert shown(page(MATCH), where={"note": "{args.note}"}).shows is Shows.COULD_NOT_ASK
    assert shown(page(MATCH), where={"abs(ref)": "r1"}).shows is Shows.COULD_NOT_ASK
    found = shown(page(MATCH), applied="abs(ref) > `1`")
    assert (found.shows, found.detail[:27]) == (Shows.PRESENT, "found, but it can't be read")


STATES: dict[str, Any] = {
    "failed": "state == 'failed'",
    "in_progress": "busy",
    "applied": "state == 'done'",
}


@pytest.mark.proves("READ-4")
@pytest.mark.parametrize(
    ("item", "shows"),
    [
        ({"state": "done"}, Shows.APPLIED),
        ({"state": "failed"}, Shows.NOT_APPLIED),
        ({"state": "failed", "busy": True}, Shows.NOT_APPLIED),
        ({"state": "done", "busy": True}, Shows.IN_PROGRESS),
        ({"state": "new"}, Shows.PRESENT),
        ({}, Shows.PRESENT),
    ],
    ids=range(6),
)
@pytest.mark.parametrize("attributes", [True, False], ids=["ours", "anybody's"])
def test_a_state_is_applied_only_if_it_says_so_and_only_ours_says_anything(item, shows, attributes):
    found = shown(page({**MATCH, **item}), attributes=attributes, **STATES)
    assert found.shows is (shows if attributes else Shows.PRESENT)
