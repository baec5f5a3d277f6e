"""Payloads, rendered requests, replies and results, kept apart so that retention can empty them."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from doubtless.ledger import archive
from doubtless.ledger.codec import Value, integer_of, text_of
from doubtless.ledger.store import Transaction

PUT: Final = """
    insert into body (tenant, operation_id, kind, number, at_ms, digest, size, content)
    values (:tenant, :operation_id, :kind, :number, :at_ms, :digest, :size, :content)
        on conflict (tenant, operation_id, kind, number) do nothing
"""
REPLACE: Final = """
    update body
       set at_ms = :at_ms, digest = :digest, size = :size, content = :content
     where tenant = :tenant and operation_id = :operation_id and kind = :kind and number = :number
"""


def put_body(
    tx: Transaction, tenant: str, operation_id: str, kind: str, number: int, content: bytes
) -> str:
    """Store a body under (operation, kind, number) and return its SHA-256 in hexadecimal.

    A later body of the same kind and number takes its place, except for "payload" and "request",
    which never change.

    Raises:
        LedgerError: there is no such operation, or a payload or request would change.
    """
    digest = sha256(content).hexdigest()
    row: dict[str, Value] = {
        "tenant": tenant,
        "operation_id": operation_id,
        "kind": kind,
        "number": number,
        "at_ms": tx.now_ms,
        "digest": digest,
        "size": len(content),
        "content": content,
    }
    # Two statements: an upsert takes twice as long where there is no conflict, as there rarely is.
    if not tx.run(PUT, **row):
        tx.run(REPLACE, **row)
    return digest


BODY: Final = """
    select content
      from body
     where tenant = :tenant and operation_id = :operation_id and kind = :kind and number = :number
"""


def body(
    tx: Transaction, tenant: str, operation_id: str, kind: str, number: int = 0
) -> bytes | None:
    """Return a stored body; None if there is none, or retention has emptied it."""
    rows = tx.tuples(BODY, tenant=tenant, operation_id=operation_id, kind=kind, number=number)
    if not rows:
        return archive.body(tx, tenant, operation_id, kind, number)
    content = rows[0][0]
    return content if isinstance(content, bytes) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A body, as far as a list tells of it."""

    kind: str
    number: int
    at_ms: int
    size: int  # bytes


KEPT: Final = """
    select kind, number, at_ms, size
      from body
     where tenant = :tenant and operation_id = :operation_id
       and kind >= :kind and kind < :behind and content is not null
     order by kind, number
"""


def kept(tx: Transaction, tenant: str, operation_id: str, prefix: str) -> list[Kept]:
    """Return what is stored of an operation whose kind begins with `prefix`, oldest first."""
    behind = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    rows = tx.tuples(KEPT, tenant=tenant, operation_id=operation_id, kind=prefix, behind=behind)
    found = (
        Kept(
            kind=text_of(kind),
            number=integer_of(number),
            at_ms=integer_of(at_ms),
            size=integer_of(size),
        )
        for kind, number, at_ms, size in rows
    )
    return sorted(found, key=lambda each: (each.number, each.at_ms, each.kind))


PUT_CONTRACT: Final = """
    insert into contract (tenant, digest, content, at_ms)
    values (:tenant, :digest, :content, :at_ms)
        on conflict (tenant, digest) do nothing
"""


def put_contract(tx: Transaction, tenant: str, digest: str, content: str) -> None:
    """Keep the snapshot of a contract under its digest; the first one stays."""
    tx.run(PUT_CONTRACT, tenant=tenant, digest=digest, content=content, at_ms=tx.now_ms)


CONTRACT: Final = "select content from contract where tenant = :tenant and digest = :digest"


def contract(tx: Transaction, tenant: str, digest: str) -> str | None:
    """Return the snapshot of a contract as JSON text, or None."""
    rows = tx.tuples(CONTRACT, tenant=tenant, digest=digest)
    return text_of(rows[0][0]) if rows else None
