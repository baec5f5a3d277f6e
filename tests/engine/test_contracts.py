"""A contract file loads into exact contracts; every default is filled in and can be listed."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.contract_texts import FILE, PLAIN, WEBHOOK, file_text, problems, refund, warned

from doubtless.core.contract import (
    ApprovalRules,
    ConditionRules,
    Contract,
    EventRules,
    KeyFormat,
    KeyRules,
    Kind,
    LookupRules,
    OnAbsent,
    ReadRules,
    RequestRules,
    ResponseRules,
    RetryRules,
    SourceRules,
    Stores,
)
from doubtless.core.effects import RULES
from doubtless.core.model import Effect
from doubtless.engine.contracts import (
    WebhookRules,
    contract_digest,
    dump_contract,
    load_contracts,
    parse_contracts,
    read_contract,
)
from doubtless.engine.contracts.values import duration_ms, duration_text

WITH_WEBHOOK = {f"webhook.{key}": value for key, value in WEBHOOK["webhook"].items()}
FULL = """
[sources.payments]
base_url = "https://api.example.com/"
auth     = { scheme = "bearer", credential = "payments" }

[sources.payments.webhook]
scheme      = "standard"
credential  = "payments-webhook"
event_id    = "id"
type        = "type"
occurred_at = "created"
tolerance   = "4m"

[tools.create_refund]
description       = "Refund a charge, wholly or in part."
effect            = "money"
source            = "payments"
business_key      = ["charge"]
on_absent         = "resend"
review            = "none"
timeout           = "10s"
recovery_deadline = "15m"
record_sending    = true
valid_for         = "2h"
dedupe_window     = "1m"
ordering          = "latest_wins"
volatile          = ["note"]
duplicates        = "never"
correlation       = false

[tools.create_refund.arguments]
type = "object"
required = ["charge", "amount"]
additionalProperties = false
properties.charge = { type = "string" }
properties.amount = { type = "integer", minimum = 1 }
properties.note = { type = "string" }

[tools.create_refund.request]
method = "post"
path   = "/v1/refunds"
json   = { charge = "{args.charge}", metadata = { operation = "{operation.ref}" } }

[tools.create_refund.response]
provider_operation_id = "id"
accepted         = "status == 'pending'"
status_url       = "status_url"
completes_within = "10m"
failed           = "status == 'failed'"
rejected         = [403, 400, 402]
not_processed    = [429]
unproven         = [404]

[tools.create_refund.idempotency]
header      = "Idempotency-Key"
format      = "base36"
ttl         = "24h"
stores      = "all"
in_progress = [409]
mismatch    = [422]
replayed    = "headers.\\"idempotent-replayed\\""

[[tools.create_refund.lookup]]
path     = "/v1/refunds"
query    = { charge = "{args.charge}" }
items    = "data"
where    = { "metadata.operation" = "{operation.ref}" }
equal    = { amount = "{args.amount}" }
boundary = "provider"
applied     = "status == 'succeeded'"
in_progress = "status == 'pending'"
failed      = "status == 'failed'"
not_found   = [404, 410]
complete    = "!has_more"
next_page   = "next_cursor"
provider_operation_id = "id"
authoritative     = true
lag               = "30s"
confirmations     = 4
in_flight_horizon = "2m"
interval          = "6s"
interval_max      = "50s"
timeout           = "9s"

[[tools.create_refund.lookup]]
name   = "ours"
python = "shop.refunds:find"
in_flight_horizon = "1m"

[tools.create_refund.events]
types        = ["refund.created", "refund.failed"]
match        = { ref = "data.object.metadata.operation" }
object       = ["data.object.id", "data.object.version"]
expect       = "10m"
applied      = "data.object.status == 'succeeded'"
failed       = "data.object.status == 'failed'"
authoritative = false

[tools.create_refund.approval]
when    = "args.amount > `10000`"
expires = "30m"
people  = 2

[tools.create_refund.retry]
attempts = 4
backoff  = "2s"
resend   = 2
"""
FULL_CONTRACT = Contract(
    tool="create_refund",
    effect=Effect.MONEY,
    source=SourceRules(
        name="payments",
        base_url="https://api.example.com",
        auth_scheme="bearer",
        credential="payments",
    ),
    kind=Kind.HTTP,
    description="Refund a charge, wholly or in part.",
    arguments={
        "type": "object",
        "required": ["charge", "amount"],
        "additionalProperties": False,
        "properties": {
            "charge": {"type": "string"},
            "amount": {"type": "integer", "minimum": 1},
            "note": {"type": "string"},
        },
    },
    business_key=("charge",),
    volatile=("note",),
    on_absent=OnAbsent.RESEND,
    review=False,
    latest_wins=True,
    record_sending=True,
    correlation_header=None,
    timeout_ms=10_000,
    in_flight_horizon_ms=900_000,
    recovery_deadline_ms=900_000,
    completes_within_ms=600_000,
    valid_for_ms=7_200_000,
    queued_valid_for_ms=7_200_000,
    dedupe_window_ms=60_000,
    request=RequestRules(
        method="POST",
        path="/v1/refunds",
        json={"charge": "{args.charge}", "metadata": {"operation": "{operation.ref}"}},
    ),
    response=ResponseRules(
        provider_operation_id="id",
        accepted="status == 'pending'",
        status_url="status_url",
        failed="status == 'failed'",
        rejected=(400, 402, 403),
        not_processed=(429,),
        unproven=(404,),
    ),
    key=KeyRules(
        place="header",
        name="Idempotency-Key",
        format=KeyFormat.BASE36,
        ttl_ms=86_400_000,
        margin_ms=4_320_000,
        stores=Stores.ALL,
        in_progress=(409,),
        mismatch=(422,),
        replayed='headers."idempotent-replayed"',
    ),
    lookups=(
        LookupRules(
            name="lookup#1",
            request=RequestRules(
                method="GET", path="/v1/refunds", query={"charge": "{args.charge}"}
            ),
            items="data",
            where={"metadata.operation": "{operation.ref}"},
            equal={"amount": "{args.amount}"},
            applied="status == 'succeeded'",
            in_progress="status == 'pending'",
            failed="status == 'failed'",
            not_found=(404, 410),
            complete="!has_more",
            next_page="next_cursor",
            provider_operation_id="id",
            authoritative=True,
            lag_ms=30_000,
            confirmations=4,
            in_flight_horizon_ms=120_000,
            interval_ms=6_000,
            interval_max_ms=50_000,
            timeout_ms=9_000,
        ),
        LookupRules(
            name="ours",
            python="shop.refunds:find",
            confirmations=3,
            in_flight_horizon_ms=60_000,
        ),
    ),
    events=EventRules(
        types=("refund.created", "refund.failed"),
        match={"ref": "data.object.metadata.operation"},
        object=("data.object.id", "data.object.version"),
        expect_ms=600_000,
        applied="data.object.status == 'succeeded'",
        failed="data.object.status == 'failed'",
        authoritative=False,
        tolerance_ms=240_000,
    ),
    approval=ApprovalRules(when="args.amount > `10000`", expires_ms=1_800_000, people=2),
    retry=RetryRules(attempts=4, backoff_ms=2_000, resend=2),
)


def test_a_full_file_gives_the_exact_contract(tmp_path):
    path = tmp_path / FILE
    path.write_text(FULL)
    loaded = load_contracts(path)
    assert loaded.tools == {"create_refund": FULL_CONTRACT}
    assert loaded.sources == {"payments": FULL_CONTRACT.source}
    assert loaded.webhooks == {
        "payments": WebhookRules(
            scheme="standard",
            credential="payments-webhook",
            event_id="id",
            type="type",
            occurred_at="created",
            tolerance_ms=240_000,
        )
    }
    assert loaded.warnings == ()


# --- durations


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("250ms", 250),
        ("10s", 10_000),
        ("15m", 900_000),
        ("24h", 86_400_000),
        ("30d", 2_592_000_000),
    ],
)
def test_durations_are_milliseconds(text, ms):
    assert (duration_ms(text), duration_text(ms)) == (ms, text)


@given(st.integers(0, 10**11))
def test_a_duration_is_written_as_it_is_read(ms):
    assert duration_ms(duration_text(ms)) == ms


# --- defaults


@pytest.mark.parametrize("effect", sorted(Effect))
def test_the_defaults_of_an_effect_are_those_of_its_row(effect):
    if effect in {Effect.FILE, Effect.SHELL_READ, Effect.SHELL_WRITE}:
        return  # not carried out by a request
    found = refund(
        {
            **PLAIN,
            "effect": f'"{effect}"',
            "valid_for": '"1h"',
            **({"idempotency": '{ header = "K" }'} if effect == "idempotent_call" else {}),
            **({"condition": CONDITIONS[effect]} if effect in CONDITIONS else {}),
        }
    )
    assert found.on_absent is RULES[effect].on_absent
    never = effect in {Effect.BROWSER, Effect.TIME_SENSITIVE}
    assert found.retry.resend == (0 if never else RULES[effect].resends)


CONDITIONS = {
    Effect.KEYED_CREATE: '{ id = "{operation.ref}" }',
    Effect.CONDITIONAL_UPDATE: '{ header = "If-Match", value = "1", version_reuse = false }',
}


def test_what_is_not_said_has_its_default():
    found = refund({"effect": '"write"', "in_flight_horizon": None, "idempotency.stores": None})
    assert (found.timeout_ms, found.in_flight_horizon_ms) == (30_000, 120_000)
    assert (found.valid_for_ms, found.completes_within_ms) == (3_600_000, 86_400_000)
    assert (found.recovery_deadline_ms, found.dedupe_window_ms) == (900_000, 0)
    assert found.correlation_header == "X-Correlation-ID"
    assert found.retry == RetryRules(attempts=3, backoff_ms=1_000, resend=1)
    assert found.key is not None
    assert (found.key.stores, found.key.format) == (Stores.SUCCESS_ONLY, KeyFormat.UUID)
    (look,) = found.lookups
    assert (look.confirmations, look.interval_ms, look.interval_max_ms) == (2, 5_000, 60_000)
    assert (look.timeout_ms, look.in_flight_horizon_ms, look.not_found) == (10_000, 120_000, (404,))


def test_an_absence_must_be_claimed():
    assert not refund({"lookup.authoritative": None}).lookups[0].authoritative


def test_an_irreversible_effect_takes_three_absences():
    assert refund().lookups[0].confirmations == 3


def test_an_idempotent_call_stores_all_answers():
    key = refund({"effect": '"idempotent_call"', "idempotency.stores": None}).key
    assert key is not None
    assert key.stores is Stores.ALL


@pytest.mark.parametrize(
    ("ttl", "margin_ms"), [("10m", 60_000), ("20m", 60_000), ("1h", 180_000), ("24h", 4_320_000)]
)
def test_the_margin_of_a_key_is_a_minute_or_a_twentieth(ttl, margin_ms):
    key = refund({"idempotency.ttl": f'"{ttl}"'}).key
    assert key is not None
    assert key.margin_ms == margin_ms


def test_the_horizon_is_longer_where_answers_come_later():
    later = {"effect": '"write"', "in_flight_horizon": None, "response.status_url": '"url"'}
    assert refund(later).in_flight_horizon_ms == 900_000
    assert refund(later).lookups[0].in_flight_horizon_ms == 900_000


def test_a_look_up_overrides_the_horizon_of_its_tool():
    found = refund({"in_flight_horizon": '"5m"', "lookup.in_flight_horizon": '"1m"'})
    assert (found.in_flight_horizon_ms, found.horizon_ms) == (300_000, 60_000)


def test_the_deadline_is_at_least_three_times_what_proof_takes():
    # 30s + 20m + 30s + 3 × (5s + 10s) = 1305s
    assert refund({"in_flight_horizon": '"20m"'}).recovery_deadline_ms == 3 * 1_305_000


def test_an_event_is_expected_by_half_of_the_deadline():
    said = {"events.types": '["a"]', "events.match": '{ ref = "r" }', "recovery_deadline": '"20m"'}
    assert refund(said, WITH_WEBHOOK).events == EventRules(
        types=("a",), match={"ref": "r"}, expect_ms=600_000, authoritative=True
    )


def test_an_approval_expires_with_the_intent_at_the_latest():
    for valid_for, expires_ms in (("2h", 3_600_000), ("20m", 1_200_000)):
        found = refund({"approval": "{}", "valid_for": f'"{valid_for}"'}).approval
        assert found == ApprovalRules(when=None, expires_ms=expires_ms, people=1)


def test_versions_that_may_repeat_make_report_the_default():
    said = {
        **PLAIN,
        "effect": '"conditional_update"',
        "condition": CONDITIONS[Effect.CONDITIONAL_UPDATE],
    }
    assert refund(said).on_absent is OnAbsent.RESEND
    repeats = said | {"condition": '{ header = "If-Match", value = "1", version_reuse = true }'}
    assert refund(repeats).on_absent is OnAbsent.REPORT


def test_every_default_in_force_is_listed_as_the_file_would_say_it():
    loaded = parse_contracts(file_text(), FILE)
    listed = {default.key: default.value for default in loaded.defaults["refund"]}
    assert listed == {
        "timeout": '"30s"',
        "valid_for": '"1h"',
        "correlation.header": '"X-Correlation-ID"',
        "on_absent": '"report"',
        "review": '"people"',
        "response.not_processed": "[307, 308, 421, 425, 429]",
        "response.rejected": "4xx but 408, 409, 421, 423, 424, 425, 429, 499; 501, 505",
        "response.result": '"@"',
        "response.completes_within": '"24h"',
        "idempotency.format": '"uuid"',
        "lookup.boundary": '"provider"',
        "lookup.confirmations": "3",
        "lookup.interval": '"5s"',
        "lookup.interval_max": '"1m"',
        "lookup.not_found": "[404]",
        "lookup.timeout": '"10s"',
        "recovery_deadline": '"15m"',
        "retry.attempts": "3",
        "retry.backoff": '"1s"',
        "retry.resend": "1",
    }


def test_what_is_said_is_not_listed_as_a_default():
    loaded = parse_contracts(FULL, FILE)
    assert [default.key for default in loaded.defaults["create_refund"]] == [
        "response.result",
        "lookup#2.interval",
        "lookup#2.boundary",
        "lookup#2.authoritative",
        "lookup#2.confirmations",
        "lookup#2.interval_max",
        "lookup#2.timeout",
    ]


def test_a_tool_without_arguments_takes_none():
    found = refund(
        {
            **PLAIN,
            "arguments": None,
            "business_key": "[]",
            "request.json": None,
        }
    )
    assert found.arguments == {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("alias", "effect"), [("idempotent_fs", "file"), ("idempotent_shell", "shell_read")]
)
def test_an_effect_goes_by_its_other_name_too(alias, effect):
    # Both belong to other transports; the error calls the effect by its own name.
    (problem,) = problems(file_text({**PLAIN, "effect": f'"{alias}"'}))
    assert problem.wrong.startswith(f"{effect} acts")


# --- statuses


def test_the_default_statuses_are_complete_sets():
    response = refund().response
    assert response.not_processed == (307, 308, 421, 425, 429)
    assert {400, 401, 404, 412, 422, 451, 501, 505} <= set(response.rejected)
    doubtful = {408, 409, 421, 423, 424, 425, 429, 499, 500, 502, 503, 504}
    assert not doubtful & set(response.rejected)
    assert response.unproven == ()


STATUS_KEYS = (
    "response.unproven",
    "idempotency.in_progress",
    "idempotency.mismatch",
    "response.not_processed",
    "response.rejected",
)


@given(st.lists(st.sampled_from(range(300, 600)), max_size=8, unique=True), st.data())
@settings(max_examples=40)
def test_a_status_means_one_thing_whatever_is_declared(statuses, data):
    changes: dict[str, list[int]] = {}
    for status in statuses:
        changes.setdefault(data.draw(st.sampled_from(STATUS_KEYS)), []).append(status)
    found = refund({key: str(value) for key, value in changes.items()})
    assert found.key is not None
    sets = [
        found.response.unproven,
        found.key.in_progress,
        found.key.mismatch,
        found.response.not_processed,
        found.response.rejected,
    ]
    assert sum(len(each) for each in sets) == len({status for each in sets for status in each})
    for key, each in zip(STATUS_KEYS, sets, strict=True):
        if key in changes:
            assert sorted(each) == sorted(changes[key])


# --- what ties a match to the operation


@pytest.mark.parametrize(
    ("lookup", "attributes"),
    [
        ({"lookup.where": '{ ref = "{operation.ref}" }'}, True),
        ({"lookup.where": '{ a = [{ b = "x {operation.id}" }] }'}, True),
        ({"lookup.where": '{ charge = "{args.charge}" }'}, False),
        ({"lookup.where": '{ run = "{operation.session_id}" }'}, False),
        ({"lookup.where": '{ a = "b" }', "lookup.query": '{ r = "{operation.ref}" }'}, False),
        ({"lookup.where": None, "lookup.items": None, "lookup.path": '"/{operation.ref}"'}, True),
        ({"lookup.where": None, "lookup.items": None, "lookup.path": '"/{args.charge}"'}, False),
    ],
)
def test_a_match_is_attributed_only_by_what_is_the_operations_own(lookup, attributes):
    assert refund(lookup).lookups[0].attributes is attributes


# --- warnings


def test_the_usual_tool_gives_no_warning():
    assert warned() == []


def test_an_irreversible_effect_without_an_object_is_warned_of():
    assert warned({"business_key": None}) == [("", "business_key")]
    assert warned({"business_key": None, "effect": '"write"'}) == []


def test_statuses_believed_without_a_key_are_warned_of():
    assert warned({"idempotency": None}) == [("response", "not_processed")]
    assert warned({"idempotency": None, "effect": '"write"'}) == []
    assert warned({"idempotency": None, "response.not_processed": "[429]"}) == []
    assert warned({"idempotency": None, "response.unproven": "[307, 425, 429]"}) == []


def test_a_key_of_unknown_life_is_warned_of():
    assert warned({"idempotency.ttl": None}) == [("idempotency", "ttl")]


def test_events_of_which_none_says_how_it_ended_are_warned_of():
    silent = {"events.types": '["moved"]', "events.match": '{ ref = "data.ref" }'}
    assert warned(silent, WITH_WEBHOOK) == [("events", "applied")]
    assert warned({**silent, "events.authoritative": "false"}, WITH_WEBHOOK) == []
    for key in ("applied", "failed"):
        assert warned({**silent, f"events.{key}": "\"s == 'x'\""}, WITH_WEBHOOK) == []


def test_a_match_that_may_be_somebody_elses_is_warned_of():
    assert warned({"lookup.where": '{ c = "{args.charge}" }'}) == [("lookup", "where")]


def test_a_list_that_may_have_more_pages_is_warned_of():
    assert warned({"lookup.complete": None}) == [("lookup", "complete")]


def test_keys_that_a_read_never_uses_are_warned_of():
    assert warned({"effect": '"read"'}) == [("", "idempotency"), ("", "lookup")]


def test_an_optional_argument_within_a_text_is_warned_of():
    assert warned({"request.path": '"/v1/{args.note}"'}) == [("request", "path")]
    assert warned({"request.query": '{ q = "x {args.note}" }'}) == [("request", "query.q")]
    assert warned({"request.query": '{ q = "{args.note}" }'}) == []


def test_an_effect_by_get_is_warned_of():
    assert warned({"request.method": '"GET"'}) == [("request", "method")]


def test_a_status_url_that_nobody_asks_is_warned_of():
    assert warned({"lookup": None, "response.status_url": '"url"'}) == [("response", "status_url")]


def test_a_credential_in_clear_text_is_warned_of_except_on_this_host():
    assert warned(source={"base_url": '"http://api.example.com"'}) == [
        ("sources.payments", "base_url")
    ]
    for host in ("localhost", "127.0.0.1:8080", "[::1]:8080"):
        assert warned(source={"base_url": f'"http://{host}"'}) == []


def test_a_provider_that_anybody_can_play_is_warned_of():
    assert warned(source={"tls.verify": "false"}) == [("sources.payments.tls", "verify")]


def test_a_read_that_decides_about_an_unknown_tool_is_warned_of():
    read = {**PLAIN, "effect": '"read"', "read.decides": '["refunds"]'}
    assert warned(read) == [("read", "decides")]
    assert refund(read).read == ReadRules(decides=("refunds",))


# --- snapshots

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
templates = st.dictionaries(texts, texts | st.integers(-9, 9) | st.lists(texts), max_size=3)
durations = st.integers(0, 2**40)
requests = st.builds(
    RequestRules,
    method=texts,
    path=texts,
    query=templates,
    json=st.none() | templates | st.lists(texts),
    form=st.none() | templates,
)
contracts = st.builds(
    Contract,
    tool=texts,
    effect=st.sampled_from(Effect),
    source=st.builds(SourceRules, name=texts, credential=st.none() | texts),
    kind=st.sampled_from(Kind),
    arguments=templates,
    business_key=st.lists(texts).map(tuple),
    on_absent=st.sampled_from(OnAbsent),
    timeout_ms=durations,
    request=st.none() | requests,
    response=st.builds(ResponseRules, rejected=st.lists(st.integers(200, 599)).map(tuple)),
    key=st.none()
    | st.builds(
        KeyRules,
        place=st.just("header"),
        name=texts,
        format=st.sampled_from(KeyFormat),
        ttl_ms=st.none() | durations,
        stores=st.sampled_from(Stores),
    ),
    condition=st.none() | st.builds(ConditionRules, value=st.none() | texts),
    lookups=st.lists(
        st.builds(LookupRules, name=texts, request=st.none() | requests, where=templates),
        max_size=2,
    ).map(tuple),
    events=st.none() | st.builds(EventRules, types=st.lists(texts).map(tuple)),
    approval=st.none() | st.builds(ApprovalRules, when=st.none() | texts),
    read=st.none() | st.builds(ReadRules, decides=st.lists(texts).map(tuple)),
)


@given(contracts)
@settings(max_examples=40)
def test_a_snapshot_gives_the_same_contract_back(contract):
    text = dump_contract(contract)
    again = read_contract(text)
    assert again == contract
    assert dump_contract(again) == text
    assert contract_digest(again) == contract_digest(contract)


def test_a_snapshot_has_every_type_back():
    again = read_contract(dump_contract(FULL_CONTRACT))
    assert repr(again.response) == repr(FULL_CONTRACT.response)
    assert repr(again.key) == repr(FULL_CONTRACT.key)
    assert [type(look) for look in again.lookups] == [LookupRules, LookupRules]
    assert again.effect is Effect.MONEY


def test_the_digest_changes_with_the_contract_and_not_with_the_order_of_keys():
    digest = contract_digest(FULL_CONTRACT)
    assert digest.startswith("sha256:")
    assert len(digest) == 71
    assert contract_digest(replace(FULL_CONTRACT, timeout_ms=1)) != digest
    turned = dict(reversed(list(FULL_CONTRACT.arguments.items())))
    assert contract_digest(replace(FULL_CONTRACT, arguments=turned)) == digest


def test_a_snapshot_of_an_earlier_release_has_the_defaults_of_what_came_since():
    members = json.loads(dump_contract(FULL_CONTRACT))
    del members["dedupe_window_ms"]
    assert read_contract(json.dumps(members)).dedupe_window_ms == 0


@pytest.mark.parametrize("text", ["", "3", "{}", '{"tool": "x", "surprise": 1}', "[]"])
def test_what_is_no_snapshot_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        read_contract(text)
