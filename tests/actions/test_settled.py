"""What a person settled while its process slept: whoever wakes or resumes it does nothing more."""

import anyio
import pytest
from tests.actions import file_tools, shell_tools
from tests.actions.agent import eventually
from tests.actions.file_tools import TEXT

KINDS = {
    "file": ("save", {"name": "q3", "text": TEXT}, "doubtless.transports.files_write.Draft.put"),
    "shell": ("run", {"x": "a"}, "doubtless.transports.shell_run.Keeping.start"),
}


def prepared(kind, folder):
    """Write a contract whose absences go to a person."""
    tools = file_tools if kind == "file" else shell_tools
    tools.prepared(folder)
    file = folder / "contracts.toml"
    text = file.read_text(encoding="utf-8").replace('on_absent = "resend"\n', "")
    # Its owner lives: nothing is taken for absent before the deadline.
    text = text.replace('recovery_deadline = "30s"', 'recovery_deadline = "23s"')
    file.write_text(text.replace("timeout =", 'on_absent = "review"\ntimeout =', 1), "utf-8")
    return tools


def done(kind, folder) -> bool:
    """Whether anything of it was done."""
    found: bool = (file_tools.report(folder) if kind == "file" else folder / "ran").exists()
    return found


@pytest.mark.proves("ACTION-2")
@pytest.mark.parametrize(("kind", "decision"), [("file", "done"), ("shell", "not_done")])
async def test_what_a_person_settled_meanwhile_is_not_done_by_who_wakes_or_resumes_it(
    tmp_path, agency, kind, decision
):
    tools, (tool, arguments, place) = prepared(kind, tmp_path), KINDS[kind]
    with agency.agent(tmp_path, tool, arguments, stops=f"before {place}") as child:
        await anyio.to_thread.run_sync(child.stopped)
        async with tools.opened(tmp_path) as app:

            async def is_in_review() -> bool:
                outcome = await app.outcome("one")
                return str(outcome.state) == "manual_review"

            await eventually(is_in_review)
            await app.resolve("one", decision, note="seen by hand", operator="ops")
            child.wake()
            await anyio.to_thread.run_sync(child.ended)
            assert not done(kind, tmp_path)
            outcome = await app.outcome("one")
            if decision == "done":  # its process proves that it did nothing: somebody looks again
                assert outcome.state == "manual_review"
                resumed = await app.call(tool, arguments, operation_id="one")
                assert resumed.outcome == "unknown"
                assert not done(kind, tmp_path)
            else:
                assert outcome.state == "failed"
