"""A folder with a contract that runs a command, and what the tests ask of both."""

import json
from pathlib import Path

import anyio
from tests.actions.agent import eventually, until

from doubtless import Doubtless

CONTRACT = """
[tools.run]
effect = "EFFECT"
timeout = "TIMEOUT"
in_flight_horizon = "100ms"
recovery_deadline = "30s"
on_absent = "resend"
retry = { attempts = 2, backoff = "10ms" }

[tools.run.arguments]
type = "object"
required = ["x"]
additionalProperties = false
properties.x = { type = "string" }

[tools.run.shell]
WHAT

[tools.run.shell.pace]
interval = "100ms"
interval_max = "200ms"
confirmations = 1
"""
MARKED = "marker = true\nexpect = { exit = [0] }\nfailed_exit = [9]"
ANSWER_S = 30
WAITS = "for i in $(seq 3000); do [ -e go ] && break; sleep 0.02; done"
SCRIPT = 'echo "$1" >> ran; echo "did $1"'


def declare(
    folder: Path, script: str = SCRIPT, *, effect="shell_write", timeout="2s", more=MARKED
) -> str:
    argv = json.dumps(["sh", "-c", script, "--", "{args.x}"])
    text = CONTRACT.replace("WHAT", f"argv = {argv}\n{more}")
    text = text.replace("EFFECT", effect).replace("TIMEOUT", timeout)
    (folder / "contracts.toml").write_text(text, encoding="utf-8")
    return text


def prepared(tmp_path: Path) -> Path:
    """Make the folder of a test ready."""
    declare(tmp_path)
    return tmp_path


def opened(folder: Path, **options) -> Doubtless:
    contracts = folder / "contracts.toml"
    return Doubtless(f"sqlite:///{folder}/d.db", contracts=contracts, **options)


async def run(app: Doubtless, x: str = "a", operation_id: str | None = "one"):
    return await app.call("run", {"x": x}, operation_id=operation_id)


async def comes_to(app: Doubtless, state: str):
    async def is_there() -> bool:
        return (await app.outcome("one")).state == state

    await eventually(is_there)
    return await app.outcome("one")


async def thread(work, *arguments):
    return await anyio.to_thread.run_sync(work, *arguments)


def runs(folder: Path) -> list[str]:
    log = folder / "ran"
    return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


def markers(folder: Path) -> list[Path]:
    return sorted((folder / ".doubtless/shell").glob("*/*"))


async def running(folder: Path) -> Path:
    """Return the marker of the only command, once it runs."""
    await thread(until, lambda: any((each / "running").exists() for each in markers(folder)))
    return markers(folder)[0]
