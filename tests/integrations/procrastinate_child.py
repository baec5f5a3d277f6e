"""Two jobs of procrastinate, one with our tool in its task and one with a plain request."""

import asyncio
from typing import Any

import httpx2
from procrastinate import App, PsycopgConnector

from doubtless import Doubtless
from doubtless.integrations.procrastinate import Jobs

OURS, PLAIN = 500, 700  # the amounts tell the effects of the two apart
STALLED_S = 1.0  # a worker is gone that has said nothing for so long


async def both(queue: App, url: str, jobs: Jobs) -> None:
    """Declare the two tasks."""

    @queue.task(name="ours", pass_context=True, retry=jobs.retry())
    async def ours(context: Any) -> Any:
        return await jobs.call_async(context, "refund", {"charge": "ch_1", "amount": OURS})

    @queue.task(name="plain")
    async def plain() -> Any:
        async with httpx2.AsyncClient(timeout=20) as client:
            return await client.post(f"{url}/v1/refunds", json={"charge": "ch_2", "amount": PLAIN})


async def work(options: dict[str, Any]) -> None:
    async with Doubtless(options["ledger"], contracts=options["contracts"]) as app:
        queue = App(connector=PsycopgConnector(conninfo=options["database"]))
        async with queue.open_async():
            await both(queue, options["provider"], Jobs(app, database="shop"))
            if options["begins"]:
                for name in ("ours", "plain"):
                    await queue.configure_task(name).defer_async()
            else:  # what procrastinate's manual says to do about jobs of a worker that is gone
                await asyncio.sleep(STALLED_S)
                manager = queue.job_manager
                for job in await manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S):
                    await manager.retry_job(job)
            await queue.run_worker_async(
                concurrency=2, install_signal_handlers=False, fetch_job_polling_interval=0.1
            )


def run(options: dict[str, Any]) -> None:
    """Work; the first time, defer both jobs."""
    asyncio.run(work(options))
