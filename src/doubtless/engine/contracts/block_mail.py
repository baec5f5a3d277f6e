"""`[tools.X.mail]`: one message by SMTP, and the folder in which it can be found."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, Literal

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.model import Effect, Json, Source
from doubtless.engine.contracts.block import BlockTable, Place, Wrong
from doubtless.engine.contracts.boundary import GATE, RECORDED, Way, doubtful, harmless
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import Credential, Duration, TemplateJson, TemplateText, Text
from doubtless.engine.templates import names_in
from doubtless.transports.mail_message import addresses, recipients, wrong_address

HORIZON_MS: Final = 600_000  # RFC 5321, 4.5.3.2.6: a server may take ten minutes after the dot
IMPLICIT_TLS: Final = ("465", "993")
_HOST: Final = re.compile(r"\[?[A-Za-z0-9.:-]+\]?:[0-9]{1,5}")
_DOMAIN: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")

_Tls = Literal["tls", "starttls", "none"]


class SentTable(Table):
    """`[tools.X.mail.sent]`: where a message that was sent is found by its Message-ID."""

    imap: Text
    folder: Text = "Sent"
    user: Text
    credential: Credential
    tls: _Tls | None = None
    ca: Text | None = None
    authoritative: bool = False  # whether every message that is taken over is put there
    lag: Duration | None = None  # how long that may take; must be said with authoritative


class MailTable(BlockTable):
    """`[tools.X.mail]`."""

    KIND: ClassVar[Kind] = Kind.MAIL
    EFFECTS: ClassVar[frozenset[Effect]] = frozenset({Effect.MESSAGE})

    smtp: Text  # host:port
    tls: _Tls | None = None
    ca: Text | None = None
    user: Text | None = None
    credential: Credential | None = None
    sender: TemplateText
    to: TemplateJson
    cc: TemplateJson = None
    bcc: TemplateJson = None
    reply_to: TemplateText | None = None
    subject: TemplateText
    text: TemplateText
    html: TemplateText | None = None
    domain: Text | None = None  # of Message-IDs; default: the sender's
    refused: Literal["stop", "send_to_others"] = "stop"
    sent: SentTable | None = None

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is stored, with all that has a default."""
        said = BlockTable.action(self, place)
        domain = self.domain or self.sender.rpartition("@")[2]
        said |= {"tls": self.tls or _usual(self.smtp), "domain": domain}
        for table in (said, said.get("sent")):
            if isinstance(table, dict) and isinstance(table.get("ca"), str):
                table["ca"] = str(place.folder / str(table["ca"]))
        if self.sent is not None and isinstance(sent := said["sent"], dict):
            said["sent"] = {**sent, "tls": self.sent.tls or _usual(self.sent.imap)}
        return said

    def look(self, horizon_ms: int | None) -> LookupRules | None:
        """Return how the folder of sent messages is searched; None where none is declared."""
        if self.sent is None:
            return None
        return LookupRules(
            name="sent",
            speaks=Source.OBJECT,
            boundary="provider",
            authoritative=self.sent.authoritative,
            lag_ms=self.sent.lag or 0,
            confirmations=3,
            in_flight_horizon_ms=HORIZON_MS if horizon_ms is None else horizon_ms,
            interval_ms=5_000,
            interval_max_ms=60_000,
            timeout_ms=20_000,
        )

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield what can't be meant."""
        yield from _wrong_host("smtp", self.smtp)
        if self.sent is not None:
            yield from _wrong_host("sent.imap", self.sent.imap)
            if self.sent.authoritative and self.sent.lag is None:
                wrong = "absence is claimed, and nothing says how long a copy takes to appear."
                yield Wrong(key="sent.lag", wrong=wrong, mend='say it: lag = "30s".')
        if (self.user is None) != (self.credential is None):
            key = "user" if self.user is None else "credential"
            yield Wrong(key=key, wrong="half of a log-in is missing.", mend="say both, or none.")
        if not names_in(self.sender) and (why := wrong_address(self.sender)) is not None:
            yield Wrong(key="sender", wrong=f"{why}.", mend="write the bare address.")
        domain = self.domain or self.sender.rpartition("@")[2]
        if names_in(domain) or not _DOMAIN.fullmatch(domain):
            wrong = f"{domain!r} can't be the domain of Message-IDs."
            yield Wrong(key="domain", wrong=wrong, mend='say one of your own: "example.com".')

    def doubtful(self, contract: Contract) -> Iterator[Wrong]:
        """Yield a link in clear text, and a message that nothing can find."""
        if (self.tls or _usual(self.smtp)) == "none" and self.credential is not None:
            wrong = f"the credential {self.credential!r} would travel in clear text."
            yield Wrong(key="tls", wrong=wrong, mend='use "tls" or "starttls".')
        if self.sent is None and not contract.lookups and contract.events is None:
            wrong = "nothing can say whether a message was taken whose reply was lost."
            yield Wrong(key="sent", wrong=wrong, mend="name the folder of sent messages.")

    def business_key(self) -> list[str]:
        """Return nothing: several messages to one person are several intents."""
        return []

    @staticmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered message can't be sent as it is."""
        for name in ("to", "cc", "bcc"):
            said = members.get(name)
            if said is not None and not isinstance(said, str | list):
                return f"{name}: it must be an address, or a list of them"
        if not recipients(members):
            return "to: nobody would get it"
        reply_to = members.get("reply_to")
        named = [str(members["sender"]), *recipients(members), *addresses(reply_to)]
        for address in named:
            if (why := wrong_address(address)) is not None:
                return why
        if not str(members["subject"]).isprintable():
            return "subject: a line break there would begin a header of the caller's own"
        return None

    @staticmethod
    def target(members: Mapping[str, Json]) -> str:
        """Name server and recipients."""
        to = ", ".join(addresses(members.get("to"))) or "nobody"
        copies = "".join(
            f", {name} {', '.join(found)}"
            for name in ("cc", "bcc")
            if (found := addresses(members.get(name)))
        )
        return f"mail to {to}{copies}, through {members['smtp']}"

    @staticmethod
    def question(members: Mapping[str, Json]) -> str:
        """Say where the message is looked for."""
        sent = members.get("sent")
        if not isinstance(sent, Mapping):
            return "no folder of sent messages is declared"
        return f"IMAP SEARCH HEADER Message-ID in {sent['folder']} at {sent['imap']}"

    @staticmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Return its way: all of the message, the dot, the reply."""
        sent = members.get("sent")
        found, missing = "", "name the folder of sent messages: [tools.X.mail.sent]"
        if isinstance(sent, Mapping):
            claims = sent.get("authoritative") is True
            absent = "Not found, once that counts: not done." if claims else "Not found: nothing."
            found = f"the Message-ID, in {sent['folder']}. Found: done. {absent}"
            usual = "say authoritative = true in sent, if the server puts every message there"
            missing = "" if claims else usual
        no_dot = "the missing dot: a server that got none has taken no message."
        return Way(
            tie="its Message-ID; every attempt sends the very same message",
            recognises="a message with its Message-ID is there" if found else "",
            absent="no such message is there" if found else "",
            missing=missing,
            path=(
                *RECORDED,
                harmless("the connection", "Connect, encrypt, log in.", no_dot),
                harmless("the recipients", "Sender and recipients are named.", no_dot),
                harmless("the content", "All of the message is handed over but its end.", no_dot),
                GATE,
                doubtful(
                    "the final dot", "It ends the message. From here on only the server can tell."
                ),
                doubtful(
                    "the reply",
                    "The server says whether it took the message.",
                    "its word. 2xx: taken. 4xx: nothing was done with it. 5xx: refused.",
                ),
                doubtful("the sent messages", "A copy is put into their folder.", found),
                doubtful("the recipient's mailbox", "Nothing here speaks of it."),
            ),
        )


def _usual(address: str) -> _Tls:
    """Return how a port is encrypted, by the registered ones: never not at all."""
    return "tls" if address.rpartition(":")[2] in IMPLICIT_TLS else "starttls"


def _wrong_host(key: str, address: str) -> Iterator[Wrong]:
    if not _HOST.fullmatch(address):
        mend = 'write host and port: "mail.example.com:587".'
        yield Wrong(key=key, wrong=f"{address!r} names no server.", mend=mend)
