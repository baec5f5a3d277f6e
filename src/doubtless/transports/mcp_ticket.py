"""What is seen of one tools/call, from the moment at which it is handed to the SDK.

The SDK calls our streams in the context of whoever sends, so that each finds its own ticket. Only a
tools/call is under a ticket: whatever else the SDK says is a read of the protocol.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

from doubtless.core.model import Stage
from doubtless.errors import DoubtlessError, GateClosed
from doubtless.transports.base import Gate, Watch
from doubtless.transports.http_exchange import Halted

ID: Final = "id"
KEPT_BYTES: Final = 1_048_576  # of an answer, to tell whether it is one to our call


@dataclass(slots=True, kw_only=True, weakref_slot=True, eq=False)
class Ticket:
    """Leave to send one call once, and what became of it."""

    gate: Gate
    watch: Watch
    boot_s: Callable[[], float]
    headers: Mapping[str, str] = field(default_factory=dict)  # for this call alone; HTTP
    revoked: bool = False
    taken: bool = False  # a request was begun under it: no second one ever is
    write_by_s: float | None = None  # None: the gate has not opened
    halted: str = ""  # why we stopped before the first byte
    broken: str = ""  # what went wrong on the link, in words of ours
    status: int | None = None  # of the HTTP answer
    session: bool = False  # the request named an MCP session
    answered: bool = False  # a JSON-RPC answer to this very call came
    kept: bytearray = field(default_factory=bytearray)  # of an HTTP answer, as it comes
    kept_type: str = ""
    request_id: object = None
    abort: Callable[[], None] | None = None  # stops what is being written

    async def permit(self) -> None:
        """Ask the gate, once, at the last moment before the first byte.

        Raises:
            Halted: It did not open.
        """
        self.watch.stage = Stage.GATE
        try:
            self.write_by_s = await self.gate()
        except GateClosed as error:
            raise self.stop(str(error)) from error
        except DoubtlessError as error:
            raise self.stop(f"the gate did not open: {error}") from error

    def check(self) -> None:
        """Compare once more, in the very step that writes.

        Raises:
            Halted: Nothing may be written any more.
        """
        if self.write_by_s is None or not self.clock() <= self.write_by_s:
            raise self.stop("the time for the first byte was over")

    def clock(self) -> float:
        """Return the boot-time clock; once revoked no number, which permits nothing."""
        return math.nan if self.revoked else self.boot_s()

    def stop(self, why: str) -> Halted:
        """Note why nothing was written, and return it as an error."""
        self.halted = why
        return Halted(why)

    def count(self, written: int) -> None:
        """Count bytes that the system took."""
        self.watch.sent_bytes += written
        self.watch.stage = Stage.SENT
        if self.watch.first_byte_s is None:
            self.watch.first_byte_s = self.boot_s()

    def was_answered(self) -> bool:
        """Whether an answer to this very call came, be it a result or an error."""
        held = _messages(bytes(self.kept), self.kept_type)
        return self.answered or any(
            found.get(ID) == self.request_id and ("result" in found or "error" in found)
            for found in held
        )

    def revoke(self) -> bool:
        """Let nothing of it begin any more, and say whether it is proven that nothing left."""
        self.revoked = True
        return self.watch.sent_bytes == 0


TICKET: Final[ContextVar[Ticket]] = ContextVar("ticket")


def _messages(body: bytes, content_type: str) -> Iterator[dict[str, object]]:
    texts = [body]
    if content_type.startswith("text/event-stream"):
        lines = body.splitlines()
        texts = [line.removeprefix(b"data:") for line in lines if line.startswith(b"data:")]
    for text in texts:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            yield found
