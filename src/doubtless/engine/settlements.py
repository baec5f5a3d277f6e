"""The stream of settlements: each end of an operation once, in the order of commits."""

from typing import Final
from uuid import uuid4

from doubtless.core.model import Principal, Role
from doubtless.core.outcome import instant
from doubtless.core.progress import Liveness
from doubtless.engine.deliveries import HOLD_S, Callback, Delivery, Position, Subscriber
from doubtless.engine.opened import OpenApp
from doubtless.engine.stream import Settlement, SettlementPage
from doubtless.engine.surface import Surface
from doubtless.errors import SettingsError
from doubtless.ledger import listing, subscribers
from doubtless.ledger.store import Transaction

PAGE_MAX: Final = 1_000
SCAN_MAX: Final = 5_000  # settlements of anybody that one page looks at
NAME_MAX: Final = 200


class Settlements(Surface):
    """What ended, for whoever wants to go on from there."""

    async def settlements(self, after: int = 0, limit: int = 100) -> SettlementPage:
        """Return settlements in order, those after the one with the id `after` only.

        An operator is shown all of them, everybody else their own. A page may be empty although
        more follow: go on with its `after` until that doesn't grow any more.

        Args:
            after: The id of the last one that is known; 0 begins with the first.
            limit: How many at most, up to 1000.
        """
        opened = self._opened
        return opened.ledger.read(
            lambda tx: page(opened, tx, self._principal, after=after, limit=limit)
        )

    def on_settled(self, callback: Callback, *, name: str, after: int = 0) -> None:
        """Have `callback` told of every settlement from now on: at least once, and in order.

        One at a time. Up to which it was told is kept in the ledger under `name`, so that it goes
        on there after a restart; of several processes with the same name one delivers. One that
        raises is told again after a pause that grows; that holds up nobody else. A settlement's id
        tells what came twice.

        Args:
            callback: A function or a coroutine function; the former runs in a thread.
            name: The subscriber's, of this principal.
            after: Where a name that is new begins: after the settlement of that id.

        Raises:
            SettingsError: The name is empty or too long.
        """
        opened = self._opened
        subscriber = Subscriber(name=checked_name(name), callback=callback, after=after)
        start(opened, self._principal, subscriber)

    def position(self, name: str, *, holder: str, after: int = 0) -> Position:
        """Return up to which settlement a subscriber was told, for whoever delivers to it.

        Args:
            name: The subscriber's.
            holder: Who delivers, unlike any other.
            after: Where a name that is new begins.
        """
        return LedgerPosition(self._opened, self._principal, checked_name(name), holder, after)


class LedgerPosition:
    """A subscriber's position, in the ledger."""

    def __init__(
        self, opened: OpenApp, principal: Principal, name: str, holder: str, begins: int
    ) -> None:
        self._opened, self._principal = opened, principal
        self._name, self._holder, self._begins = name, holder, begins
        self._tenant = opened.book.tenant
        self._whose = f"{principal.role.value}:{principal.name}"

    async def read(self) -> int:
        """Return up to which it was told."""
        found = self._opened.ledger.read(
            lambda tx: subscribers.position(tx, self._tenant, self._whose, self._name)
        )
        return self._begins if found is None else found

    async def page(self, after: int, limit: int) -> SettlementPage:
        """Return the settlements after that."""
        return self._opened.ledger.read(
            lambda tx: page(self._opened, tx, self._principal, after=after, limit=limit)
        )

    async def take(self) -> int | None:
        """Become the one who delivers; None: another is, which is seen without a turn to write."""
        if self._opened.ledger.read(self._is_held):
            return None
        return await self._opened.ledger.commit(
            lambda tx: subscribers.take(
                tx,
                self._tenant,
                self._whose,
                self._name,
                holder=self._holder,
                until_ms=_until_ms(tx),
                begins=self._begins,
                is_gone=self._is_gone,
            )
        )

    async def advance(self, seq: int) -> bool:
        """Note up to which it was told; False: it was lost to another."""
        return await self._opened.ledger.commit(
            lambda tx: subscribers.advance(
                tx,
                self._tenant,
                self._whose,
                self._name,
                holder=self._holder,
                seq=seq,
                until_ms=_until_ms(tx),
            )
        )

    async def release(self) -> None:
        """Let others deliver."""
        await self._opened.ledger.commit(
            lambda tx: subscribers.release(
                tx, self._tenant, self._whose, self._name, holder=self._holder
            )
        )

    def _is_held(self, tx: Transaction) -> bool:
        return subscribers.is_held(
            tx, self._tenant, self._whose, self._name, holder=self._holder, is_gone=self._is_gone
        )

    def _is_gone(self, holder: str) -> bool:
        """Whether a holder in a process of this host is provably dead."""
        owner, _, _ = holder.partition("#")
        return self._opened.book.surroundings.liveness(owner) is Liveness.DEAD


def _until_ms(tx: Transaction) -> int:
    return tx.now_ms + int(HOLD_S * 1000)


def start(opened: OpenApp, principal: Principal, subscriber: Subscriber) -> None:
    """Deliver to a subscriber while the application is open."""
    holder = f"{opened.book.surroundings.owner}#{uuid4().hex}"
    position = LedgerPosition(opened, principal, subscriber.name, holder, subscriber.after)
    opened.tasks.start_soon(Delivery(subscriber, position, opened.bell).run)


def page(
    opened: OpenApp, tx: Transaction, principal: Principal, *, after: int, limit: int
) -> SettlementPage:
    """Return the settlements that a principal may see; an operator all of them."""
    tenant, limit = opened.book.tenant, min(max(limit, 1), PAGE_MAX)
    whose = None if principal.role is Role.OPERATOR else principal.name
    upto = subscribers.last_of(tx, tenant, after=after, limit=SCAN_MAX)
    found = listing.settlements(tx, tenant, after=after, upto=upto, limit=limit, principal=whose)
    shown = tuple(
        Settlement(
            id=each.seq,
            state=each.state.value,
            version=each.version,
            at=instant(each.at_ms) or "",
            outcome=opened.outcome_in(tx, each.operation_id),
        )
        for each in found
    )
    full = len(shown) == limit
    return SettlementPage(settlements=shown, after=shown[-1].id if full else upto)


def checked_name(name: str) -> str:
    """Return a subscriber's name.

    Raises:
        SettingsError: It is empty or too long.
    """
    if not 0 < len(name) <= NAME_MAX or not name.isprintable():
        raise SettingsError(f"a subscriber's name has 1 to {NAME_MAX} printable characters")
    return name
