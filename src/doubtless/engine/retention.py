"""Upkeep of settled operations: emptying what they carried, and moving them into the archive.

Neither begins by itself: without a time everything is kept where it is. Whatever may still be
needed stays: open operations, what may still arrive or be repeated, windows in which a repeat is
told the first result, and what a subscriber has not been told yet.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
from pydantic_core import PydanticCustomError

from doubtless.core.contract import Contract
from doubtless.core.evidence import FOREVER_MS, arrives_until_ms
from doubtless.core.model import Json, Now, Record, State
from doubtless.core.permission import first_sent_ms
from doubtless.engine.book import Book
from doubtless.engine.contracts.values import duration_ms, duration_text
from doubtless.errors import DoubtlessError, LedgerError, SettingsError
from doubtless.ledger import archive, retention
from doubtless.ledger.retention import Task
from doubtless.ledger.store import Ledger, Transaction

DAY_MS: Final = 86_400_000
LOOK: Final = 100  # operations that one reading looks at
UNIT: Final = 20  # operations that one unit of work changes: others wait for no more than that
BUSY_S: Final = 1.0  # between two looks of a worker while there is more to do
IDLE_S: Final = 60.0

_log: Final = logging.getLogger("doubtless.worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep:
    """For how long settled operations keep what they carry, and stay out of the archive."""

    retention_ms: int | None = None  # None: for ever
    archive_after_ms: int | None = None  # None: for ever

    def of(self, task: Task) -> int | None:
        """Return the time of a task; None where it is not to be done."""
        return self.retention_ms if task is Task.RETENTION else self.archive_after_ms


def kept(retention_after: str | None, archive_after: str | None) -> Keep:
    """Read both times, such as "90d".

    Raises:
        SettingsError: One is no duration, or shorter than a day.
    """
    return Keep(
        retention_ms=_time("retention", retention_after),
        archive_after_ms=_time("archive_after", archive_after),
    )


def _time(name: str, text: str | None) -> int | None:
    try:
        return None if text is None else keep_ms(text)
    except ValueError as error:
        raise SettingsError(f"{name}: {error}") from error


def keep_ms(text: str) -> int:
    """Read a time for which settled operations are kept. Raises: ValueError, with the mend."""
    try:
        ms = duration_ms(text)
    except PydanticCustomError as error:
        wrong = str((error.context or {})["wrong"]).rstrip(".")
        raise ValueError(f"{wrong}: write 90d") from error
    if ms < DAY_MS:
        raise ValueError(f"{text} is too short: a day (1d) is the least")
    return ms


def ripe_ms(
    record: Record, contract: Contract, now: Now, *, keep_ms: int, held_until_ms: int | None
) -> int:
    """Return from when on nothing can need any more what a settled operation carries.

    Args:
        record: One that has ended.
        contract: The one that it was prepared with.
        now: The ledger's clock.
        keep_ms: For how long it is kept at least, from its last change.
        held_until_ms: Until when it holds its object, if it still does.
    """
    operation = record.operation
    times = [
        operation.updated_ms + max(keep_ms, contract.dedupe_window_ms),
        arrives_until_ms(record, contract, now) + contract.lag_ms,
        held_until_ms or 0,
    ]
    if operation.state is State.FAILED:
        times.append(operation.valid_until_ms)  # until then a repeat may send it
    first_ms = first_sent_ms(record)
    if contract.key is not None and contract.key.ttl_ms is not None and first_ms is not None:
        times.append(first_ms + contract.key.ttl_ms)
    return max(times)


@dataclass(slots=True, kw_only=True)
class Plan:
    """What one look found: what to do, when to look again, and up to where it looked."""

    upto: int
    ripe: list[tuple[str, int]] = field(default_factory=list)  # id and version
    later: list[tuple[str, int]] = field(default_factory=list)  # id and instant
    over: list[str] = field(default_factory=list)  # open again: their next end counts
    looked: int = 0
    held_up_by: str | None = None  # the subscriber that has to be told first

    @property
    def units(self) -> Iterator["Plan"]:
        """Split it into pieces that are short enough to be one unit of work each."""
        for first in range(0, len(self.ripe), UNIT):
            yield Plan(upto=0, ripe=self.ripe[first : first + UNIT])
        yield Plan(upto=self.upto, later=self.later, over=self.over)


class Upkeep:
    """Empties and archives what is ripe, a little at a time."""

    def __init__(self, ledger: Ledger, book: Book, keep: Keep) -> None:
        self._ledger, self._book, self._keep = ledger, book, keep

    @property
    def tasks(self) -> tuple[Task, ...]:
        """What is to be done at all."""
        return tuple(task for task in Task if self._keep.of(task) is not None)

    async def run(self) -> None:
        """Do it for ever. A ledger that fails for a while is asked again."""
        while True:
            more = False
            for task in self.tasks:
                try:
                    more |= (await self.once(task)).looked == LOOK
                except DoubtlessError as error:
                    _log.warning("upkeep (%s): %s", task, error)
            await anyio.sleep(BUSY_S if more else IDLE_S)

    async def all_of(self, task: Task) -> int:
        """Do all that is ripe now, and return of how many operations it was."""
        total = 0
        while True:
            plan = await self.once(task)
            total += len(plan.ripe)
            if plan.looked == 0:
                return total

    async def once(self, task: Task) -> Plan:
        """Look at the next `LOOK` operations, and do what is ripe."""
        plan = await anyio.to_thread.run_sync(
            self._ledger.read, lambda tx: self.look(tx, task, after=None)
        )
        for unit in plan.units:
            await self._carry_out(task, unit)
        return plan

    async def _carry_out(self, task: Task, unit: Plan) -> None:
        try:
            await self._ledger.commit(lambda tx: self._do(tx, task, unit))
        except LedgerError:
            if not unit.ripe:
                raise
            for each in unit.ripe:
                await self._alone(task, each)

    async def _alone(self, task: Task, each: tuple[str, int]) -> None:
        """Do one by itself; what can't be done is left for a day, and told."""
        try:
            await self._ledger.commit(lambda tx: self._do(tx, task, Plan(upto=0, ripe=[each])))
        except LedgerError as error:
            _log.warning("upkeep (%s) of operation %s: %s", task, each[0], error)
            await self._ledger.commit(
                lambda tx: retention.later(tx, self._book.tenant, task, each[0], tx.now_ms + DAY_MS)
            )

    def look(self, tx: Transaction, task: Task, *, after: int | None) -> Plan:
        """Find out what is ripe among the next operations, without changing anything.

        Args:
            tx: The transaction.
            task: What for.
            after: After which settlement to look; None goes on where the ledger has come to, and
                looks again at what is due to be.
        """
        tenant, keep_ms = self._book.tenant, self._keep.of(task) or 0
        begins = retention.reached(tx, tenant, task) if after is None else after
        again = retention.due(tx, tenant, task, LOOK // 2) if after is None else []
        slowest = retention.slowest(tx, tenant) if task is Task.RETENTION else None
        steps = retention.next_steps(
            tx,
            tenant,
            after=begins,
            upto=FOREVER_MS if slowest is None else slowest[1],
            before_ms=tx.now_ms - keep_ms,
            limit=LOOK - len(again),
        )
        plan = Plan(upto=steps[-1].seq if steps else begins, looked=len(steps) + len(again))
        if slowest is not None and not steps and slowest[1] <= begins:
            plan.held_up_by = slowest[0]
        for operation_id in dict.fromkeys([*again, *(step.operation_id for step in steps)]):
            self._judge(tx, plan, operation_id, keep_ms)
        return plan

    def _judge(self, tx: Transaction, plan: Plan, operation_id: str, keep_ms: int) -> None:
        record, contract = self._book.load(tx, operation_id)
        operation, now = record.operation, self._book.now(tx)
        if not operation.state.ends:
            plan.over.append(operation_id)
            return
        held_until_ms = retention.held_until_ms(
            tx, operation.tenant, operation.source, operation.claim, operation_id
        )
        at_ms = ripe_ms(record, contract, now, keep_ms=keep_ms, held_until_ms=held_until_ms)
        if at_ms <= now.ms:
            plan.ripe.append((operation_id, operation.version))
        else:
            plan.later.append((operation_id, min(at_ms, now.ms + DAY_MS)))

    def _do(self, tx: Transaction, task: Task, plan: Plan) -> None:
        tenant = self._book.tenant
        for operation_id, version in plan.ripe:
            if task is Task.RETENTION:
                retention.empty(tx, tenant, operation_id, version=version)
            else:
                archive.move(tx, tenant, operation_id, version=version)
            retention.done(tx, tenant, task, operation_id)
        for operation_id, at_ms in plan.later:
            retention.later(tx, tenant, task, operation_id, at_ms)
        for operation_id in plan.over:
            retention.done(tx, tenant, task, operation_id)
        if plan.upto:
            retention.reach(tx, tenant, task, plan.upto)

    def preview(self, task: Task) -> int:
        """Count the operations that `all_of` would do now. Changes nothing."""
        total = 0
        after: int | None = None
        while True:
            plan = self._ledger.read(partial(self.look, task=task, after=after))
            total += len(plan.ripe)
            if plan.looked == 0:
                return total
            after = plan.upto

    def standing(self) -> dict[str, Json]:
        """Say how far the upkeep has come, and what holds it up."""

        def unit(tx: Transaction) -> dict[str, Json]:
            tenant = self._book.tenant
            last = retention.last(tx, tenant)
            slowest = retention.slowest(tx, tenant)
            found: dict[str, Json] = {"settlements": last}
            for task in Task:
                keep_ms = self._keep.of(task)
                found[task.value] = {
                    "after": None if keep_ms is None else duration_text(keep_ms),
                    "reached": retention.reached(tx, tenant, task),
                    "later": retention.how_many_later(tx, tenant, task),
                }
            if slowest is not None and slowest[1] < last:
                found["waits_for"] = {"subscriber": slowest[0], "told": slowest[1]}
            found["months"] = list[Json](archive.months(tx, tenant))
            return found

        return self._ledger.read(unit)
