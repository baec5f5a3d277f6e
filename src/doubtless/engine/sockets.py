"""The sockets that servers of this process listen on."""

import socket
from typing import Final

from doubtless.errors import SettingsError

BACKLOG: Final = 512


def bind(host: str, port: int, *, option: str = "--host") -> socket.socket:
    """Return a listening socket.

    Args:
        host: A name or an address.
        port: 0 for a free one.
        option: Where the host was said, for whoever has to mend it.

    Raises:
        SettingsError: The address can't be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"{option} {host}: {error}") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        sock.close()
        other = "another --port" if option == "--host" else "another port"
        raise SettingsError(
            f"can't listen on {host}:{port}: {error.strerror or error}. Say {other}, or 0 for a"
            " free one"
        ) from error
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the address that a socket listens on."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
