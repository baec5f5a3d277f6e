"""One message by SMTP (RFC 5321), under a Message-ID that is the operation's own for ever.

The barrier is the final dot. Whatever is said before it, recipients and the whole content included,
leaves nothing behind: a server that got no dot has taken no message. So the gate is asked when only
the dot is missing, and the dot is written by itself. After it only the server's reply counts: a
link that breaks then says nothing, and servers were seen to deliver what they never confirmed.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, cast

import aiosmtplib
import anyio
import rfc8785

from doubtless.core.model import Cause, Json, Seen, Shows, Stage
from doubtless.errors import GateClosed
from doubtless.transports.base import (
    Errand,
    Gate,
    Reply,
    Sighting,
    Watch,
    Workplace,
    could_not_ask,
)
from doubtless.transports.mail_folder import copies
from doubtless.transports.mail_message import message_id, recipients, written

DOT: Final = b".\r\n"
DRAIN_PAUSE_S: Final = 0.005
SAID_CHARS: Final = 200

_FIRST_DOT: Final = re.compile(rb"(?m)^\.")


class _Answered(Exception):
    """The server said no, or not now, before the message was handed over."""

    def __init__(self, code: int, said: str, refused: Mapping[str, str] | None = None) -> None:
        super().__init__(said)
        self.code, self.said, self.refused = code, said, dict(refused or {})


@dataclass(slots=True)
class _Handing:
    """A message on its way: to whom it is handed over, and what was said of each."""

    taken: list[str]
    refused: dict[str, str]


class MailTransport:
    """Hands messages over to the server that the contract names."""

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    async def survey(self, errand: Errand) -> Json:
        """Return the date of the message: it is written once, and the same in every attempt."""
        now = datetime.fromtimestamp(self._workplace.wall_ms() // 1000, tz=UTC)
        return {"date": now.isoformat()}

    async def perform(self, errand: Errand, *, gate: Gate, watch: Watch, limit_s: float) -> Reply:
        """Hand one message over; see `ActionTransport.perform`."""
        watch.stage = Stage.CONNECTING
        try:
            content = written(errand)
            async with self._connected(errand.action.members, limit_s) as client:
                handing = await _envelope(client, errand.action.members)
                await _content(client, content)
                watch.stage = Stage.GATE
                write_by_s = await gate()
                await self._dot(client, watch, write_by_s)
                answer = await _protocol(client).read_response(limit_s)
                watch.stage = Stage.READ
                return _taken(answer, errand, handing)
        except GateClosed as error:
            return Reply(stage=Stage.GATE, proof=Seen.NOT_SENT, detail=str(error))
        except _Answered as error:
            return _refused(error)
        except (aiosmtplib.SMTPException, OSError, ssl.SSLError, EOFError) as error:
            return _broken(error, watch)

    async def _dot(self, client: aiosmtplib.SMTP, watch: Watch, write_by_s: float) -> None:
        """Write the dot: compared with the gate's bound in the very call that writes it."""
        protocol = _protocol(client)
        if client.transport is None or client.transport.is_closing():
            raise aiosmtplib.SMTPServerDisconnected("the link broke before the dot")
        if not self._workplace.boot_s() <= write_by_s:
            raise GateClosed("the time for the last byte was over")
        watch.stage, watch.sent_bytes = Stage.SENT, len(DOT)
        protocol.write(DOT)
        watch.first_byte_s = self._workplace.boot_s()
        await _drained(client)
        watch.written = True

    async def look(self, errand: Errand, *, limit_s: float) -> Sighting:
        """Look for the message in the folder of what was sent; see `ActionTransport.look`."""
        sent = errand.action.members.get("sent")
        if not isinstance(sent, Mapping):
            return could_not_ask("no folder of sent messages is declared")
        wanted = message_id(errand)
        secret = self._workplace.secret(str(sent["credential"]))
        count = await anyio.to_thread.run_sync(
            lambda: copies(sent, wanted, secret, limit_s), abandon_on_cancel=True
        )
        match count:
            case 0:
                return Sighting(shows=Shows.ABSENT, detail=f"{wanted} is not in {sent['folder']}")
            case 1:
                return Sighting(
                    shows=Shows.APPLIED,
                    detail=f"{wanted} is in {sent['folder']}",
                    provider_operation_id=wanted,
                    result={"message_id": wanted},
                )
            case _:
                return Sighting(
                    shows=Shows.CONFLICT, detail=f"{wanted} is {count} times in {sent['folder']}"
                )

    async def aclose(self) -> None:
        """Nothing is kept open."""

    @asynccontextmanager
    async def _connected(
        self, members: Mapping[str, Json], limit_s: float
    ) -> AsyncIterator[aiosmtplib.SMTP]:
        """Connect, encrypt and log in; whatever happens, the link is cut at the end.

        It isn't ended politely: a QUIT would only be another thing that can hang.
        """
        host, _, port = str(members["smtp"]).rpartition(":")
        secret = members.get("credential")
        client = aiosmtplib.SMTP(
            hostname=host,
            port=int(port),
            timeout=limit_s,
            use_tls=members["tls"] == "tls",
            start_tls=members["tls"] == "starttls",
            tls_context=trusted(cast("str | None", members.get("ca"))),
            username=cast("str | None", members.get("user")),
            password=self._workplace.secret(str(secret)) if secret is not None else None,
        )
        try:
            try:
                await client.connect()
            except aiosmtplib.SMTPResponseException as error:
                raise _Answered(error.code if error.code < 500 else 450, _said(error)) from error
            yield client
        finally:
            if client.transport is not None:
                cast("asyncio.WriteTransport", client.transport).abort()
            client.close()


def trusted(authority: str | None) -> ssl.SSLContext:
    """Return what is trusted: the system's authorities, or the one that the contract names."""
    return ssl.create_default_context(cafile=authority)


def _protocol(client: aiosmtplib.SMTP) -> aiosmtplib.protocol.SMTPProtocol:
    if client.protocol is None:
        raise aiosmtplib.SMTPServerDisconnected("the link is gone")
    return client.protocol


async def _envelope(client: aiosmtplib.SMTP, members: Mapping[str, Json]) -> _Handing:
    """Name sender and recipients; nothing is handed over if one of them is refused.

    Unless the contract says that the others shall get it.
    """
    try:
        await client.mail(str(members["sender"]))
    except aiosmtplib.SMTPResponseException as error:
        raise _Answered(error.code, f"the sender is refused: {_said(error)}") from error
    handing = _Handing([], {})
    codes: list[int] = []
    for address in recipients(members):
        try:
            await client.rcpt(address)
            handing.taken.append(address)
        except aiosmtplib.SMTPResponseException as error:
            handing.refused[address] = _said(error)
            codes.append(error.code)
    if handing.refused and (members["refused"] == "stop" or not handing.taken):
        said = "; ".join(f"{address}: {why}" for address, why in handing.refused.items())
        # One that may be taken later keeps the whole message waiting.
        raise _Answered(min(codes), f"recipients are refused: {said}", handing.refused)
    return handing


async def _content(client: aiosmtplib.SMTP, content: bytes) -> None:
    """Write all of the message but the dot (RFC 5321, 4.5.2: lines that begin with one get two)."""
    answer = await _protocol(client).execute_command(b"DATA")
    if answer.code != 354:
        raise _Answered(answer.code, f"DATA: {answer.code} {answer.message}")
    _protocol(client).write(_FIRST_DOT.sub(b"..", content))
    await _drained(client)


async def _drained(client: aiosmtplib.SMTP) -> None:
    """Wait until what was written has left this process."""
    transport = cast("asyncio.WriteTransport", client.transport)
    while transport.get_write_buffer_size():
        if transport.is_closing():
            raise aiosmtplib.SMTPServerDisconnected("the link broke while it was written")
        await anyio.sleep(DRAIN_PAUSE_S)


def _taken(answer: aiosmtplib.SMTPResponse, errand: Errand, handing: _Handing) -> Reply:
    """Read the reply to the dot: 2xx takes the message over, 4xx and 5xx say that it is not."""
    said = f"{answer.code} {answer.message}"[:SAID_CHARS]
    if answer.code >= 400:
        seen = Seen.REJECTED if answer.code >= 500 else Seen.NOT_PROCESSED
        return Reply(stage=Stage.READ, proof=seen, detail=f"after the dot: {said}")
    wanted = message_id(errand)
    result: Json = {
        "message_id": wanted,
        "accepted": cast("Sequence[Json]", handing.taken),
        "refused": cast("Mapping[str, Json]", handing.refused),
        "reply": said,
    }
    return Reply(
        stage=Stage.READ,
        proof=Seen.SUCCEEDED,
        detail=f"the server took it: {said}",
        body=rfc8785.dumps(result),
        complete=True,
        provider_operation_id=wanted,
    )


def _refused(error: _Answered) -> Reply:
    """Nothing was handed over: for good (5xx), or for now."""
    seen = Seen.REJECTED if error.code >= 500 else Seen.NOT_PROCESSED
    return Reply(stage=Stage.CONNECTING, proof=seen, detail=error.said[:SAID_CHARS])


def _broken(error: Exception, watch: Watch) -> Reply:
    told = f"{type(error).__name__}: {error}"[:SAID_CHARS]
    if not watch.sent_bytes:
        detail = f"the final dot was not written: {told}"
        return Reply(stage=watch.stage, proof=Seen.NOT_SENT, detail=detail)
    late = isinstance(error, TimeoutError)
    return Reply(
        stage=Stage.SENT,
        cause=Cause.TIMEOUT if late else Cause.CONNECTION_RESET,
        detail=f"no reply to the final dot: {told}",
    )


def _said(error: aiosmtplib.SMTPResponseException) -> str:
    text = f"{error.code} {error.message}"
    return "".join(char if char.isprintable() else " " for char in text)[:SAID_CHARS]
