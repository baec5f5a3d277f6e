"""`[tools.X.shell]`: a command of this host, as an argv."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final, cast

from pydantic import Field

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.effects import RULES
from doubtless.core.model import Effect, Json, Source
from doubtless.engine.contracts.block import BlockTable, Place, Wrong
from doubtless.engine.contracts.boundary import GATE, RECORDED, Boundary, Way, doubtful
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import Credential, TemplateText, Text
from doubtless.engine.templates import names_in

HORIZON_MS: Final = 5_000
"""Its keeper starts nothing once the gate's own time is over; this is for one that is slow."""
MARKERS: Final = ".doubtless/shell"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OUTPUT_BYTES: Final = 65_536
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

ExitCodes = list[Annotated[int, Field(ge=0, le=255)]]


class ExpectTable(Table):
    """`expect`: what a command that did its work ends with."""

    exit: ExitCodes = Field(default=[0])
    stdout_contains: TemplateText | None = None


class ShellTable(BlockTable):
    """`[tools.X.shell]`."""

    KIND: ClassVar[Kind] = Kind.SHELL
    EFFECTS: ClassVar[frozenset[Effect]] = frozenset({Effect.SHELL_READ, Effect.SHELL_WRITE})

    argv: list[TemplateText]
    cwd: Text | None = None  # from the contract file's folder, which is the default
    env: dict[str, TemplateText] = Field(default_factory=dict)
    secrets: dict[str, Credential] = Field(default_factory=dict)  # variables, from credentials
    stdin: TemplateText | None = None
    expect: ExpectTable = Field(default_factory=ExpectTable)
    failed_exit: ExitCodes = Field(default_factory=list)
    marker: bool | None = None  # must be said for shell_write
    markers: Text | None = None  # where they are kept, from the contract file's folder
    output_bytes: Annotated[int, Field(ge=0, le=10_000_000)] = OUTPUT_BYTES  # kept of each stream

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is stored: folders absolute, and all of its environment but secrets."""
        said: dict[str, Json] = {
            "argv": list(self.argv),
            "cwd": _literal(str(place.folder / (self.cwd or ""))),
            "env": {"PATH": PATH, "LC_ALL": "C.UTF-8", **self.env},
            "secrets": dict(self.secrets),
            "expect": self.expect.model_dump(mode="json", exclude_none=True),
            "failed_exit": list(self.failed_exit),
            "marker": self.marker is True,
            "markers": _literal(str(place.folder / (self.markers or MARKERS))),
            "output_bytes": self.output_bytes,
        }
        return {**said, "stdin": self.stdin} if self.stdin is not None else said

    def look(self, horizon_ms: int | None) -> LookupRules | None:
        """Return how the marker is read; without one nothing tells."""
        if self.marker is not True:
            return None
        return LookupRules(
            name="marker",
            speaks=Source.MARKER,
            boundary="object",
            authoritative=True,
            confirmations=RULES[Effect.SHELL_WRITE].confirmations,
            in_flight_horizon_ms=HORIZON_MS if horizon_ms is None else horizon_ms,
            interval_ms=1_000,
            interval_max_ms=15_000,
            timeout_ms=10_000,
        )

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield a program that an argument could choose, and a marker that means nothing."""
        if not self.argv:
            mend = 'write the program and its arguments: ["df", "-h"].'
            yield Wrong(key="argv", wrong="it is empty.", mend=mend)
        elif names_in(self.argv[0]):
            mend = "name the program itself, and let arguments be arguments."
            yield Wrong(key="argv", wrong="an argument would choose the program.", mend=mend)
        if contract.effect is Effect.SHELL_WRITE and self.marker is None:
            mend = "say true, so that it can be asked about later; or false, and a person is asked."
            yield Wrong(key="marker", wrong="it must be said for shell_write.", mend=mend)
        if contract.effect is Effect.SHELL_READ and self.marker:
            yield Wrong(key="marker", wrong="a read leaves none.", mend="leave it out.")
        if both := sorted(set(self.expect.exit) & set(self.failed_exit)):
            wrong = f"{both[0]} is in expect.exit too."
            yield Wrong(key="failed_exit", wrong=wrong, mend="an exit code means one thing.")
        for key in ("env", "secrets"):
            for name in getattr(self, key):
                if not _VARIABLE.fullmatch(name):
                    wrong = f"{name!r} is no name of a variable."
                    yield Wrong(key=key, wrong=wrong, mend="use letters, digits and _.")
        for name in sorted(set(self.env) & set(self.secrets)):
            yield Wrong(key="secrets", wrong=f"{name} is in env too.", mend="say it once.")

    def doubtful(self, contract: Contract) -> Iterator[Wrong]:
        """Yield arguments that a program could take for options."""
        for text in self.argv[1:]:
            if text.startswith("{args.") and "--" not in self.argv[: self.argv.index(text)]:
                wrong = f"{text} may begin with '-', which the program would take for an option."
                mend = (
                    'put "--" before it, where the program knows that; or a pattern in arguments.'
                )
                yield Wrong(key="argv", wrong=wrong, mend=mend)

    @staticmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered command can't be run as it is."""
        argv = cast("Sequence[Json]", members["argv"])
        env = cast("Mapping[str, Json]", members["env"])
        for key, values in (("argv", argv), ("env", list(env.values()))):
            for value in values:
                if isinstance(value, bool) or not isinstance(value, str | int | float):
                    return f"{key}: {value!r} is no text and no number"
                if "\0" in str(value):
                    return f"{key}: it holds a zero byte"
        if not isinstance(members.get("stdin", ""), str):
            return "stdin: it must be text"
        return None

    @staticmethod
    def target(members: Mapping[str, Json]) -> str:
        """Name the command and where it is run."""
        return f"{_shown(members)}, in {members['cwd']}"

    @staticmethod
    def question(members: Mapping[str, Json]) -> str:
        """Return the command that shows the markers."""
        return f"ls {members['markers']}/{{operation.ref}}/*"

    @staticmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Return its way: the marker, the process, its exit code."""
        kept = members["marker"] is True
        codes = _codes(cast("Mapping[str, Json]", members["expect"])["exit"])
        failed = _codes(members["failed_exit"])
        not_done = f" {failed}: not done." if failed else ""
        exits = f"the exit code. {codes}: done.{not_done} Any other, or a signal: nothing."
        path: tuple[Boundary, ...]
        if not kept:
            path = (
                *RECORDED,
                GATE,
                doubtful("the start", "From here on it may do anything; no marker is kept."),
                doubtful("the process", "The command is at work."),
                doubtful("the exit code", "It ends, and its output is returned.", exits),
            )
            missing = "say marker = true, so that the command can be asked about"
            return Way(missing=missing, path=path)
        path = (
            *RECORDED,
            GATE,
            doubtful(
                "the marker",
                "Its keeper, a process that outlives ours, records that it begins.",
                "the marker: with no record in it, on this host, nothing was started.",
            ),
            doubtful(
                "the process",
                "The command is at work.",
                "its process id and start time, in the marker: it is still running.",
            ),
            doubtful("the exit code", "It ends, and its keeper records how.", exits),
            doubtful("the answer", "What it wrote is returned.", "the same exit code."),
        )
        return Way(
            tie="a marker named after the operation, which each attempt has to claim",
            recognises=f"its keeper recorded an exit code of {codes}",
            absent="nothing is recorded in the marker",
            path=path,
        )


def _literal(text: str) -> str:
    """Write a text as a template that means just it."""
    return text.replace("{", "{{").replace("}", "}}")


def _shown(members: Mapping[str, Json]) -> str:
    return shlex.join(str(each) for each in cast("Sequence[Json]", members["argv"]))


def _codes(codes: Json) -> str:
    return ", ".join(map(str, cast("Sequence[Json]", codes)))
