"""What a test of SSH has: a host, a contract for it, and an application that holds the key."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from tests.actions.ssh_host import Host, Link, Sshd

from doubtless import Doubtless, Outcome

SECRET = "DOUBTLESS_SECRET_DEPLOY_KEY"
WITHIN_S = 25
POLL_S = 0.1

HEAD = """
[tools.deploy]
effect = "{effect}"
timeout = "{timeout}"
in_flight_horizon = "{horizon}"
recovery_deadline = "5m"
on_absent = "{on_absent}"
retry = {{ attempts = {attempts} }}

[tools.deploy.arguments]
type = "object"
properties.release = {{ type = "string" }}
properties.held_by = {{ type = "string" }}

[tools.deploy.ssh.pace]
interval = "200ms"
interval_max = "400ms"

[tools.deploy.ssh]
host = "{host}"
credential = "deploy-key"
host_key = "{host_key}"
markers = "{markers}"
"""

ONE = 'argv = ["{folder}/release", "restarted", "{{args.release}}"]\n'

STEPS = """
{more}
[[tools.deploy.ssh.steps]]
name = "downloaded"
argv = ["{folder}/release", "downloaded", "{{args.release}}"]

[[tools.deploy.ssh.steps]]
name = "migrated"
argv = ["{folder}/release", "migrated", "{{args.release}}"]

[[tools.deploy.ssh.steps]]
name = "restarted"
argv = ["{folder}/release", "restarted", "{{args.release}}"]
"""

STATUS = """
[tools.deploy.ssh.status]
argv = ["{folder}/release-status", "--json"]
where = {{ release_id = "{{args.release}}" }}
phase = "phase"
order = ["downloaded", "migrated", "restarted"]
equal = {{ active_revision = "{{args.release}}" }}
absent_means = "{absent_means}"
"""


@dataclass(kw_only=True)
class Stage:
    """One contract on one host."""

    server: Sshd
    host: Host
    folder: Path

    def declare(self, body: str = ONE, **said: Any) -> None:
        """Write the contract. Applications that are opened later know it."""
        usual = {
            "effect": "publish",
            "timeout": "10s",
            "horizon": "0s",
            "on_absent": "resend",
            "attempts": 1,
            "host": self.server.host,
            "host_key": self.server.host_key,
            "markers": self.host.markers,
            "folder": self.host.folder,
            "absent_means": "unknown",
            "more": "",
        }
        text = (HEAD + body).format(**usual | said)
        (self.folder / "contracts.toml").write_text(text, encoding="utf-8")

    def kill(self, ref: str) -> None:
        """Kill all processes of a run, as a host does that falls over."""
        os.killpg(self.host.leader(ref), signal.SIGKILL)

    @asynccontextmanager
    async def linked(self, body: str = ONE, **said: Any) -> AsyncIterator[Link]:
        """Declare the host as it is called through a link that can be cut."""
        link = Link(self.server.port)
        async with link.serving() as port:
            self.declare(body, host=self.through(port), **said)
            yield link

    def app(self, **options: Any) -> Doubtless:
        ledger = f"sqlite:///{self.folder}/d.db"
        return Doubtless(ledger, contracts=self.folder / "contracts.toml", **options)

    def hand_out_the_key(self) -> None:
        """Put the key where an agent in a process of its own finds it."""
        file = self.folder / "secrets" / "deploy-key"
        file.parent.mkdir(exist_ok=True)
        file.touch(mode=0o600)
        file.write_text(self.server.key, encoding="ascii")

    def through(self, port: int) -> str:
        """Return the host as it is called through a link on that port."""
        user = self.server.host.partition("@")[0]
        return f"{user}@127.0.0.1:{port}"


async def call(app: Doubtless, operation_id: str = "one", release: str = "r7", **more) -> Outcome:
    return await app.call("deploy", {"release": release, **more}, operation_id=operation_id)


async def runs(stage: Stage, app: Doubtless, then: Callable[[str], None], **more: Any) -> str:
    """Call, and once its held program runs do something with its reference, which is returned."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: call(app, **more))
        await off(stage.host.reached, "restarted")
        ref = str((await app.outcome("one")).ref)
        then(ref)
    return ref


async def ends(app: Doubtless, operation_id: str = "one") -> Outcome:
    return await app.wait(operation_id, timeout=WITHIN_S)


async def eventually(ask: Callable[[], Awaitable[bool]]) -> None:
    """Ask until the answer is yes; not too often, since a time line is long."""
    with anyio.fail_after(WITHIN_S):
        while not await ask():  # noqa: ASYNC110 - other processes bring it about
            await anyio.sleep(POLL_S)


async def comes_to(app: Doubtless, state: str) -> None:
    async def is_there() -> bool:
        return (await app.outcome("one")).state == state

    await eventually(is_there)


async def told(app: Doubtless, words: str) -> None:
    """Wait until the timeline holds an entry with `words`."""

    async def is_told() -> bool:
        return words in str(await app.timeline("one"))

    await eventually(is_told)


async def off(function, *arguments) -> None:
    """Wait in a thread, so that the application goes on."""
    await anyio.to_thread.run_sync(lambda: function(*arguments))
