"""What attempts left for people to look at, and the page of one that is still open.

Nothing here takes input, and nothing is asked of a provider.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from doubtless.core.model import Json
from doubtless.core.outcome import instant
from doubtless.engine.book import EXHIBIT, Book
from doubtless.engine.surface import Surface
from doubtless.errors import ExhibitNotFound, NotWatched
from doubtless.ledger import bodies
from doubtless.ledger.store import Transaction

MEDIA_TYPES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "jpg": "image/jpeg",
        "json": "application/json",
        "stderr": "text/plain; charset=utf-8",
        "stdout": "text/plain; charset=utf-8",
        "txt": "text/plain; charset=utf-8",
    }
)
"""By the end of an exhibit's name; anything else is bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """Something that an attempt left for people to look at."""

    name: str
    attempt: int  # from 1
    at: str  # RFC 3339
    size: int  # bytes
    media_type: str

    def to_json(self) -> dict[str, Json]:
        """Return it as JSON has it."""
        return asdict(self)


@runtime_checkable
class Watched(Protocol):
    """A transport whose actions can be watched while they are open."""

    async def picture(self, operation_id: str) -> bytes | None:
        """Return how it looks now, as a JPEG; None: nothing of it is open in this process."""
        ...

    async def let_go(self, operation_id: str) -> None:
        """Close what was left open of an operation: nobody needs it any more."""
        ...


class Exhibits(Surface):
    """What people see of attempts, besides what was concluded from them."""

    async def exhibits(self, operation_id: str) -> list[Exhibit]:
        """Return what the attempts of an operation left, oldest first.

        Raises:
            OperationNotFound: There is no such operation.
        """
        opened = self._opened
        found = opened.load(operation_id).operation.id
        return opened.ledger.read(lambda tx: listed(opened.book, tx, found))

    async def exhibit(self, operation_id: str, name: str, *, attempt: int | None = None) -> bytes:
        """Return an exhibit; of the latest attempt that has it, unless `attempt` says which.

        Raises:
            OperationNotFound: There is no such operation.
            ExhibitNotFound: It has no such exhibit, or retention has emptied it.
        """
        opened = self._opened
        found = opened.load(operation_id).operation.id
        return opened.ledger.read(lambda tx: content(opened.book, tx, found, name, attempt))

    async def picture(self, operation_id: str) -> bytes:
        """Return the page of an operation as it is now, as a JPEG. Nothing can be done in it.

        A page can be watched while its attempt is open, and for `keep_open` while the operation is
        not settled; only in the process that has it.

        Raises:
            OperationNotFound: There is no such operation.
            NotWatched: No page of it is open in this process; the text says what there is.
        """
        opened = self._opened
        operation = opened.load(operation_id).operation
        contract = opened.ledger.read(lambda tx: opened.book.contract(tx, operation))
        transport = opened.actions.made(contract.kind)
        if transport is not None and isinstance(transport, Watched):
            if operation.state.ends:
                await transport.let_go(operation.id)
            elif (found := await transport.picture(operation.id)) is not None:
                return found
        raise NotWatched(operation.id, self._instead(operation.id))

    def _instead(self, operation_id: str) -> str:
        opened = self._opened
        found = opened.ledger.read(lambda tx: listed(opened.book, tx, operation_id))
        pictures = [each for each in found if each.media_type == "image/jpeg"]
        if not pictures:
            return "nor was a picture of one kept"
        last = pictures[-1]
        which = f"{last.name} of attempt {last.attempt}, at {last.at}"
        return f"the last picture is the exhibit {which}"


def listed(book: Book, tx: Transaction, operation_id: str) -> list[Exhibit]:
    """Return what is kept of an operation's attempts, oldest first."""
    found = bodies.kept(tx, book.tenant, operation_id, EXHIBIT)
    return [
        Exhibit(
            name=each.kind.removeprefix(EXHIBIT),
            attempt=each.number,
            at=instant(each.at_ms) or "",
            size=each.size,
            media_type=media_type(each.kind.removeprefix(EXHIBIT)),
        )
        for each in found
    ]


def content(
    book: Book, tx: Transaction, operation_id: str, name: str, attempt: int | None
) -> bytes:
    """Return an exhibit.

    Raises:
        ExhibitNotFound: There is none.
    """
    kept = bodies.kept(tx, book.tenant, operation_id, EXHIBIT)
    numbers = [each.number for each in kept if each.kind == EXHIBIT + name]
    number = attempt if attempt is not None else max(numbers, default=-1)
    found = bodies.body(tx, book.tenant, operation_id, EXHIBIT + name, number)
    if found is None:
        raise ExhibitNotFound(operation_id, name)
    return found


def media_type(name: str) -> str:
    """Return what an exhibit is, by its name."""
    return MEDIA_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
