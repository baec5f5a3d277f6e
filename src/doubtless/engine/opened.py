"""What an application consists of while it is open: the composition of the engine's parts."""

import asyncio

import anyio
import anyio.abc

from doubtless.core.model import Now, Principal, Record, Role, State
from doubtless.core.outcome import Outcome
from doubtless.engine import drafting, reports
from doubtless.engine.actions import Actions
from doubtless.engine.book import Book, Decided
from doubtless.engine.credentials import Credentials
from doubtless.engine.decisions import Decision
from doubtless.engine.deliveries import Bell
from doubtless.engine.dispatcher import Worker
from doubtless.engine.drafting import Ask
from doubtless.engine.intake import Met
from doubtless.engine.reconciler import Reconciler
from doubtless.engine.runner import Runner
from doubtless.engine.stopping import Stopper
from doubtless.engine.waiting import Known, Waiting
from doubtless.errors import BadOperationId, DecisionRefused, OperationNotFound
from doubtless.ledger import requests
from doubtless.ledger.news import News
from doubtless.ledger.store import Ledger, Transaction
from doubtless.transports.base import HttpSender

TRANSACTION_S = 5.0  # how long a transaction of the user's may keep everybody else from writing


class OpenApp:
    """What exists only while the application is open."""

    def __init__(
        self,
        ledger: Ledger,
        book: Book,
        http: HttpSender,
        tasks: anyio.abc.TaskGroup,
        credentials: Credentials,
        actions: Actions,
    ) -> None:
        self.ledger, self.book, self.tasks = ledger, book, tasks
        self.actions = actions
        self.waiting = Waiting(self.load)
        self.bell = Bell()  # rings when something was settled in this process
        self.worker_scope = anyio.CancelScope()
        self.transaction_timeout_s = TRANSACTION_S
        self.transactions = anyio.Semaphore(1)  # of the user's, one after the other
        self.transaction_threads = anyio.CapacityLimiter(2)  # tools that wait can't starve them
        self.runner = Runner(
            ledger=ledger,
            book=book,
            credentials=credentials,
            http=http,
            actions=actions,
            tasks=tasks,
            changed=self.changed,
        )
        self.stopper = Stopper(ledger, book, actions)
        reconciler = Reconciler(
            ledger=ledger,
            book=book,
            credentials=credentials,
            http=http,
            actions=actions,
            changed=self.changed,
        )
        self._worker = Worker(
            ledger=ledger,
            book=book,
            runner=self.runner,
            reconciler=reconciler,
            tasks=tasks,
            changed=self._tell,
        )

    async def work(self) -> None:
        """Run the worker until the application is closed."""
        with self.worker_scope:
            await self._worker.run()

    async def listen(self) -> None:
        """Hear what other processes commit, until the application is closed."""
        await self.ledger.listen(self._heard)

    def _heard(self, news: News) -> None:
        self.waiting.heard(news)
        if news.ended:
            self.bell.ring()
        if news.due:
            self._worker.hint()

    def go_on(self, decided: Met | Decided) -> None:
        """Carry out the attempt that was just opened, whether or not its caller still waits."""
        if decided.begun is not None:
            self.runner.start(decided.begun)
        elif not (isinstance(decided, Met) and decided.joined):
            self._worker.poke()  # it waits, or has made others due

    async def committed(self) -> None:
        """Wait until all that was handed to the ledger has ended, and attempts of it have begun.

        A caller that was cancelled doesn't wait for its own.
        """
        last = asyncio.ensure_future(self.ledger.commit(_nothing))
        last.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            await asyncio.wait({last})
        finally:
            last.cancel()

    def poke(self) -> None:
        """Let the worker look at the ledger now."""
        self._worker.poke()

    def changed(self, record: Record, result: bytes | None = None) -> None:
        """Tell whoever waits for an operation, and the worker if something is due for it."""
        self._tell(record, result)
        passed_on = record.operation.id in self.book.passed_on
        self.book.passed_on.discard(record.operation.id)
        if passed_on or not record.operation.state.ends:
            self._worker.poke()

    def _tell(self, record: Record, result: bytes | None = None) -> None:
        self.waiting.changed(record, result)
        if record.operation.state.ends:
            self.bell.ring()

    def load(self, operation_id: str) -> Record:
        """Read one operation."""
        if not operation_id.isascii():
            raise BadOperationId(operation_id)
        return self.ledger.read(lambda tx: self._found(tx, operation_id))

    def _found(self, tx: Transaction, operation_id: str) -> Record:
        """Load an operation by its own id, or by that of a request which joined it."""
        try:
            return self.book.load(tx, operation_id)[0]
        except OperationNotFound:
            joined = requests.joined(tx, self.book.tenant, operation_id)
            if joined is None:
                raise
            return self.book.load(tx, joined)[0]

    def check_owner(self, operation_id: str, principal: Principal) -> None:
        """Be sure that an operation is the principal's own. To an operator all are.

        Raises:
            OperationNotFound: It is not, or there is none; which of both isn't told.
        """
        found = self.load(operation_id).operation
        if principal.role is not Role.OPERATOR and found.principal != principal.name:
            raise OperationNotFound(operation_id)

    def outcome(self, known: Known, *, already_done: bool = False) -> Outcome:
        """Say what is known of an operation."""
        record = known.record

        def unit(tx: Transaction) -> Outcome:
            contract = self.book.contract(tx, record.operation)
            now = self.book.now(tx)
            return reports.outcome(self.book, tx, record, contract, now, already_done=already_done)

        contract = self.book.registry.by_digest(record.operation.contract_digest)
        plain = contract is not None and contract.read is None
        if contract is None or not plain or record.operation.state is not State.SUCCEEDED:
            return self.ledger.read(unit)
        if known.result is None:
            return self.ledger.read(unit)
        # All of it is at hand, and a success doesn't depend on the time.
        now = Now(ms=self.book.surroundings.wall_ms())
        return reports.succeeded(record, contract, now, known.result, already_done=already_done)

    def outcome_in(self, tx: Transaction, operation_id: str) -> Outcome:
        """Say what is known of an operation, within a transaction."""
        record, contract = self.book.load(tx, operation_id)
        return reports.outcome(self.book, tx, record, contract, self.book.now(tx))

    def draft_again(self, decision: Decision) -> Ask:
        """Draft the new operation of an operator's `again`, from what the old one asked for."""
        record = self.load(decision.operation_id)
        arguments = self.ledger.read(lambda tx: self.book.arguments(tx, record.operation.id))
        if arguments is None:
            why = "what it asked for is not kept any more: make the call again in its place"
            raise DecisionRefused(record.operation.id, why)
        old = record.operation
        return drafting.draft(
            self.book,
            self.book.registry.tool(old.tool),
            arguments,
            principal=Principal(name=old.principal, role=Role.AGENT),
            operation_id=self.book.surroundings.new_id(),
            session_id=old.session_id,
            correlation_id=old.correlation_id,
            supersedes=old.id,
            duplicate_of=old.id if decision.mark_duplicate else None,
        )


class _Nothing(Exception):
    """There is nothing to commit."""


def _nothing(_: Transaction) -> None:
    raise _Nothing
