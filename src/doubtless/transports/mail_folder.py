"""The folder of sent messages, by IMAP (RFC 3501): how often a Message-ID is in it."""

from collections.abc import Mapping
from ssl import create_default_context
from typing import cast

from imapclient import IMAPClient

from doubtless.core.model import Json


def copies(sent: Mapping[str, Json], message_id: str, secret: str, limit_s: float) -> int:
    """Count the messages with that Message-ID. Reads only, and blocks.

    Raises:
        Exception: Whatever the library raises: it could not be asked.
    """
    host, _, port = str(sent["imap"]).rpartition(":")
    encrypted = sent["tls"] != "none"
    context = create_default_context(cafile=cast("str | None", sent.get("ca")))
    with IMAPClient(
        host,
        port=int(port),
        ssl=sent["tls"] == "tls",
        ssl_context=context if encrypted else None,
        timeout=limit_s,
    ) as client:
        if sent["tls"] == "starttls":
            client.starttls(context)
        client.login(str(sent["user"]), secret)
        client.select_folder(str(sent["folder"]), readonly=True)
        return len(client.search(["HEADER", "Message-ID", message_id]))
