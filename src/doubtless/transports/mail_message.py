"""The message itself: the same bytes in every attempt of an operation (RFC 5322)."""

from collections.abc import Mapping
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from typing import Final, cast

from doubtless.core.model import Json
from doubtless.transports.base import Errand

FIELDS: Final = (("to", "To"), ("cc", "Cc"))


def message_id(errand: Errand) -> str:
    """Return the Message-ID of an operation: its own, unique everywhere, and the same for ever."""
    return _id(errand.ref, errand.action.members)


def _id(ref: str, members: Mapping[str, Json]) -> str:
    return f"<{ref}@{members['domain']}>"


def addresses(said: Json) -> list[str]:
    """Return the addresses of a field that holds one, several or none."""
    if said is None:
        return []
    return [said] if isinstance(said, str) else [str(each) for each in cast("list[Json]", said)]


def recipients(members: Mapping[str, Json]) -> list[str]:
    """Return everybody who gets it, each once, in order."""
    found = [each for name in ("to", "cc", "bcc") for each in addresses(members.get(name))]
    return list(dict.fromkeys(found))


def wrong_address(address: str) -> str | None:
    """Say why a text is no bare address, or None. Names, comments and line breaks are none."""
    try:
        found = Address(addr_spec=address)
    except (ValueError, IndexError, TypeError, AttributeError):
        return f"{address!r} is no address: write name@example.com"
    plain = found.username and found.domain and address.isprintable() and " " not in address
    return None if plain else f"{address!r} is no address: write name@example.com"


def written(errand: Errand) -> bytes:
    """Write the message, with CRLF at the end of each line. The last line is not the dot."""
    members = errand.action.members
    message = EmailMessage(policy=SMTP)
    message["Message-ID"] = message_id(errand)
    surveyed = cast("Mapping[str, Json]", errand.baseline)
    message["Date"] = datetime.fromisoformat(str(surveyed["date"]))
    message["From"] = str(members["sender"])
    for name, header in FIELDS:
        if found := addresses(members.get(name)):
            message[header] = ", ".join(found)
    if (reply_to := members.get("reply_to")) is not None:
        message["Reply-To"] = str(reply_to)
    subject = str(members["subject"])
    if errand.duplicate_ref is not None:
        # An operator sends it once more, knowing that the first may have arrived.
        subject = f"[possible duplicate] {subject}"
        message["X-Possible-Duplicate-Of"] = _id(errand.duplicate_ref, members)
    message["Subject"] = subject
    message.set_content(str(members["text"]))
    if (html := members.get("html")) is not None:
        message.add_alternative(str(html), subtype="html")
        message.set_boundary(f"={errand.ref}=")  # by default it is drawn anew each time
    return message.as_bytes()
