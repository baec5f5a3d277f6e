"""Two tasks of Celery, one with our tool in it and one with a plain request.

The broker is a folder. A message that a worker has taken lies in another one: putting it back is
what a real broker does with what was not acknowledged.
"""

from pathlib import Path
from typing import Any

import httpx2
from celery import Celery

from doubtless import Doubtless
from doubtless.integrations.celery import Tasks

OURS, PLAIN = 500, 700  # the amounts tell the effects of the two apart


def declared(folder: Path, url: str, tasks: Tasks | None = None) -> Celery:
    """Return the Celery application, whose broker is in `folder`."""
    queue = Celery("shop", broker="filesystem://", backend=f"file://{folder / 'results'}")
    places = {"data_folder_in": "data", "data_folder_out": "data", "processed_folder": "taken"}
    options = {name: str(folder / place) for name, place in places.items()}
    options["control_folder"] = str(folder / "control")
    queue.conf.update(
        broker_transport_options={**options, "store_processed": True, "polling_interval": 0.05},
        task_acks_late=True,
        worker_prefetch_multiplier=1,
    )

    @queue.task(bind=True, name="ours")
    def ours(self: Any) -> Any:
        assert tasks is not None
        return tasks.call(self, "refund", {"charge": "ch_1", "amount": OURS})

    @queue.task(name="plain")
    def plain() -> Any:
        body = {"charge": "ch_2", "amount": PLAIN}
        return httpx2.post(f"{url}/v1/refunds", json=body, timeout=20).json()

    return queue


def run(options: dict[str, Any]) -> None:
    """Work."""
    with Doubtless.sync(options["ledger"], contracts=options["contracts"]) as app:
        queue = declared(Path(options["folder"]), options["provider"], Tasks(app))
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "CRITICAL"]
        queue.worker_main(["worker", "--pool=threads", "--concurrency=2", *quiet])
