"""Starting a keeper, hearing from it, and judging how its command ended."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

import anyio
import rfc8785

from doubtless.core.model import Cause, Json, Seen, Stage
from doubtless.transports.base import Errand, Reply, Watch
from doubtless.transports.shell_marker import Phase, Standing

KEEPER: Final = Path(__file__).with_name("shell_keeper.py")
WORD_BYTES: Final = 4096


class TooLate(Exception):
    """The time in which it might begin had passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One operation's command, as it was rendered."""

    ref: str
    attempt: int
    writes: bool  # under a durable marker
    members: Mapping[str, Json]
    secrets: Mapping[str, str] = field(default_factory=dict)
    tells: Mapping[str, str] = field(default_factory=dict)  # who asks, for logs of the command

    @classmethod
    def of(cls, errand: Errand, secret: Callable[[str], str]) -> "Command":
        """Read an errand, and find its secrets.

        Raises:
            SettingsError: There is no secret of that name.
        """
        members = errand.action.members
        named = cast("Mapping[str, str]", members.get("secrets") or {})
        return cls(
            ref=errand.ref,
            attempt=errand.attempt,
            writes=members["marker"] is True,
            members=members,
            secrets={variable: secret(name) for variable, name in named.items()},
            tells={
                "DOUBTLESS_OPERATION_ID": errand.operation_id,
                "DOUBTLESS_CORRELATION_ID": errand.correlation_id,
            },
        )

    @property
    def argv(self) -> list[str]:
        """The program and its arguments."""
        return [str(each) for each in cast("Sequence[Json]", self.members["argv"])]

    @property
    def cwd(self) -> str:
        """The folder that it is run in."""
        return str(self.members["cwd"])

    @property
    def environment(self) -> dict[str, str]:
        """What the command is told of its surroundings: by the contract, and of who asks."""
        said = cast("Mapping[str, Json]", self.members["env"])
        return {**{name: str(value) for name, value in said.items()}, **self.secrets, **self.tells}

    def program(self) -> str | None:
        """Return where the program is, as the command's own PATH finds it."""
        name = self.argv[0]
        at = str(Path(self.cwd) / name) if "/" in name else name
        return shutil.which(at, path=self.environment.get("PATH", ""))

    def job(self, begin_by_s: float) -> bytes:
        """Return what its keeper is told."""
        told = {
            "argv": [self.program() or self.argv[0], *self.argv[1:]],
            "env": self.environment,
            "cwd": self.cwd,
            "stdin": str(self.members.get("stdin") or ""),
            "output_bytes": self.members["output_bytes"],
            "begin_by_s": begin_by_s,
        }
        return json.dumps(told).encode()


class Keeping:
    """A keeper that was started, as whoever started it hears from it."""

    def __init__(self) -> None:
        self._ear = -1

    def start(
        self,
        command: Command,
        marker: int,
        watch: Watch,
        *,
        boot_s: Callable[[], float],
        by_s: float,
    ) -> None:
        """Start the keeper of a command. It begins by `by_s`, or not at all.

        Raises:
            TooLate: `by_s` is past.
            OSError: The keeper could not be started.
        """
        job = command.job(by_s)
        self._ear, mouth = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            # Compared in the very call that begins. A time that is no number permits nothing.
            if not boot_s() <= by_s:
                raise TooLate
            keeper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(KEEPER), str(marker)],
                stdin=subprocess.PIPE,
                stdout=mouth,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=(marker,),
                start_new_session=True,
            )
            watch.stage = Stage.SENT
            watch.sent_bytes = len(job)
        finally:
            os.close(mouth)
        keeper.communicate(job)  # it leaves a child behind, which is nobody's
        watch.first_byte_s = boot_s()

    async def hear(self) -> str:
        """Return the last word that the keeper has to say of the command; "" where it died."""
        said = b""
        while True:
            await anyio.wait_readable(self._ear)
            chunk = os.read(self._ear, WORD_BYTES)
            said += chunk
            words = said.decode(errors="replace").splitlines()
            if not chunk or (words and words[-1] != "running" and said.endswith(b"\n")):
                return words[-1] if words else ""

    def close(self) -> None:
        """Hear no more. The keeper and its command go on."""
        if self._ear >= 0:
            os.close(self._ear)
            self._ear = -1


def ended(command: Command, found: Standing) -> Reply:
    """Judge how a command ended, by what the contract says of its exit codes."""
    end = found.end or {}
    code, left = end.get("exit"), end.get("left")
    expect = cast("Mapping[str, Json]", command.members["expect"])
    exhibits = {"stdout": found.stdout, "stderr": found.stderr}
    contains = expect.get("stdout_contains")
    as_said = contains is None or str(contains).encode() in found.stdout
    signalled = isinstance(code, int) and code < 0
    told = f"it was ended by signal {str(code)[1:]}" if signalled else f"it ended with exit {code}"
    if left:
        told += f", and {left} processes that it started live on"
    if code in cast("Sequence[Json]", expect["exit"]) and as_said:
        return Reply(
            stage=Stage.READ,
            proof=Seen.SUCCEEDED,
            detail=told,
            body=rfc8785.dumps(result(found)),
            complete=True,
        )
    if code in cast("Sequence[Json]", command.members["failed_exit"]):
        why = f"{told}, which the contract declares as: nothing was done"
        return Reply(stage=Stage.READ, proof=Seen.REJECTED, detail=why, exhibits=exhibits)
    missing = "" if as_said else ", and what was expected is not in its output"
    return Reply(
        stage=Stage.READ,
        cause=Cause.UNPROVEN_STATUS,
        detail=f"{told}{missing}: the contract does not say what that means",
        exhibits=exhibits,
    )


def result(found: Standing) -> Mapping[str, Json]:
    """Return what the agent gets of a command that ended."""
    end = dict(found.end or {})
    return {
        "exit": end.get("exit"),
        "stdout": found.stdout.decode(errors="replace"),
        "stderr": found.stderr.decode(errors="replace"),
        "printed": {name: end.get(name) for name in ("stdout", "stderr")},
        "left_running": end.get("left", 0),
    }


def standing_words(found: Standing) -> str:
    """Say where a command stands."""
    pid = (found.command or found.keeper or {}).get("pid")
    words = {
        Phase.NOT_BEGUN: "it was never started",
        Phase.RUNNING: f"it is still running, as process {pid}",
        Phase.LOST: f"it was started, as process {pid}, which is gone without a record of its end",
        Phase.FOREIGN: f"it was started, as process {pid}, which can't be seen from here",
        Phase.ENDED: "it ended",
    }
    return f"{words[found.phase]}{': ' if found.why_not else ''}{found.why_not}"
