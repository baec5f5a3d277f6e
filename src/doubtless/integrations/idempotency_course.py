"""The course of one request under a key: how it is admitted, and how its execution ends.

Written once for servers that block and for those that don't: what has to be done in a transaction,
or waited for, is yielded, and the server does it.
"""

import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeAlias, TypeVar, cast

from doubtless.integrations.idempotency_desk import Desk
from doubtless.integrations.idempotency_drivers import Steps
from doubtless.integrations.idempotency_handle import Once
from doubtless.integrations.idempotency_requests import kept_headers
from doubtless.integrations.idempotency_rules import (
    Answer,
    Asked,
    Ending,
    Record,
    Refused,
    Route,
    State,
    Step,
    decide,
    ending,
    mismatch,
    not_known,
    state_of,
    still_running,
)
from doubtless.integrations.idempotency_store import Held, Store

LOOK_MIN_S: Final = 0.05
LOOK_MAX_S: Final = 1.0

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until the execution under the key may have ended.

    Where it is this process's own that is known at once, and `longest_s` is for a lost signal.
    """

    seconds: float  # where another process executes it
    longest_s: float


Wanted: TypeAlias = "Callable[[], Steps[object]] | Pause"
Course: TypeAlias = Generator[Wanted, object, T]


class Conduct:
    """What an owner declared, and the courses that requests take by it."""

    def __init__(self, store: Store, desk: Desk) -> None:
        self.store, self.desk = store, desk

    def admitted(self, asked: Asked, route: Route) -> Course[Held | Record]:
        """Return the key, held for an execution, or the record with the answer to give.

        Raises:
            Refused: There is neither.
        """
        store, url = self.store, self.desk.url_of(asked.key)
        gives_up_ms = store.now_ms() + int(route.wait_s * 1000)
        look_s = LOOK_MIN_S
        while True:
            found = cast("Record | None", (yield lambda: store.find(asked.caller, asked.key)))
            match step := decide(found, asked.fingerprint, store.now_ms()):
                case Step.EXECUTE | Step.TAKE_OVER:
                    held = yield from self._claimed(asked, route, step, found)
                    if held is not None:
                        return held
                    continue
                case Step.REPLAY:
                    assert found is not None  # noqa: S101 - it was decided upon
                    return found
                case Step.MISMATCH:
                    raise mismatch(asked)
                case Step.UNKNOWN:
                    raise not_known(asked, url)
            left_s = (gives_up_ms - store.now_ms()) / 1000
            if left_s <= 0:
                raise still_running(asked, url)
            yield Pause(min(left_s, look_s), min(left_s, LOOK_MAX_S))
            look_s = min(2 * look_s, LOOK_MAX_S)

    def _claimed(
        self, asked: Asked, route: Route, step: Step, found: Record | None
    ) -> Course[Held | None]:
        store = self.store
        if store.is_to_clean():
            yield store.cleaning
        held = yield lambda: store.claim(asked, route, step, found)
        return cast("Held | None", held)

    def execution(self, asked: Asked, route: Route, held: Held) -> "Execution":
        """Return the execution for which the key is held."""
        return Execution(self, asked, route, held)


class Execution:
    """The one run of the handler under a key. What is told of it is stored before."""

    def __init__(self, conduct: Conduct, asked: Asked, route: Route, held: Held) -> None:
        self._store, self._desk = conduct.store, conduct.desk
        self._asked, self._route, self._held = asked, route, held
        self.once = Once(
            store=conduct.store,
            asked=asked,
            token=held.token,
            status_url=conduct.desk.url_of(asked.key),
            caller=asked.caller,
        )

    def committed(self) -> Course[Answer | None]:
        """Return the answer that this execution has recorded and committed, marked as fresh."""
        if self.once.recorded is None:
            return None
        store, asked = self._store, self._asked
        found = cast("Record | None", (yield lambda: store.find(asked.caller, asked.key)))
        if found is None or found.token != self._held.token or found.answer is None:
            return None
        return self._fresh(found.answer)

    def _fresh(self, answer: Answer, *, kept: bool = True) -> Answer:
        return self._desk.fresh(answer, self._asked, self._held.expires_ms if kept else None)

    def answered(self, answer: Answer) -> Course[Answer]:
        """Record how the execution ended, and return what the caller is told.

        That is what the handler recorded, if it did, or else its answer.
        """
        if (done := (yield from self.committed())) is not None:
            return done
        route, store, asked, token = self._route, self._store, self._asked, self._held.token
        end = ending(answer.status, stores=route.stores, atomic=route.atomic)
        told = self._fresh(answer, kept=end is not Ending.GIVE_BACK)
        if end is Ending.KEEP:
            state = state_of(answer.status, rolled_back=route.atomic)
            held = yield lambda: store.finish(asked, token, _to_keep(answer), state)
        elif end is Ending.GIVE_BACK:
            held = yield lambda: store.give_back(asked, token)
        else:
            held = yield lambda: store.give_up(asked, token)
            if answer.status < HTTPStatus.BAD_REQUEST:
                told = self._fresh(self._unrecorded())
        return told if held else (yield from self._elsewhere(told))

    def _elsewhere(self, told: Answer) -> Course[Answer]:
        """Return what holds of the key, which isn't this execution's any more.

        It was taken for dead, and another execution began, or an operator said what it did.
        """
        asked = self._asked
        found = yield lambda: self._store.find(asked.caller, asked.key)
        if not isinstance(found, Record):
            return told
        if found.answer is not None:
            return self._desk.replay(found, asked)
        return still_running(asked, self._desk.url_of(asked.key)).answer(
            self._desk.settings.help_url
        )

    def too_long(self, begun: Answer) -> Course[Answer | None]:
        """Record an answer that is too long to keep; it may go out as it comes, marked like this.

        Returns:
            None if it isn't to be told, but what `answered` returns.
        """
        route, asked, token = self._route, self._asked, self._held.token
        if ending(begun.status, stores=route.stores, atomic=route.atomic) is not Ending.KEEP:
            return None
        noted = Answer(status=begun.status, headers=kept_headers(begun.headers), body=None)
        state = state_of(begun.status, rolled_back=route.atomic)
        yield lambda: self._store.finish(asked, token, noted, state)
        return self._fresh(begun)

    def failed(self) -> Answer:
        """Return the answer to a request whose handler raised."""
        if self._route.atomic:
            state, detail = State.FAILED, "the request failed, and what it began was rolled back"
        else:
            state = State.UNKNOWN
            detail = "the request failed; whether it took effect is not known. Ask at status_url"
        return self._problem("internal_error", detail, state)

    def _unrecorded(self) -> Answer:
        log.error(
            "%s is declared atomic, but its handler returned a success without having recorded it:"
            " operation(request).record(connection, …), in the transaction of the change",
            self._route.path,
        )
        detail = (
            "the request was executed, but not recorded together with its effect. It is not"
            " executed again. The provider's log says more"
        )
        return self._problem("not_recorded", detail, State.UNKNOWN)

    def _problem(self, code: str, detail: str, state: State) -> Answer:
        return Refused(
            500,
            code,
            detail,
            operation_id=self._asked.key,
            state=state.value,
            status_url=self._desk.url_of(self._asked.key),
        ).answer(self._desk.settings.help_url)


def _to_keep(answer: Answer) -> Answer:
    return Answer(status=answer.status, headers=kept_headers(answer.headers), body=answer.body)
