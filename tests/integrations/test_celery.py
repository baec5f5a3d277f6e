"""Effects inside Celery tasks, with its own brokers for a folder and for memory."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from celery import Celery, Signature
from celery.contrib.testing.worker import start_worker
from celery.exceptions import OperationalError, Reject
from tests.integrations import examples
from tests.integrations.celery_child import declared
from tests.integrations.children import eventually
from tests.integrations.conftest import LONG
from tests.scenarios.contracts import Changes

from doubtless import BlockingDoubtless, Doubtless
from doubtless.core.model import Json
from doubtless.errors import NoIdentity, NotDone, SettingsError, WontBeDone
from doubtless.integrations import carrying
from doubtless.integrations.celery import Tasks

OURS, PLAIN = 500, 700  # as `tests.integrations.celery_child` has them
REFUND: dict[str, Json] = {"charge": "ch_1", "amount": OURS}
NEVER_ANSWERED = [
    {
        "match": {"method": "POST"},
        "then": {"action": "commit_then_delay", "delay_s": 20},
        "times": 2,
    }
]
LOST = [{"match": {"method": "POST"}, "then": {"action": "commit_then_rst"}, "times": 1}]
DROPPED = [{"match": {"method": "POST"}, "then": {"action": "drop_before_commit"}, "times": 1}]
NOBODY_KNOWS: Changes = {"effect": "write", "lookup": None, "on_absent": None}


@pytest.mark.proves("CELERY-1")
@pytest.mark.timeout(150)  # a process imports the engine, and two of it run
def test_a_kill_in_the_middle_of_a_task_leads_to_one_effect_and_without_us_to_two(
    shop, nursery, tmp_path
):
    shop.declare({**LONG, "on_absent": "resend"})
    shop.provider.configure(NEVER_ANSWERED)
    for name in ("data", "taken", "results"):
        (tmp_path / name).mkdir()
    options: dict[str, Any] = {
        "folder": str(tmp_path),
        "ledger": shop.ledger,
        "contracts": str(shop.contracts),
        "provider": shop.provider.url,
    }
    queue = declared(tmp_path, shop.provider.url)
    sent = [queue.send_task(name) for name in ("ours", "plain")]
    first = nursery.bear("celery_child", **options)
    eventually(lambda: shop.effects(OURS) == shop.effects(PLAIN) == 1)
    first.kill()
    for taken in (tmp_path / "taken").iterdir():  # nothing of it was acknowledged
        taken.rename(tmp_path / "data" / taken.name)
    second = nursery.bear("celery_child", **options)
    ours, plain = (each.get(timeout=20, interval=0.05) for each in sent)
    second.kill()
    assert (ours["amount"], plain["amount"]) == (OURS, PLAIN)
    assert (shop.effects(OURS), shop.effects(PLAIN)) == (1, 2)


# --- in this process -----------------------------------------------------------------------------

at: dict[str, Any] = {}
ran: list[tuple[str, int]] = []  # which task, at which retry

queue = Celery("here", broker="memory://", backend="cache+memory://")
queue.conf.update(broker_transport_options={"polling_interval": 0.02}, worker_prefetch_multiplier=1)
RETRY: dict[str, Any] = {"retry_backoff": False, "retry_jitter": False, "default_retry_delay": 0.05}


@queue.task(bind=True, name="refund", max_retries=0)
def refund(self: Any, **ids: str) -> Any:
    ran.append(("refund", self.request.retries))
    return at["tasks"].call(self, "refund", REFUND, **ids)


@queue.task(bind=True, name="retried", autoretry_for=(NotDone,), max_retries=1, **RETRY)
def retried(self: Any) -> Any:
    ran.append(("retried", self.request.retries))
    return at["tasks"].call(self, "refund", at.get("arguments", REFUND))


@queue.task(bind=True, name="plainly", autoretry_for=(Exception,), max_retries=1, **RETRY)
def plainly(self: Any) -> Any:
    body = {"charge": "ch_2", "amount": PLAIN}
    return httpx2.post(f"{at['url']}/v1/refunds", json=body).json()


@pytest.fixture(scope="module")
def worker() -> Iterator[None]:
    with start_worker(queue, pool="solo", perform_ping_check=False, loglevel="CRITICAL"):
        yield


@pytest.fixture
def app(worker, shop, opened, monkeypatch) -> BlockingDoubtless:
    monkeypatch.setattr(carrying, "AGAIN_MIN_S", 0.05)
    monkeypatch.setattr(carrying, "AGAIN_MAX_S", 0.2)
    return using(shop, opened)


def using(shop: Any, opened: Any, changes: Changes | None = None) -> BlockingDoubtless:
    shop.declare(changes or {})
    found: BlockingDoubtless = opened()
    at.update(tasks=Tasks(found), url=shop.provider.url)
    at.pop("arguments", None)
    ran.clear()
    return found


def result(sent: Any) -> Any:
    return sent.get(timeout=20, interval=0.02)


@pytest.mark.proves("CELERY-2")
def test_an_unknown_gives_the_worker_back_and_counts_as_no_retry(app, shop):
    shop.provider.configure(LOST)
    assert result(refund.delay())["amount"] == OURS
    assert len(ran) > 1
    assert set(ran) == {("refund", 0)}
    assert shop.effects(OURS) == 1
    shop.provider.configure(LOST)
    assert result(plainly.delay())["amount"] == PLAIN
    assert shop.effects(PLAIN) == 2


@pytest.mark.proves("CELERY-2")
def test_a_message_that_can_t_be_sent_again_is_given_back_to_the_broker(app, shop, monkeypatch):
    def away(*arguments: Any, **options: Any) -> Any:
        raise OperationalError("away")

    monkeypatch.setattr(Signature, "apply_async", away)
    shop.provider.configure(LOST)
    refund.push_request(id="t-9", called_directly=False, args=(), kwargs={})
    try:
        with pytest.raises(Reject) as kept:
            at["tasks"].call(refund, "refund", REFUND)
    finally:
        refund.pop_request()
    assert kept.value.requeue


@pytest.mark.proves("CELERY-3")
def test_a_task_is_looked_at_until_a_person_decides_and_others_are_worked_off_meanwhile(
    app, shop, opened
):
    app = using(shop, opened, NOBODY_KNOWS)
    shop.provider.configure(LOST)
    sent = refund.delay()
    eventually(lambda: len(ran) > 5)
    assert result(plainly.delay())["amount"] == PLAIN  # the only worker is free
    (found,) = app.operations()
    assert found.state == "manual_review"
    app.resolve(found.operation_id, "done", operator="night-shift", note="seen")
    result(sent)
    assert set(ran) == {("refund", 0)}
    assert shop.effects(OURS) == 1


@pytest.mark.proves("CELERY-4")
def test_a_task_that_is_delivered_again_finds_the_operation_and_one_sent_anew_does_not(app, shop):
    told = result(refund.apply_async(task_id="t-1"))
    refund.apply_async(task_id="t-1")
    eventually(lambda: len(ran) == 2)
    assert result(refund.delay()) != told
    assert len(ran) == 3
    assert shop.effects(OURS) == 2
    assert result(refund.delay(operation_id="refund_7")) == result(
        refund.delay(operation_id="refund_7")
    )
    assert shop.effects(OURS) == 3


@pytest.mark.proves("CELERY-4")
def test_a_task_that_is_called_directly_waits_where_it_is_and_needs_an_id(app, shop):
    with pytest.raises(NoIdentity, match="called directly"):
        refund()
    shop.provider.configure(LOST)
    assert refund(operation_id="refund_7")["amount"] == OURS
    assert shop.effects(OURS) == 1
    assert refund.apply(task_id="t-2").get()["amount"] == OURS
    assert shop.effects(OURS) == 2
    with pytest.raises(SettingsError, match="belongs to an event loop"):
        Tasks(Doubtless(shop.ledger))


@pytest.mark.proves("CELERY-5")
def test_what_provably_did_nothing_is_retried_and_a_refusal_is_not(app, shop):
    shop.provider.configure(DROPPED)
    with pytest.raises(NotDone):
        result(refund.delay())
    assert set(ran) == {("refund", 0)}
    assert shop.effects(OURS) == 0
    at["arguments"] = {"charge": "ch_3", "amount": OURS}
    shop.provider.configure(DROPPED)
    assert result(retried.delay())["amount"] == OURS
    assert ran[-1] == ("retried", 1)
    assert shop.effects(OURS) == 1
    ran.clear()
    at["arguments"] = {"charge": "ch_4", "amount": OURS}
    shop.provider.configure(
        [{"match": {"method": "POST"}, "then": {"action": "status", "status": 402}}]
    )
    with pytest.raises(WontBeDone):
        result(retried.delay())
    assert set(ran) == {("retried", 0)}


@pytest.mark.proves("CELERY-6")
async def test_a_task_serves_an_asynchronous_application_from_its_threads(worker, shop):
    async with Doubtless(shop.ledger, contracts=shop.contracts) as app:
        at.update(tasks=Tasks(app))
        told = await asyncio.to_thread(lambda: result(refund.delay()))
    assert told["amount"] == OURS


@pytest.mark.proves("ENGINES-1")
@pytest.mark.long
def test_the_example_runs_as_it_is_written(shop, monkeypatch):
    monkeypatch.chdir(shop.folder)
    names = examples.of("Celery", amqp="memory://")
    names["queue"].conf.update(
        broker_transport_options={"polling_interval": 0.02},
        result_backend="cache+memory://",
        task_default_queue="example",  # the other worker here listens to the usual one
    )
    options = {"pool": "solo", "perform_ping_check": False, "loglevel": "CRITICAL"}
    with start_worker(names["queue"], **options):
        assert result(names["refund"].delay("ch_1", OURS))["amount"] == OURS
    names["close_app"]()
    assert shop.effects(OURS) == 1
