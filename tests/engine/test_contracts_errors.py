"""What a contract file may not say: each error names table, key and mend, all of them at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.contract_texts import (
    ALL,
    FILE,
    PLAIN,
    TOOL,
    WEBHOOK,
    file_text,
    places,
    problems,
    refund,
    written,
)

from doubtless.core.model import Effect
from doubtless.engine.contracts import dump_contract, load_contracts, parse_contracts, read_contract
from doubtless.errors import ContractError

IDEMPOTENT = {"effect": '"idempotent_call"'}
EVENTS = {"events.types": '["refund.created"]', "events.match": '{ ref = "data.ref" }'}
IRREVERSIBLE = ["money", "message", "access", "delete", "publish", "order", "booking", "physical"]
IN_FIELD = {"idempotency.header": None, "idempotency.field": '"k"'}
IN_PROGRESS = {"idempotency.in_progress": "[409]"}
IN_QUERY = {"idempotency.header": None, "idempotency.query": '"k"'}
WITH_WEBHOOK = {f"webhook.{key}": value for key, value in WEBHOOK["webhook"].items()}


def only(changes=None, source=None):
    """Return the one problem that there must be."""
    (problem,) = problems(file_text(changes, source))
    return problem


def test_the_tool_that_all_these_tests_change_is_good():
    assert places() == []


# --- the file as a whole


def test_all_errors_are_told_at_once():
    found = places(
        {
            "timeout": '"10 seconds"',
            "on_absnt": '"report"',
            "duplicates": '"acceptable"',
            "business_key": '["order"]',
            "response.rejected": "[200]",
            "idempotency.ttl": "24",
            "lookup.lag": None,
        },
        {"base_url": '"ftp://api.example.com"', "profile": '"stripe"'},
    )
    assert sorted(found) == [
        ("", "business_key"),
        ("", "duplicates"),
        ("", "on_absnt"),
        ("", "timeout"),
        ("idempotency", "ttl"),
        ("lookup", "lag"),
        ("response", "rejected"),
        ("sources.payments", "base_url"),
        ("sources.payments", "profile"),
    ]


def test_every_tool_is_judged_and_not_only_the_first():
    text = file_text({"effect": '"monney"'}) + written("tools.other", {"": {"effect": '"write"'}})
    assert [(each.table, each.key) for each in problems(text)] == [
        ("tools.refund", "effect"),
        ("tools.other", "request"),
        ("tools.other", "source"),
    ]


def test_a_problem_says_file_place_wrong_and_mend_in_one_line():
    problem = only({"duplicates": '"acceptable"'})
    assert str(problem).startswith("contracts.toml: tools.refund.duplicates: a duplicate of money")
    assert "Mend: " in str(problem)


def test_broken_toml_names_line_and_column():
    (problem,) = problems('[sources.payments]\nbase_url = "https://x\n')
    assert "line 2, column" in problem.wrong


def test_a_file_that_can_not_be_read_is_a_problem_too(tmp_path):
    with pytest.raises(ContractError, match="can't be read"):
        load_contracts(tmp_path / "absent.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    with pytest.raises(ContractError, match="can't be read"):
        load_contracts(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("text", "table", "key"),
    [
        ("[source.payments]\n", "", "source"),
        ("sources = 3\n", "", "sources"),
        ('[sources."a b"]\nbase_url = "https://x.example"\n', "sources", "a b"),
        ("tools.refund = 3\n", "tools.refund", ""),
    ],
)
def test_unknown_tables_and_impossible_names_are_errors(text, table, key):
    assert [(each.table, each.key) for each in problems(text)] == [(table, key)]


# --- keys and values by themselves


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("on_absnt", "on_absent"),
        ("lookup.authoritive", "authoritative"),
        ("request.metod", "method"),
        ("idempotency.tll", "ttl"),
    ],
)
def test_an_unknown_key_names_the_near_one(key, meant):
    problem = only({key: '"x"'})
    assert problem.key == key.rpartition(".")[2]
    assert f"did you mean {meant!r}?" in problem.mend


@pytest.mark.parametrize(
    ("key", "value", "mend"),
    [
        ("effect", '"mony"', "did you mean 'money'?"),
        ("on_absent", '"retry"', "resend, report, review"),
        ("review", '"nobody"', "people, none"),
        ("ordering", '"latest"', "latest_wins"),
        ("idempotency.stores", '"some"', "success_only"),
        ("idempotency.format", '"uuid4"', "did you mean 'uuid'?"),
        ("lookup.boundary", '"edge"', "ingress, application, worker, object, provider"),
        ("lookup.confirmations", "0", "at least 1"),
        ("retry.attempts", "11", "at most 10"),
        ("timeout", '"10"', '"10s"'),
        ("timeout", "10", '"10s"'),
        ("timeout", '"-1s"', '"10s"'),
        ("timeout", '"1.5s"', '"10s"'),
        ("timeout", '"0s"', '"1ms"'),
        ("timeout", '"9999999d"', "run out"),
        ("record_sending", '"yes"', "true or false"),
        ("business_key", '"charge"', "[ … ]"),
        ("response.rejected", "[99]", "at least 200"),
        ("response.rejected", '["404"]', "without quotes"),
        ("description", "3", "quotes"),
        ("correlation", "true", "false"),
        ("arguments.x", "2020-01-01", "text"),
        ("events", "3", "table"),
        ("lookup.path", '"/{args.charge"', "{args.NAME}"),
        ("request.json", '{ a = "{operation.secret}" }', "{operation.NAME}"),
        ("lookup.applied", "\"status = 'x'\"", "jmespath.org"),
        ("lookup.applied", f'"{"a" * 1001}"', "at most 1000 characters"),
        ("lookup.where", '{ "a[" = "{operation.ref}" }', "jmespath.org"),
        ("idempotency.header", '"Idempotency Key"', "letters"),
        ("request.headers", '{ "X Y" = "1" }', "letters"),
    ],
)
def test_a_value_that_is_not_allowed_names_the_allowed_ones(key, value, mend):
    problem = only({key: value})
    assert mend in problem.mend
    place = f"{problem.table}.{problem.key}".removeprefix("tools.refund.")
    assert place.startswith(key)


def test_one_of_several_look_ups_is_named_by_its_number():
    good = '{ path = "/a", where = { ref = "{operation.ref}" } }'
    bad = '{ path = "/b", where = { ref = "{operation.ref}" }, lag = "x" }'
    assert places({"lookup": f"[{good}, {bad}]"}) == [("lookup#2", "lag")]
    assert places({"lookup": f"[{bad}]"}) == [("lookup", "lag")]


def test_an_effect_must_be_said_and_has_no_default():
    problem = only({"effect": None})
    assert (problem.table, problem.key) == ("tools.refund", "effect")
    assert "money" in problem.mend


# --- sources


@pytest.mark.parametrize(
    "url",
    [
        "ftp://api.example.com",
        "api.example.com",
        "https://",
        "https://key@api.example.com",
        "https://u:p@api.example.com",
        "https://api.example.com?x=1",
        "https://api.example.com/#a",
        "https://api.example.com:99999",
        "https://api.example.com/a/../b",
        "https://api.example.com\\\\@evil.example",
        "https://{args.host}",
        "",
    ],
)
def test_a_base_url_is_only_scheme_host_port_and_path(url):
    problem = only(source={"base_url": f'"{url}"'})
    assert (problem.table, problem.key) == ("sources.payments", "base_url")
    assert "u:p" not in str(problem)


@pytest.mark.parametrize(
    ("source", "table", "key"),
    [
        ({"profile": '"stripe"'}, "", "profile"),
        ({"auth.credential": '""'}, ".auth", "credential"),
        ({"auth.credential": None}, ".auth", "credential"),
        ({"auth.scheme": '"digest"'}, ".auth", "scheme"),
        ({"auth.scheme": '"header"'}, ".auth", "header"),
        ({"auth.header": '"X-Api-Key"'}, ".auth", "header"),
        ({"auth.token": '"s3cret"'}, ".auth", "token"),
        ({"proxy": '"http://u:p@proxy:3128"'}, "", "proxy"),
        ({"proxy": '"socks5://proxy:1080"'}, "", "proxy"),
        ({"proxy": '"http://proxy:3128/x"'}, "", "proxy"),
        ({"private": '"yes"'}, "", "private"),
        ({**WITH_WEBHOOK, "webhook.tolerance": '"0s"'}, ".webhook", "tolerance"),
        ({**WITH_WEBHOOK, "webhook.credential": '" "'}, ".webhook", "credential"),
        (
            {**WITH_WEBHOOK, "webhook.signature_header": '"X-Mac"'},
            ".webhook",
            "signature_header",
        ),
        (
            {**WITH_WEBHOOK, "webhook.timestamp_header": '"X-Time"'},
            ".webhook",
            "timestamp_header",
        ),
        (
            {
                **WITH_WEBHOOK,
                "webhook.scheme": '"hmac-sha256"',
                "webhook.timestamp_header": '"X Time"',
            },
            ".webhook",
            "timestamp_header",
        ),
        ({**WITH_WEBHOOK, "webhook.scheme": '"none"'}, ".webhook", "scheme"),
    ],
)
def test_a_source_that_can_not_be_trusted_is_refused(source, table, key):
    problem = only(source=source)
    assert (problem.table, problem.key) == (f"sources.payments{table}", key)


def test_a_profile_that_does_not_ship_says_which_do():
    assert "none" in only(source={"profile": '"stripe"'}).mend


def test_a_tool_names_a_declared_source():
    assert places({"source": None}) == [("", "source")]
    assert "did you mean 'payments'?" in only({"source": '"payment"'}).mend


# --- the transport


def test_a_tool_without_a_request_says_how_to_add_one():
    assert "[tools.refund.request]" in only({"request": None}).mend


def test_json_and_form_exclude_each_other():
    assert places({"request.form": '{ a = "b" }'}) == [("request", "form")]
    assert places({"lookup.json": "{}", "lookup.form": "{}"}) == [("lookup", "form")]


@pytest.mark.parametrize("method", ["GETT", "CONNECT", ""])
def test_a_method_is_one_that_can_be_sent(method):
    assert places({"request.method": f'"{method}"'}) == [("request", "method")]


def test_a_read_and_a_look_up_change_nothing():
    assert places({"lookup.method": '"DELETE"'}) == [("lookup", "method")]
    assert ("request", "method") in places({**PLAIN, "effect": '"read"', "request.method": '"PUT"'})


@pytest.mark.parametrize(
    "path",
    ["v1/refunds", "/v1?x=1", "/v1#a", "/a b", "/é", "/a/../b", "/./a", "{operation.ref}"],
)
def test_a_path_is_percent_encoded_and_stays_below_the_base(path):
    assert places({"request.path": f'"{path}"'}) == [("request", "path")]


def test_a_status_url_is_the_whole_path_of_a_look_up_or_nothing():
    said = {"response.status_url": '"url"', "lookup.path": '"{operation.status_url}"'}
    assert places(said) == []
    assert places({**said, "lookup.path": '"/x/{operation.status_url}"'}) == [("lookup", "path")]
    assert places({**said, "response.status_url": None, "response.result": '"@"'}) == [
        ("lookup", "path")
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "cookie", "Proxy-Authorization", "X-Api-Key", "Host", "Connection"),
        *("X-Forwarded-Host", "Transfer-Encoding", "Content-Length", "X-HTTP-Method-Override"),
    ],
)
def test_a_header_that_could_carry_authority_is_refused(name):
    for table in ("request", "lookup"):
        assert places({f"{table}.headers": f'{{ {name} = "x" }}'}) == [(table, f"headers.{name}")]
    assert places({"idempotency.header": f'"{name}"'}) == [("idempotency", "header")]
    assert places({"correlation": f'{{ header = "{name}" }}'}) == [("correlation", "header")]


def test_the_header_of_the_sources_credential_is_the_sources_alone():
    source = {"auth.scheme": '"header"', "auth.header": '"X-Shop"'}
    assert places({"request.headers": '{ x-shop = "{args.charge}" }'}, source) == [
        ("request", "headers.x-shop")
    ]


def test_a_header_is_set_once():
    assert places({"request.headers": '{ idempotency-key = "x" }'}) == [("idempotency", "header")]


# --- arguments and templates


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"arguments.type": '"array"'}, "type"),
        ({"arguments.type": None}, "type"),
        ({"arguments.$schema": '"http://json-schema.org/draft-07/schema#"'}, "$schema"),
        ({"arguments.properties.note": '{ type = "strin" }'}, ""),
        ({"arguments.properties.note": '{ "$ref" = "https://example.com/schema" }'}, ""),
        ({"arguments.properties.note": '{ pattern = "(" }'}, ""),
    ],
)
def test_arguments_are_an_object_in_json_schema_2020_12_and_never_fetched(changes, key):
    changes = {name.replace("$schema", '"$schema"'): value for name, value in changes.items()}
    assert places(changes) == [("arguments", key)]


def test_a_value_that_canonical_json_can_not_write_is_refused():
    assert places({"request.json": "{ a = nan, ref = '{operation.ref}' }"}) == [("", "")]
    assert places({"arguments.properties.note": "{ maximum = 9007199254740993 }"}) == [("", "")]


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("request.path", "path"),
        ("request.query.q", "query.q"),
        ("request.json.q", "json.q"),
        ("lookup.where.q", "where.q"),
        ("lookup.equal.q", "equal.q"),
        ("lookup.query.q", "query.q"),
        ("lookup.path", "path"),
    ],
)
@pytest.mark.parametrize("name", ["args.chargee", "args.charge.id.x"])
def test_a_template_that_names_an_undeclared_argument_is_an_error(key, place, name):
    changes = {"request.json": None, "lookup.where": None, "lookup.where.ref": '"{operation.ref}"'}
    changes["arguments.properties.charge"] = '{ type = "object", properties.id.properties.y = {} }'
    changes[key] = f'"/{{{name}}}"'
    (found,) = places(changes)
    assert found == (key.partition(".")[0], place)


def test_an_undeclared_argument_names_the_near_one():
    problem = only({"lookup.equal.c": '"{args.chargee}"'})
    assert "did you mean 'args.charge'?" in problem.mend


@pytest.mark.parametrize("name", ["operation.provider_operation_id", "operation.status_url"])
def test_a_request_can_not_speak_of_what_only_its_answer_tells(name):
    assert places({"request.query.q": f'"{{{name}}}"'}) == [("request", "query.q")]


def test_a_look_up_by_an_id_that_nothing_tells_is_an_error():
    by_id = {"lookup.path": '"/v1/{operation.provider_operation_id}"'}
    assert places(by_id) == [("lookup", "path")]
    assert places({**by_id, "response.provider_operation_id": '"id"'}) == []


def test_a_page_is_for_the_request_of_a_look_up():
    assert places({"lookup.query.p": '"{page}"'}) == []
    assert places({"lookup.equal.p": '"{page}"'}) == [("lookup", "equal.p")]
    assert places({"request.query.p": '"{page}"'}) == [("request", "query.p")]


@pytest.mark.parametrize("key", ["business_key", "volatile"])
def test_the_arguments_that_a_tool_names_are_declared(key):
    assert places({key: '["charges"]'}) == [("", key)]


def test_the_object_acted_on_is_named_by_a_required_argument():
    assert places({"business_key": '["note"]'}) == [("", "business_key")]


def test_a_volatile_argument_can_not_name_the_object():
    assert places({"volatile": '["charge"]'}) == [("", "volatile")]


# --- answers


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"response.not_processed": "[429]", "response.rejected": "[429]"}, "response.rejected"),
        ({"response.unproven": "[404]", "response.rejected": "[404]"}, "response.rejected"),
        (
            {"response.unproven": "[409]", "idempotency.in_progress": "[409]"},
            "idempotency.in_progress",
        ),
        (
            {"idempotency.in_progress": "[409]", "idempotency.mismatch": "[409]"},
            "idempotency.mismatch",
        ),
        ({"idempotency.mismatch": "[422]", "response.rejected": "[422]"}, "response.rejected"),
    ],
)
def test_a_status_declared_twice_is_an_error(changes, place):
    assert places(changes) == [tuple(place.split("."))]


@pytest.mark.parametrize(
    "key", ["response.rejected", "response.not_processed", "idempotency.mismatch"]
)
def test_a_success_is_no_refusal(key):
    assert places({key: "[200]"}) == [tuple(key.split("."))]


def test_accepted_work_needs_someone_who_tells_how_it_ends():
    accepted = {"response.accepted": "\"status == 'pending'\"", "lookup": None}
    assert places(accepted) == [("response", "accepted")]
    assert places({**accepted, **EVENTS}, WITH_WEBHOOK) == []


def test_how_long_accepted_work_takes_is_said_once():
    twice = {"completes_within": '"1h"', "response.completes_within": '"1h"'}
    assert places(twice) == [("", "completes_within")]


# --- nothing looser than the effect


@pytest.mark.parametrize("effect", ["browser", "time_sensitive"])
def test_what_is_never_sent_again_can_not_be_declared_to_be(effect):
    changes = {"effect": f'"{effect}"', "lookup": None, "valid_for": '"5m"'}
    assert places(changes) == []
    assert places({**changes, "on_absent": '"resend"'}) == [("", "on_absent")]
    assert places({**changes, "retry.resend": "1"}) == [("retry", "resend")]


@pytest.mark.parametrize("effect", ["browser", "time_sensitive"])
def test_what_is_never_looked_up_has_no_look_up(effect):
    changes = {"effect": f'"{effect}"', "valid_for": '"5m"'}
    assert places(changes) == [("", "lookup")]


def test_time_sensitive_says_how_long_it_is_worth_doing():
    assert places({"effect": '"time_sensitive"', "lookup": None}) == [("", "valid_for")]


@pytest.mark.parametrize("effect", IRREVERSIBLE)
def test_a_duplicate_of_something_irreversible_is_never_acceptable(effect):
    assert places({"effect": f'"{effect}"', "duplicates": '"acceptable"'}) == [("", "duplicates")]


def test_a_duplicate_of_a_throw_away_thing_may_be_acceptable():
    assert places({**PLAIN, "duplicates": '"acceptable"', "on_absent": '"resend"'}) == []


@pytest.mark.parametrize("effect", ["money", "order", "booking", "physical"])
@pytest.mark.parametrize("change", [{"idempotency": None}, {"idempotency.ttl": None}])
def test_money_and_orders_are_sent_again_only_under_a_live_key(effect, change):
    changes = {"effect": f'"{effect}"', "on_absent": '"resend"'}
    assert places(changes) == []
    assert places({**changes, **change}) == [("", "on_absent")]


def test_a_keyed_write_of_unknown_key_life_is_not_sent_again():
    changes = {"effect": '"write"', "on_absent": '"resend"', "idempotency.ttl": None}
    assert places(changes) == [("idempotency", "ttl")]


@pytest.mark.parametrize("effect", ["write", "money", "delete", "message"])
@pytest.mark.parametrize("change", [{"lookup": None}, {"lookup.authoritative": "false"}])
def test_a_resend_after_absence_needs_a_look_up_that_proves_absence(effect, change):
    changes = {"effect": f'"{effect}"', "on_absent": '"resend"', **change}
    assert places(changes) == [("", "on_absent")]


@pytest.mark.parametrize("stores", ["success_only", "reexecutes_failed"])
def test_a_provider_that_forgets_failures_is_asked_before_a_resend(stores):
    changes = {**IDEMPOTENT, "on_absent": '"resend"', "idempotency.stores": f'"{stores}"'}
    assert places(changes) == []
    assert places({**changes, "lookup": None}) == [("", "on_absent")]


def test_an_idempotent_call_names_its_key():
    assert places({**IDEMPOTENT, "idempotency": None}) == [("", "idempotency")]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"idempotency.header": None}, "header"),
        ({"idempotency.field": '"token"'}, "field"),
        ({"idempotency.query": '"token"'}, "query"),
        ({"idempotency.header": None, "idempotency.field": '"charge"'}, "field"),
        (IN_FIELD | {"request.json": '["{args.charge}"]'}, "field"),
        (IN_QUERY | {"request.query": "{ k = 1 }"}, "query"),
    ],
)
def test_a_key_has_one_place_of_its_own(changes, key):
    assert places(changes) == [("idempotency", key)]


CONDITION = {
    "condition.header": '"If-Match"',
    "condition.value": '"{args.note}"',
    "condition.version_reuse": "false",
}
CONDITIONAL = {"effect": '"conditional_update"', **CONDITION}


def test_a_conditional_update_names_its_version():
    assert places(CONDITIONAL) == []
    assert places({"effect": '"conditional_update"'}) == [("condition", "value")]
    assert places({**CONDITIONAL, "condition.value": None}) == [
        ("condition", "value"),
        ("condition", "value"),
    ]


def test_whether_versions_repeat_must_be_said():
    assert places({**CONDITIONAL, "condition.version_reuse": None}) == [
        ("condition", "version_reuse")
    ]


def test_versions_that_may_repeat_forbid_a_resend():
    changes = {**CONDITIONAL, "condition.version_reuse": "true"}
    assert places(changes) == []
    assert places({**changes, "on_absent": '"resend"'}) == [("", "on_absent")]


def test_a_version_is_carried_by_a_header_or_by_the_request():
    changes = {**CONDITIONAL, "condition.header": None}
    assert places(changes) == [("condition", "header")]
    assert places({**changes, "request.query": '{ v = "{args.note}" }'}) == []


def test_a_keyed_create_names_the_id_that_its_request_carries():
    keyed = {"effect": '"keyed_create"'}
    assert places(keyed) == [("condition", "id")]
    assert places({**keyed, "condition.id": '"fixed"'}) == [("condition", "id")]
    assert places({**keyed, "condition.id": '"{operation.ref}"'}) == []
    assert places({**keyed, "condition.id": '"{operation.id}"'}) == [("condition", "id")]


@pytest.mark.parametrize("effect", ["file", "shell_read", "shell_write", "idempotent_fs"])
def test_an_effect_on_this_host_is_not_carried_out_by_a_request(effect):
    assert places({**PLAIN, "effect": f'"{effect}"'}) == [("", "effect")]


def test_only_a_read_has_consistency_rules():
    assert places({"read.consistency": '"etag"'}) == [("", "read")]


# --- look-ups


def test_a_look_up_without_a_criterion_would_find_anybodys_object():
    assert places({"lookup.where": "{}"}) == [("lookup", "where")]
    assert places({"lookup.where": None}) == [("lookup", "where")]


def test_a_get_by_id_needs_no_criterion():
    by_id = {"lookup.where": None, "lookup.items": None, "lookup.path": '"/v1/{operation.ref}"'}
    assert places(by_id) == []


def test_an_absence_that_is_claimed_says_its_lag():
    assert places({"lookup.lag": None}) == [("lookup", "lag")]
    assert places({"lookup.lag": None, "lookup.authoritative": "false"}) == []


@pytest.mark.parametrize("effect", ["money", "order", "booking", "physical"])
def test_the_horizon_must_be_said_for_money_and_orders(effect):
    changes = {"effect": f'"{effect}"', "in_flight_horizon": None}
    assert places(changes) == [("lookup", "in_flight_horizon")]
    assert places({**changes, "lookup.in_flight_horizon": '"2m"'}) == []
    assert places({**changes, "lookup": None}) == []


def test_a_look_up_asks_a_path_or_a_function():
    assert places({"lookup.path": None}) == [("lookup", "path")]
    code = {"lookup": '{ python = "shop.refunds:find", authoritative = true, lag = "0s" }'}
    assert places(code) == []
    assert places({"lookup": '{ python = "find" }'}) == [("lookup", "python")]
    assert places({"lookup": '{ python = "a:b", path = "/x" }'}) == [("lookup", "path")]


def test_two_look_ups_have_two_names():
    look = '{ name = "a", path = "/v1/{operation.ref}" }'
    assert places({"lookup": f"[{look}, {look}]"}) == [("lookup#2", "name")]


# --- events and approval


def test_events_need_a_webhook_types_and_a_match():
    assert places(EVENTS) == [("", "events")]
    assert places({**EVENTS, "events.types": "[]"}, WITH_WEBHOOK) == [("events", "types")]
    assert places({**EVENTS, "events.match": "{}"}, WITH_WEBHOOK) == [("events", "match")]
    assert places({**EVENTS, "events.match": '{ id = "id" }'}, WITH_WEBHOOK) == [
        ("events", "match.id")
    ]
    assert places({**EVENTS, "events.match": None}, WITH_WEBHOOK) == [("events", "match")]


def test_an_approval_does_not_outlive_the_intent():
    changes = {"valid_for": '"30m"', "approval.expires": '"1h"'}
    assert places(changes) == [("approval", "expires")]


# --- durations against one another


def test_a_deadline_that_leaves_no_time_to_prove_absence_says_the_least():
    problem = only({"recovery_deadline": '"224s"'})
    # 30s + 2m + 30s + 3 × (5s + 10s) = 225s
    assert (problem.key, '"225s"' in problem.wrong) == ("recovery_deadline", True)
    assert places({"recovery_deadline": '"225s"'}) == []
    assert places({"recovery_deadline": '"1m"', "lookup.authoritative": "false"}) == []


def test_a_key_that_dies_before_a_resend_is_safe_is_an_error():
    # 5s + 30s + 2m + 1m = 215s
    changes = {"on_absent": '"resend"', "idempotency.ttl": '"214s"'}
    problem = only(changes)
    assert (problem.table, problem.key) == ("tools.refund.idempotency", "ttl")
    assert '"215s"' in problem.wrong
    assert places({**changes, "idempotency.ttl": '"215s"'}) == []
    assert places({**changes, "on_absent": '"report"'}) == []


def test_an_intent_outlives_one_attempt():
    assert places({"timeout": '"1m"', "valid_for": '"1m"'}) == [("", "valid_for")]
    assert places({"timeout": '"1m"', "valid_for": '"61s"'}) == []


def test_look_ups_are_dense_enough_for_the_deadline():
    sparse = {"lookup.interval": '"5m"', "recovery_deadline": '"18m"', "lookup.confirmations": "1"}
    assert places(sparse) == [("lookup", "interval")]
    assert places({**sparse, "recovery_deadline": '"20m"'}) == []


def test_a_pause_does_not_begin_above_its_cap():
    capped = {"lookup.interval": '"20s"', "lookup.interval_max": '"10s"'}
    assert places(capped) == [("lookup", "interval_max")]


def test_deadlines_are_not_judged_where_a_duration_is_malformed():
    assert places({"recovery_deadline": '"1m"', "lookup.lag": '"30"'}) == [("lookup", "lag")]


def test_a_problem_is_not_told_again_as_its_own_consequence():
    assert places({"request": "3"}) == [("", "request")]
    assert places({"lookup": "3"}) == [("lookup", "")]
    changes = {"arguments": "3", "business_key": '["charges"]', "duplicates": '"acceptable"'}
    assert places(changes) == [("", "arguments"), ("", "duplicates")]


def test_a_broken_file_gives_no_contracts_at_all():
    with pytest.raises(ContractError) as caught:
        parse_contracts(file_text({"timeout": "3"}), FILE)
    assert len(caught.value.problems) == 1


ODD_VALUES = st.sampled_from(
    [
        *("3", "-1", "0", "true", '""', '"x"', '"10s"', '"0s"', "1.5", "nan", "2020-01-01"),
        *(
            '"{"',
            '"{args.charge}"',
            '"{page}"',
            '"{operation.status_url}"',
            '"@"',
            '"a["',
            '"resend"',
        ),
        *("[]", "{}", '["x"]', "[{}]", "[[]]", "{ a = 1 }", "[429]", '["charge"]', '"../.."'),
        *(f'"{effect}"' for effect in Effect),
    ]
)
ODD_KEYS = st.sampled_from(
    [f"{table}.{key}".removeprefix(".") for table, keys in TOOL.items() for key in keys]
    + [*sorted(ALL), "timeout", "on_absent", "response.accepted", "retry.resend", "lookup.interval"]
)


@given(st.dictionaries(ODD_KEYS, st.none() | ODD_VALUES, min_size=1, max_size=3))
@settings(max_examples=75)
def test_whatever_a_file_says_it_loads_or_tells_its_problems(changes):
    if not problems(file_text(changes)):
        tool = refund(changes)
        assert read_contract(dump_contract(tool)) == tool
