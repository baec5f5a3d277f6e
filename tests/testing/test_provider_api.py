import pytest

from doubtless.testing.provider import spawn_provider
from doubtless.testing.provider_wire import Wire, call, request_bytes

REFUND = {"charge": "ch_1", "amount": 500, "metadata": {"operation": "op_1"}}


@pytest.fixture(scope="module")
def process():
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(process):
    yield process
    process.configure({})
    process.reset()


def refund(provider, **fields):
    return call(provider.port, "POST", "/v1/refunds", {**REFUND, **fields})


def listed(provider, query=""):
    return call(provider.port, "GET", f"/v1/refunds?{query}").object()


def code(seen):
    return seen.object()["error"]["code"]


def ids(page):
    return [item["id"] for item in page["data"]]


def test_a_form_is_as_good_as_json(provider):
    form = b"charge=ch_1&amount=500&metadata[operation]=op_1"
    head = request_bytes("POST", "/v1/refunds").split(b"\r\n\r\n")[0]
    head = head.replace(b"application/json", b"application/x-www-form-urlencoded")
    head = head.replace(b"content-length: 0", b"content-length: %d" % len(form))
    with Wire(provider.port) as wire:
        wire.send(head + b"\r\n\r\n" + form)
        made = wire.read_to_end().object()
    assert (made["amount"], made["metadata"]) == (500, {"operation": "op_1"})
    assert provider.counts() == {"op_1": 1}


def test_a_connection_is_kept_for_the_next_request(provider):
    asks = request_bytes("POST", "/v1/refunds", REFUND)
    with Wire(provider.port) as wire:
        wire.send(asks.replace(b"connection: close", b"connection: keep-alive") + asks)
        assert wire.read_to_end().data.count(b"HTTP/1.1 201 Created") == 2
    assert provider.connections() == 1


def test_an_unreadable_body_is_refused(provider):
    head = request_bytes("POST", "/v1/refunds").replace(b"content-length: 0", b"content-length: 2")
    with Wire(provider.port) as wire:
        wire.send(head + b"{[")
        assert code(wire.read_to_end()) == "invalid_body"
    assert provider.effects() == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/elsewhere", 404),
        ("GET", "/v1/refunds/re_0", 404),
        ("PATCH", "/v1/refunds/re_0", 404),
        ("DELETE", "/v1/refunds/re_0", 404),
        ("POST", "/v1/refunds/re_0", 405),
        ("PUT", "/v1/refunds", 405),
    ],
)
def test_what_does_not_exist_is_said_not_to(provider, method, path, status):
    assert call(provider.port, method, path, {}).status == status
    assert provider.effects() == []


def test_every_effect_is_recorded_with_the_request_that_made_it(provider):
    listed(provider)
    headers = {"X-Correlation-ID": "c-7"}
    seen = call(provider.port, "POST", "/v1/refunds", REFUND, key="k", headers=headers)
    (effect,) = provider.effects()
    assert (effect.number, effect.kind, effect.collection) == (1, "create", "refunds")
    assert (effect.id, effect.amount, effect.request) == (seen.object()["id"], 500, 2)
    assert (effect.key, effect.operation, effect.correlation_id) == ("k", "op_1", "c-7")
    looked, made = provider.arrivals()
    assert (looked.method, looked.committed, made.committed) == ("GET", False, True)
    assert (made.path, made.key, made.correlation_id, made.status) == (
        "/v1/refunds",
        "k",
        "c-7",
        201,
    )
    assert made.headers["x-correlation-id"] == "c-7"


def test_effects_are_counted_by_operation_and_found_by_what_is_given(provider):
    refund(provider)
    refund(provider, metadata={"operation": "op_2"})
    call(provider.port, "POST", "/v1/charges", {"amount": 1}, key="k")
    assert provider.counts() == {"op_1": 1, "op_2": 1, "": 1}
    assert [effect.number for effect in provider.effects(operation="op_2")] == [2]
    assert [effect.number for effect in provider.effects(collection="charges", key="k")] == [3]


def test_a_list_is_filtered_by_fields_and_by_operation(provider):
    mine = refund(provider).object()["id"]
    refund(provider, charge="ch_2", metadata={"operation": "op_2"})
    for query in (
        "charge=ch_1",
        "operation=op_1",
        "metadata[operation]=op_1",
        "amount=500&charge=ch_1",
    ):
        assert ids(listed(provider, query)) == [mine]
    assert ids(listed(provider, "charge=ch_3")) == []


def test_a_provider_may_ignore_its_filters(provider):
    provider.configure({"settings": {"ignore_filters": True}})
    made = refund(provider).object()["id"]
    assert ids(listed(provider, "charge=ch_3&operation=op_9")) == [made]


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_lead_to_every_object_once(provider, newest_first):
    provider.configure({"settings": {"page_size": 2, "newest_first": newest_first}})
    made = [refund(provider).object()["id"] for _ in range(5)]
    found, sizes = [], []
    cursor: str | None = ""
    while cursor is not None:
        page = listed(provider, f"limit=50&starting_after={cursor}" if cursor else "limit=50")
        assert page["has_more"] is (page["next_cursor"] is not None)
        found += ids(page)
        sizes.append(len(page["data"]))
        cursor = page["next_cursor"]
    assert found == (made[::-1] if newest_first else made)
    assert sizes == [2, 2, 1]


def test_a_smaller_limit_makes_a_smaller_page(provider):
    refund(provider)
    refund(provider)
    page = listed(provider, "limit=1")
    assert (len(page["data"]), page["has_more"]) == (1, True)


def test_a_cursor_that_leads_nowhere_is_refused(provider):
    assert call(provider.port, "GET", "/v1/refunds?starting_after=re_0").status == 400


def test_a_lagging_list_says_absent_first_while_a_get_already_finds(provider):
    provider.configure({"settings": {"read_lag_s": 0.4}})
    item_id = refund(provider).object()["id"]
    assert ids(listed(provider)) == []
    assert call(provider.port, "GET", f"/v1/refunds/{item_id}").status == 200
    provider.wait_for(lambda p: ids(listed(p)) == [item_id])


def test_a_get_may_lag_too(provider):
    provider.configure({"collections": {"refunds": {"get_lag_s": 0.4}}})
    path = f"/v1/refunds/{refund(provider).object()['id']}"
    assert call(provider.port, "GET", path).status == 404
    provider.wait_for(lambda p: call(p.port, "GET", path).status == 200)


def test_a_lagging_read_shows_the_older_version(provider):
    item_id = provider.seed("refunds", {"amount": 1})
    provider.configure({"settings": {"get_lag_s": 0.4}})
    path = f"/v1/refunds/{item_id}"
    provider.wait_for(lambda p: call(p.port, "GET", path).status == 200)
    assert call(provider.port, "PATCH", path, {"amount": 2}).object()["amount"] == 2
    assert call(provider.port, "GET", path).object()["amount"] == 1
    provider.wait_for(lambda p: call(p.port, "GET", path).object()["amount"] == 2)


def test_a_second_refund_of_a_charge_is_refused_and_shows_the_first(provider):
    unique = {"unique_by": ["charge"], "unique_code": "already_refunded"}
    provider.configure({"collections": {"refunds": unique}})
    first = refund(provider).object()
    seen = refund(provider, amount=1)
    assert (seen.status, code(seen)) == (409, "already_refunded")
    assert seen.object()["object"] == first
    assert refund(provider, charge="ch_2").status == 201
    assert len(provider.effects()) == 2


def test_a_refusal_may_hide_what_stands_in_its_way(provider):
    provider.configure({"settings": {"unique_by": ["charge"], "unique_shows_object": False}})
    refund(provider)
    assert "object" not in refund(provider).object()


def test_the_same_put_meets_its_own_object_and_another_one_is_refused(provider):
    mine, other = {**REFUND}, {**REFUND, "metadata": {"operation": "op_2"}}
    first, again = [call(provider.port, "PUT", "/v1/drafts/d_1", mine) for _ in range(2)]
    assert (first.status, again.status, first.object()) == (201, 200, again.object())
    foreign = call(provider.port, "PUT", "/v1/drafts/d_1", other)
    assert (foreign.status, code(foreign)) == (409, "already_exists")
    assert foreign.object()["object"] == first.object()
    assert provider.counts() == {"op_1": 1}


@pytest.mark.parametrize(
    ("existing", "status", "effects"), [("conflict", 409, 1), ("overwrite", 200, 2)]
)
def test_a_second_put_does_what_is_configured(provider, existing, status, effects):
    provider.configure({"settings": {"put_existing": existing}})
    seen = [call(provider.port, "PUT", "/v1/drafts/d_1", REFUND).status for _ in range(2)]
    assert seen == [201, status]
    assert len(provider.effects()) == effects


def test_a_put_that_must_be_the_first_is_refused_as_the_second(provider):
    headers = {"If-None-Match": "*"}
    seen = [call(provider.port, "PUT", "/v1/drafts/d_1", REFUND, headers=headers) for _ in range(2)]
    assert [one.status for one in seen] == [201, 412]


def test_an_update_is_made_against_the_version_that_was_read(provider):
    path = f"/v1/plans/{provider.seed('plans', {'price': 1})}"
    etag = call(provider.port, "GET", path).headers["etag"]
    seen = [
        call(provider.port, "PATCH", path, {"price": price}, headers={"If-Match": etag})
        for price in (2, 3)
    ]
    assert [one.status for one in seen] == [200, 412]
    now = call(provider.port, "GET", path)
    assert (now.object()["price"], now.object()["version"]) == (2, 2)
    assert now.headers["etag"] == '"2"' != etag
    assert [effect.kind for effect in provider.effects()] == ["update"]


def test_an_update_without_a_version_is_refused_where_one_is_required(provider):
    provider.configure({"settings": {"if_match_required": True}})
    path = f"/v1/plans/{provider.seed('plans', {})}"
    assert call(provider.port, "PATCH", path, {"price": 2}).status == 428
    assert call(provider.port, "DELETE", path, headers={"If-Match": "*"}).status == 200


def test_a_deletion_is_an_effect_once(provider):
    path = f"/v1/plans/{provider.seed('plans', {}, item_id='p_1')}"
    assert [call(provider.port, "DELETE", path).status for _ in range(2)] == [200, 404]
    assert call(provider.port, "GET", path).status == 404
    assert [effect.kind for effect in provider.effects()] == ["delete"]


def test_what_was_there_before_is_found_and_is_no_effect(provider):
    theirs = provider.seed("refunds", {**REFUND, "status": "pending"})
    assert ids(listed(provider, "charge=ch_1")) == [theirs]
    assert (provider.effects(), provider.pending()) == ([], [theirs])


def test_a_reset_forgets_all_but_the_configuration(provider):
    match = {"method": "POST", "nth": 1}
    provider.configure([{"match": match, "then": {"action": "commit_then_rst"}}])
    for _ in range(2):
        refund(provider)
        assert (len(provider.effects()), provider.fired()) == (1, {"commit_then_rst": 1})
        provider.reset()
        assert (provider.effects(), provider.arrivals()) == ([], [])
        assert ids(listed(provider)) == []
        provider.reset()


def test_a_reset_ends_the_zombies(provider):
    provider.configure([{"then": {"action": "delay_then_commit", "delay_s": 30}}])
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND))
        provider.wait_for(lambda p: len(p.arrivals()) == 1)
        provider.reset()
        assert wire.read_to_end().end == "rst"
    assert provider.effects() == []


def test_admin_routes_answer_on_both_ports_and_are_never_counted(provider):
    for port in (provider.port, provider.admin_port):
        assert call(port, "GET", "/_admin/effects").object()["total"] == 0
        assert call(port, "GET", "/_admin/nothing").status == 404
    assert provider.arrivals() == []
