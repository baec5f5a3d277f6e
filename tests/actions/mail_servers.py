"""Real servers for mail: SMTP by aiosmtpd, IMAP by dovecot, and a link between that is cut."""

import asyncio
import getpass
import grp
import os
import pwd
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP
from tests.actions.git_server import until
from tests.scenarios.fronts import linked, listening

DOVECOT = shutil.which("dovecot", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
SETTINGS = """
protocols = imap
listen = 127.0.0.1
base_dir = {run}
state_dir = {run}
log_path = {run}/log
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{folder}/Maildir
default_internal_user = {internal}
default_login_user = {internal}
default_internal_group = {group_name}
passdb {{
  driver = static
  args = password=secret
}}
userdb {{
  driver = static
  args = uid={user} gid={group} home={folder}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    address = 127.0.0.1
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service anvil {{
  chroot =
}}
"""


@dataclass
class Postbox:
    """A server's own store: what it took over, counted as it is."""

    folder: Path
    taken: list[bytes] = field(default_factory=list)  # each with its envelope's recipients
    refuses: dict[str, str] = field(default_factory=dict)  # by recipient: the answer to RCPT
    after_dot: str = "250 OK queued as 42"
    cuts: bool = False  # take the message, and break the link without a word
    keeps_copies: bool = False

    async def handle_RCPT(self, server, session, envelope, address, rcpt_options):  # noqa: N802
        if (answer := self.refuses.get(address)) is not None:
            return answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session, envelope):  # noqa: N802
        if self.after_dot.startswith("250"):
            self.taken.append(envelope.content)
            if self.keeps_copies:
                self.file(envelope.content)
        if self.cuts:
            assert isinstance(server.transport, asyncio.WriteTransport)
            server.transport.abort()
        return self.after_dot

    def file(self, content: bytes) -> None:
        """Put a copy into the folder of sent messages, as providers do."""
        sent, name = self.folder / "Maildir" / ".Sent", uuid.uuid4().hex
        file = sent / "tmp" / name
        file.write_bytes(content)
        give_to(file, owner())
        file.rename(sent / "new" / name)


def owner() -> str:
    """Return who mail belongs to: dovecot serves no mail of root's."""
    return "nobody" if os.geteuid() == 0 else getpass.getuser()


def give_to(folder: Path, name: str) -> None:
    if os.geteuid() != 0:
        return
    found = pwd.getpwnam(name)
    for each in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            os.chown(each, found.pw_uid, found.pw_gid)


@contextmanager
def smtp(postbox: Postbox, **options) -> Iterator[int]:
    """Serve SMTP on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    controller = Controller(postbox, hostname="127.0.0.1", port=port, **options)
    controller.start()
    try:
        yield port
    finally:
        controller.stop()


@contextmanager
def imap(folder: Path) -> Iterator[int]:
    """Serve the folders of a postbox by IMAP, on a free port of loopback."""
    assert DOVECOT is not None
    run = folder / "run"
    run.mkdir()
    (folder / "Maildir" / ".Sent").mkdir(parents=True)
    for name in ("cur", "new", "tmp"):
        (folder / "Maildir" / name).mkdir()
        (folder / "Maildir" / ".Sent" / name).mkdir()
    give_to(folder / "Maildir", owner())
    _let_in(folder)
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    whose = pwd.getpwnam(owner())
    settings = SETTINGS.format(
        run=run,
        folder=folder,
        port=port,
        internal="dovecot" if os.geteuid() == 0 else owner(),
        group=whose.pw_gid,
        group_name="dovecot" if os.geteuid() == 0 else grp.getgrgid(whose.pw_gid).gr_name,
        user=whose.pw_uid,
    )
    (folder / "dovecot.conf").write_text(settings, encoding="utf-8")
    process = subprocess.Popen(
        [DOVECOT, "-F", "-c", str(folder / "dovecot.conf")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until(lambda: _greets(port))
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _let_in(folder: Path) -> None:
    """Let the mail's owner walk to it: pytest keeps its folders to itself."""
    for each in (folder, *folder.parents):
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)


def _greets(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as link:
        link.settimeout(2)
        return link.recv(16).startswith(b"* OK")
    return False


@dataclass
class Cut:
    """A link to an SMTP server that breaks at a place, the first `times`.

    `at` is what the client says next, in its own words; "content" is within it, "dot" drops the
    dot itself, "reply" its answer.
    """

    port: int
    at: str
    times: int = 1
    cuts: int = 0

    def serving(self) -> AbstractAsyncContextManager[int]:
        return listening(self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with linked(self.port) as (there, back):
            await self._carry(reader, writer, there, back)

    async def _carry(self, reader, writer, there, back) -> None:
        dotted = asyncio.Event()
        at = self.at if self.cuts < self.times else "nowhere"
        ways = [_forth(reader, back, at, dotted), _answer(there, writer, at, dotted)]
        tasks = [asyncio.create_task(each) for each in ways]
        try:
            for way in tasks:
                with suppress(OSError):
                    if await way:
                        self.cuts += 1
                        for each in (writer, back):
                            each.transport.abort()
        finally:
            for task in tasks:
                task.cancel()
            writer.close()


async def _forth(
    reader: asyncio.StreamReader, back: asyncio.StreamWriter, at: str, dotted: asyncio.Event
) -> bool:
    """Hand on what the client says, up to the place of the cut. True: it is cut now."""
    content = False
    while line := await reader.readline():
        place = "content" if content else line.decode()
        place = "dot" if content and line == b".\r\n" else place
        if place.startswith(at):
            return True
        if place == "dot":
            dotted.set()
        content = content or line.startswith(b"DATA")
        back.write(line)
        await back.drain()
    back.write_eof()
    return False


async def _answer(
    there: asyncio.StreamReader, writer: asyncio.StreamWriter, at: str, dotted: asyncio.Event
) -> bool:
    """Hand on what the server says; the reply to the dot may be lost. True: it is cut now."""
    while line := await there.readline():
        if at == "reply" and dotted.is_set():
            return True
        writer.write(line)
        await writer.drain()
    return False
