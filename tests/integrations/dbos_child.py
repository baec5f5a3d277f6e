"""Two workflows of DBOS, one with our tool in its step and one with a plain request."""

import threading
from typing import Any

import httpx2
from dbos import DBOS, DBOSConfig, SetWorkflowID

from doubtless import Doubtless
from doubtless.integrations.dbos import Steps

OURS, PLAIN = 500, 700  # the amounts tell the effects of the two apart
at: dict[str, Any] = {}


@DBOS.step()
def refund_ours() -> Any:
    return at["steps"].call("refund", {"charge": "ch_1", "amount": OURS})


@DBOS.step()
def refund_plain() -> Any:
    answer = httpx2.post(
        f"{at['url']}/v1/refunds", json={"charge": "ch_2", "amount": PLAIN}, timeout=20
    )
    return answer.json()


@DBOS.workflow()
def ours() -> Any:
    return refund_ours()


@DBOS.workflow()
def plain() -> Any:
    return refund_plain()


def run(options: dict[str, Any]) -> None:
    """Launch DBOS, which goes on with what a killed process left; the first time, begin both."""
    config: DBOSConfig = {
        "name": "shop",
        "system_database_url": options["database"],
        "log_level": "ERROR",
    }
    DBOS(config=config)
    at["url"] = options["provider"]
    with Doubtless.sync(options["ledger"], contracts=options["contracts"]) as app:
        at["steps"] = Steps(app)
        DBOS.launch()
        if options["begins"]:
            for workflow in (ours, plain):
                with SetWorkflowID(workflow.__name__):
                    DBOS.start_workflow(workflow)
        threading.Event().wait()
