"""Carrying an attempt out: act through a transport, and witness what came of it.

The only module that sees the transports and the ledger at once. An attempt is carried out in a task
of its own, so that whoever asked for it may give up or be cancelled: it runs on to its own time-out
and is recorded. What comes after that is recorded as late evidence.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.abc

from doubtless.core import answers
from doubtless.core.answers import Answer
from doubtless.core.contract import Kind
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import (
    Cause,
    Observation,
    Record,
    Seen,
    Stage,
)
from doubtless.engine import acting, reading, steps
from doubtless.engine.acting import Act, Gate
from doubtless.engine.actions import Actions, Errands
from doubtless.engine.book import Begun, Book
from doubtless.engine.credentials import Credentials
from doubtless.engine.launching import Launcher
from doubtless.engine.steps import Ending, Opened
from doubtless.engine.tools import Call
from doubtless.errors import DoubtlessError, LedgerError, LedgerUnavailable, NotSent
from doubtless.ledger.store import Ledger, Transaction
from doubtless.transports.base import HttpRequest, HttpSender, Reply
from doubtless.transports.function import Body, FunctionTransport

RECORD_TRIES = 5  # to record an end; between them 50 ms, doubling
RECORD_PAUSE_S = 0.05


_log = logging.getLogger("doubtless.engine")


class Runner:
    """Carries attempts out and records them. One for each open application.

    Args:
        ledger: Where everything is recorded.
        book: The ledger as the engine sees it.
        credentials: Found at every send, and kept nowhere.
        http: Sends the requests of contracts.
        actions: Carries out what is neither a request nor a function.
        tasks: Outlives every caller.
        changed: Called after an end was stored, with the record and the result, if there is one.
    """

    def __init__(
        self,
        *,
        ledger: Ledger,
        book: Book,
        credentials: Credentials,
        http: HttpSender,
        actions: Actions,
        tasks: anyio.abc.TaskGroup,
        changed: Callable[[Record, bytes | None], None],
    ) -> None:
        self._ledger, self._book, self._credentials = ledger, book, credentials
        self._http = http
        self._actions, self._errands = actions, Errands(ledger, book)
        self._functions = FunctionTransport(book.surroundings.boot_s)
        self._tasks, self._changed = tasks, changed
        self._open_attempts = 0  # those that only wait for a late answer left out
        self._idle = anyio.Event()
        self._launcher = Launcher(tasks)

    def start(self, begun: Begun) -> None:
        """Carry an attempt out in a task of its own. May be called outside of any task."""
        self._launcher.launch(self.carry_out, begun)

    async def carry_out(self, begun: Begun) -> None:
        """Carry an attempt out to its end or its time-out, and record what came of it.

        Never raises but when it is cancelled; then too, what was seen is recorded first.
        """
        self._open_attempts += 1
        try:
            act = self._act(begun)
            try:
                ending = await self._watched(act)
            except anyio.get_cancelled_exc_class():
                act.gate.is_shut = True
                with anyio.CancelScope(shield=True):
                    await self._record(begun, self._stopped(act, runs_on=self._in_thread(act)))
                raise
            await self._record(begun, ending)
        finally:
            self._open_attempts -= 1
            if not self._open_attempts:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no attempt is open."""
        await self._launcher.started()
        while self._open_attempts:
            self._idle = anyio.Event()
            await self._idle.wait()

    # --- acting ----------------------------------------------------------------------------------

    def _act(self, begun: Begun) -> Act:
        marks = begun.contract.record_sending

        def unit(tx: Transaction) -> Opened | str:
            return steps.open_gate(self._book, tx, begun, mark=marks)

        async def ask() -> Opened | str:
            return await self._ledger.commit(unit) if marks else self._ledger.read(unit)

        return Act(begun=begun, gate=Gate(ask, self._book.surroundings.boot_s))

    async def _watched(self, act: Act) -> Ending:
        """Run the action up to its time-out, and say how the attempt ended.

        What was wholly handed over by then is left to bring its late answer.
        """
        contract = act.begun.contract
        body = self._body(act.begun)
        if body is not None and body.is_async:
            with anyio.move_on_after(contract.timeout_ms / 1000):
                await self._perform(act, body)
            return self._ending(act) if act.replied() else self._stopped(act, timed_out=True)
        self._tasks.start_soon(self._in_background, act, body)
        with anyio.move_on_after(contract.timeout_ms / 1000):
            await act.done.wait()
        if act.replied():
            return self._ending(act)
        act.gate.is_shut = True
        in_thread = self._in_thread(act)
        if not in_thread and not act.watch.written:
            act.scope.cancel()  # it must not write any more
            with anyio.CancelScope(shield=True):
                await act.done.wait()
            return self._ending(act) if act.replied() else self._stopped(act, timed_out=True)
        self._tasks.start_soon(self._late, act)
        return self._stopped(act, timed_out=True, runs_on=in_thread)

    def _in_thread(self, act: Act) -> bool:
        """Whether a thread may be at work for it, which nothing can stop."""
        body = self._body(act.begun)
        started = act.gate.opened_ms is not None and not act.replied()
        return body is not None and not body.is_async and started

    def _stopped(self, act: Act, *, timed_out: bool = False, runs_on: bool = False) -> Ending:
        sent_by_ms = act.sent_by_ms(self._book.surroundings.boot_s)
        return acting.stopped(act, sent_by_ms, timed_out=timed_out, runs_on=runs_on)

    async def _in_background(self, act: Act, body: Body | None) -> None:
        try:
            with act.scope:
                await self._perform(act, body)
        finally:
            act.done.set()

    async def _late(self, act: Act) -> None:
        """Record the answer that came after the time-out, if it comes."""
        await act.done.wait()
        if act.replied():
            ending = self._ending(act)
            if act.begun.contract.kind is Kind.FUNCTION:
                # What its thread sent last may itself still be on the way.
                ending = replace(ending, closes_in_ms=act.begun.contract.horizon_ms)
            await self._record(act.begun, ending)

    async def _perform(self, act: Act, body: Body | None) -> None:
        """Act once, and keep the reply. Whatever goes wrong on our side proves nothing."""
        try:
            if act.begun.contract.kind is Kind.HTTP:
                act.reply = await self._send(act)
            elif act.begun.contract.kind is not Kind.FUNCTION:
                act.reply = await self._do(act)
            elif body is None:
                why = "its function is not registered in this process"
                act.reply = Reply(stage=Stage.OPENED, proof=Seen.NOT_SENT, detail=why)
            else:
                act.reply = await self._call(act, body)
        except DoubtlessError as error:
            act.reply = _failed_here(act, str(error))
        except Exception as error:  # noqa: BLE001 - see below
            # A fault of ours. It must neither end the application nor pass for a refusal.
            _log.exception("operation %s: the attempt failed", act.begun.record.operation.id)
            act.reply = _failed_here(act, f"{type(error).__name__} on our side")

    async def _send(self, act: Act) -> Reply:
        begun, contract = act.begun, act.begun.contract
        operation_id = begun.record.operation.id
        request = begun.request
        if request is None:
            request = self._ledger.read(lambda tx: self._book.request(tx, operation_id))
        if not isinstance(request, HttpRequest):
            raise LedgerError(f"{operation_id}: its rendered request is no longer stored")
        seconds = (contract.timeout_ms + contract.horizon_ms) / 1000
        return await self._http.perform(
            request,
            source=contract.source,
            private=lambda: self._private(begun),
            gate=act.gate,
            watch=act.watch,
            limit_s=seconds,
            fresh=contract.effect not in NO_EFFECT,
        )

    async def _do(self, act: Act) -> Reply:
        """Carry out an action of another kind; how things stood before it is durable first."""
        begun, contract = act.begun, act.begun.contract
        transport = self._actions.transport(contract.kind)
        errand = self._errands.errand(begun.record.operation.id, contract, begun.attempt.number)
        if errand.baseline is None:
            try:
                found = await transport.survey(errand)
            except NotSent as error:
                return Reply(stage=Stage.OPENED, proof=Seen.NOT_SENT, detail=str(error))
            errand = replace(errand, baseline=await self._errands.surveyed(begun, found))
        seconds = (contract.timeout_ms + contract.horizon_ms) / 1000
        return await transport.perform(errand, gate=act.gate, watch=act.watch, limit_s=seconds)

    def _private(self, begun: Begun, *, with_credentials: bool = True) -> dict[str, str]:
        source = begun.contract.source
        headers = self._credentials.headers(source) if with_credentials else {}
        if begun.contract.correlation_header is not None:
            headers[begun.contract.correlation_header] = begun.attempt.correlation_id
        return headers

    async def _call(self, act: Act, body: Body) -> Reply:
        begun = act.begun
        operation = begun.record.operation
        arguments = None if begun.payload is None else json.loads(begun.payload)
        if arguments is None:
            arguments = self._ledger.read(lambda tx: self._book.arguments(tx, operation.id))
        if arguments is None:
            raise LedgerError(f"{operation.id}: its arguments are no longer stored")
        call = self._new_call(begun)
        try:
            return await self._functions.perform(
                body,
                arguments,
                call,
                gate=act.gate,
                watch=act.watch,
                nothing_left=call.nothing_left,
                is_over=lambda: act.gate.is_shut,
            )
        finally:
            await call.aclose()

    def _new_call(self, begun: Begun) -> Call:
        operation, contract = begun.record.operation, begun.contract
        # Without an origin of its own, nothing says where a credential may go.
        bound = contract.source if contract.source.base_url else None
        headers = self._private(begun, with_credentials=bound is not None)
        if contract.key is not None:
            place = contract.key.name if contract.key.place == "header" else "Idempotency-Key"
            headers[place] = operation.key

        def applied(provider_operation_id: str | None) -> None:
            item = acting.applied(begun, provider_operation_id)
            self._ledger.write(lambda tx: steps.add(self._book, tx, operation.id, item))

        return Call(
            operation_id=operation.id,
            ref=operation.ref,
            idempotency_key=operation.key,
            correlation_id=begun.attempt.correlation_id,
            attempt=begun.attempt.number,
            headers=headers,
            source=bound,
            limit_s=contract.timeout_ms / 1000,
            applied=applied,
        )

    def _body(self, begun: Begun) -> Body | None:
        tool = self._book.registry.find(begun.contract.tool)
        return tool.body if tool is not None else None

    # --- witnessing ------------------------------------------------------------------------------

    def _ending(self, act: Act) -> Ending:
        """Read the reply, and classify it; one that can't be read is unknown, with its status."""
        try:
            return self._read(act)
        except Exception as error:  # noqa: BLE001 - whatever it is, what was seen is recorded
            _log.exception("operation %s: unreadable answer", act.begun.record.operation.id)
            seen = Observation(
                seen=Seen.UNKNOWN,
                stage=act.watch.stage,
                cause=Cause.UNREADABLE,
                detail=f"the answer could not be read: {type(error).__name__} on our side",
                status=act.reply.status if act.reply is not None else None,
            )
            sent_by_ms = act.sent_by_ms(self._book.surroundings.boot_s)
            return Ending(observation=seen, sent_by_ms=sent_by_ms)

    def _read(self, act: Act) -> Ending:
        reply, contract = act.reply, act.begun.contract
        assert reply is not None  # noqa: S101 - callers have seen it
        now_ms = self._book.surroundings.wall_ms()
        if contract.kind is not Kind.HTTP:
            answer = Answer(
                stage=reply.stage,
                proof=reply.proof,
                cause=reply.cause,
                detail=reply.detail,
                provider_operation_id=reply.provider_operation_id,
            )
            result: bytes | None = reply.body or None
            body, read = b"", None  # the value is the result: it is kept once
        else:
            answer, value = reading.answer_of(reply, contract, now_ms=now_ms)
            result = json.dumps(value, separators=(",", ":")).encode()
            body, read = reply.body, reading.read_of(reply, contract, now_ms=now_ms)
        observation = answers.classify(answer, contract)
        succeeded = observation.seen is Seen.SUCCEEDED
        return Ending(
            observation=observation,
            sent_by_ms=act.sent_by_ms(self._book.surroundings.boot_s),
            reply=body,
            exhibits=reply.exhibits,
            result=result if succeeded else None,
            read=json.dumps(read).encode() if read is not None and succeeded else None,
        )

    async def _record(self, begun: Begun, ending: Ending) -> None:
        """Store an end. It is tried again for a while: what was seen must not be lost."""
        for trial in range(RECORD_TRIES):
            try:
                record = await self._ledger.commit(
                    lambda tx: steps.finish(self._book, tx, begun, ending)
                )
            except LedgerUnavailable:
                await anyio.sleep(RECORD_PAUSE_S * 2**trial)
            except Exception:  # noqa: BLE001 - one end that can't be stored must not stop others
                _log.exception("operation %s: its end was not stored", begun.record.operation.id)
                return
            else:
                self._changed(record, ending.result)
                return
        _log.error(
            "operation %s: the ledger took no end of attempt %d; it will be found unknown",
            begun.record.operation.id,
            begun.attempt.number,
        )


def _failed_here(act: Act, detail: str) -> Reply:
    """Report a failure of this process: proof of nothing, unless the gate never opened."""
    unsent = act.gate.opened_ms is None
    act.gate.is_shut = True
    proof = Seen.NOT_SENT if unsent else None
    return Reply(stage=act.watch.stage, proof=proof, cause=Cause.TOOL_ERROR, detail=detail)
