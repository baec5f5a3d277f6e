import gc
import tracemalloc

import pytest

from doubtless import Call, Doubtless, Effect

CALLS = 400
BYTES_A_CALL_MAX = 60  # what is kept for a finished operation would be hundreds


@pytest.mark.proves("API-2")
async def test_a_finished_operation_keeps_no_memory(tmp_path):
    app = Doubtless(f"sqlite:///{tmp_path}/ledger.db")

    @app.tool(effect=Effect.WRITE)
    async def note(call: Call, number: int) -> int:
        return number

    async def carry_out(numbers):
        for number in numbers:
            outcome = await app.call("note", {"number": number})
            assert outcome.status == "succeeded"
        gc.collect()

    async with app:
        tracemalloc.start()
        try:
            await carry_out(range(100))  # what is kept once is kept by now
            before, _ = tracemalloc.get_traced_memory()
            await carry_out(range(100, 100 + CALLS))
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert (after - before) / CALLS < BYTES_A_CALL_MAX
