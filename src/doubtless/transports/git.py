"""git push: one commit to one ref, under a lease on the value that the ref had before.

The survey fixes what is pushed and what the ref was; both are stored before anything is sent, so
every attempt of an operation sends the same commit under the same lease. The server compares and
sets: a push that arrives late, or twice, changes nothing more.

What is proven: `git` itself names the commands that it sends, in its packet trace, before it writes
them. A push that ended before it named one never reached the ref. After that only the server's
report counts; that a link broke says nothing, since a push that was cut before the pack and one
whose report was lost look the same.
"""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

import anyio
import rfc8785

from doubtless.core.model import Cause, Json, Seen, Shows, Stage
from doubtless.errors import GateClosed, NotSent
from doubtless.transports.base import (
    Errand,
    Gate,
    Reply,
    Sighting,
    Watch,
    Workplace,
    could_not_ask,
)
from doubtless.transports.git_program import Ran, Repository, told

NO_COMMIT: Final = ""
"""In place of a commit: there is no such ref."""

SURVEY_LIMIT_S: Final = 60.0

_COMMAND: Final = re.compile(rb"push> [0-9a-f]{40,64} [0-9a-f]{40,64} ")  # gitprotocol-pack(5)


@dataclass(frozen=True, slots=True)
class _Push:
    """What one operation pushes, and over what."""

    commit: str
    old: str  # `NO_COMMIT`: the ref is created
    ref: str

    @classmethod
    def of(cls, errand: Errand) -> "_Push":
        found = cast("Mapping[str, str]", errand.baseline)
        return cls(found["commit"], found["old"], str(errand.action.members["ref"]))

    @property
    def lease(self) -> str:
        """The option by which the server compares before it sets; without a value: create only."""
        return f"--force-with-lease={self.ref}:{self.old}"

    def result(self) -> bytes:
        return rfc8785.dumps({"ref": self.ref, "commit": self.commit, "old": self.old or None})


class GitTransport:
    """Pushes with the `git` program of this host."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    async def survey(self, errand: Errand) -> Json:
        """Return the commit that is meant, and what the ref is now.

        Raises:
            NotSent: The repository or the remote can't be asked, or the push would drop commits.
        """
        members = errand.action.members
        ref, source = str(members["ref"]), str(members["source"])
        with anyio.move_on_after(SURVEY_LIMIT_S):
            async with self._repository(members) as repository:
                commit = await repository.commit(source)
                if commit is None:
                    raise NotSent(f"{source} names no commit in {repository.folder}")
                old = await _value(repository, ref)
                if isinstance(old, Ran):
                    raise NotSent(f"the remote can't be asked what {ref} is: {told(old)}")
                if old != NO_COMMIT and members["rewrite"] is not True:
                    await _be_forward(repository, old, commit, ref)
                return {"commit": commit, "old": old}
        raise NotSent(f"the remote did not say within {SURVEY_LIMIT_S:.0f} s what {ref} is")

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Push once; see `ActionTransport.perform`."""
        push = _Push.of(errand)
        try:
            async with self._repository(errand.action.members) as repository:
                return await self._push(push, repository, gate, watch)
        except GateClosed as error:
            return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=str(error))
        except (OSError, NotSent) as error:
            return Reply(stage=watch.stage, proof=_unsent(watch), detail=f"git: {error}")

    async def _push(self, push: _Push, repository: Repository, gate: Gate, watch: Watch) -> Reply:
        with tempfile.TemporaryDirectory(prefix="doubtless-git-") as folder:
            trace = Path(folder) / "trace"
            watch.stage = Stage.GATE
            write_by_s = await gate()
            if not self._workplace.boot_s() <= write_by_s:
                raise GateClosed("the time to begin was over")
            watch.stage = Stage.SENT
            try:
                ran = await repository.push(push.commit, push.ref, push.lease, trace)
            finally:
                # Its process has ended, or was ended: nothing of it begins any more.
                watch.first_byte_s = self._workplace.boot_s()
                named = _names_a_command(trace)
                watch.sent_bytes = int(named)
            watch.stage = Stage.READ
            return _reply(ran, push, named=named)

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Ask the remote what the ref is now; see `ActionTransport.look`."""
        push = _Push.of(errand)
        async with self._repository(errand.action.members) as repository:
            found = await _value(repository, push.ref)
            if isinstance(found, Ran):
                return could_not_ask(f"the remote can't be asked: {told(found)}")
            if found == push.commit:
                return _pushed(push, f"{push.ref} is {push.commit[:12]}")
            if found == push.old:
                was = f"still {push.old[:12]}" if push.old else "still not there"
                return Sighting(shows=Shows.ABSENT, detail=f"{push.ref} is {was}")
            if found != NO_COMMIT and await repository.holds(push.ref, found, push.commit):
                return _pushed(push, f"{push.ref} is {found[:12]}, which holds {push.commit[:12]}")
        what = found[:12] or "gone"
        told_ref = f"{push.ref} is {what}: neither what was pushed nor what it was before"
        return Sighting(shows=Shows.CONFLICT, detail=told_ref)

    async def aclose(self) -> None:
        """Nothing is kept open."""

    def _repository(self, members: Mapping[str, Json]) -> Repository:
        return Repository(
            folder=Path(str(members["repository"])),
            remote=str(members["remote"]),
            user=cast("str | None", members.get("user")),
            credential=cast("str | None", members.get("credential")),
            host_key=cast("str | None", members.get("host_key")),
            secret=self._workplace.secret,
        )


async def _value(repository: Repository, ref: str) -> "str | Ran":
    """Return what a ref of the remote is: a commit, `NO_COMMIT`, or what went wrong."""
    ran = await repository.git("ls-remote", "--quiet", repository.remote, ref)
    if ran.code != 0:
        return ran
    for line in ran.out.splitlines():
        commit, _, name = line.partition("\t")
        if name == ref:
            return commit
    return NO_COMMIT


async def _be_forward(repository: Repository, old: str, commit: str, ref: str) -> None:
    """Be sure that nothing which the remote has would be dropped: a lease alone permits it."""
    held = await repository.git("merge-base", "--is-ancestor", old, commit)
    if held.code == 1:
        raise NotSent(f"{ref} is {old[:12]}, which {commit[:12]} does not hold: merge it first")
    if held.code != 0:
        raise NotSent(f"{ref} is {old[:12]}, which is not known here: fetch it first")


def _names_a_command(trace: Path) -> bool:
    """Whether git said that it would write a command, or can't be relied on to have said so."""
    try:
        text = trace.read_bytes()
    except OSError:
        return True  # its trace is missing, so that it proves nothing
    return _COMMAND.search(text) is not None or b"trace: built-in: git push" not in text


def _unsent(watch: Watch) -> Seen | None:
    return Seen.NOT_SENT if watch.stage is not Stage.SENT else None


def _pushed(push: _Push, detail: str) -> Sighting:
    result: Json = {"ref": push.ref, "commit": push.commit, "old": push.old or None}
    return Sighting(
        shows=Shows.APPLIED, detail=detail, provider_operation_id=push.commit, result=result
    )


def _reply(ran: Ran, push: _Push, *, named: bool) -> Reply:
    """Read git's own report, which only says what the server said; see `git-push --porcelain`."""
    flag, reason = _line(ran.out, push.ref)
    done = ran.code == 0 and flag in (" ", "+", "*", "=")
    if done:
        return Reply(
            stage=Stage.READ,
            proof=Seen.SUCCEEDED,
            detail=f"the server took {push.commit[:12]} as {push.ref}",
            body=push.result(),
            complete=True,
            provider_operation_id=push.commit,
        )
    if flag == "!" and reason.startswith(("[rejected]", "[remote rejected]")):
        return Reply(stage=Stage.READ, proof=Seen.REJECTED, detail=f"refused: {reason}")
    if not named and ran.code != 0:
        why = f"no command was sent: {told(ran)}"
        return Reply(stage=Stage.CONNECTING, proof=Seen.NOT_SENT, detail=why)
    detail = f"git ended without the server's report: {told(ran)}"
    return Reply(stage=Stage.SENT, cause=Cause.CONNECTION_RESET, detail=detail)


def _line(out: str, ref: str) -> tuple[str, str]:
    """Return flag and summary of a ref's line; "" where there is none."""
    for line in out.splitlines():
        parts = line.split("\t")
        if len(parts) == 3 and parts[1].endswith(f":{ref}"):
            return parts[0], parts[2]
    return "", ""
