"""`[tools.X.file]`: a file that is written or copied, or a folder that is made, below a root."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.model import Effect, Json, Source
from doubtless.engine.contracts.block import BlockTable, Place, Wrong
from doubtless.engine.contracts.boundary import GATE, RECORDED, Boundary, Way, doubtful, harmless
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import TemplateText
from doubtless.engine.templates import names_in
from doubtless.engine.templates_grammar import Place as Hole
from doubtless.engine.templates_grammar import parse
from doubtless.transports.files_tree import Refused, parts_of

HORIZON_MS: Final = 5_000
"""A rename has happened or has not once its process is gone; this is for a slow disk."""
_MODE: Final = re.compile(r"0?[0-7]{3}")


class CopyTable(Table):
    """`copy = { from = …, to = … }`, both below the root."""

    from_path: TemplateText = Field(alias="from")
    to: TemplateText


class FileTable(BlockTable):
    """`[tools.X.file]`."""

    KIND: ClassVar[Kind] = Kind.FILE
    EFFECTS: ClassVar[frozenset[Effect]] = frozenset({Effect.FILE})

    path: TemplateText | None = None
    content: TemplateText | None = None
    copy_file: CopyTable | None = Field(default=None, alias="copy")
    make_directory: TemplateText | None = None
    compare: Literal["content", "exists"] = "content"
    mode: str | None = None  # of what is new; default: as the umask leaves it

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is stored. Within a path an argument can't name another folder."""
        said: dict[str, Json] = {"root": _literal(str(place.files_root)), "compare": self.compare}
        if self.mode is not None:
            said["mode"] = self.mode
        if self.copy_file is not None:
            copied, to = _segments(self.copy_file.from_path), _segments(self.copy_file.to)
            return {**said, "do": "copy", "from": copied, "path": to}
        if self.make_directory is not None:
            return {**said, "do": "make_directory", "path": _segments(self.make_directory)}
        return {
            **said,
            "do": "write",
            "path": _segments(self.path or ""),
            "content": self.content or "",
        }

    def look(self, horizon_ms: int | None) -> LookupRules:
        """Return how the file is read: a disk of this host tells at once what is on it."""
        return LookupRules(
            name="file",
            speaks=Source.OBJECT,
            boundary="object",
            authoritative=True,
            confirmations=2,
            in_flight_horizon_ms=HORIZON_MS if horizon_ms is None else horizon_ms,
            interval_ms=1_000,
            interval_max_ms=30_000,
            timeout_ms=10_000,
        )

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield what is said twice or not at all, and paths that no argument could mend."""
        writes = self.path is not None or self.content is not None
        said = [writes, self.copy_file is not None, self.make_directory is not None]
        if sum(said) != 1:
            mend = "say path and content, or copy, or make_directory."
            yield Wrong(key="", wrong="it must say one thing to do.", mend=mend)
        elif writes and (self.path is None or self.content is None):
            missing = "path" if self.path is None else "content"
            yield Wrong(key=missing, wrong="it is missing.", mend="say path and content.")
        if self.mode is not None and not _MODE.fullmatch(self.mode):
            wrong = f"{self.mode!r} is no mode."
            yield Wrong(key="mode", wrong=wrong, mend='write it in octal, in quotes: "0644".')
        for key, path in self._paths():
            if not names_in(path) and (why := _wrong_path(_segments(path))):
                yield Wrong(key=key, wrong=f"{why}.", mend='write it from the root: "a/b.txt".')

    def _paths(self) -> Iterator[tuple[str, str]]:
        if self.copy_file is not None:
            yield "copy.from", self.copy_file.from_path
            yield "copy.to", self.copy_file.to
        for key, path in (("path", self.path), ("make_directory", self.make_directory)):
            if path is not None:
                yield key, path

    def business_key(self) -> list[str]:
        """Return the arguments of the path, where they alone name the file."""
        to = self.copy_file.to if self.copy_file is not None else self.path
        names = names_in(to or self.make_directory or "")
        found = [name.removeprefix("args.") for name in sorted(names)]
        alone = all(name.startswith("args.") for name in names) and not any(
            "." in name for name in found
        )
        return found if alone else []

    @staticmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered action can't be carried out as it is."""
        for key in ("path", "from"):
            if (key in members or key == "path") and (why := _wrong_path(members.get(key))):
                return f"{key}: {why}"
        if members["do"] == "write" and not isinstance(members.get("content"), str):
            return "content: it must be text"
        return None

    @staticmethod
    def target(members: Mapping[str, Json]) -> str:
        """Name what is done, and where."""
        what = str(members["do"]).replace("_", " ")
        copied = f" {_shown(members['from'])} to" if members["do"] == "copy" else ""
        return f"{what}{copied} {_shown(members['path'])}, below {members['root']}"

    @staticmethod
    def question(members: Mapping[str, Json]) -> str:
        """Return the command that shows what is there."""
        path = f"{members['root']}/{_shown(members.get('path'))}"
        by_content = members["compare"] == "content" and members["do"] != "make_directory"
        return f"{'sha256sum' if by_content else 'ls -ld'} {path}"

    @staticmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Return its way: to one side, then into place in one step."""
        same = _recognised(members)
        read = f"reading it. Where {same}: done. Where all is as before: not done. Else nothing."
        noted = harmless(
            "the note of what is there",
            "What is at the place now is recorded with the operation.",
            "the note: every later look is compared with it.",
        )
        flushed = doubtful("the folder's flush", "From here on a power cut undoes nothing.", read)
        told = doubtful("the answer", "The transport tells the ledger.", "its word: done.")
        path: tuple[Boundary, ...]
        if members["do"] == "make_directory":
            made = doubtful("the folder", "What is missing of it is made, step by step.", read)
            path = (*RECORDED, noted, GATE, made, flushed, told)
        else:
            aside = harmless(
                "the file aside",
                "The content is written beside the target, under our own name, and flushed "
                "(fsync).",
                "the target: nothing has touched it. The next attempt removes what lies aside.",
            )
            renamed = doubtful("the rename", "It is put in place: whole, or not at all.", read)
            path = (*RECORDED, noted, aside, GATE, renamed, flushed, told)
        tie = "a note of what was there and of what shall be, recorded before anything is done"
        return Way(tie=tie, recognises=same, absent="all is as before", path=path)


def _segments(path: str) -> list[Json] | str:
    """Divide a template where its own text has a `/`; one that is a single place stays whole.

    An argument that is the whole path may name folders; one within a path stays in its segment.
    """
    parts = parse(path)
    if len(parts) == 1 and isinstance(parts[0], Hole):
        return path
    segments = [""]
    for part in parts:
        if isinstance(part, Hole):
            segments[-1] += f"{{{part.name}}}"
            continue
        first, *others = part.split("/")
        segments[-1] += _literal(first)
        segments += [_literal(other) for other in others]
    return [*segments]


def _literal(text: str) -> str:
    """Write a text as a template that means just it."""
    return text.replace("{", "{{").replace("}", "}}")


def _shown(path: Json) -> str:
    return path if isinstance(path, str) else "/".join(str(each) for each in path or ())  # type: ignore[union-attr]


def _wrong_path(path: Json) -> str | None:
    try:
        parts_of(path)
    except Refused as error:
        return str(error)
    return None


def _recognised(members: Mapping[str, Json]) -> str:
    """Say how what is there is known for what shall be there."""
    if members["do"] == "make_directory":
        return "the folder is there"
    if members["compare"] == "exists":
        return "a file is there"
    return "what is there has the content that it shall have (SHA-256)"
