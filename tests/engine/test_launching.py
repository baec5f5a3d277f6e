"""Applications where sniffio is installed, as beside many libraries: run by asyncio itself.

anyio asks it which event loop runs, and within a callback of the loop it knows of none.
"""

import asyncio
import importlib.util

import anyio
import anyio.lowlevel
import pytest

from doubtless import Doubtless, Effect
from doubtless.engine.launching import Launcher


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    if request.param == "postgres":
        return request.getfixturevalue("postgres").fresh()
    return f"sqlite:///{tmp_path / 'd.db'}"


@pytest.mark.proves("ENGINE-24")
def test_calls_and_queued_operations_are_carried_out_under_asyncio_run(address):
    assert importlib.util.find_spec("sniffio") is not None, "else this shows nothing"
    done = []

    async def main() -> None:
        async with Doubtless(address) as app:

            @app.tool(effect=Effect.WRITE)
            async def note(call, text: str) -> str:
                done.append(text)
                return text

            assert (await app.call("note", {"text": "now"})).status == "succeeded"
            queued = await app.prepare("note", {"text": "later"})
            assert (await app.wait(queued.operation_id, timeout=20)).status == "succeeded"

    asyncio.run(main())
    assert done == ["now", "later"]


@pytest.mark.proves("ENGINE-24")
def test_a_task_is_started_from_a_callback_of_the_loop():
    ran = []

    async def work(word: str) -> None:
        ran.append(word)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            launcher = Launcher(tasks)
            asyncio.get_running_loop().call_soon(launcher.launch, work, "from a callback")
            launcher.launch(work, "from a task")
            await anyio.lowlevel.checkpoint()
            await launcher.started()

    asyncio.run(main())
    assert sorted(ran) == ["from a callback", "from a task"]
