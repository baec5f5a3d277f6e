"""`[tools.X.git_push]`: one commit to one ref of one remote."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar, Final

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.model import Effect, Json, Source
from doubtless.engine.contracts.block import BlockTable, Place, Wrong
from doubtless.engine.contracts.boundary import GATE, RECORDED, Way, doubtful, harmless
from doubtless.engine.contracts.values import Credential, TemplateText, Text
from doubtless.engine.templates import names_in

HORIZON_MS: Final = 120_000  # hooks of the server run on after the link broke
_REF: Final = re.compile(r"refs/(?:heads|tags|[a-z]+)/[^\x00-\x20\x7f~^:?*\[\\]+")


class GitPushTable(BlockTable):
    """`[tools.X.git_push]`."""

    KIND: ClassVar[Kind] = Kind.GIT_PUSH
    EFFECTS: ClassVar[frozenset[Effect]] = frozenset(
        {Effect.PUBLISH, Effect.WRITE, Effect.SHELL_WRITE}
    )

    repository: Text  # the local one, from the contract file's folder
    remote: Text  # a name that it knows, or a URL
    ref: TemplateText  # what is set on the remote
    source: TemplateText | None = None  # what is pushed; default: the local ref of that name
    rewrite: bool = False  # whether commits that the remote has may be dropped
    user: Text | None = None
    credential: Credential | None = None
    host_key: Text | None = None

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is stored: the repository's folder absolute, and a source."""
        said = BlockTable.action(self, place)
        folder = str(place.folder / self.repository)
        return {**said, "repository": folder, "source": self.source or self.ref}

    def look(self, horizon_ms: int | None) -> LookupRules:
        """Return how the ref is read: the server's own word, at once."""
        return LookupRules(
            name="ref",
            speaks=Source.OBJECT,
            boundary="object",
            authoritative=True,
            confirmations=2,
            in_flight_horizon_ms=HORIZON_MS if horizon_ms is None else horizon_ms,
            interval_ms=5_000,
            interval_max_ms=60_000,
            timeout_ms=30_000,
        )

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield a remote that git would read as an option, and a key that nothing would use."""
        if self.remote.startswith("-"):
            yield Wrong(key="remote", wrong="it begins with '-'.", mend="name a remote or a URL.")
        if not names_in(self.ref) and (why := _wrong_ref(self.ref)):
            yield Wrong(key="ref", wrong=why, mend='write it whole: "refs/heads/main".')
        if self.host_key is not None and self.host_key.startswith("-"):
            mend = 'write what ssh-keyscan prints after the host: "ssh-ed25519 AAAA…".'
            yield Wrong(key="host_key", wrong="this is no host key.", mend=mend)
        if self.host_key is not None and "\n" in self.host_key.strip():
            yield Wrong(key="host_key", wrong="it has several lines.", mend="write one key.")

    def business_key(self) -> list[str]:
        """Return the arguments of the ref: two pushes to one ref don't overtake each other."""
        found = (name.removeprefix("args.") for name in names_in(self.ref))
        return sorted(name for name in found if "." not in name)

    @staticmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered push can't be carried out as it is."""
        if why := _wrong_ref(str(members["ref"])):
            return f"ref: {why}"
        source = str(members["source"])
        if not source or source.startswith("-") or not source.isprintable():
            return f"source: {source!r} names no commit"
        return None

    @staticmethod
    def target(members: Mapping[str, Json]) -> str:
        """Name repository, remote and ref."""
        return f"git push {members['remote']} {members['ref']}, from {members['repository']}"

    @staticmethod
    def question(members: Mapping[str, Json]) -> str:
        """Return the command that reads the ref."""
        folder = Path(str(members["repository"])).name
        return f"git ls-remote {members['remote']} {members['ref']} (in {folder})"

    @staticmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Return its way: what the server offers, what it is told, what it reports."""
        same = "the ref is our commit, or one that holds it"
        return Way(
            tie="the commit and what the ref was before, both recorded before anything is sent",
            recognises=same,
            absent="the ref is as before",
            path=(
                *RECORDED,
                harmless(
                    "reading the ref",
                    f"What {members['ref']} is now is recorded, with the commit that it shall be.",
                    "the record: every later look is compared with it.",
                ),
                GATE,
                harmless(
                    "the connection",
                    "The server lets us in and lists its refs.",
                    "git's own trace: no command to change a ref was sent.",
                ),
                doubtful(
                    "command and commits",
                    "They leave. From here on only the server can tell.",
                ),
                doubtful("the server's hooks", "They may run on after the connection broke."),
                doubtful(
                    "the ref",
                    "The server sets it, if it still is what it was.",
                    f"reading it. Where {same}: done. As before: not done. Else nothing.",
                ),
                doubtful(
                    "the report",
                    "The server says what it did.",
                    "its word. Taken: done. Rejected: refused, not done.",
                ),
            ),
        )


def _wrong_ref(ref: str) -> str | None:
    """Say what is wrong with a ref's name, by the rules of git-check-ref-format(1)."""
    parts = ref.split("/")
    odd = any(part.startswith(".") or part.endswith((".lock", ".")) for part in parts)
    if not _REF.fullmatch(ref) or ".." in ref or "@{" in ref or "//" in ref or odd or not parts[-1]:
        return f"{ref!r} is no name of a ref"
    return None
