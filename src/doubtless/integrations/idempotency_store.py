"""Where a provider keeps its keys: one table in its own database, by its own connections.

One text of every statement serves SQLite (3.35 or later) and PostgreSQL (9.5 or later).
"""

import base64
import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from doubtless.core.model import Json
from doubtless.integrations.idempotency_drivers import (
    Connection,
    Row,
    Steps,
    Transaction,
    Transactions,
    Values,
    run,
    run_async,
)
from doubtless.integrations.idempotency_rules import (
    Answer,
    Asked,
    Record,
    Route,
    State,
    Step,
    state_of,
    to_bytes,
)

CLEAN_EVERY_S: Final = 60.0
CLEAN_AT_ONCE: Final = 500  # rows
_TABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)?")

SCHEMA: Final = (
    """
    create table if not exists {table} (
        caller text not null,
        key text not null,
        fingerprint text not null,
        token text not null,
        state text not null,
        created_ms bigint not null,
        until_ms bigint not null,
        expires_ms bigint not null,
        atomic integer not null,
        status integer,
        headers text,
        body text,
        result text,
        primary key (caller, key)
    )
    """,
    "create index if not exists {index}_expires on {table} (expires_ms)",
)
FIND: Final = """
    select fingerprint, state, token, created_ms, until_ms, expires_ms, atomic,
           status, headers, body, result
      from {table}
     where caller = :caller and key = :key
"""
CLAIM: Final = """
    insert into {table}
           (caller, key, fingerprint, token, state, created_ms, until_ms, expires_ms, atomic)
    values (:caller, :key, :fingerprint, :token, 'in_progress', :now_ms, :until_ms, :expires_ms,
            :atomic)
    on conflict (caller, key) do nothing
    returning token
"""
# Both name the token they saw, so that of two who want it one gets it.
BEGIN_ANEW: Final = """
    update {table}
       set fingerprint = :fingerprint, token = :token, state = 'in_progress', created_ms = :now_ms,
           until_ms = :until_ms, expires_ms = :expires_ms, atomic = :atomic, status = null,
           headers = null, body = null, result = null
     where caller = :caller and key = :key and token = :seen
    returning token
"""
TAKE_OVER: Final = """
    update {table}
       set token = :token, until_ms = :until_ms
     where caller = :caller and key = :key and token = :seen and state = 'in_progress'
    returning token
"""
FINISH: Final = """
    update {table}
       set state = :state, status = :status, headers = :headers, body = :body
     where caller = :caller and key = :key and token = :token and state = 'in_progress'
    returning token
"""
GIVE_BACK: Final = """
    delete from {table}
     where caller = :caller and key = :key and token = :token and state = 'in_progress'
    returning token
"""
GIVE_UP: Final = """
    update {table}
       set state = 'unknown'
     where caller = :caller and key = :key and token = :token and state = 'in_progress'
    returning token
"""
# An answer that was given stays as it is: only what never had one gets one by hand.
SETTLE: Final = """
    update {table}
       set state = :state, result = :result, status = coalesce(status, :status),
           headers = coalesce(headers, :headers), body = coalesce(body, :body)
     where caller = :caller and key = :key and state in ('accepted', 'in_progress', 'unknown')
    returning token
"""
CLEAN: Final = """
    delete from {table}
     where expires_ms <= :now_ms
       and (caller, key) in
           (select caller, key from {table} where expires_ms <= :now_ms limit :most)
    returning key
"""


class NotYours(Exception):
    """The execution has lost its key: it took too long, and another one has begun or has ended.

    Raised into the handler, so that its transaction is rolled back.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A key that is held for an execution."""

    token: str
    expires_ms: int


class Store:
    """The keys of one provider.

    Args:
        transaction: Where transactions of the owner's database come from, see `Transactions`.
        table: The table's name, in the manner of SQL identifiers, with a schema if need be.
        clock: Seconds since 1970. Hosts on one table should agree within a second or so.

    Raises:
        ValueError: The table's name is no identifier.
    """

    def __init__(
        self,
        transaction: Transaction,
        *,
        table: str = "idempotency",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not _TABLE.fullmatch(table):
            raise ValueError(f"{table!r} is no name for a table")
        self.transactions = Transactions(transaction)
        self.table = table
        self._clock = clock
        self._cleaned_s = 0.0

    def now_ms(self) -> int:
        """Return the time, milliseconds since 1970."""
        return int(self._clock() * 1000)

    def schema(self) -> list[str]:
        """Return the statements that create the table; they may be run again."""
        index = self.table.rpartition(".")[2]
        return [each.format(table=self.table, index=index).strip() for each in SCHEMA]

    def create_tables(self) -> None:
        """Create the table where it isn't there yet. Blocks."""
        self.transactions.run(self._create)

    async def create_tables_async(self) -> None:
        """Create the table where it isn't there yet."""
        await self.transactions.run_async(self._create)

    def _create(self) -> Steps[None]:
        for statement in self.schema():
            yield statement, {}

    def find(self, caller: str, key: str) -> Steps[Record | None]:
        """Return what is known of a key. It may be expired already."""
        row = yield self._said(FIND, caller=caller, key=key)
        return None if row is None else _record(row)

    def claim(
        self, asked: Asked, route: Route, step: Step, found: Record | None
    ) -> Steps[Held | None]:
        """Take the key for an execution; None where another was quicker."""
        now_ms = self.now_ms()
        # A repeatable request is known by its first sending, as long as that is in the window.
        expires_ms = max(now_ms, asked.first_sent_ms or 0) + int(route.keep_s * 1000)
        values: dict[str, str | int] = {
            "caller": asked.caller,
            "key": asked.key,
            "token": secrets.token_hex(16),
            "until_ms": now_ms + int(route.run_limit_s * 1000),
        }
        held = Held(token=str(values["token"]), expires_ms=expires_ms)
        if step is Step.TAKE_OVER:
            assert found is not None  # noqa: S101 - there is something to take over
            row = yield self._said(TAKE_OVER, seen=found.token, **values)
            held = Held(token=held.token, expires_ms=found.expires_ms or expires_ms)
        else:
            values["fingerprint"], values["now_ms"] = asked.fingerprint, now_ms
            values["expires_ms"], values["atomic"] = expires_ms, int(route.atomic)
            if found is None:
                row = yield self._said(CLAIM, **values)
            else:
                row = yield self._said(BEGIN_ANEW, seen=found.token, **values)
        return None if row is None else held

    def finish(self, asked: Asked, token: str, answer: Answer, state: State) -> Steps[bool]:
        """Store the answer; False where this execution has lost the key, or has answered."""
        row = yield self._said(
            FINISH,
            caller=asked.caller,
            key=asked.key,
            token=token,
            state=state.value,
            **_kept(answer),
        )
        return row is not None

    def give_back(self, asked: Asked, token: str) -> Steps[bool]:
        """Forget the key: nothing was done under it."""
        row = yield self._said(GIVE_BACK, caller=asked.caller, key=asked.key, token=token)
        return row is not None

    def give_up(self, asked: Asked, token: str) -> Steps[bool]:
        """Say that nobody knows what was done under it."""
        row = yield self._said(GIVE_UP, caller=asked.caller, key=asked.key, token=token)
        return row is not None

    def _settle(self, caller: str, key: str, state: State, status: int, body: Json) -> Steps[bool]:
        answer = Answer(
            status=status,
            headers=[("content-type", "application/json")],
            body=to_bytes(body),
        )
        row = yield self._said(
            SETTLE,
            caller=caller,
            key=key,
            state=state.value,
            result=json.dumps(body),
            **_kept(answer),
        )
        return row is not None

    def settle(
        self,
        connection: Connection,
        *,
        caller: str,
        key: str,
        body: Json,
        status: int = 200,
    ) -> bool:
        """Say what came of accepted work, or of an execution that ended without a word.

        It is recorded in the connection's transaction: commit it with the work's own change. A
        repeat of accepted work is still answered with 202; the look-up tells the end.

        Returns:
            False where there is nothing to settle: the key is not known, or has its answer.
        """
        return run(connection, self._settle(caller, key, _end_of(status), status, body))

    async def settle_async(
        self,
        connection: Connection,
        *,
        caller: str,
        key: str,
        body: Json,
        status: int = 200,
    ) -> bool:
        """Do as `settle` does, on an asynchronous connection."""
        return await run_async(connection, self._settle(caller, key, _end_of(status), status, body))

    def _clean(self) -> Steps[bool]:
        row = yield self._said(CLEAN, now_ms=self.now_ms(), most=CLEAN_AT_ONCE)
        return row is not None

    def clean(self) -> None:
        """Forget all keys whose time is over. Blocks. The middleware does a part now and then."""
        while self.transactions.run(self._clean):
            pass

    def is_to_clean(self) -> bool:
        """Say, about once a minute, that the process should forget what is over."""
        now_s = time.monotonic()
        if now_s - self._cleaned_s < CLEAN_EVERY_S:
            return False
        self._cleaned_s = now_s
        return True

    def cleaning(self) -> Steps[bool]:
        """Forget some keys whose time is over, and say whether there were any."""
        return self._clean()

    def _said(self, statement: str, **values: str | int | None) -> tuple[str, Values]:
        return statement.replace("{table}", self.table), values


def _end_of(status: int) -> State:
    state = state_of(status)
    if state is State.ACCEPTED:
        raise ValueError("202 is no end")
    return state


def _kept(answer: Answer) -> dict[str, str | int | None]:
    body = answer.body
    return {
        "status": answer.status,
        "headers": json.dumps(list(answer.headers)),
        "body": None if body is None else base64.b64encode(body).decode(),
    }


def _record(row: Row) -> Record:
    # In the order of FIND; drivers give the types that the columns have.
    mark, state, token, created, until, expires, atomic = cast(
        "tuple[str, str, str, int, int, int, int]", tuple(row[:7])
    )
    status, headers, body, result = cast(
        "tuple[int | None, str | None, str | None, str | None]", tuple(row[7:])
    )
    answer = None
    if status is not None:
        answer = Answer(
            status=status,
            headers=[(name, value) for name, value in json.loads(headers or "[]")],
            body=None if body is None else base64.b64decode(body),
        )
    return Record(
        fingerprint=mark,
        state=State(state),
        token=token,
        created_ms=created,
        until_ms=until,
        expires_ms=expires,
        atomic=bool(atomic),
        answer=answer,
        result=None if result is None else json.loads(result),
    )
