"""Connections of the user's to the ledger's server, by every driver, handled in one way."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it comes without types
import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from doubtless.ledger.address import schema_of


@dataclass(frozen=True, kw_only=True)
class Hand:
    """One connection in the midst of a transaction of the user's."""

    connection: Any  # what is given to `app.prepare`
    run: Callable[[str], Awaitable[object]]
    commit: Callable[[], Awaitable[object]]
    rollback: Callable[[], Awaitable[object]]


def wrapped(call: Callable[..., object]) -> Callable[..., Awaitable[object]]:
    async def waits(*arguments: object) -> object:
        return call(*arguments)

    return waits


@asynccontextmanager
async def by_psycopg(address: str) -> AsyncIterator[Hand]:
    opened: Any = await psycopg.AsyncConnection.connect(address)
    async with opened as connection:
        yield Hand(
            connection=connection,
            run=connection.execute,
            commit=connection.commit,
            rollback=connection.rollback,
        )
        await connection.rollback()


@asynccontextmanager
async def by_blocking_psycopg(address: str) -> AsyncIterator[Hand]:
    with psycopg.connect(address) as connection:
        yield Hand(
            connection=connection,
            run=wrapped(connection.execute),
            commit=wrapped(connection.commit),
            rollback=wrapped(connection.rollback),
        )
        connection.rollback()


@asynccontextmanager
async def by_asyncpg(address: str) -> AsyncIterator[Hand]:
    connection = await asyncpg.connect(address)
    try:
        await connection.execute("begin")
        yield Hand(
            connection=connection,
            run=connection.execute,
            commit=lambda: connection.execute("commit"),
            rollback=lambda: connection.execute("rollback"),
        )
    finally:
        await connection.close()


def _engine(address: str, driver: str) -> Any:
    connects: Any = {
        "asyncpg": lambda: asyncpg.connect(address),
        "psycopg": lambda: psycopg.AsyncConnection.connect(address),
    }[driver]
    return create_async_engine(
        f"postgresql+{driver}://", async_creator=connects, poolclass=NullPool
    )


def by_sqlalchemy(driver: str, *, session: bool) -> Any:
    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Hand]:
        engine = _engine(address, driver)
        found: Any = AsyncSession(engine) if session else engine.connect()
        async with found as connection:
            yield Hand(
                connection=connection,
                run=lambda sql: connection.execute(text(sql)),
                commit=connection.commit,
                rollback=connection.rollback,
            )
        await engine.dispose()

    return opened


def by_blocking_sqlalchemy(*, session: bool) -> Any:
    @asynccontextmanager
    async def opened(address: str) -> AsyncIterator[Hand]:
        engine = create_engine(
            "postgresql+psycopg://", creator=lambda: psycopg.connect(address), poolclass=NullPool
        )
        found: Any = Session(engine) if session else engine.connect()
        with found as connection:
            yield Hand(
                connection=connection,
                run=wrapped(lambda sql: connection.execute(text(sql))),
                commit=wrapped(connection.commit),
                rollback=wrapped(connection.rollback),
            )
        engine.dispose()

    return opened


OPENERS: dict[str, Any] = {
    "psycopg": by_psycopg,
    "psycopg, blocking": by_blocking_psycopg,
    "asyncpg": by_asyncpg,
    "sqlalchemy over psycopg": by_sqlalchemy("psycopg", session=False),
    "sqlalchemy over asyncpg": by_sqlalchemy("asyncpg", session=False),
    "a session over asyncpg": by_sqlalchemy("asyncpg", session=True),
    "sqlalchemy, blocking": by_blocking_sqlalchemy(session=False),
    "a session, blocking": by_blocking_sqlalchemy(session=True),
}


def opens(kind: str, address: str) -> Any:
    """Open a connection of that kind to the database of a ledger."""
    return OPENERS[kind](schema_of(address)[0])
