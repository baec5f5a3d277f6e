"""Files below a root: written aside, flushed, and put in place by one rename.

The survey notes what was there before; it is stored before anything is done. Only what is still as
it was then is ever replaced. What is there already, and equal, is done. So an attempt that is met
by its own earlier effect, or by somebody else's, writes nothing.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import anyio.to_thread
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
from doubtless.transports.files_tree import Found, Refused, What, identity, words
from doubtless.transports.files_write import Draft, Held, Job, TooLate
from doubtless.transports.place import elsewhere, this_place

T = TypeVar("T")
REPLACED: Final = "something else is there than before, and it is not written over"


class FilesTransport:
    """Writes and reads files of this host."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    async def survey(self, errand: Errand) -> Json:
        """Return what is at the path now, and what shall be there.

        Raises:
            NotSent: The path can't be reached, or something else than a file or folder is there.
        """
        job = Job.of(errand)
        try:
            return await _in_thread(partial(self._surveyed, job))
        except OSError as error:
            raise NotSent(words(error, job.place)) from error
        except Refused as error:
            raise NotSent(str(error)) from error

    def _surveyed(self, job: Job) -> Json:
        sha256, size_bytes = job.meant()
        found = job.found()
        if found.what is What.OTHER or found.what not in (What.ABSENT, job.makes):
            raise Refused(f"{job.place}: there is {_named(found)}, and no {job.makes}")
        return {
            "place": this_place(self._workplace.owner),
            "root": identity(job.root),
            "was": found.what.value,
            "was_sha256": found.sha256,
            "sha256": sha256,
            "size_bytes": size_bytes,
        }

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Write aside, ask the gate, and rename; see `ActionTransport.perform`."""
        job = Job.of(errand)
        if (why := self._not_here(job)) is not None:
            return Reply(stage=Stage.OPENED, proof=Seen.NOT_SENT, detail=why)
        draft = Draft(job)
        try:
            await _in_thread(draft.write)
            watch.stage = Stage.GATE
            write_by_s = await gate()
            watch.written = True  # what follows is one thread's, which begins in time or not at all
            put = partial(draft.put, watch, self._workplace.boot_s, write_by_s)
            changed = await _in_thread(put)
        except (GateClosed, TooLate, Held) as error:
            return _nothing_done(str(error))
        except Refused as error:
            return Reply(stage=Stage.GATE, proof=Seen.REJECTED, detail=str(error))
        except OSError as error:
            why = words(error, job.place)
            if not watch.sent_bytes:
                return _nothing_done(why)
            return Reply(stage=Stage.SENT, cause=Cause.TOOL_ERROR, detail=why)
        finally:
            draft.drop()
        watch.stage = Stage.READ
        detail = f"{job.place} is as it was meant" if changed else f"{job.place} was so already"
        body = rfc8785.dumps(_result(job, changed=changed))
        return Reply(
            stage=Stage.READ, proof=Seen.SUCCEEDED, detail=detail, body=body, complete=True
        )

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Read what is at the path now; see `ActionTransport.look`."""
        job = Job.of(errand)
        if (why := self._not_here(job)) is not None:
            return could_not_ask(why)
        try:
            return _sighting(job, await _in_thread(job.found))
        except FileNotFoundError:
            missing = f"{job.place}: the folder is not there"
            return _sighting(job, Found(what=What.ABSENT), missing)
        except OSError as error:
            return could_not_ask(words(error, job.place))
        except Refused as error:
            return could_not_ask(str(error))

    async def aclose(self) -> None:
        """Nothing is kept open."""

    def _not_here(self, job: Job) -> str | None:
        """Say why this process can't tell of it, and so does nothing: it is elsewhere."""
        if (why := elsewhere(job.baseline, self._workplace.owner)) is not None:
            return why
        try:
            same = identity(job.root) == job.baseline.get("root")
        except OSError as error:
            return words(error, job.root)
        return None if same else f"{job.root} is another folder than before: is it mounted?"


def _nothing_done(why: str) -> Reply:
    return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=why)


def _sighting(job: Job, found: Found, told: str = "") -> Sighting:
    if job.is_done(found):
        detail = f"{job.place} is there" + ("" if job.by_name else ", with the content meant")
        return Sighting(shows=Shows.APPLIED, detail=detail, result=_result(job))
    if job.is_as_before(found):
        return Sighting(shows=Shows.ABSENT, detail=told or f"{job.place} is as it was before")
    return Sighting(shows=Shows.CONFLICT, detail=f"{job.place}: {REPLACED} ({_named(found)})")


def _result(job: Job, *, changed: bool | None = None) -> Mapping[str, Json]:
    told: dict[str, Json] = {"path": "/".join(job.names)}
    if changed is not None:
        told["changed"] = changed
    if job.makes is What.FOLDER or job.by_name:
        return told
    return {**told, "sha256": job.baseline["sha256"], "bytes": job.baseline["size_bytes"]}


def _named(found: Found) -> str:
    names = {
        What.ABSENT: "nothing",
        What.FOLDER: "a folder",
        What.OTHER: "a link or a device",
    }
    return names.get(found.what) or f"a file of {found.size_bytes} bytes"


async def _in_thread(work: Callable[[], T]) -> T:
    """Run to the end in a thread: what a disk has begun is not left alone."""
    return await anyio.to_thread.run_sync(work)
