"""The ledger as the engine sees it: an operation is loaded whole, and stored with its reasons.

What is done here happens within one transaction and touches nothing outside.
"""

import base64
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from doubtless.core import progress
from doubtless.core.approvals import relies_on
from doubtless.core.contract import Contract, Kind
from doubtless.core.evidence import weigh
from doubtless.core.lifecycle import Need
from doubtless.core.model import (
    Attempt,
    Grant,
    Json,
    Now,
    Operation,
    Principal,
    Record,
    Role,
    State,
)
from doubtless.core.reasons import explain
from doubtless.core.settling import Change
from doubtless.engine import counting, turns
from doubtless.engine.registry import Registry
from doubtless.engine.surroundings import Surroundings
from doubtless.errors import LedgerError, OperationNotFound, SettingsError
from doubtless.ledger import attempts, bodies, claims, grants, operations
from doubtless.ledger.store import Transaction
from doubtless.ledger.transaction import LedgerConflict
from doubtless.transports.base import Action, HttpRequest

BASELINE = "baseline"  # the kind of body that says how things stood before the first attempt
EXHIBIT = "exhibit:"  # before its name, in the kind of a body that is for people to look at

WORKER = Principal(name="worker", role=Role.WORKER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """An attempt is open and durable; it may be carried out now.

    `record` is all that the ledger knew when it was opened. As long as the version is the same,
    nothing was learnt since.
    """

    record: Record
    contract: Contract
    attempt: Attempt
    payload: bytes | None = None  # canonical JSON of the arguments; None: it stands in the ledger
    request: HttpRequest | Action | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """A lease for asking the look-ups is held."""

    record: Record
    contract: Contract


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What followed: the operation to report on, and an attempt to carry out, if there is one."""

    operation_id: str
    begun: Begun | None = None


TENANT: Final = "main"
# No capitals: lists find their index by the lower-case name (see 0006_listing).
_TENANT: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


def checked_tenant(name: str) -> str:
    """Return a tenant's name.

    Raises:
        SettingsError: It can't be one.
    """
    if not _TENANT.fullmatch(name):
        raise SettingsError(
            f"{name[:80]!r} can't be a tenant's name: use up to 64 of a-z 0-9 _ -, beginning with a"
            " letter or a digit"
        )
    return name


def namespace(ledger_id: bytes, tenant: str) -> bytes:
    """Return what a tenant's keys are made from: two tenants may use one operation id.

    Were it the ledger's alone, both would show a provider the same key.
    """
    if tenant == TENANT:
        return ledger_id
    return sha256(ledger_id + tenant.encode()).digest()[:16]


class Book:
    """The units of one process on one ledger, for one tenant."""

    def __init__(
        self,
        registry: Registry,
        surroundings: Surroundings,
        ledger_id: bytes,
        *,
        tenant: str = TENANT,
    ) -> None:
        self.registry = registry
        self.surroundings = surroundings
        self.ledger_id = namespace(ledger_id, tenant)
        self.tenant = tenant
        self.passed_on: set[str] = set()  # operations whose step has made others due
        self.kept: set[str] = set()  # digests of contracts whose snapshot is surely in the ledger

    # --- reading ---------------------------------------------------------------------------------

    def now(self, tx: Transaction) -> Now:
        """Return the ledger's clock, and when it last could not be trusted."""
        return Now(ms=tx.now_ms, break_ms=tx.break_ms)

    def contract(self, tx: Transaction, operation: Operation) -> Contract:
        """Return the contract that an operation was prepared with."""

        def snapshot() -> str:
            text = bodies.contract(tx, self.tenant, operation.contract_digest)
            if text is None:
                raise LedgerError(f"{operation.id}: the snapshot of its contract is missing")
            return text

        return self.registry.contract(operation.contract_digest, snapshot)

    def load(self, tx: Transaction, operation_id: str) -> tuple[Record, Contract]:
        """Return an operation with everything that its next step is decided from.

        Raises:
            OperationNotFound: There is no such operation.
        """
        record = operations.load(tx, self.tenant, operation_id)
        if record is None:
            raise OperationNotFound(operation_id)
        contract = self.contract(tx, record.operation)
        if contract.latest_wins:
            again = operations.load(tx, self.tenant, operation_id, latest_wins=True)
            record = again or record
        if record.operation.needs_approval:
            record = replace(record, grants=self._grants(tx, record.operation))
        if record.operation.state is State.FAILED:
            record = replace(record, newer_twin=operations.later_twin(tx, record.operation))
        return record, contract

    def _grants(self, tx: Transaction, operation: Operation) -> tuple[Grant, ...]:
        return grants.binding(
            tx,
            self.tenant,
            session_id=operation.session_id,
            principal=operation.principal,
            tool=operation.tool,
        )

    def current(self, tx: Transaction, begun: Begun) -> tuple[Record, Contract]:
        """Return what is known now of an operation whose attempt is open.

        As long as its version is the same, nothing was learnt about it since; only what stands in
        other operations may have changed.
        """
        record, contract = begun.record, begun.contract
        alone = not (contract.latest_wins or record.blockers or record.operation.needs_approval)
        version = operations.version_of(tx, self.tenant, record.operation.id)
        if alone and version == record.operation.version:
            return record, contract
        return self.load(tx, record.operation.id)

    def arguments(self, tx: Transaction, operation_id: str) -> dict[str, Json] | None:
        """Return what was asked for; None once retention has emptied it."""
        payload = bodies.body(tx, self.tenant, operation_id, "payload")
        return None if payload is None else json.loads(payload)

    def request(self, tx: Transaction, operation_id: str) -> HttpRequest | Action | None:
        """Return the rendered request or action: the same for every attempt."""
        text = bodies.body(tx, self.tenant, operation_id, "request")
        return None if text is None else load_request(text)

    # --- attempts --------------------------------------------------------------------------------

    def begin(
        self,
        tx: Transaction,
        record: Record,
        contract: Contract,
        *,
        resend: bool,
        principal: Principal = WORKER,
        by: Need = Need.PERMITTED,
        correlation_id: str | None = None,
        now: Now | None = None,
    ) -> Begun:
        """Open the next attempt: durable, under a lease and a fence of its own."""
        now = now or self.now(tx)
        stored = record.operation
        number = len(record.attempts) + 1
        after, attempt = progress.begin(
            record,
            contract,
            now,
            owner=self.surroundings.owner,
            correlation_id=correlation_id or stored.correlation_id or f"{stored.ref}-{number}",
            resend=resend,
            by=by,
        )
        inputs: Mapping[str, Json] = {}
        if record.attempts:
            inputs = explain(record, contract, now, weigh(record, contract, now))
        saved = operations.save(
            tx, stored, after, reason=f"send: {by}", principal=principal, inputs=inputs
        )
        attempts.open_attempt(tx, self.tenant, stored.id, attempt, principal=principal)
        if stored.state.ends or contract.latest_wins or record.blockers:
            held = self._reclaim(tx, saved, now)
            if held is not None and not contract.latest_wins:
                raise LedgerConflict(f"{held} has just taken the object")
        if (grant := relies_on(record, contract, now)) is not None:
            attempts.covered_by(tx, self.tenant, stored.id, grant, principal=WORKER)
        opened = replace(record, operation=saved, attempts=(*record.attempts, attempt))
        return Begun(record=opened, contract=contract, attempt=attempt)

    # --- storing ---------------------------------------------------------------------------------

    def store(
        self,
        tx: Transaction,
        record: Record,
        contract: Contract,
        changes: Sequence[Change],
        now: Now,
        *,
        stored: Operation | None = None,
        principal: Principal = WORKER,
    ) -> Record:
        """Write steps that the core has taken, and let the object go where they ended it.

        Args:
            record: As the steps began; its operation may already hold what was learnt.
            stored: The operation as the ledger has it, where that differs from `record`'s.

        Raises:
            StaleVersion: Somebody else changed it meanwhile. Nothing was written.
        """
        before = record.operation if stored is None else stored
        current = before
        for change in changes:
            earlier = current
            current = operations.save(
                tx,
                current,
                change.after,
                reason=change.reason,
                principal=principal,
                inputs=change.inputs,
            )
            counting.moved(tx, earlier, current, record, contract, now)
        if not changes and stored is not None:
            # Whoever holds an older version of it then knows that something was learnt.
            current = operations.save(
                tx, current, record.operation, reason="noted", principal=principal, inputs={}
            )
        after = replace(record, operation=current)
        if current.state.ends and not before.state.ends:
            self._release(tx, after, contract, now)
        elif before.state.ends and not current.state.ends:
            self._reclaim(tx, current, now)
        if turns.pass_on(tx, before, current, now, latest_wins=contract.latest_wins):
            self.passed_on.add(current.id)
        return after

    def _release(self, tx: Transaction, record: Record, contract: Contract, now: Now) -> None:
        operation = record.operation
        if operation.claim is None:
            return
        until_ms = progress.claim_until_ms(record, contract, now)
        later = until_ms if until_ms is not None and until_ms > now.ms else None
        claims.release_claim(
            tx, self.tenant, operation.source, operation.claim, operation.id, release_ms=later
        )

    def _reclaim(self, tx: Transaction, operation: Operation, now: Now) -> str | None:
        """Take the object back for an operation that was opened again; return who else has it."""
        if operation.claim is None:
            return None
        source, claim = operation.source, operation.claim
        return claims.take_claim(tx, self.tenant, source, claim, operation.id, now.ms)


def dump_request(request: HttpRequest | Action) -> bytes:
    """Write a rendered request or action, as it is stored."""
    if isinstance(request, Action):
        return json.dumps(
            {"kind": request.kind.value, "members": request.members}, separators=(",", ":")
        ).encode()
    parts: Json = {
        "method": request.method,
        "url": request.url,
        "headers": [list(pair) for pair in request.headers],
        "body": base64.b64encode(request.body).decode(),
    }
    return json.dumps(parts, separators=(",", ":")).encode()


def load_request(text: bytes) -> HttpRequest | Action:
    """Read a stored request or action."""
    parts = json.loads(text)
    if "kind" in parts:
        return Action(kind=Kind(parts["kind"]), members=parts["members"])
    return HttpRequest(
        method=parts["method"],
        url=parts["url"],
        headers=tuple((name, value) for name, value in parts["headers"]),
        body=base64.b64decode(parts["body"]),
    )
