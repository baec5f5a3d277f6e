import threading

import pytest

from doubtless.testing.provider import spawn_provider
from doubtless.testing.provider_wire import Wire, call, request_bytes

REFUND = {"charge": "ch_1", "amount": 500, "metadata": {"operation": "op_1"}}
OTHER = {**REFUND, "amount": 700}


@pytest.fixture(scope="module")
def process():
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(process):
    yield process
    process.configure({})
    process.reset()


def refund(provider, body=REFUND, key="k"):
    return call(provider.port, "POST", "/v1/refunds", body, key=key)


def configured(provider, action=None, **settings):
    rules = [{"match": {"nth": 1}, "then": action}] if action else []
    provider.configure({"settings": settings, "rules": rules})
    return provider


FAILS_AFTER_COMMIT = {"action": "commit_then_status", "status": 500}


@pytest.mark.parametrize(
    ("mode", "statuses", "effects"),
    [
        ("off", [500, 201], 2),
        ("all", [500, 500], 1),
        ("success_only", [500, 201], 2),
        ("reexecutes_failed", [500, 200], 1),
        ("current_state", [500, 200], 1),
    ],
)
def test_a_repeat_after_a_500_that_took_effect_gets_what_the_mode_stores(
    provider, mode, statuses, effects
):
    configured(provider, FAILS_AFTER_COMMIT, key_mode=mode)
    assert [refund(provider).status for _ in range(2)] == statuses
    assert len(provider.effects()) == effects


@pytest.mark.parametrize("mode", ["all", "success_only", "reexecutes_failed", "current_state"])
def test_a_repeat_after_a_success_is_marked_and_makes_no_effect(provider, mode):
    configured(provider, key_mode=mode)
    first, again = refund(provider), refund(provider)
    assert first.object() == again.object()
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert len(provider.effects()) == 1


def test_the_replay_mark_can_be_left_out(provider):
    configured(provider, replay_header=False)
    refund(provider)
    assert "idempotent-replayed" not in refund(provider).headers


def test_a_provider_may_repeat_the_effects_of_failed_work(provider):
    configured(
        provider,
        FAILS_AFTER_COMMIT,
        key_mode="reexecutes_failed",
        reexecute_repeats_effects=True,
    )
    assert [refund(provider).status for _ in range(3)] == [500, 201, 201]
    assert len(provider.effects()) == 2


@pytest.mark.parametrize(("mode", "versions"), [("all", [1, 1]), ("current_state", [1, 2])])
def test_only_the_current_state_shows_what_changed_since(provider, mode, versions):
    configured(provider, key_mode=mode)
    first = refund(provider).object()
    call(provider.port, "PATCH", f"/v1/refunds/{first['id']}", {"reason": "late"})
    assert [first["version"], refund(provider).object()["version"]] == versions


def test_a_repeat_of_a_creation_that_was_deleted_since_creates_nothing(provider):
    configured(provider, key_mode="current_state")
    item_id = refund(provider).object()["id"]
    call(provider.port, "DELETE", f"/v1/refunds/{item_id}")
    assert refund(provider).object() == {"id": item_id, "deleted": True, "status": "deleted"}
    assert [effect.kind for effect in provider.effects()] == ["create", "delete"]


def test_a_stored_refusal_is_repeated_though_its_cause_is_gone(provider):
    configured(provider, unique_by=["charge"])
    first = str(refund(provider, key="a").object()["id"])
    assert refund(provider, key="b").status == 409
    call(provider.port, "DELETE", f"/v1/refunds/{first}")
    assert refund(provider, key="b").status == 409
    assert refund(provider, key="c").status == 201


def test_a_forgotten_key_is_a_new_request(provider):
    configured(provider, key_ttl_s=0.2)
    refund(provider)
    provider.wait_for(lambda p: refund(p).headers.get("idempotent-replayed") is None)
    assert len(provider.effects()) == 2


def test_a_key_lives_for_its_ttl(provider):
    configured(provider, key_ttl_s=60)
    assert refund(provider).object()["id"] == refund(provider).object()["id"]


@pytest.mark.parametrize(
    ("mismatch", "status", "amount", "effects"),
    [("error", 422, None, 1), ("replay", 201, 500, 1), ("execute", 201, 700, 2)],
)
def test_another_payload_under_a_used_key_does_what_is_configured(
    provider, mismatch, status, amount, effects
):
    configured(provider, key_mismatch=mismatch)
    refund(provider)
    seen = refund(provider, OTHER)
    assert (seen.status, seen.object().get("amount")) == (status, amount)
    assert len(provider.effects()) == effects
    assert refund(provider).object()["amount"] == 500


def test_the_statuses_of_the_key_layer_can_be_those_of_another_provider(provider):
    configured(provider, key_mismatch_status=400, key_in_progress_status=423, work_s=0.5)
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND, key="k"))
        provider.wait_for(lambda p: [a.body_complete for a in p.arrivals()] == [True])
        assert refund(provider).status == 423
        assert refund(provider, OTHER).status == 400
        assert wire.read_to_end().status == 201


@pytest.mark.parametrize(("concurrency", "answers"), [("conflict", {201, 409}), ("wait", {201})])
def test_of_many_at_once_under_one_key_one_acts(provider, concurrency, answers):
    configured(provider, key_concurrency=concurrency, work_s=0.2)
    seen = []
    threads = [
        threading.Thread(target=lambda: seen.append(refund(provider).status)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert set(seen) <= answers
    assert 201 in seen
    assert provider.counts() == {"op_1": 1}


def test_who_waited_for_failed_work_executes_it(provider):
    configured(
        provider,
        {"action": "status", "status": 500, "stored": True},
        key_mode="success_only",
        key_concurrency="wait",
        work_s=0.2,
    )
    with Wire(provider.port) as wire:
        wire.send(request_bytes("POST", "/v1/refunds", REFUND, key="k"))
        provider.wait_for(lambda p: len(p.arrivals()) == 1)
        assert refund(provider).status == 201
        assert wire.read_to_end().status == 500
    assert provider.counts() == {"op_1": 1}


def test_without_a_key_every_request_acts(provider):
    for _ in range(2):
        assert refund(provider, key=None).status == 201
    assert len(provider.effects()) == 2


def test_a_missing_key_is_refused_where_one_is_required(provider):
    configured(provider, key_required=True)
    assert refund(provider, key=None).status == 400
    assert provider.effects() == []


def test_a_quoted_key_is_the_same_key(provider):
    assert refund(provider, key='"k"').object() == refund(provider, key="k").object()


def test_what_is_refused_as_invalid_does_not_use_up_the_key(provider):
    configured(provider, required=["charge", "amount"])
    assert refund(provider, {"amount": 500}).status == 400
    assert refund(provider).status == 201


def test_it_tells_by_the_key_what_became_of_a_request(provider):
    asked = "/operations/by-id/k"
    assert call(provider.port, "GET", asked).status == 404
    refund(provider)
    told = call(provider.port, "GET", asked)
    assert (told.status, told.object()["state"]) == (200, "succeeded")
    assert told.object()["result"] == refund(provider).object()
