"""Effects inside procrastinate tasks, on a real PostgreSQL."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import httpx2
import psycopg
import pytest
from procrastinate import App, JobContext, PsycopgConnector
from tests.integrations import examples
from tests.integrations.children import eventually
from tests.integrations.conftest import LONG, Shop
from tests.scenarios.contracts import Changes

from doubtless import Doubtless
from doubtless.core.model import Json
from doubtless.errors import SettingsError
from doubtless.integrations import carrying
from doubtless.integrations.procrastinate import Jobs

OURS, PLAIN = 500, 700  # as `tests.integrations.procrastinate_child` has them
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
numbers = count(1)


@pytest.fixture
async def database(postgres) -> str:
    """The address of a schema with procrastinate's tables."""
    schema = f"procrastinate_{os.getpid()}_{next(numbers)}"
    with psycopg.connect(postgres.base, autocommit=True) as connection:
        connection.execute(f"create schema {schema}")
    address = f"{postgres.base}&options=-csearch_path%3D{schema}"
    queue = App(connector=PsycopgConnector(conninfo=address))
    async with queue.open_async():
        await queue.schema_manager.apply_schema_async()
    return address


def row(database: str, job: int) -> tuple[str, int]:
    """Return a job's status and attempts."""
    with psycopg.connect(database) as connection:
        asked = "select status::text, attempts from procrastinate_jobs where id = %s"
        found = connection.execute(asked, [job]).fetchone()
    assert found is not None
    return found[0], found[1]


@pytest.mark.proves("PROCRASTINATE-1")
@pytest.mark.timeout(150)  # a process imports the engine, and two of it run
async def test_a_kill_in_the_middle_of_a_task_leads_to_one_effect_and_without_us_to_two(
    shop, database, nursery
):
    shop.declare({**LONG, "on_absent": "resend"})
    shop.provider.configure(NEVER_ANSWERED)
    options: dict[str, Any] = {
        "database": database,
        "ledger": shop.ledger,
        "contracts": str(shop.contracts),
        "provider": shop.provider.url,
    }
    first = nursery.bear("procrastinate_child", begins=True, **options)
    await asyncio.to_thread(eventually, lambda: shop.effects(OURS) == shop.effects(PLAIN) == 1)
    first.kill()
    second = nursery.bear("procrastinate_child", begins=False, **options)
    for job in (1, 2):
        await asyncio.to_thread(eventually, lambda job=job: row(database, job)[0] == "succeeded")
    second.kill()
    assert (shop.effects(OURS), shop.effects(PLAIN)) == (1, 2)


# --- in this process -----------------------------------------------------------------------------


class Queue:
    """A procrastinate application whose worker runs, with tasks of both kinds."""

    def __init__(self, app: App, database: str, shop: Shop) -> None:
        self.app, self._database, self._shop = app, database, shop
        self.ran: Counter[str] = Counter()

    def declare(self, jobs: Jobs, retry: Any = 3) -> None:
        """Declare tasks that call our tool, and one that does without us."""

        @self.app.task(name="refund", pass_context=True, retry=jobs.retry(retry))
        async def refund(context: JobContext, /, **ids: str) -> None:
            self.ran["refund"] += 1
            await jobs.call_async(context, "refund", REFUND, **ids)

        @self.app.task(name="refund_blocking", pass_context=True, retry=jobs.retry(retry))
        def refund_blocking(context: JobContext, /, **ids: str) -> None:
            self.ran["refund_blocking"] += 1
            jobs.call(context, "refund", REFUND, **ids)

        @self.app.task(name="once", pass_context=True, retry=jobs.retry())
        async def once(context: JobContext) -> None:
            await jobs.call_async(context, "refund", {"charge": "ch_3", "amount": OURS})

        @self.app.task(name="unprepared", pass_context=True)
        async def unprepared(context: JobContext) -> None:
            await jobs.call_async(context, "refund", REFUND)

        @self.app.task(name="plain", retry=3)
        async def plain() -> None:
            self.ran["plain"] += 1
            async with httpx2.AsyncClient() as client:
                body = {"charge": "ch_2", "amount": PLAIN}
                await client.post(f"{self._shop.provider.url}/v1/refunds", json=body)

    async def defer(self, name: str, **arguments: Any) -> int:
        return await self.app.configure_task(name).defer_async(**arguments)

    async def ends(self, job: int, status: str = "succeeded") -> int:
        """Wait until the job came to `status`; return its attempts."""
        await asyncio.to_thread(eventually, lambda: row(self._database, job)[0] == status)
        return row(self._database, job)[1]


@pytest.fixture
async def queue(shop, database, monkeypatch) -> AsyncIterator[Queue]:
    monkeypatch.setattr(carrying, "AGAIN_MIN_S", 0.05)
    monkeypatch.setattr(carrying, "AGAIN_MAX_S", 0.2)
    app = App(connector=PsycopgConnector(conninfo=database))
    async with app.open_async():
        worker = asyncio.create_task(
            app.run_worker_async(install_signal_handlers=False, fetch_job_polling_interval=0.05)
        )
        yield Queue(app, database, shop)
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)


@pytest.mark.proves("PROCRASTINATE-2")
async def test_an_unknown_gives_the_worker_back_and_counts_as_no_attempt(shop, queue):
    shop.provider.configure(LOST)
    async with Doubtless(shop.ledger, contracts=shop.contracts) as app:
        queue.declare(Jobs(app, database="shop"))
        assert await queue.ends(await queue.defer("refund")) == 1
    assert queue.ran["refund"] > 1
    assert shop.effects(OURS) == 1
    shop.provider.configure(LOST)
    await queue.ends(await queue.defer("plain"))
    assert shop.effects(PLAIN) == 2


@pytest.mark.proves("PROCRASTINATE-3")
@pytest.mark.parametrize("task", ["refund", "refund_blocking"])
async def test_a_job_is_looked_at_until_a_person_decides_and_others_are_worked_off_meanwhile(
    shop, queue, task
):
    shop.declare(NOBODY_KNOWS)
    shop.provider.configure(LOST)
    with shop.open() as app:
        queue.declare(Jobs(app, database="shop"))
        job = await queue.defer(task)
        await asyncio.to_thread(eventually, lambda: queue.ran[task] > 5)
        await queue.ends(await queue.defer("plain"))  # the only worker is free
        (found,) = await asyncio.to_thread(app.operations)
        assert found.state == "manual_review"
        await asyncio.to_thread(
            app.resolve, found.operation_id, "done", operator="night-shift", note="seen"
        )
        assert await queue.ends(job) == 1
    assert shop.effects(OURS) == 1


@pytest.mark.proves("PROCRASTINATE-4")
async def test_a_job_that_is_started_again_finds_the_operation_and_one_deferred_anew_does_not(
    shop, queue
):
    async with Doubtless(shop.ledger, contracts=shop.contracts) as app:
        queue.declare(Jobs(app, database="shop"))
        job = await queue.defer("refund")
        await queue.ends(job)
        with psycopg.connect(queue._database) as connection:  # noqa: SLF001 - of this file
            connection.execute("update procrastinate_jobs set status = 'failed'")
        found = await queue.app.job_manager.list_jobs_async(id=job)
        await queue.app.job_manager.retry_job(next(iter(found)))
        await queue.ends(job)
        assert queue.ran["refund"] == 2
        assert shop.effects(OURS) == 1
        await queue.ends(await queue.defer("refund"))
        assert shop.effects(OURS) == 2
        for _ in range(2):
            await queue.ends(await queue.defer("refund", operation_id="refund_7"))
        assert shop.effects(OURS) == 3


@pytest.mark.proves("PROCRASTINATE-5")
async def test_what_provably_did_nothing_is_retried_and_a_refusal_is_not(shop, queue):
    async with Doubtless(shop.ledger, contracts=shop.contracts) as app:
        queue.declare(Jobs(app, database="shop"))
        shop.provider.configure(DROPPED)
        await queue.ends(await queue.defer("once"), "failed")
        assert shop.effects(OURS) == 0
        shop.provider.configure(DROPPED)
        await queue.ends(await queue.defer("refund"))
        assert shop.effects(OURS) == 1
        job = await queue.defer("refund", operation_id="not an id")
        assert await queue.ends(job, "failed") == 1
        job = await queue.defer("unprepared")
        assert await queue.ends(job, "failed") == 1
        assert shop.effects(OURS) == 1
        with pytest.raises(SettingsError, match="a word"):
            Jobs(app, database="")


@pytest.mark.proves("ENGINES-1")
async def test_the_example_runs_as_it_is_written(shop, database, monkeypatch):
    monkeypatch.chdir(shop.folder)
    names = examples.of("procrastinate", postgresql=database)
    with names["app"]:
        async with names["queue"].open_async():
            job = await names["refund"].defer_async(charge="ch_1", amount=OURS)
            await names["queue"].run_worker_async(wait=False, install_signal_handlers=False)
    assert row(database, job) == ("succeeded", 1)
    assert shop.effects(OURS) == 1
