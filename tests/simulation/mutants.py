"""Deliberate faults in our own code, and by which invariant each is found."""
# ruff: noqa: SLF001 - a fault is put into what is private too

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from unittest.mock import patch

from doubtless.core import answers, evidence, permission, progress, settling
from doubtless.core.model import Cause, Principal, Role, Seen, Shows, State
from doubtless.engine import steps
from doubtless.errors import LedgerError
from doubtless.ledger import attempts, journal, operations
from doubtless.ledger.journal import Kind
from doubtless.testing import simulate_faults, simulate_run
from doubtless.testing.simulate_gaps import Gaps
from doubtless.testing.simulate_ledger import SimulatedLedger

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One fault: what stands where in place of our own code."""

    found_by: set[str]
    places: tuple[tuple[object, str, object], ...]

    @contextmanager
    def at_work(self):
        with ExitStack() as stack:
            for holder, name, fault in self.places:
                stack.enter_context(patch.object(holder, name, fault))
            yield


# --- the gate ------------------------------------------------------------------------------------


def gate_always_opens(record, contract, now, *, attempt, fence):
    return permission.Pass(write_by_ms=now.ms + HOUR_MS)


real_gate = permission.gate


def gate_stays_open(record, contract, now, *, attempt, fence):
    found = real_gate(record, contract, now, attempt=attempt, fence=fence)
    return found if isinstance(found, str) else permission.Pass(write_by_ms=now.ms + HOUR_MS)


# --- recovery and ends ---------------------------------------------------------------------------

real_recover, real_advance = progress.recover, steps.advance


def crash_is_proof(record, contract, now, liveness):
    return real_recover(record, replace(contract, record_sending=True), now, liveness)


def recovery_sends(book, tx, operation_id):
    record, contract = book.load(tx, operation_id)
    crashed = record.operation.cause is Cause.CRASH
    if record.operation.state is not State.UNKNOWN or not crashed or len(record.attempts) > 3:
        return real_advance(book, tx, operation_id)
    return book.begin(tx, record, contract, resend=True)


def finish_ignores_the_fence(book, tx, begun, ending):
    record, contract = book.load(tx, begun.record.operation.id)
    now, stored = book.now(tx), record.operation
    record, attempt, item = progress.end(
        record, contract, now, ending.observation, sent_by_ms=ending.sent_by_ms, closed_ms=now.ms
    )
    steps._write_end(book, tx, stored.id, attempt, item)
    return book.store(
        tx, record, contract, settling.settle(record, contract, now), now, stored=stored
    )


# --- the ledger ----------------------------------------------------------------------------------

real_run = SimulatedLedger._run


class TakenBack(LedgerError):
    pass


def answers_before_the_commit(ledger, work, *, fails_at):
    found = []

    def tried(tx):
        found.append(work(tx))
        raise TakenBack

    try:
        ledger._real.write(tried)
    except TakenBack:
        ledger._loop.call_later(0.2, partial(commits, ledger, work))
    return found[0]


def commits(ledger, work):
    try:
        real_run(ledger, work, fails_at=0)
    except LedgerError:
        return


real_append = journal.append


def journal_forgets_evidence(tx, tenant, operation_id, kind, principal, data):
    if kind is not Kind.EVIDENCE:
        real_append(tx, tenant, operation_id, kind, principal, data)


def with_rates(**rates):
    """Return what makes some faults frequent, where a fault of ours shows in few runs else."""
    changed = {name.replace("__", "."): rate for name, rate in rates.items()}
    return (
        (simulate_faults, "RATES", {**simulate_faults.RATES, **changed}),
        (simulate_faults, "MOODS", (1.0,)),
        (simulate_run, "PROCESSES", (3,)),
    )


MANY_CRASHES = with_rates(crash__after_write=0.5, crash__before_record=0.4)
LONG_STALLS = (
    *with_rates(
        stall__after_prepare=0.5,
        stall__after_step=0.5,
        stall__before_gate=0.5,
        stall__in_gate=0.5,
    ),
    (Gaps, "length_s", lambda _: 40.0),  # longer than every lease
)

MUTANTS = {
    "the gate is always open": Mutant(
        found_by={"fence", "void"}, places=((permission, "gate", gate_always_opens),)
    ),
    "the gate has no end": Mutant(
        found_by={"fence", "void"}, places=((permission, "gate", gate_stays_open),)
    ),
    "absence is confirmed at once": Mutant(
        found_by={"proof", "doubled"}, places=((evidence, "_counted", lambda *_: 99),)
    ),
    "nothing is on its way": Mutant(
        found_by={"proof", "doubled"}, places=((evidence, "arrives_until_ms", lambda *_: 0),)
    ),
    "a crash is proof": Mutant(found_by={"proof"}, places=((progress, "recover", crash_is_proof),)),
    "recovery sends again": Mutant(
        found_by={"doubled"}, places=((steps, "advance", recovery_sends), *MANY_CRASHES)
    ),
    "an end ignores the fence": Mutant(
        found_by={"proof"},
        places=((steps, "finish", finish_ignores_the_fence), *LONG_STALLS),
    ),
    "the ledger answers before the commit": Mutant(
        found_by={"durable", "lost", "fault"},
        places=((SimulatedLedger, "_run", answers_before_the_commit),),
    ),
    "no answer is a proof": Mutant(
        found_by={"proof", "doubled"},
        places=((answers, "SHOWS", {**answers.SHOWS, Seen.UNKNOWN: Shows.NOT_SENT}),),
    ),
    "the journal forgets evidence": Mutant(
        found_by={"replay"}, places=((attempts, "append", journal_forgets_evidence),)
    ),
    "nothing is ever due": Mutant(
        found_by={"deadline"}, places=((operations, "due", lambda *_: []),)
    ),
    "an agent settles": Mutant(
        found_by={"roles"},
        places=((steps, "WORKER", Principal(name="alpha", role=Role.AGENT)),),
    ),
}
