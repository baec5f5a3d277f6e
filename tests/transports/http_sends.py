"""Sends through the HTTP transport, each one checked against what the server can swear to."""

from dataclasses import dataclass, field

import anyio.lowlevel
from tests.transports.http_peer import Truth

from doubtless.core.contract import SourceRules
from doubtless.core.model import Cause, Seen
from doubtless.transports.base import HttpRequest, Reply, Watch
from doubtless.transports.http import HttpTransport

CANARY = "canary-4f1d9a77c2"
PRIVATE = {"Authorization": f"Bearer {CANARY}", "X-Correlation-ID": "corr-1"}


@dataclass
class GateLog:
    """A gate that opens, and counts how often it was asked."""

    write_by_s: float = float("inf")
    calls: int = 0
    seen: list[int] = field(default_factory=list)
    truth: Truth | None = None

    async def __call__(self):
        self.calls += 1
        self.seen.append(self.truth.received if self.truth else 0)
        return self.write_by_s


def source_of(peer, **rules):
    return SourceRules(name="peer", base_url=peer.url, **rules)


def sound(reply: Reply, watch: Watch, truth: Truth):
    """What must hold whatever happened."""
    assert reply.proof in {None, Seen.NOT_SENT}
    if reply.proof is Seen.NOT_SENT:
        assert (truth.received, truth.heads, truth.commits) == (0, [], 0)
        assert (reply.sent_bytes, reply.status, reply.cause) == (0, None, Cause.NOT_SENT)
    assert (watch.stage, watch.sent_bytes) == (reply.stage, reply.sent_bytes)
    assert reply.sent_bytes >= truth.received
    assert len(truth.heads) <= 1
    assert reply.complete == (reply.cause is None)
    assert CANARY not in repr(reply)


async def send(peer, *, method="POST", path="/v1/refunds", body=b"amount=500", **options):
    """Send one request to `peer`, and check all that must hold of it."""
    transport = options.pop("transport", None) or HttpTransport(body_max_bytes=10_000)
    source = options.pop("source", None) or source_of(peer)
    headers = options.pop("headers", ())
    watch = options.pop("watch", None) or Watch()
    gate = options.pop("gate", None) or GateLog(truth=peer.truth)
    request = HttpRequest(
        method=method, url=options.pop("url", peer.url + path), headers=headers, body=body
    )
    options.setdefault("limit_s", 10)
    options.setdefault("private", PRIVATE)
    reply = await transport.perform(request, source=source, gate=gate, watch=watch, **options)
    if options.get("fresh", True):
        sound(reply, watch, peer.truth)
    if isinstance(gate, GateLog):
        assert gate.calls <= 1
        assert set(gate.seen) <= {0} or not options.get("fresh", True)
        assert gate.calls == 1 or not reply.sent_bytes
    return reply


async def until(condition):
    """Let everything else run until `condition` holds."""
    while not condition():
        await anyio.lowlevel.checkpoint()
