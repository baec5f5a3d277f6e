"""What an error of PostgreSQL means here, by its SQLSTATE."""

from collections.abc import Callable
from typing import Final, TypeAlias

from doubtless.errors import LedgerError, LedgerUnavailable, LedgerUnsafe
from doubtless.ledger.transaction import AlreadyThere, LedgerBusy, LedgerConflict

TURN_BUSY: Final = "the ledger is locked by another process"
ROWS_BUSY: Final = (
    "another transaction that has not ended has prepared the same operation, or one on the same"
    " object: nothing of this one was recorded. Let that one end, and try again"
)
SERIALIZATION: Final = frozenset({"40001", "40P01"})  # a conflict, a deadlock
LOCK_NOT_AVAILABLE: Final = "55P03"
IN_FAILED_TRANSACTION: Final = "25P02"
RAISED: Final = "P0001"  # by a trigger of ours
UNIQUE: Final = "23505"
CONSTRAINTS: Final = {
    "23502": "NOT NULL",
    "23503": "FOREIGN KEY",
    "23514": "CHECK",
}
# Classes after which the transaction, the server or its disk is in doubt: connections, standbys,
# resources, limits, operators that intervene, the system, faults of the server.
BROKEN: Final = frozenset({"08", "25", "53", "54", "57", "58", "XX"})


def meaning(state: str, told: str, sql: str) -> LedgerError | ValueError:
    """Return what to raise. LedgerUnavailable, or a kind of it, puts the transaction in doubt.

    Args:
        state: The SQLSTATE.
        told: The server's message, which holds no values.
        sql: The statement.
    """
    if state in SERIALIZATION:
        return LedgerConflict(f"somebody else was at the same rows: {told}")
    if state == LOCK_NOT_AVAILABLE:
        is_turn = "from meta" in sql
        return LedgerBusy(f"{TURN_BUSY}: {told}" if is_turn else ROWS_BUSY)
    if state == IN_FAILED_TRANSACTION:
        return LedgerError("a statement of this unit failed before: nothing can follow it")
    if state == RAISED:
        return LedgerError(f"the ledger refused: {told}")
    match state[:2]:
        case "23" if state == UNIQUE:
            return AlreadyThere(f"the ledger refused: UNIQUE constraint failed: {told}")
        case "23":
            kind = CONSTRAINTS.get(state, "a")
            return LedgerError(f"the ledger refused: {kind} constraint failed: {told}")
        case "22":
            return ValueError(f"a value that the ledger can't hold: {told}")
        case kind if kind in BROKEN:
            return LedgerUnavailable(f"the ledger failed: {told}")
        case _:
            return LedgerError(f"statement failed: {told}: {' '.join(sql.split())[:300]}")


Meaning: TypeAlias = Callable[[str, str, str], LedgerError | ValueError]
# What puts more than one statement of the user's in doubt: an interrupt comes from us.
BROKEN_FOR_THEM: Final = frozenset({"08", "53", "57", "58", "XX"})


def meaning_of_theirs(state: str, told: str, sql: str) -> LedgerError | ValueError:
    """Return what to raise for a statement of the user's: what is wrong with it alone, if it is.

    Args: as those of `meaning`.
    """
    if state in SERIALIZATION or state[:2] in BROKEN_FOR_THEM | {"23"}:
        return meaning(state, told, sql)
    return LedgerError(f"statement failed: {told}: {' '.join(sql.split())[:300]}")


VERSION_MIN: Final = 140_000


def check_server(
    shown: str,
    version: int,
    encoding: str,
    standby: str,
    fsync: str,
    full_page_writes: str,
    synchronous_commit: str,
) -> None:
    """Check that a server keeps what it acknowledges.

    Raises:
        LedgerUnsafe: it doesn't.
        LedgerError: it is too old, or its database isn't in UTF-8.
        LedgerUnavailable: it is a standby.
    """
    if version < VERSION_MIN:
        raise LedgerError(f"{shown}: PostgreSQL {VERSION_MIN // 10_000} or later is needed")
    if encoding != "UTF8":
        raise LedgerError(f"{shown}: the database is in {encoding}, not in UTF8")
    if standby != "false":
        raise LedgerUnavailable(f"{shown} is a standby: name the primary")
    settings = {
        "fsync": fsync,
        "full_page_writes": full_page_writes,
        "synchronous_commit": synchronous_commit,
    }
    for name, value in settings.items():
        if value == "off":
            raise LedgerUnsafe(
                f"{shown}: {name} is off, so acknowledged commits could be lost: turn it on"
            )
