"""The eight invariants of the model, checked after every commit and at every effect.

The world's own count is the truth. What is found first is kept; the run ends there.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, cast

from doubtless.core.contract import STALL_MARGIN_MS, Contract
from doubtless.core.effects import NO_EFFECT
from doubtless.core.lifecycle import TRANSITIONS
from doubtless.core.model import Cause, Effect, Record, Role, Seen, State
from doubtless.core.outcome import Outcome, Status
from doubtless.ledger import journal, operations
from doubtless.ledger.journal import Entry, Kind, entries_of
from doubtless.ledger.store import Ledger, Transaction
from doubtless.testing.simulate_story import TENANT, Story, load
from doubtless.testing.world import World
from doubtless.testing.world_orders import Order

# Asked of the table itself: what the ledger's own functions leave out would not be seen else.
ADDED: Final = """
    select seq, operation_id, at_ms, entries
      from journal
     where seq > :seq
  order by seq
"""
AGENTS_MAY: Final = frozenset({Kind.PREPARED, Kind.REFUSAL, Kind.ATTEMPT})
AGENTS_ENTER: Final = frozenset({State.EXECUTING, State.CANCELLED})
NOTHING_DONE: Final = frozenset({State.FAILED, State.REJECTED, State.CANCELLED})
PROVEN_HARMLESS: Final = frozenset({Seen.NOT_SENT, Seen.NOT_PROCESSED, Seen.REJECTED})
WITHOUT_EFFECT: Final = NO_EFFECT | {Effect.SHELL_READ}


class Broken(AssertionError):
    """An invariant does not hold. The first word of the text names it."""


class Checks:
    """What is known of every operation, and what must hold of it.

    Args:
        contracts: By tool.
        ledger: The real one.
        world: Whose count is the truth.
        now_ms: The wall clock.
    """

    def __init__(
        self,
        contracts: Mapping[str, Contract],
        ledger: Ledger,
        now_ms: Callable[[], int],
    ) -> None:
        self._contracts, self._ledger, self._now_ms = contracts, ledger, now_ms
        self.world: World
        self.records: dict[str, Record] = {}
        self.broken: Broken | None = None
        self.on_entry: Callable[[Entry], None] = lambda _: None
        self._seq = 0
        self.clock_was_set = False  # then leases and boot-time clocks don't agree any more
        self.risked: set[str] = set()  # refs for which an operator took the risk of a second effect
        self._by_ref: dict[str, str] = {}
        self._stories: dict[str, Story] = {}
        self._fixed: dict[str, tuple[str, ...]] = {}
        self._contents: dict[str, bytes] = {}
        self._written: dict[tuple[str, int], Order] = {}
        self.acknowledged: set[str] = set()

    def fail(self, invariant: str, what: str) -> None:
        """Keep what is broken, and end the run."""
        if self.broken is None:
            self.broken = Broken(f"{invariant}: {what}")

    # --- after a commit --------------------------------------------------------------------------

    def committed(self) -> None:
        """Check every operation that a commit has touched."""

        def unit(tx: Transaction) -> list[tuple[str, Record | None]]:
            touched: dict[str, None] = {}
            for row in tx.tuples(ADDED, seq=self._seq):
                for entry in entries_of(row):
                    self._add(entry)
                    if entry.kind is not Kind.REFUSAL:
                        touched[entry.operation_id] = None
            return [(name, load(tx, name)) for name in touched]

        for name, record in self._ledger.read(unit):
            if record is None:
                self.fail("lost", f"{name} was committed, and is not there")
            else:
                self._check(record)

    def _add(self, entry: Entry) -> None:
        self._seq = entry.seq
        self.on_entry(entry)
        self._stories.setdefault(entry.operation_id, Story()).add(entry)
        self._check_entry(entry)

    def _check_entry(self, entry: Entry) -> None:
        change = cast("Mapping[str, str]", entry.data.get("operation", {}))
        if entry.kind is Kind.TRANSITION:
            step = State(cast("str", entry.data["from"])), State(change["state"])
            if step not in TRANSITIONS:
                self.fail("table", f"{entry.operation_id}: {step[0]} → {step[1]} is not listed")
        moves = entry.kind is Kind.TRANSITION and change.get("state") in AGENTS_ENTER
        if entry.principal.role is Role.AGENT and not moves and entry.kind not in AGENTS_MAY:
            self.fail("roles", f"{entry.operation_id}: an agent wrote {entry.kind}")

    def _check(self, record: Record) -> None:
        operation = record.operation
        self.records[operation.id] = record
        self._by_ref[operation.ref] = operation.id
        if operation.due_ms is None and not operation.state.ends:
            self.fail("due", f"{operation.id} is {operation.state} and never due")
        fixed = (operation.key, operation.payload_hash, operation.request_digest, operation.ref)
        if self._fixed.setdefault(operation.id, fixed) != fixed:
            self.fail("identity", f"{operation.id}: key, payload or request changed")
        if (why := self._stories[operation.id].differs_from(record)) is not None:
            self.fail("replay", f"{operation.id}: {why}")
        self._check_truth(record)

    def _check_replay(self, record: Record, entries: list[Entry]) -> None:
        found = journal.replay(entries)
        replayed = (found.operation, found.attempts, found.evidence, found.approvals)
        stored = (record.operation, record.attempts, record.evidence, record.approvals)
        if replayed != stored:
            self.fail("replay", f"{record.operation.id}: {replayed} is not {stored}")

    def _check_truth(self, record: Record) -> None:
        """Hold what is recorded as proven against the world."""
        operation = record.operation
        effects = self.world.effects_of(operation.ref)
        name, state = operation.id, operation.state
        if state is State.SUCCEEDED and not effects and operation.effect not in WITHOUT_EFFECT:
            self.fail("proof", f"{name} is succeeded ({operation.cause}) without an effect")
        if effects and self._says_nothing_done(record):
            self.fail("proof", f"{name} is {state} ({operation.cause}), and took effect")
        for attempt in record.attempts:
            order = self._written.get((operation.ref, attempt.number))
            if order is None:
                continue
            if attempt.seen is Seen.NOT_SENT:
                self.fail("proof", f"{name}: attempt {attempt.number} is not_sent, but was sent")
            if attempt.seen in PROVEN_HARMLESS and order.took_effect:
                self.fail("proof", f"{name}: attempt {attempt.number} is {attempt.seen}, but acted")

    def _says_nothing_done(self, record: Record) -> bool:
        operation = record.operation
        unsure = operation.cause is Cause.OPERATOR_UNSURE or operation.ref in self.risked
        return operation.state in NOTHING_DONE and not unsure

    # --- at the provider -------------------------------------------------------------------------

    def first_byte(self, order: Order) -> None:
        """Check, as the first byte of a request is written, that all of it is durable."""
        name = self._by_ref.get(order.ref)
        if name is None:
            self.fail("durable", f"{order.name} was sent, and no such operation is recorded")
            return
        record = self.records[name]
        if len(record.attempts) < order.attempt:
            self.fail("durable", f"{name}: attempt {order.attempt} was sent before it was recorded")
            return
        attempt = record.attempts[order.attempt - 1]
        if attempt.ended_ms is not None and not self.clock_was_set:
            self.fail("fence", f"{name}: attempt {order.attempt} was sent after it had ended")
        late_ms = self._now_ms() - record.operation.valid_until_ms
        if late_ms > STALL_MARGIN_MS and not self.clock_was_set:
            self.fail("void", f"{name}: attempt {order.attempt} was sent {late_ms} ms too late")
        if order.contract.record_sending and attempt.sent_by_ms is None:
            self.fail("durable", f"{name}: its sending was to be recorded first")
        if self._contents.setdefault(order.ref, order.content) != order.content:
            self.fail("identity", f"{name}: attempt {order.attempt} sends another request")
        if (order.ref, order.attempt) in self._written:
            self.fail("once", f"{name}: attempt {order.attempt} was sent twice")
        self._written[order.ref, order.attempt] = order

    def took_effect(self, order: Order) -> None:
        """Check at every effect that it is the first, and that nothing recorded denies it."""
        record = self.records[self._by_ref[order.ref]]
        name, state = record.operation.id, record.operation.state
        effects = self.world.effects_of(order.ref)
        excused = order.contract.duplicates_acceptable or order.ref in self.risked
        if effects > 1 and not excused:
            self.fail("doubled", f"{name} ({order.contract.effect}) took effect {effects} times")
        if self._says_nothing_done(record):
            cause = record.operation.cause
            self.fail("proof", f"{name} takes effect while it is {state} ({cause})")
        seen = record.attempts[order.attempt - 1].seen
        if seen in PROVEN_HARMLESS:
            self.fail("proof", f"{name}: attempt {order.attempt} is {seen}, and acts")

    def key_forgotten(self, order: Order) -> None:
        """Check that nothing is sent any more under a key that may be forgotten."""
        if not self.clock_was_set:
            self.fail("key", f"{order.name} arrives when the provider has forgotten its key")

    # --- what callers are told -------------------------------------------------------------------

    def told(self, outcome: Outcome) -> None:
        """Check a word to a caller: it is never lost, and never more than is proven."""
        if not outcome.version:
            return  # refused before there was any operation
        self.acknowledged.add(outcome.operation_id)
        record = self.records.get(outcome.operation_id)
        if record is None:
            self.fail("lost", f"{outcome.operation_id} was acknowledged, and is not recorded")
            return
        effects = self.world.effects_of(record.operation.ref)
        free = record.operation.effect in WITHOUT_EFFECT
        if outcome.status == Status.SUCCEEDED and not effects and not free:
            self.fail("told", f"{outcome.operation_id} is said to have succeeded")
        if outcome.status == Status.FAILED_SAFE_TO_RETRY and effects and not free:
            self.fail("told", f"{outcome.operation_id} is said to be safe to repeat")

    # --- at the end ------------------------------------------------------------------------------

    def unsettled(self) -> list[str]:
        """Return what is neither settled nor, past its deadline, in a person's hands."""
        return [name for name, record in self.records.items() if not self._rests(record)]

    def _rests(self, record: Record) -> bool:
        operation = record.operation
        if operation.state.ends or operation.state is State.MANUAL_REVIEW:
            return True
        contract = self._contracts[operation.tool]
        deadline_ms = operation.deadline_ms or operation.completes_by_ms
        past = deadline_ms is not None and self._now_ms() >= deadline_ms
        return not contract.review and past

    def states(self) -> Counter[str]:
        """Count states, as they were last seen."""
        return Counter(record.operation.state.value for record in self.records.values())

    def ended(self) -> Counter[str]:
        """Check the whole ledger once more, from what it holds, and count states."""
        states: Counter[str] = Counter()
        for name in self.unsettled():
            record = self.records[name]
            self.fail("deadline", f"{name} is still {record.operation.state}")
        for name in sorted(self.acknowledged - self.records.keys()):
            self.fail("lost", f"{name} was acknowledged, and is not recorded")
        for name in self.records:
            stored, entries = self._ledger.read(partial(_stored, name))
            if stored is None:
                self.fail("lost", f"{name} is gone")
                continue
            self._check_replay(stored, [e for e in entries if e.kind is not Kind.REFUSAL])
            self._check_truth(stored)
            states[stored.operation.state.value] += 1
        return states


def _stored(name: str, tx: Transaction) -> tuple[Record | None, list[Entry]]:
    return operations.load(tx, TENANT, name), journal.journal_of(tx, TENANT, name)
