"""Claims: at most one open operation for each object in the outside world."""

from typing import Final

from doubtless.ledger.codec import Value, text_of
from doubtless.ledger.store import Transaction

TAKE: Final = """
    insert into claim (tenant, source, key, operation_id, release_ms)
    values (:tenant, :source, :key, :operation_id, null)
        on conflict (tenant, source, key) do nothing
"""
TAKE_OVER: Final = """
    update claim
       set operation_id = :operation_id, release_ms = null
     where tenant = :tenant and source = :source and key = :key
       and (release_ms <= :now_ms or operation_id = :operation_id)
"""
HOLDER: Final = """
    select operation_id
      from claim
     where tenant = :tenant and source = :source and key = :key
       and (release_ms is null or release_ms > :now_ms)
"""


def take_claim(
    tx: Transaction, tenant: str, source: str, key: str, operation_id: str, now_ms: int
) -> str | None:
    """Claim an object for `operation_id`. None if that worked, else the id of who holds it.

    A holder whose release time has come is replaced. Claiming again what one holds works, and takes
    back a release that was set for later.
    """
    row: dict[str, Value] = {
        "tenant": tenant,
        "source": source,
        "key": key,
        "operation_id": operation_id,
        "now_ms": now_ms,
    }
    # Two statements: an upsert takes twice as long where there is no conflict, as there rarely is.
    if tx.run(TAKE, **row) or tx.run(TAKE_OVER, **row):
        return None
    return claim_holder(tx, tenant, source, key, now_ms)


def claim_holder(tx: Transaction, tenant: str, source: str, key: str, now_ms: int) -> str | None:
    """Return the id of the operation that holds an object now, if one does."""
    found = tx.tuples(HOLDER, tenant=tenant, source=source, key=key, now_ms=now_ms)
    return text_of(found[0][0]) if found else None


RELEASE_LATER: Final = """
    update claim
       set release_ms = :release_ms
     where tenant = :tenant and source = :source and key = :key and operation_id = :operation_id
"""
RELEASE: Final = """
    delete from claim
     where tenant = :tenant and source = :source and key = :key and operation_id = :operation_id
"""


def release_claim(
    tx: Transaction,
    tenant: str,
    source: str,
    key: str,
    operation_id: str,
    *,
    release_ms: int | None = None,
) -> bool:
    """Let an object go: now, or at `release_ms` if something may still arrive until then.

    False if `operation_id` didn't hold it; then nothing changed.
    """
    if release_ms is None:
        changed = tx.run(RELEASE, tenant=tenant, source=source, key=key, operation_id=operation_id)
    else:
        changed = tx.run(
            RELEASE_LATER,
            tenant=tenant,
            source=source,
            key=key,
            operation_id=operation_id,
            release_ms=release_ms,
        )
    return changed == 1
