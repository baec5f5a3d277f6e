"""Commands of this host: an argv, never a shell.

What may change something runs under a durable marker, kept by a process that outlives us: a
time-out of ours ends nothing, and whoever asks later is told by the marker. What only reads runs in
the same way, under a marker that is thrown away, and is ended when its time is over.
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, cast

import anyio
import anyio.to_thread

from doubtless.core.model import Cause, Json, Seen, Shows, Stage
from doubtless.errors import GateClosed, NotSent
from doubtless.transports import shell_processes
from doubtless.transports.base import (
    Errand,
    Gate,
    Halt,
    Reply,
    Sighting,
    Watch,
    Workplace,
    could_not_ask,
)
from doubtless.transports.place import elsewhere, this_place
from doubtless.transports.shell_marker import (
    Phase,
    Standing,
    claimed,
    made_token,
    standing,
    token,
)
from doubtless.transports.shell_run import (
    Command,
    Keeping,
    TooLate,
    ended,
    result,
    standing_words,
)

T = TypeVar("T")
GRACE_S: Final = 5.0  # for a command that is stopped to end by itself
RECORD_S: Final = 5.0  # for its keeper to record that it has
FLEETING: Final = "/dev/shm"  # noqa: S108 - a folder of ours alone is made there


class ShellTransport:
    """Runs commands of this host, and tells later what became of them."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    async def survey(self, errand: Errand) -> Json:
        """Make the place of markers ready, and say which it is.

        Raises:
            NotSent: It can't be made.
        """
        members = errand.action.members
        place: dict[str, Json] = {"place": this_place(self._workplace.owner)}
        if members["marker"] is not True:
            return place
        root = str(members["markers"])
        try:
            return {**place, "markers": await _in_thread(partial(made_token, root))}
        except OSError as error:
            why = f"the markers can't be kept in {root}: {error.strerror}"
            raise NotSent(f"{why}; name a folder that can be written in `markers`") from error

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Run it once, under its marker; see `ActionTransport.perform`."""
        command = Command.of(errand, self._workplace.secret)
        why = self._not_here(errand) or _unfit(command)
        if why is not None:
            return Reply(stage=Stage.OPENED, proof=Seen.NOT_SENT, detail=why)
        if command.writes:
            return await self._write(command, gate, watch, limit_s)
        with _fleeting() as root:
            return await self._read(command, root, gate, watch)

    async def _write(self, command: Command, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        root, keeping = str(command.members["markers"]), Keeping()
        try:
            unsent = await self._begin(command, root, keeping, gate, watch)
            if unsent is not None:
                return unsent
            watch.written = True  # a time-out of ours ends nothing
            word = ""
            with anyio.move_on_after(limit_s) as patience:
                word = await keeping.hear()
            found = await self._standing(root, command.ref)
            if found.phase is Phase.NOT_BEGUN and not patience.cancelled_caught:
                return _never(word, found)
            watch.stage = Stage.READ
            return _write_reply(command, found)
        finally:
            keeping.close()

    async def _begin(
        self, command: Command, root: str, keeping: Keeping, gate: Gate, watch: Watch
    ) -> Reply | None:
        """Pass the gate, and start the keeper. What is returned says why nothing was started."""
        watch.stage = Stage.GATE
        try:
            by_s = await gate()
            start = partial(self._start, command, root, keeping, watch, by_s)
            if await _in_thread(start):
                return None
        except GateClosed as error:
            return _nothing_done(str(error))
        except TooLate:
            return _nothing_done("the time to begin was over")
        except OSError as error:
            return _nothing_done(f"its keeper was not started: {error.strerror or error}")
        return _write_reply(command, await self._standing(root, command.ref))

    def _start(
        self, command: Command, root: str, keeping: Keeping, watch: Watch, by_s: float
    ) -> bool:
        """Start the keeper, unless an earlier attempt may have begun."""
        with claimed(root, command.ref, command.attempt) as marker:
            if marker is None:
                return False
            keeping.start(command, marker, watch, boot_s=self._workplace.boot_s, by_s=by_s)
            return True

    async def _read(self, command: Command, root: str, gate: Gate, watch: Watch) -> Reply:
        """Run what only reads. When its time is over it is ended, and that is made sure of."""
        keeping = Keeping()
        try:
            unsent = await self._begin(command, root, keeping, gate, watch)
            if unsent is not None:
                return unsent
            word = await keeping.hear()
            found = await self._standing(root, command.ref)
            if found.phase is Phase.NOT_BEGUN:
                return _never(word, found)
            if found.phase is not Phase.ENDED:
                return _unexpected(command, standing_words(found))
            await self._ended(root, command.ref)  # whatever it left behind
            reply = ended(command, found)
            if reply.proof is not None:
                return reply
            return _unexpected(command, reply.detail, reply.exhibits)
        except anyio.get_cancelled_exc_class():
            if not watch.sent_bytes:
                raise
            with anyio.CancelScope(shield=True):
                left = await self._ended(root, command.ref)
            if left:
                raise
            return _unexpected(command, "it did not end in time, and was ended")
        finally:
            keeping.close()

    async def _ended(self, root: str, ref: str) -> list[int]:
        """End whatever a command left behind. Returns who is there all the same."""
        found = await self._standing(root, ref)
        if found.keeper is None:
            return []
        stop = partial(shell_processes.end, found.keeper, found.command, grace_s=0)
        return (await _in_thread(stop))[1]

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Ask the marker; see `ActionTransport.look`."""
        if (why := self._not_here(errand)) is not None:
            return could_not_ask(why)
        command = Command.of(errand, lambda _: "")
        try:
            found = await self._standing(str(command.members["markers"]), command.ref)
        except OSError as error:
            return could_not_ask(f"its marker can't be read: {error.strerror or error}")
        return _sighting(command, found)

    async def stop(self, errand: Errand) -> Halt:
        """End a command and all that it started, and make sure of it.

        Raises:
            NotSent: It can't be stopped from here, or there is nothing to stop.
        """
        if errand.action.members["marker"] is not True:
            raise NotSent("it runs without a marker: nothing tells which processes are its own")
        if (why := self._not_here(errand)) is not None:
            raise NotSent(why)
        root = str(errand.action.members["markers"])
        found = await self._standing(root, errand.ref)
        if found.keeper is None or found.phase is Phase.FOREIGN:
            raise NotSent(f"there is nothing to stop: {standing_words(found)}")
        end = partial(shell_processes.end, found.keeper, found.command, grace_s=GRACE_S)
        signalled, left = await _in_thread(end)
        with anyio.move_on_after(RECORD_S):
            while not left and await self._is_running(root, errand.ref):  # noqa: ASYNC110 - a file
                await anyio.sleep(shell_processes.PAUSE_S)
        return Halt(signalled=tuple(signalled), left=tuple(left))

    async def aclose(self) -> None:
        """Nothing is kept open, and nothing that runs is ended."""

    async def _is_running(self, root: str, ref: str) -> bool:
        return (await self._standing(root, ref)).phase is Phase.RUNNING

    async def _standing(self, root: str, ref: str) -> Standing:
        return await _in_thread(partial(standing, root, ref, self._workplace.liveness))

    def _not_here(self, errand: Errand) -> str | None:
        """Say why this process can't tell of it: another host, or other markers."""
        if (why := elsewhere(errand.baseline, self._workplace.owner)) is not None:
            return why
        members, baseline = errand.action.members, cast("Mapping[str, Json]", errand.baseline)
        if members["marker"] is not True:
            return None
        try:
            same = token(str(members["markers"])) == baseline.get("markers")
        except OSError as error:
            return f"the markers can't be read: {error.strerror or error}"
        return None if same else f"{members['markers']} does not hold the markers of that time"


def _fleeting() -> "tempfile.TemporaryDirectory[str]":
    """Make a place for a marker that nobody asks about later."""
    return tempfile.TemporaryDirectory(
        prefix="doubtless-shell-",
        dir=FLEETING if Path(FLEETING).is_dir() else None,
        ignore_cleanup_errors=True,  # its keeper may still write there
    )


def _unfit(command: Command) -> str | None:
    if not Path(command.cwd).is_dir():
        return f"there is no folder {command.cwd} to run it in"
    if command.program() is None:
        path = command.environment.get("PATH", "")
        return f"there is no program {command.argv[0]!r} that may be run, in {path}"
    return None


def _nothing_done(why: str) -> Reply:
    return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=why)


def _never(word: str, found: Standing) -> Reply:
    """Report that a command was provably never started."""
    room = word.removeprefix("room ")
    why = f"its marker could not be kept: {room}" if word.startswith("room") else found.why_not
    return _nothing_done(f"it was not started: {why or 'its time to begin was over'}")


def _unexpected(command: Command, told: str, exhibits: Mapping[str, bytes] | None = None) -> Reply:
    """Report that a read did not bring what was expected: it changed nothing, and may run again."""
    last = command.attempt > 1
    proof = Seen.REJECTED if last else Seen.NOT_PROCESSED
    return Reply(stage=Stage.READ, proof=proof, detail=told, exhibits=exhibits or {})


def _write_reply(command: Command, found: Standing) -> Reply:
    if found.phase is Phase.ENDED:
        return ended(command, found)
    words = standing_words(found)
    if found.phase is Phase.RUNNING:
        return Reply(stage=Stage.SENT, proof=Seen.ACCEPTED, detail=words)
    return Reply(stage=Stage.SENT, cause=Cause.TOOL_ERROR, detail=words)


def _sighting(command: Command, found: Standing) -> Sighting:
    """Say what a marker shows. An end that decides nothing is for a person, and at once."""
    words = standing_words(found)
    if found.phase is Phase.ENDED:
        reply = ended(command, found)
        shows = {Seen.SUCCEEDED: Shows.APPLIED, Seen.REJECTED: Shows.NOT_APPLIED}
        decided = Shows.CONFLICT if reply.proof is None else shows[reply.proof]
        told = result(found) if decided is Shows.APPLIED else None
        return Sighting(shows=decided, detail=reply.detail, result=told)
    shows_of = {
        Phase.NOT_BEGUN: Shows.ABSENT,
        Phase.RUNNING: Shows.IN_PROGRESS,
        Phase.LOST: Shows.CONFLICT,
        Phase.FOREIGN: Shows.COULD_NOT_ASK,
    }
    return Sighting(shows=shows_of[found.phase], detail=words)


async def _in_thread(work: Callable[[], T]) -> T:
    """Run to the end in a thread: what was begun is not left alone."""
    return await anyio.to_thread.run_sync(work)
