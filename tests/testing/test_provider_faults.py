import time
from pathlib import Path

import pytest

from doubtless.testing.provider import ACTIONS, spawn_provider
from doubtless.testing.provider_wire import Wire, call, request_bytes

REFUND = {"charge": "ch_1", "amount": 500, "metadata": {"operation": "op_1"}}
SOURCE = Path(__file__).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def process():
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(process):
    yield process
    process.configure({})
    process.reset()


@pytest.fixture
def told(provider):
    def arm(action, *, match=None, **options):
        provider.configure([{"match": match or {"nth": 1}, "then": {"action": action, **options}}])
        return provider

    return arm


def refund(provider, **more):
    return call(provider.port, "POST", "/v1/refunds", REFUND, **more)


def listed(provider, query="charge=ch_1"):
    return call(provider.port, "GET", f"/v1/refunds?{query}")


def test_without_a_rule_a_refund_is_made_once_and_answered(provider):
    seen = refund(provider, key="k")
    assert (seen.status, seen.end, seen.complete) == (201, "fin", True)
    made = seen.object()
    assert {name: made[name] for name in ("object", "charge", "amount", "status", "version")} == {
        "object": "refund",
        "charge": "ch_1",
        "amount": 500,
        "status": "succeeded",
        "version": 1,
    }
    assert made["metadata"] == {"operation": "op_1"}
    assert provider.counts() == {"op_1": 1}


@pytest.mark.parametrize(
    ("action", "end"), [("commit_then_fin", "fin"), ("commit_then_rst", "rst")]
)
def test_a_commit_without_an_answer_is_an_effect_and_not_a_byte(told, action, end):
    provider = told(action)
    seen = refund(provider)
    assert (seen.data, seen.end) == (b"", end)
    assert provider.counts() == {"op_1": 1}
    (arrival,) = provider.arrivals()
    assert (arrival.committed, arrival.body_complete, arrival.status) == (True, True, None)


@pytest.mark.parametrize("close", ["fin", "rst"])
def test_a_drop_before_the_commit_looks_the_same_and_leaves_no_effect(told, close):
    provider = told("drop_before_commit", close=close)
    seen = refund(provider)
    assert (seen.data, seen.end) == (b"", close)
    assert provider.effects() == []
    (arrival,) = provider.arrivals()
    assert (arrival.committed, arrival.body_complete) == (False, True)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_server_error_can_hide_a_commit(told, status):
    provider = told("commit_then_status", status=status, body="<h1>Sorry</h1>")
    seen = refund(provider)
    assert (seen.status, seen.body) == (status, b"<h1>Sorry</h1>")
    assert seen.headers["content-type"].startswith("text/html")
    assert provider.counts() == {"op_1": 1}


def test_the_application_stores_its_own_500_and_a_gateway_s_502_hides_the_stored_201(told):
    provider = told("commit_then_status", status=500)
    assert [refund(provider, key="a").status for _ in range(2)] == [500, 500]
    told("commit_then_status", status=502)
    assert [refund(provider, key="b").status for _ in range(2)] == [502, 201]
    assert len(provider.effects()) == 2


def test_a_delayed_answer_comes_after_the_commit(told):
    provider = told("commit_then_delay", delay_s=30)
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND, key="k"))
        provider.wait_for(lambda p: p.counts() == {"op_1": 1})
        assert refund(provider, key="k").status == 409
        assert provider.arrivals()[0].status is None


def test_a_delayed_answer_does_arrive_and_then_the_key_replays_it(told):
    provider = told("commit_then_delay", delay_s=0.05)
    started = time.monotonic()
    assert refund(provider, key="k").status == 201
    assert time.monotonic() - started >= 0.05
    assert refund(provider, key="k").headers["idempotent-replayed"] == "true"
    assert len(provider.effects()) == 1


def test_a_zombie_commits_after_its_client_has_gone(told):
    provider = told("delay_then_commit", delay_s=0.5)
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND))
        provider.wait_for(lambda p: [a.body_complete for a in p.arrivals()] == [True])
        assert provider.effects() == []
        wire.reset()
    provider.wait_for(lambda p: p.counts() == {"op_1": 1})


@pytest.mark.parametrize(("ignores", "effects"), [(True, 2), (False, 1)])
def test_a_zombie_acts_twice_only_where_it_ignores_the_key(told, ignores, effects):
    provider = told("delay_then_commit", delay_s=0.1, ignore_key=ignores)
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND, key="k"))
        provider.wait_for(lambda p: len(p.arrivals()) == 1)
        assert refund(provider, key="k").status == 201
        assert wire.read_to_end().status == 201
    assert len(provider.effects()) == effects


def test_a_zombie_inside_the_application_holds_its_key(told):
    provider = told("delay_then_commit", delay_s=30, key_in_progress=True)
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND, key="k"))
        provider.wait_for(lambda p: [a.body_complete for a in p.arrivals()] == [True])
        assert refund(provider, key="k").status == 409
    assert provider.effects() == []


@pytest.mark.parametrize("status", [307, 400, 402, 404, 409, 422, 425, 429, 503])
def test_a_refusal_is_answered_without_a_commit(told, status):
    headers = {"location": "/v1/elsewhere"}
    provider = told("status", status=status, retry_after_s=7, headers=headers)
    seen = refund(provider, key="k")
    assert (seen.status, seen.complete) == (status, True)
    assert (seen.headers["retry-after"], seen.headers["location"]) == ("7", "/v1/elsewhere")
    assert provider.effects() == []
    assert refund(provider, key="k").status == 201


def test_a_stored_refusal_is_replayed_although_nothing_was_done(told):
    provider = told("status", status=500, stored=True, body={"code": "boom"})
    first, again = refund(provider, key="k"), refund(provider, key="k")
    assert (first.status, again.status, again.object()) == (500, 500, {"code": "boom"})
    assert again.headers["idempotent-replayed"] == "true"
    assert provider.effects() == []


def test_a_connection_is_reset_before_anything_is_read(told):
    provider = told("rst_on_accept")
    seen = refund(provider)
    assert (seen.data, seen.end) == (b"", "rst")
    assert (provider.arrivals(), provider.connections()) == ([], 1)
    assert refund(provider).status == 201


def test_what_is_never_read_is_never_answered(told):
    provider = told("never_read", delay_s=0.1)
    seen = refund(provider)
    assert (seen.data, seen.end) == (b"", "rst")
    assert provider.arrivals() == []


def test_half_a_body_never_reaches_the_application(told):
    provider = told("half_body_read_then_rst")
    head, payload = request_bytes("POST", "/v1/refunds", REFUND).split(b"\r\n\r\n")
    with Wire(provider.port) as wire:
        wire.send(head + b"\r\n\r\n" + payload[: len(payload) // 2])
        seen = wire.read_to_end()
    assert (seen.data, seen.end) == (b"", "rst")
    (arrival,) = provider.arrivals()
    assert (arrival.body_complete, arrival.committed) == (False, False)


def test_a_body_that_its_client_cuts_off_is_refused_without_a_commit(provider):
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND)[:-1])
        wire.half_close()
        assert wire.read_to_end().status == 400
    assert provider.effects() == []
    assert provider.arrivals()[0].body_complete is False


def test_a_truncated_response_promises_more_than_it_brings(told):
    provider = told("truncate_response")
    seen = refund(provider)
    assert (seen.status, seen.end, seen.complete) == (201, "fin", False)
    assert 0 < len(seen.body) < int(seen.headers["content-length"])
    assert provider.counts() == {"op_1": 1}


def test_a_garbled_response_is_complete_and_unreadable(told):
    provider = told("garbage_response")
    seen = refund(provider)
    assert (seen.status, seen.complete) == (200, True)
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        seen.object()
    assert provider.counts() == {"op_1": 1}


@pytest.mark.parametrize(("ending", "effects"), [("succeeded", 1), ("failed", 0)])
def test_accepted_work_is_an_effect_only_once_it_succeeds(told, ending, effects):
    provider = told("accept_pending", completes_in_s=0.05, status_then=ending)
    seen = refund(provider)
    accepted = seen.object()
    assert (seen.status, accepted["status"]) == (202, "pending")
    assert seen.headers["location"] == accepted["status_url"]
    path = str(accepted["status_url"]).removeprefix(provider.url)
    provider.wait_for(lambda p: call(p.port, "GET", path).object()["status"] == ending)
    assert len(provider.effects()) == effects


def test_accepted_work_that_never_ends_is_ended_by_hand(told):
    provider = told("accept_pending")
    item_id = str(refund(provider).object()["id"])
    assert (provider.pending(), provider.effects()) == ([item_id], [])
    provider.complete(item_id)
    assert (provider.pending(), provider.counts()) == ([], {"op_1": 1})
    with pytest.raises(LookupError, match=item_id):
        provider.complete(item_id)


def test_an_error_inside_a_200_is_no_effect(told):
    provider = told("ok_with_error_inside")
    seen = refund(provider)
    assert (seen.status, seen.object()["status"]) == (200, "failed")
    assert provider.effects() == []


def test_a_404_can_be_a_lie_about_a_commit(told):
    provider = told("not_found_lie")
    assert refund(provider, key="k").status == 404
    assert provider.counts() == {"op_1": 1}
    assert refund(provider, key="k").status == 201
    assert provider.counts() == {"op_1": 1}


def test_a_closed_listener_refuses_and_comes_back_on_its_port(told):
    provider = told("close_listener", delay_s=0.5)
    assert refund(provider).status == 201
    assert listed(provider).end == "refused"
    provider.wait_for(lambda p: listed(p).status == 200)
    assert provider.counts() == {"op_1": 1}


def test_connections_are_refused_until_they_are_accepted_again(provider):
    provider.refuse_connections()
    assert refund(provider).end == "refused"
    provider.accept_connections()
    assert refund(provider).status == 201


def test_a_slow_answer_drips_byte_by_byte(told):
    provider = told("slow_drip", byte_count=100, interval_s=0.02)
    started = time.monotonic()
    seen = refund(provider)
    assert (seen.status, seen.complete) == (201, True)
    assert time.monotonic() - started >= 0.04
    assert provider.counts() == {"op_1": 1}


def test_a_hanging_lookup_says_nothing_until_its_client_leaves(told):
    provider = told("hang")
    with Wire(provider.port, timeout_s=0.1) as wire:
        wire.send(request_bytes("GET", "/v1/refunds"))
        seen = wire.read_to_end()
    assert (seen.data, seen.end) == (b"", "silence")


def test_a_hang_may_end_by_itself(told):
    provider = told("hang", delay_s=0.05)
    seen = refund(provider)
    assert (seen.data, seen.end) == (b"", "fin")
    assert provider.effects() == []


def test_a_login_page_is_html_with_a_200(told):
    provider = told("login_page", match={"method": "GET"})
    refund(provider)
    seen = listed(provider)
    assert (seen.status, seen.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"password" in seen.body


def test_an_empty_page_denies_what_is_there(told):
    provider = told("empty_page", match={"method": "GET"})
    refund(provider)
    assert listed(provider).object() == {"data": [], "has_more": False, "next_cursor": None}


def test_an_incomplete_page_says_that_there_is_more_and_not_where(told):
    provider = told("incomplete_page", match={"method": "GET"})
    refund(provider)
    assert listed(provider).object() == {"data": [], "has_more": True, "next_cursor": None}


def test_every_fault_counts_that_it_happened(told):
    provider = told("commit_then_fin", match={"method": "POST", "from_nth": 2})
    for _ in range(3):
        refund(provider)
    assert provider.fired() == {"commit_then_fin": 2}


@pytest.mark.parametrize("action", sorted(ACTIONS))
def test_every_action_is_proven_above(action):
    assert (
        f'told("{action}"' in SOURCE or f'[("{action}", ' in SOURCE or f'("{action}", "' in SOURCE
    )
