"""Function tools in processes that are stopped past their lease, and woken."""

import anyio
import pytest
from tests.actions.agent import eventually
from tests.actions.function_tools import effects, register

from doubtless import Doubtless

CODE = "tests.actions.function_tools:register"
GATE = "before doubtless.engine.acting.Gate.__call__"
BEFORE, BEHIND = (f"{each} tests.actions.function_tools.act" for each in ("before", "behind"))


@pytest.mark.proves("TOOL-12")
@pytest.mark.parametrize("stops", [GATE, BEFORE, BEHIND], ids=["gate", "before", "behind"])
async def test_a_function_whose_worker_was_stopped_past_its_lease_acts_once_at_most(
    tmp_path, agency, stops
):
    with agency.agent(tmp_path, "note", {}, stops=stops, code=CODE) as child:
        await anyio.to_thread.run_sync(child.stopped)
        app = Doubtless(f"sqlite:///{tmp_path}/d.db")
        register(app, tmp_path)
        async with app:

            async def is_in_review() -> bool:
                return (await app.outcome("one")).state == "manual_review"

            await eventually(is_in_review)
            repeat = await app.call("note", {}, operation_id="one")
            assert repeat.status == "unknown_reconciliation_required"
            assert effects(tmp_path) == (stops == BEHIND)
            child.wake()
            await anyio.to_thread.run_sync(child.ended)
            late = await app.outcome("one")
            if stops == GATE:  # its gate was closed, which proves that it did nothing
                assert (late.status, effects(tmp_path)) == ("failed_safe_to_retry", 0)
            else:  # its late word settles it
                assert (late.status, effects(tmp_path)) == ("succeeded", 1)
            again = await app.call("note", {}, operation_id="one")
            assert (again.status, effects(tmp_path)) == ("succeeded", 1)
