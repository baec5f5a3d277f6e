"""Where a request may go: the source's origin only, and no address that needs an explicit word.

An address or `localhost` written literally in `base_url` is that word, and so is `private = true`;
without one, a name that stands for a private, loopback, link-local or metadata address is refused.
"""

import ipaddress
import socket
import ssl
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import httpcore2
import httpx2

from doubtless.core.contract import SourceRules
from doubtless.transports.http_exchange import Halted

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Origin: TypeAlias = tuple[str, str, int]

PORTS: Final = {"http": 80, "https": 443}
ADDRESSES_MAX: Final = 4

# Answers to anybody inside a cloud network, though its address is a public one.
METADATA: Final = frozenset({ipaddress.ip_address("168.63.129.16")})

# IPv6 ranges that carry an IPv4 address, and at which byte it begins.
CARRIERS: Final = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 12),
    (ipaddress.IPv6Network("::/96"), 12),
    (ipaddress.IPv6Network("64:ff9b::/96"), 12),
    (ipaddress.IPv6Network("2002::/16"), 2),
)


def origin_of(url: httpx2.URL) -> Origin:
    """Return scheme, host and port, in the form in which they can be compared."""
    return url.scheme, url.raw_host.decode().lower(), url.port or PORTS.get(url.scheme, 0)


def parse(url: str, what: str) -> httpx2.URL:
    """Read an absolute http(s) URL.

    Raises:
        Halted: It isn't one, or it holds a user name: that would be a credential.
    """
    try:
        found = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise Halted(f"{what} can't be read as a URL") from error
    if found.scheme not in PORTS or not found.raw_host:
        raise Halted(f"{what} is no absolute http or https URL")
    if found.port is not None and not 0 < found.port < 65_536:
        raise Halted(f"{what} names a port that does not exist")
    if found.userinfo:
        raise Halted(f"{what} holds a user name or a password")
    return found


def target(url: str, source: SourceRules) -> httpx2.URL:
    """Return the URL of a request, if it lies within the source's origin.

    Raises:
        Halted: It does not, or one of the two URLs can't be read.
    """
    wanted = parse(url, "the request's URL")
    base = parse(source.base_url, f"base_url of the source {source.name}")
    if origin_of(wanted) != origin_of(base):
        raise Halted(f"the request's URL is outside of the origin of the source {source.name}")
    return wanted


def literal(host: str) -> Address | None:
    """Return the address that `host` spells out, if it does."""
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether the address belongs to the open internet, as does any address that it carries."""
    if isinstance(address, ipaddress.IPv6Address):
        for network, start in CARRIERS:
            if address in network:
                carried = ipaddress.IPv4Address(address.packed[start : start + 4])
                return is_public(carried)
    return address.is_global and not address.is_multicast and address not in METADATA


class CheckedDialler:
    """Resolves names for one source, and refuses addresses that need a word nobody gave.

    The proxy is named by the contract itself and dialled wherever it is. Behind it, it is the proxy
    that resolves the source's name, and its rules that hold.
    """

    def __init__(self, source: SourceRules | None) -> None:
        proxied = source is not None and source.proxy is not None
        self._anywhere = source is None or source.private or proxied

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of `host`. If one of them is refused, all are.

        Raises:
            Halted: The name stands for an address that it may not stand for.
            OSError: The name can't be resolved.
        """
        if address := literal(host):
            return [str(address)]
        found = await resolve(host, port)
        if not self._anywhere:
            for address in found:
                self._check(host, address)
        return [str(address) for address in found]

    def _check(self, host: str, address: Address) -> None:
        if host.lower().rstrip(".") == "localhost":
            if not address.is_loopback:
                raise Halted(f"localhost stands for {address}, which is no loopback address")
        elif not is_public(address):
            raise Halted(
                f"{host} stands for {address}, which is no public address: if that is meant, "
                "declare the source with private = true"
            )


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Ask the system for the addresses of `host`, a few at most, in its order of preference."""
    try:
        infos = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError("the name is no host name") from error
    # A scope (fe80::1%eth0) names an interface, not another address.
    spelled = dict.fromkeys(str(info[4][0]).partition("%")[0] for info in infos)
    return [ipaddress.ip_address(text) for text in spelled][:ADDRESSES_MAX]


@lru_cache(maxsize=64)
def tls_context(ca: str | None, verify: bool) -> ssl.SSLContext:
    """Return what TLS is checked against: the system's authorities, or those in the file `ca`.

    Read once for each `ca`, since it takes tens of milliseconds. The environment is not asked: it
    could name other authorities, or a file for the session's keys.

    Raises:
        Halted: `ca` can't be read.
    """
    if not verify:
        return httpx2.create_ssl_context(verify=False, trust_env=False)
    if ca is None:
        return httpx2.create_ssl_context(trust_env=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(Path(ca))
    except (OSError, ValueError) as error:
        raise Halted(f"the certificates in tls.ca can't be read: {type(error).__name__}") from error
    return context


def proxy_of(source: SourceRules) -> httpcore2.Proxy | None:
    """Return the proxy that the source declares; the environment's variables are ignored.

    Its own certificate is always checked, and against the same authorities as the source's.

    Raises:
        Halted: It is no http(s) URL. The text leaves out the URL, which may hold a password.
    """
    if source.proxy is None:
        return None
    try:
        url = httpx2.URL(source.proxy)
    except (httpx2.InvalidURL, ValueError) as error:
        raise Halted(f"the proxy of the source {source.name} can't be read as a URL") from error
    if url.scheme not in PORTS or not url.raw_host:
        raise Halted(f"the proxy of the source {source.name} is no http or https URL")
    return httpcore2.Proxy(
        httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=b"/"),
        auth=(url.username, url.password) if url.userinfo else None,
        ssl_context=tls_context(source.tls_ca, True) if url.scheme == "https" else None,
    )


def pool(
    source: SourceRules | None,
    backend: httpcore2.AsyncNetworkBackend,
    context: ssl.SSLContext,
    *,
    fresh: bool,
) -> httpcore2.AsyncConnectionPool:
    """Make a pool that speaks HTTP/1.1, retries nothing, and keeps no connection if `fresh`."""
    return httpcore2.AsyncConnectionPool(
        ssl_context=context,
        proxy=None if source is None else proxy_of(source),
        max_connections=1 if fresh else None,
        max_keepalive_connections=0 if fresh else 8,
        keepalive_expiry=15.0,
        http1=True,
        http2=False,
        retries=0,
        network_backend=backend,
    )
