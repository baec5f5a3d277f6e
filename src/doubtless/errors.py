"""Every exception that doubtless raises.

An unknown outcome is no exception: it is a value, `Outcome.status`.

    DoubtlessError
    ├── ContractError            a contract file does not load: every problem at once
    ├── SettingsError            a setting or a credential is missing or wrong
    ├── BadRequest               what was asked can't be carried out as it was written
    │   ├── UnknownTool
    │   ├── BadArguments
    │   ├── BadOperationId
    │   ├── BadSequence          `after`, `on_unknown` or `supersedes` can't be meant
    │   ├── TemplateError        a value is missing, or does not fit its place (engine.templates)
    │   ├── OperationNotFound
    │   ├── ExhibitNotFound
    │   ├── NotWatched           no page of it is open in this process
    │   ├── TokenNotFound
    │   ├── UnknownSource
    │   ├── BadEvent
    │   ├── EventNotFound
    │   └── BadCursor
    ├── ExpressionError          an expression can't be evaluated here (engine.expressions)
    ├── DecisionRefused          an operator's decision is not legal in this state
    │   ├── PayloadNotShown      what was shown is not what would be executed
    │   └── StaleVersion         somebody else decided, or something happened, meanwhile
    ├── TransactionError         app.transaction(): nothing of it was committed
    │   ├── InsideTransaction    it would wait for the transaction that it is called in
    │   ├── TransactionTimedOut  it was open for too long, and was rolled back
    │   ├── TransactionOver      it has ended already
    │   ├── StatementRefused     a statement that is not for a transaction of the user's
    │   ├── NotPrepared          policy refused the operation
    │   └── ForeignConnection    a connection that the ledger can't share a transaction with
    ├── GrantRefused             a session-wide approval that can't be given
    ├── ApprovalNotFound         no session-wide approval of that id in that session
    ├── ServiceError             a remote application's service (engine.remote)
    │   ├── ServiceUnavailable   it was not reached, or takes nothing now
    │   └── NotPermitted         no token, or none that may do this
    ├── EffectError              what an engine's step, activity or task is told (integrations)
    │   ├── NotDone              nothing happened, and the engine's own retry may act
    │   └── WontBeDone           it failed or was refused for good: a retry would be told the same
    ├── NoIdentity               an adapter can't tell which operation is meant (integrations)
    ├── IllegalTransition        a fault of ours: the table knows no such step
    ├── GateClosed               an attempt lost its permission before the first byte
    ├── LedgerError
    │   ├── LedgerUnavailable    a write failed: nothing is sent
    │   ├── LedgerOutdated       an older schema: migrate first
    │   └── LedgerUnsafe         a durability setting that could lose commits
    └── Proof                    raised by the author of a tool, never by doubtless itself
        ├── NotSent              nothing left this process
        └── Rejected             the other side refused, definitely
"""

from collections.abc import Sequence
from dataclasses import dataclass


class DoubtlessError(Exception):
    """The root of all exceptions here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong in a file, and how to mend it."""

    file: str
    table: str  # "tools.create_refund.lookup", "" for the whole file
    key: str  # "" where the table itself is meant
    wrong: str
    mend: str

    def __str__(self) -> str:
        place = ".".join(part for part in (self.table, self.key) if part) or "(file)"
        return f"{self.file}: {place}: {self.wrong} Mend: {self.mend}"


class ContractError(DoubtlessError):
    """A contract file doesn't load. `problems` holds all of them, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class SettingsError(DoubtlessError):
    """A setting or a credential is missing or wrong; the text names the place and the mend."""


class BadRequest(DoubtlessError):
    """What was asked can't be carried out as it was written. Nothing was recorded or sent."""


class UnknownTool(BadRequest):
    """No contract is registered under that name."""

    def __init__(self, tool: str, known: Sequence[str] = ()) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(f"no tool named {tool!r} is declared. Declared tools: {names}")
        self.tool = tool


class BadArguments(BadRequest):
    """The arguments don't fit the tool's JSON Schema, or can't be written as canonical JSON."""

    def __init__(self, tool: str, where: str, wrong: str) -> None:
        super().__init__(f"arguments of {tool}: {where or '(top)'}: {wrong}")
        self.tool, self.where, self.wrong = tool, where, wrong


class BadOperationId(BadRequest):
    """An operation id must match [A-Za-z0-9._:-]{1,128}."""

    def __init__(self, operation_id: str) -> None:
        shown = operation_id[:140]
        super().__init__(f"operation id {shown!r} must be 1 to 128 of A-Z a-z 0-9 . _ : -")
        self.operation_id = operation_id


class BadSequence(BadRequest):
    """`after`, `on_unknown` or `supersedes` can't be meant. `operation_id` is the one at fault."""

    def __init__(self, wrong: str, *, operation_id: str | None = None) -> None:
        super().__init__(wrong)
        self.operation_id = operation_id


class OperationNotFound(BadRequest):
    """There is no such operation, or it belongs to another principal."""

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"no operation {operation_id!r} in this ledger")
        self.operation_id = operation_id


class ExhibitNotFound(BadRequest):
    """Nothing of that name was kept of an operation's attempts."""

    def __init__(self, operation_id: str, name: str) -> None:
        super().__init__(
            f"operation {operation_id!r} has no exhibit {name[:140]!r}: "
            "`doubtless operations show` names those it has"
        )
        self.operation_id, self.name = operation_id, name


class NotWatched(BadRequest):
    """No page of an operation is open in this process; the text says what there is instead."""

    def __init__(self, operation_id: str, instead: str) -> None:
        super().__init__(f"no page of operation {operation_id!r} is open here: {instead}")
        self.operation_id, self.instead = operation_id, instead


class TokenNotFound(BadRequest):
    """There is no such token."""

    def __init__(self, token_id: str) -> None:
        super().__init__(f"no token {token_id!r}: `doubtless token list` names them")
        self.token_id = token_id


class UnknownSource(BadRequest):
    """No events can come from a source of that name."""

    def __init__(self, source: str, known: Sequence[str] = ()) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"no events are declared of a source named {source[:140]!r}. Sources with events: "
            f"{names}; declare [sources.….webhook] and [tools.….events]"
        )
        self.source = source


class BadEvent(BadRequest):
    """An event can't be read: it is no JSON object, or what was said of it makes no sense."""


class EventNotFound(BadRequest):
    """There is no such event, or more than one is called so."""

    def __init__(self, event: str, why: str = "no such event in this ledger") -> None:
        super().__init__(f"event {event[:140]!r}: {why}")
        self.event = event


class BadCursor(BadRequest):
    """A page can't be continued from there."""

    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor[:140]!r} is no cursor: give back that of the page before")
        self.cursor = cursor


class DecisionRefused(DoubtlessError):
    """An operator's decision is not legal here; the operation is as it was."""

    def __init__(self, operation_id: str, why: str) -> None:
        super().__init__(f"{operation_id}: {why}")
        self.operation_id, self.why = operation_id, why


class StaleVersion(DecisionRefused):
    """The operation changed since it was read; `version` is the current one."""

    def __init__(self, operation_id: str, *, expected: int, version: int) -> None:
        super().__init__(
            operation_id, f"decided on version {expected}, but it is {version} now: look again"
        )
        self.expected, self.version = expected, version


class PayloadNotShown(DecisionRefused):
    """An approval or denial of another payload than the one that would be executed."""

    def __init__(self, operation_id: str, *, shown: str, stored: str) -> None:
        why = f"decided on payload {shown[:80]}, but {stored} would be executed: look again"
        super().__init__(operation_id, why)
        self.shown, self.stored = shown, stored


class TransactionError(DoubtlessError):
    """Something about a transaction of the user's."""


class InsideTransaction(TransactionError):
    """A call inside `app.transaction()` that would wait for what only the transaction can end."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} inside app.transaction(): it would wait for the write lock that the"
            " transaction holds. Use tx.prepare, or call it after the block"
        )
        self.what = what


class TransactionTimedOut(TransactionError):
    """A transaction was open for longer than it may: it was rolled back, and left nothing."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            f"app.transaction() was open for more than {limit_s:g} s, and was rolled back: nothing"
            " of it was recorded. While it is open nobody else can write. Do slow work before it,"
            " or set transaction_timeout_s"
        )
        self.limit_s = limit_s


class TransactionOver(TransactionError):
    """A transaction was used after it had ended, or a statement ended it."""


class StatementRefused(TransactionError):
    """A statement that a transaction of the user's doesn't carry out. The others stand."""


class NotPrepared(TransactionError):
    """The operation was not prepared, and will not be carried out.

    Let it leave the block, and what was done in the transaction is rolled back with it.
    `operation_id` is the one that was asked for, if one was; `status` and `code` are those of the
    outcome that a call would have been told.
    """

    def __init__(self, message: str, *, operation_id: str, status: str, code: str | None) -> None:
        super().__init__(message)
        self.operation_id, self.status, self.code = operation_id, status, code


class ForeignConnection(TransactionError):
    """A connection of somebody else's, with which no transaction can be shared."""


class GrantRefused(DoubtlessError):
    """A session-wide approval can't be given like this. Nothing was stored."""


class ApprovalNotFound(DoubtlessError):
    """There is no session-wide approval of that id in that session."""

    def __init__(self, session_id: str, approval_id: str) -> None:
        super().__init__(f"no approval {approval_id!r} in session {session_id!r}")
        self.session_id, self.approval_id = session_id, approval_id


class ServiceError(DoubtlessError):
    """A remote application's service did not do what was asked."""


class ServiceUnavailable(ServiceError):
    """The service was not reached in time, or failed. What was asked may have been recorded.

    `request_id` and `operation_id` are those of a call: under them it can be repeated and asked
    for, and means the same operation. None where it was no call.
    """

    def __init__(
        self, why: str, *, request_id: str | None = None, operation_id: str | None = None
    ) -> None:
        super().__init__(why)
        self.request_id, self.operation_id = request_id, operation_id


class NotPermitted(ServiceError):
    """The service knows no such token, or its role may not do this. Nothing was done."""


class EffectError(DoubtlessError):
    """An engine's step, activity or task ended without its effect. It travels as engines need it.

    `operation_id`, `status` and `code` are those of the outcome.
    """

    def __init__(
        self, message: str, *, operation_id: str = "", status: str = "", code: str | None = None
    ) -> None:
        super().__init__(message)
        self.operation_id, self.status, self.code = operation_id, status, code


class NotDone(EffectError):
    """It provably had no effect, and a repeat of the same operation may act: retry it."""


class WontBeDone(EffectError):
    """It had no effect and will not have any, or was refused: a retry would be told the same."""


class NoIdentity(DoubtlessError):
    """An adapter can't tell which operation is meant, so nothing was sent."""


class IllegalTransition(DoubtlessError):
    """The transition table knows no such step. A fault of ours, never of a caller."""

    def __init__(self, source: str, target: str, reason: str = "") -> None:
        super().__init__(
            f"{source} → {target} is not a transition" + (f": {reason}" if reason else "")
        )
        self.source, self.target = source, target


class GateClosed(DoubtlessError):
    """The attempt lost its permission before the first byte: nothing of it was sent."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class LedgerError(DoubtlessError):
    """Something about the ledger itself."""


class LedgerUnavailable(LedgerError):
    """A read or write of the ledger failed. Nothing is sent that isn't recorded."""


class LedgerOutdated(LedgerError):
    """The ledger's schema is older or newer than this release."""


class LedgerUnsafe(LedgerError):
    """The database would not keep what it acknowledges."""


class Proof(DoubtlessError):
    """Raised inside a function tool by its author, to say what is known for certain."""


class NotSent(Proof):
    """Nothing left this process: the effect can't have happened."""


class Rejected(Proof):
    """The other side refused definitely: the effect did not and will not happen."""
