"""`[tools.X.ssh]`: a command or steps on a host, under a marker named after the operation."""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, cast

from pydantic import BeforeValidator, Field

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.model import Effect, Json, Source
from doubtless.engine.contracts.block import BlockTable, Place, Wrong
from doubtless.engine.contracts.boundary import GATE, RECORDED, Boundary, Way, doubtful, harmless
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import (
    Credential,
    Criteria,
    Expression,
    Period,
    TemplateText,
    Text,
)
from doubtless.engine.templates import names_in

HORIZON_MS: Final = 30_000
LOCK_FOR_MS: Final = 3_600_000
ARGV_BYTES_MAX: Final = 100_000  # of one command; hosts take at least 131072 with what they add
STEPS_MAX: Final = 50
STATE: Final = "~/.local/state/doubtless"

_HOST: Final = re.compile(
    r"[A-Za-z0-9._-]+@(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::\d{1,5})?"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_KEY: Final = re.compile(r"(ssh-[a-z0-9]+|ecdsa-sha2-[a-z0-9]+) ([A-Za-z0-9+/]+={0,2})(?: .*)?")
_FOLDER: Final = re.compile(r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]")


def _several(value: object) -> object:
    return value if isinstance(value, list) else [value]


Argv = Annotated[list[TemplateText], Field(min_length=1)]


class StatusTable(Table):
    """`[tools.X.ssh.status]`: the host's own authority."""

    argv: Argv
    where: Criteria = Field(default_factory=dict)
    phase: Expression
    order: Annotated[list[Text], Field(min_length=1)]
    equal: Criteria = Field(default_factory=dict)
    absent_means: Literal["unknown", "never_started"] = "unknown"


class StepTable(Table):
    """`[[tools.X.ssh.steps]]`: a command and the phase that it reaches."""

    name: Text
    argv: Argv
    equal: Criteria = Field(default_factory=dict)  # of the status, from this phase on


class TakeOverTable(Table):
    """`take_over`: which lock is freed, and the operation that is expected to hold it."""

    lock: Text
    held_by: TemplateText


class SshTable(BlockTable):
    """`[tools.X.ssh]`."""

    KIND: ClassVar[Kind] = Kind.SSH
    EFFECTS: ClassVar[frozenset[Effect]] = frozenset(
        {
            Effect.SHELL_READ,
            Effect.SHELL_WRITE,
            Effect.WRITE,
            Effect.PUBLISH,
            Effect.DELETE,
            Effect.ACCESS,
        }
    )

    host: Text
    credential: Credential
    passphrase: Credential | None = None
    host_key: Annotated[list[Text], BeforeValidator(_several), Field(min_length=1)]
    argv: Argv | None = None
    steps: list[StepTable] = Field(default_factory=list)
    status: StatusTable | None = None
    failed_exit: list[Annotated[int, Field(ge=1, le=255)]] = Field(default_factory=list)
    markers: Text | None = None
    lock: Text | None = None
    lock_for: Period | None = None
    take_over: TakeOverTable | None = None

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is stored: the command as the first step, and where its marker will be."""
        said = BlockTable.action(self, place)
        steps = self._steps()
        said.pop("argv", None)
        said["steps"] = [each.model_dump(mode="json") for each in steps]
        said["led"] = [_led(each.argv) for each in steps]
        said["marker"] = f"{self.markers or STATE}/{{operation.ref}}"
        if self.passphrase is not None:
            said["passphrase"] = {"credential": self.passphrase}
        if self.lock is not None:
            said["lock_for"] = self.lock_for or LOCK_FOR_MS
        if self.take_over is not None:
            said["failed_exit"] = [3]  # by which the job says that it did nothing
        return said

    def _steps(self) -> list[StepTable]:
        """Return all steps; the command alone reaches the first phase that no step is called."""
        if self.argv is None:
            return self.steps
        return [StepTable(name=self._first(), argv=self.argv), *self.steps]

    def _first(self) -> str:
        if self.status is None:
            return "command"
        if not self.steps:
            return self.status.order[-1]
        return self.status.order[0]

    def look(self, horizon_ms: int | None) -> LookupRules:
        """Return how the marker is asked.

        One absence is proof: before it is told, the look rules out on the host that what was sent
        can begin. The horizon is what the host's own clock grants a late program.
        """
        return LookupRules(
            name="marker",
            speaks=Source.MARKER,
            boundary="worker",
            authoritative=True,
            confirmations=1,
            in_flight_horizon_ms=HORIZON_MS if horizon_ms is None else horizon_ms,
            interval_ms=5_000,
            interval_max_ms=60_000,
            timeout_ms=30_000,
        )

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield what can't be meant of the host, the commands, the status and the lock."""
        yield from self._wrong_host()
        yield from self._wrong_kind()
        for key, argv in self._commands():
            yield from _wrong_argv(key, argv)
        yield from self._wrong_names()
        for key, name in (("lock", self.lock), ("take_over.lock", self._lock_taken())):
            if name is not None and not _NAME.fullmatch(name):
                mend = "use letters, digits, _ and -."
                yield Wrong(key=key, wrong=f"{name!r} can't name a lock.", mend=mend)
        if self.lock_for is not None and self.lock is None:
            yield Wrong(key="lock_for", wrong="there is no lock.", mend='say lock = "…".')

    def _wrong_host(self) -> Iterator[Wrong]:
        if not _HOST.fullmatch(self.host):
            mend = 'write user and host, and a port if it isn\'t 22: "deploy@web-1:2222".'
            yield Wrong(key="host", wrong=f"{self.host!r} is no user at a host.", mend=mend)
        if any(not _is_key(key) for key in self.host_key):
            mend = 'write what ssh-keyscan prints after the host: "ssh-ed25519 AAAA…".'
            yield Wrong(key="host_key", wrong="this is no public host key.", mend=mend)
        odd = self.markers is not None and not _FOLDER.fullmatch(self.markers)
        if odd or (self.markers is not None and "/../" in f"{self.markers}/"):
            mend = 'write an absolute path: markers = "/var/lib/doubtless".'
            yield Wrong(key="markers", wrong=f"{self.markers!r} is no folder there.", mend=mend)

    def _wrong_kind(self) -> Iterator[Wrong]:
        said = [
            key
            for key, value in (
                ("argv", self.argv or self.steps),
                ("take_over", self.take_over),
            )
            if value
        ]
        if len(said) != 1:
            what = " and ".join(said) if said else "nothing"
            mend = "say argv or steps, or take_over."
            yield Wrong(key="argv", wrong=f"{what} is to be done at once.", mend=mend)
        if self.status is not None and not (self.argv or self.steps):
            mend = "leave it out: it speaks of commands."
            yield Wrong(
                key="status", wrong="there is no command that it could speak of.", mend=mend
            )

    def _commands(self) -> Iterator[tuple[str, list[str]]]:
        if self.argv is not None:
            yield "argv", self.argv
        for each in self.steps:
            yield "steps", each.argv
        if self.status is not None:
            yield "status.argv", self.status.argv

    def _wrong_names(self) -> Iterator[Wrong]:
        names = [each.name for each in self._steps()]
        for name in names:
            if not _NAME.fullmatch(name):
                mend = "use letters, digits, _ and -."
                yield Wrong(key="steps", wrong=f"{name!r} can't name a step.", mend=mend)
        if len(set(names)) < len(names):
            mend = "give each step the phase that it reaches."
            yield Wrong(key="steps", wrong=f"a phase is reached twice: {names}.", mend=mend)
        if len(names) > STEPS_MAX:
            mend = f"use at most {STEPS_MAX}."
            yield Wrong(key="steps", wrong=f"{len(names)} steps are too many.", mend=mend)
        if self.status is None:
            return
        if "{" in self.status.phase:
            mend = 'name the member that holds it: phase = "phase".'
            yield Wrong(key="status.phase", wrong="it makes an object.", mend=mend)
        order = self.status.order
        known = [name for name in order if name in names]
        if len(set(order)) < len(order) or known != names:
            mend = f"name all steps in it, as they come: {names}."
            yield Wrong(key="status.order", wrong="the steps don't stand so in it.", mend=mend)

    def _lock_taken(self) -> str | None:
        return self.take_over.lock if self.take_over is not None else None

    def doubtful(self, contract: Contract) -> Iterator[Wrong]:
        """Yield a status that would be believed about anybody's release."""
        if self.status is not None and not self.status.where:
            mend = 'say where = { release_id = "{args.release}" }.'
            wrong = "nothing says which entry is meant, so that any would do."
            yield Wrong(key="status.where", wrong=wrong, mend=mend)

    @staticmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered command can't be run as it is: an argument that would be an option."""
        led = cast("Sequence[Sequence[int]]", members["led"])
        for each, places in zip(_argvs(members), led, strict=True):
            if (why := _unfit(each, places)) is not None:
                return why
        status = cast("Mapping[str, Sequence[Json]]", members.get("status", {}))
        if (why := _unfit(status.get("argv", ["-"]), ())) is not None:
            return why
        taken = cast("Mapping[str, Json]", members.get("take_over", {}))
        value = taken.get("held_by", "-")
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9._:-]{1,128}", value):
            return f"{value!r:.80} is neither an operation id nor a reference"
        return None

    @staticmethod
    def target(members: Mapping[str, Json]) -> str:
        """Name the host and the commands."""
        if "take_over" in members:
            taken = cast("Mapping[str, Json]", members["take_over"])
            what = f"take the lock {taken['lock']} over from {taken['held_by']}"
        else:
            what = "; ".join(" ".join(map(str, argv)) for argv in _argvs(members))
        return f"ssh {members['host']}: {what}"

    @staticmethod
    def question(members: Mapping[str, Json]) -> str:
        """Return the command by which a person reads the marker."""
        return f"ssh {members['host']} cat {members.get('marker', STATE)}/status"

    @staticmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Return its way: the link, the marker, the processes, their exit codes."""
        failed = ", ".join(map(str, cast("Sequence[Json]", members.get("failed_exit") or ())))
        not_done = f" {failed}: not done." if failed else ""
        says = "the host's status or the marker says" if "status" in members else "the marker says"
        return Way(
            tie="a marker on the host, named after the operation, which each attempt has to claim",
            recognises=f"{says} that all of it was done",
            absent="there is no marker, and none can come any more",
            path=(
                *RECORDED,
                harmless(
                    "the connection",
                    "Connect, check the host's key, log in.",
                    "the link: a host that isn't the right one, or shuts us out, was told nothing.",
                ),
                GATE,
                doubtful("the order to run", "The host is told to begin. The link may break."),
                doubtful(
                    "the marker",
                    "The host records that it begins, before it does.",
                    "the marker: without one, and once we ruled out that one comes, nothing ran.",
                ),
                doubtful(
                    "the processes",
                    "They run on without the link.",
                    "their ids and start times, in the marker: it is still running.",
                ),
                doubtful(
                    "the exit codes",
                    "The host records how each step ended.",
                    f"the codes. All 0: done.{not_done} Any other: nothing by itself.",
                ),
                *_status_path(members),
                doubtful("the answer", "The host tells what its marker says.", "the same."),
            ),
        )


def _argvs(members: Mapping[str, Json]) -> list[Sequence[Json]]:
    steps = cast("Sequence[Mapping[str, Sequence[Json]]]", members["steps"])
    return [each["argv"] for each in steps]


def _led(argv: Sequence[str]) -> list[int]:
    """Return the arguments that a call's value begins, before any `--`: none may be an option."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [index for index, each in enumerate(argv[:end]) if re.match(r"\{[^{]", each)]


def _unfit(argv: Sequence[Json], led: Sequence[int]) -> str | None:
    """Say why a rendered command can't be run."""
    for index, each in enumerate(argv):
        if isinstance(each, list | Mapping) or each is None:
            return f"argument {index} is no text, but {type(each).__name__}"
        if "\0" in str(each):
            return f"argument {index} holds a NUL, which no command can be given"
        if index in led and str(each).startswith("-"):
            return (
                f"argument {index}, {each!r:.80}, would be taken for an option; "
                'where it is meant, the contract says "--" before it'
            )
    if sum(len(str(each).encode()) + 1 for each in argv) > ARGV_BYTES_MAX:
        return f"its arguments have more than {ARGV_BYTES_MAX} bytes"
    return None


def _wrong_argv(key: str, argv: Sequence[str]) -> Iterator[Wrong]:
    program = argv[0]
    if names_in(program) or program.startswith("-") or "=" in program or not program.strip():
        mend = "begin with the program itself; no call may choose it."
        yield Wrong(key=key, wrong=f"{program!r} is no program.", mend=mend)
    if any("\0" in each for each in argv):
        yield Wrong(key=key, wrong="it holds a NUL.", mend="take it out: no command can get it.")


def _is_key(text: str) -> bool:
    """Whether this is one public key as OpenSSH writes it, whose parts agree."""
    found = _KEY.fullmatch(text.strip())
    if found is None:
        return False
    try:
        blob = base64.b64decode(found[2], validate=True)
    except (binascii.Error, ValueError):
        return False
    name = found[1].encode()
    return blob.startswith(len(name).to_bytes(4, "big") + name)


def _status_path(members: Mapping[str, Json]) -> Iterator[Boundary]:
    status = members.get("status")
    if isinstance(status, Mapping):
        *_, last = cast("Sequence[str]", status["order"])
        proof = f"the phase that it reports, before any exit code. {last}: done."
        yield doubtful("the host's own status", "The host is asked how far it is.", proof)
