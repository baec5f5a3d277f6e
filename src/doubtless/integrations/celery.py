"""Effects inside Celery tasks: `Tasks(app).call(self, …)`, in a bound task.

A task whose effect isn't known yet gives its worker back: the same task is sent again for later,
under the same id, and its count of retries stays as it is.
"""

from collections.abc import Mapping
from typing import Final, NoReturn

from celery import Task
from celery.exceptions import OperationalError, Reject, Retry

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.integrations.carrying import (
    AGAIN_MIN_S,
    AWAY,
    App,
    Carrier,
    Closed,
    Effect,
    Place,
    effect,
    is_open,
    look_again_s,
    result_of,
)

LOOKED: Final = "doubtless_looked"
"""A header of the message: at which retry the task was sent again only to be looked at."""


class Tasks:
    """Carries out effects in Celery tasks, which are bound and acknowledge late.

    Args:
        app: A `Doubtless.sync`, open in each process that works: it can't be opened before a fork.
        scope: A word for this use of Celery, if tasks are given ids that aren't unique.

    Raises:
        SettingsError: An asynchronous application, and no event loop is running here.
    """

    def __init__(self, app: App, *, scope: str = "") -> None:
        self._carrier = Carrier(app)
        self._scope = scope

    def call(
        self,
        task: Task,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        part: str = "",
    ) -> Json:
        """Carry the effect out, at most once, and return its result.

        A retry, and a message that is delivered again, have the same task id and find the same
        operation; a task that is sent anew is another intent.

        Args:
            task: The running task, `self` of one that is bound.
            tool: The tool's name.
            arguments: JSON-ready. Others at the same place are refused.
            operation_id: An id of the intent itself, in place of the one by the task.
            part: Tells several calls of a tool in one task apart.

        Raises:
            celery.exceptions.Retry: It is open (unknown, accepted, awaiting approval), and the task
                was sent for later. Let it through.
            NotDone: It provably had no effect, and a retry of the task may act.
            WontBeDone: It failed or was refused for good.
            NoIdentity: The task was called directly, and so has no id.
            BadRequest: It can't be carried out as it was written.
        """
        asked = self._asked(task, tool, arguments, operation_id, part)
        if task.request.called_directly or task.request.is_eager:
            return result_of(self._carrier.carry(asked, go_on=_go_on))
        try:
            outcome = self._looked_at(task, asked) or self._carrier.call(asked)
        except (*AWAY, Closed) as error:
            _send_later(task, str(error), after_s=AGAIN_MIN_S)
        if is_open(outcome):
            _send_later(task, outcome.message, after_s=look_again_s(outcome))
        return result_of(outcome)

    def _looked_at(self, task: Task, asked: Effect) -> Outcome | None:
        """Return what is known, if the task was sent again only to be told that."""
        if (task.request.headers or {}).get(LOOKED) != task.request.retries:
            return None  # its first run, or a retry, which may act
        return self._carrier.known(asked)

    def _asked(
        self,
        task: Task,
        tool: str,
        arguments: Mapping[str, Json],
        operation_id: str | None,
        part: str,
    ) -> Effect:
        place = None
        if task.request.id is not None:
            place = Place(engine="celery", flow=(self._scope, str(task.request.id)))
        return effect(
            place,
            tool,
            arguments,
            run=f"{task.name}/{task.request.id}",
            operation_id=operation_id,
            part=part,
            otherwise="the task was called directly, and has no id",
        )


def _send_later(task: Task, why: str, *, after_s: float) -> NoReturn:
    """Send the same task again, as `Task.retry` does, but without counting it.

    Raises:
        Retry: It was sent.
        Reject: It could not be sent; the message goes back to the broker.
    """
    request = task.request
    headers = {**(request.headers or {}), LOOKED: request.retries}
    again = task.signature_from_request(
        request, countdown=after_s, retries=request.retries, headers=headers
    )
    try:
        again.apply_async()
    except OperationalError as error:
        raise Reject(str(error), requeue=True) from error
    raise Retry(why, when=after_s, sig=again)


def _go_on() -> None:
    """Wait on: there is no worker to give back."""
