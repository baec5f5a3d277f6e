"""The link to a host: whose key is pinned, and a conversation with the program that runs there.

Nothing of this user's own configuration counts: no known_hosts, no agent, no `~/.ssh/config`, no
default keys. What isn't in the contract isn't trusted.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, cast

import asyncssh

from doubtless.core.model import Json
from doubtless.errors import SettingsError
from doubtless.transports.base import Errand, Workplace
from doubtless.transports.ssh_script import KEPT_BYTES, program

CONNECT_S: Final = 20.0  # of a whole attempt to get to a conversation
KEEPALIVE_S: Final = 10.0  # three of them unanswered, and the link counts as broken
TOLD_BYTES: Final = 1_048_576  # at most, of one answer
WORDS_MAX: Final = 300  # characters of what a host says, in words for people


class NoLink(Exception):
    """There is no conversation with that host, and nothing was asked of it; the text says why."""


class LinkLost(Exception):
    """The conversation broke off, or is none."""


@dataclass(slots=True)
class StepFacts:
    """What is recorded of one step of a run."""

    index: int
    name: str
    code: int | None  # None: it began, and its end was never recorded
    digest: str | None


@dataclass(slots=True)
class Facts:
    """What a host has recorded of one operation."""

    base: str = ""
    base_id: str | None = None  # of the folder of all markers, made once
    now: str = "-"  # by the host's clock, in seconds since the epoch
    unwritable: str | None = None
    claims: list[str] = field(default_factory=list)  # in order, each made once and never changed
    steps: list[StepFacts] = field(default_factory=list)  # of the last run
    code: int | None = None  # with which the last run ended
    alive: str = ""  # yes, no or unsure, where it has no recorded end
    was_seen: bool = False  # at work, by an earlier look
    lock: str | None = None
    was_taken: bool = False  # the lock that this operation had, by an operation of its own
    missing: list[int] = field(default_factory=list)  # steps whose program the host lacks
    out: bytes = b""  # what the last step that began has printed, its beginning
    err: bytes = b""
    ran: int | None = None  # how the run that was asked for ended
    signalled: int | None = None  # the group of processes that was ended

    @property
    def run(self) -> str | None:
        """The last claim, if it is one of a run: nothing was put after it."""
        return self.claims[-1] if self.claims and self.claims[-1].startswith("run:") else None

    @property
    def voided(self) -> int:
        """The greatest attempt that can't begin any more; 0 where every one can."""
        last = self.claims[-1].split(":") if self.claims else ["run"]
        return int(last[1]) if last[0] != "run" else 0

    @property
    def has_run(self) -> bool:
        """Whether any attempt ever began a run."""
        return any(claim.startswith("run:") for claim in self.claims)

    @property
    def holder(self) -> str:
        """Who holds the lock, and until when, for people."""
        ref, _, rest = (self.lock or "").partition(":")
        until, _, operation_id = rest.partition(":")
        late = self.now.isdigit() and until.isdigit() and int(self.now) > int(until)
        over = " (over, but a lock is never removed by itself: take it over)" if late else ""
        return f"{operation_id or ref}, until {until} s since the epoch{over}"

    @property
    def lock_ref(self) -> str:
        """The reference of the operation that holds the lock; "" for nobody."""
        return (self.lock or "").partition(":")[0]


class Conversation:
    """Orders to the program on the host, and what it answers."""

    def __init__(self, process: "asyncssh.SSHClientProcess[bytes]", nonce: str) -> None:
        self._process, self._nonce, self._buffer = process, nonce.encode(), b""

    async def begin(self, text: bytes) -> None:
        """Send the program, and wait until it says who it is.

        Raises:
            NoLink: Something else answers.
        """
        try:
            self._process.stdin.write(text)
            while await self._line() != self._nonce + b" doubtless 1":
                pass  # a greeting of the host's
        except LinkLost as error:
            why = f"the host did not answer as a POSIX shell does ({error})"
            raise NoLink(why) from error

    def order(self, *words: object) -> None:
        """Hand an order to the link. Whether it arrives is for the answer to tell."""
        line = " ".join(map(str, words))
        try:
            self._process.stdin.write(f"{line}\n".encode())
        except (OSError, asyncssh.Error) as error:
            raise LinkLost(str(error)) from error

    async def facts(self) -> Facts:
        """Return what the host answers to an order."""
        facts = Facts()
        while True:
            word, _, rest = (await self._line()).decode(errors="replace").partition(" ")
            if word == "done":
                return facts
            if word == "raw":
                content, _ = await self._raw()
                setattr(facts, "out" if rest == "out" else "err", content[:KEPT_BYTES])
            else:
                _take(facts, word, rest)

    async def asked(self, *words: object) -> Facts:
        """Give an order, and return what the host answers."""
        self.order(*words)
        return await self.facts()

    async def status(self) -> tuple[int, bytes]:
        """Let the host's own status command run; return its exit code and what it printed."""
        self.order("status")
        await self._line()
        content, code = await self._raw()
        return code, content

    async def _raw(self) -> tuple[bytes, int]:
        """Return what comes up to the line that only this conversation's program can write."""
        content = await self._until(b"\n" + self._nonce + b" ")
        return content, int(await self._line())

    async def _line(self) -> bytes:
        return await self._until(b"\n")

    async def _until(self, end: bytes) -> bytes:
        while end not in self._buffer:
            if len(self._buffer) > TOLD_BYTES:
                raise LinkLost("the answer is too long")
            try:
                read = await self._process.stdout.read(65_536)
            except (OSError, asyncssh.Error) as error:
                raise LinkLost(str(error) or type(error).__name__) from error
            if not read:
                raise LinkLost("the link ended")
            self._buffer += read
        found, _, self._buffer = self._buffer.partition(end)
        return found


def _take(facts: Facts, word: str, rest: str) -> None:
    """Read one line of an answer. Words of a later release are passed over."""
    match word:
        case "base":
            facts.base = rest
        case "id":
            facts.base_id = rest
        case "now":
            facts.now = rest
        case "unwritable":
            facts.unwritable = _plain(rest)
        case "claim":
            facts.claims.append(rest)
        case "step":
            place, code, digest = rest.split(" ")
            index, _, name = place.partition(".")
            known = None if digest == "-" else digest
            facts.steps.append(StepFacts(int(index), name, _number(code), known))
        case "end" | "ran" | "signalled":
            setattr(facts, "code" if word == "end" else word, _number(rest))
        case "alive" | "lock":
            setattr(facts, word, rest)
        case "seen":
            facts.was_seen = True
        case "taken":
            facts.was_taken = True
        case "missing":
            facts.missing.append(int(rest))


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _plain(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text).strip()[:WORDS_MAX]


@asynccontextmanager
async def talking(errand: Errand, workplace: Workplace) -> AsyncIterator[Conversation]:
    """Talk to the host of an errand; the link is let go in the end, whatever runs there.

    Raises:
        NoLink: With what is in the way: the network, another host key, no permission, no shell.
    """
    members = errand.action.members
    connection = await _connected(members, workplace)
    try:
        try:
            process = await connection.create_process(
                "sh", encoding=None, stderr=asyncssh.DEVNULL, request_pty=False
            )
        except (OSError, asyncssh.Error) as error:
            raise NoLink(f"{members['host']} opens no session: {_plain(str(error))}") from error
        written = program(errand)
        talk = Conversation(process, written.nonce)
        await talk.begin(written.text)
        yield talk
        with suppress(LinkLost):
            talk.order("bye")
    finally:
        connection.abort()
        with suppress(OSError, asyncssh.Error):
            await connection.wait_closed()


async def _connected(
    members: Mapping[str, Json], workplace: Workplace
) -> asyncssh.SSHClientConnection:
    where = str(members["host"])
    user, host, port = _place(where)
    pinned = [_pinned(key) for key in cast("Sequence[str]", members["host_key"])]
    try:
        return await asyncssh.connect(
            host,
            port,
            username=user,
            client_keys=[_private(members, workplace)],
            known_hosts=(pinned, [], []),
            config=None,
            agent_path=None,
            gss_host=None,
            preferred_auth="publickey",
            keepalive_interval=KEEPALIVE_S,
            connect_timeout=CONNECT_S,
            login_timeout=CONNECT_S,
        )
    except asyncssh.HostKeyNotVerifiable as error:
        raise NoLink(
            f"{where} shows another host key than the contract pins. If the host's key was changed "
            "on purpose, pin the new one; it is never taken by itself."
        ) from error
    except asyncssh.KeyExchangeFailed as error:
        why = f"{where} has no host key of the pinned kind, or no common cipher: {error}"
        raise NoLink(_plain(why)) from error
    except asyncssh.PermissionDenied as error:
        why = f"{where} does not let {user} in with the key {members['credential']!r}"
        raise NoLink(why) from error
    except (OSError, TimeoutError, asyncssh.Error) as error:
        why = _plain(str(error)) or type(error).__name__
        raise NoLink(f"{where} can't be reached: {why}") from error


def _place(where: str) -> tuple[str, str, int]:
    """Split `user@host:port`; an IPv6 address stands in brackets."""
    user, _, rest = where.partition("@")
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        return user, host, int(port[1:] or 22)
    host, _, port = rest.partition(":")
    return user, host, int(port or 22)


def _pinned(key: str) -> asyncssh.SSHKey:
    try:
        return asyncssh.import_public_key(key)
    except asyncssh.KeyImportError as error:
        raise NoLink(f"the contract's host_key can't be read: {_plain(str(error))}") from error


def _private(members: Mapping[str, Json], workplace: Workplace) -> asyncssh.SSHKey:
    """Return the private key, which is in this process's memory alone."""
    name = str(members["credential"])
    try:
        passphrase = None
        if "passphrase" in members:
            said = cast("Mapping[str, str]", members["passphrase"])
            passphrase = workplace.secret(said["credential"])
        text = workplace.secret(name)
    except SettingsError as error:
        raise NoLink(str(error)) from error
    try:
        return asyncssh.import_private_key(text + "\n", passphrase)
    except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, ValueError) as error:
        # Its own text is not shown: it may speak of the secret.
        what = "needs another passphrase" if isinstance(error, asyncssh.KeyEncryptionError) else ""
        why = what or "is no private key in the form of OpenSSH or PEM, or lacks its passphrase"
        raise NoLink(f"the secret {name!r} {why}") from None
