"""Hearing what other processes commit, by LISTEN on a connection of its own.

A connection is lost, a server fails over, a pooler keeps notifications to itself: then nothing is
heard until there is another connection, and everybody goes on looking from time to time.
"""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import anyio
import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from doubtless.ledger import postgres_text as text
from doubtless.ledger.address import without_passwords
from doubtless.ledger.news import ANYTHING, News, read, written
from doubtless.ledger.postgres import Place

PAUSE_MIN_S: Final = 0.2  # before the next connection; it doubles
PAUSE_MAX_S: Final = 30.0
ALIVE_S: Final = 30.0  # how often the connection is tried, and the others are counted
NAME: Final = "doubtless listener"

_Connection: TypeAlias = "psycopg.AsyncConnection[tuple[object, ...]]"
_log: Final = logging.getLogger("doubtless.ledger")


class Listener:
    """One process's ear for the others of its ledger.

    Args:
        place: Of the ledger.
        voice: Its own: what it says itself is passed over.
    """

    def __init__(self, place: Place, voice: str) -> None:
        self._place, self._voice = place, voice
        self.alone = False
        """Whether surely nobody else listens, but for who came just now."""

    async def run(self, heard: Callable[[News], None]) -> None:
        """Call `heard` with the news of others until cancelled, and once for each connection."""
        pause_s = PAUSE_MIN_S
        while True:
            began_s = anyio.current_time()
            try:
                async with self._listening() as connection:
                    await self._greet(connection)
                    heard(ANYTHING)
                    while True:
                        await self._hear(connection, heard)
            except psycopg.Error as error:
                told = without_passwords(str(error), conninfo_to_dict(self._place.conninfo))
                _log.warning(
                    "%s: nothing is heard of other processes, but what they leave is still looked"
                    " for: %s",
                    self._place.shown,
                    " ".join(told.split()),
                )
            if anyio.current_time() - began_s > PAUSE_MAX_S:
                pause_s = PAUSE_MIN_S
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[_Connection]:
        given = conninfo_to_dict(self._place.conninfo)
        more = {name: value for name, value in text.DEFAULTS.items() if name not in given}
        more["fallback_application_name"] = NAME
        connection = await psycopg.AsyncConnection.connect(
            self._place.conninfo,
            autocommit=True,
            client_encoding="utf8",
            **more,  # type: ignore[arg-type]
        )
        try:
            name = sql.Identifier(self._channel)
            await connection.execute(sql.SQL("listen {}").format(name))
            yield connection
        finally:
            self.alone = False
            with anyio.CancelScope(shield=True):
                await connection.close()

    @property
    def _channel(self) -> str:
        return text.channel(self._place.schema)

    async def _greet(self, connection: _Connection) -> None:
        """Let those who thought that they are alone know better."""
        await connection.execute(text.LISTENING, self._lock)
        told = {"channel": self._channel, "payload": written(self._voice, ())}
        await connection.execute(text.GREETING, told)
        await self._count(connection)

    @property
    def _lock(self) -> dict[str, object]:
        return {"lock": text.LISTENERS, "schema": self._place.schema}

    async def _count(self, connection: _Connection) -> None:
        """Count the others. This tries the connection, too."""
        found = await (await connection.execute(text.OTHERS, self._lock)).fetchone()
        self.alone = found == (0,)

    async def _hear(self, connection: _Connection, heard: Callable[[News], None]) -> None:
        async for notification in connection.notifies(timeout=ALIVE_S):
            news = read(notification.payload)
            if not news.voice or news.voice != self._voice:
                self.alone = False
                heard(news)
        await self._count(connection)
