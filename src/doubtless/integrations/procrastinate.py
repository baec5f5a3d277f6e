"""Effects inside procrastinate tasks: `Jobs(app, database="…").call(context, …)`, in a task.

A job whose effect isn't known yet gives its worker back and is looked at again later. That counts
as no attempt of the job, whatever its task's retry strategy says.
"""

import datetime
from collections.abc import Mapping
from typing import Final, TypeAlias

from procrastinate import BaseRetryStrategy, JobContext, RetryDecision
from procrastinate.jobs import Job
from procrastinate.retry import get_retry_strategy

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.errors import DoubtlessError, NotDone, SettingsError
from doubtless.integrations.carrying import (
    AGAIN_MIN_S,
    AWAY,
    FINAL,
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

Retry: TypeAlias = bool | int | BaseRetryStrategy

# Starting a job again adds one to its attempts; this takes it away before.
SPARE: Final = """
    update procrastinate_jobs
       set attempts = attempts - 1
     where id = %(job_id)s and status = 'doing'
"""


class LookedAtLater(DoubtlessError):
    """Not known yet: the job is started again after `after_s` seconds. No failure."""

    def __init__(self, message: str, *, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class Jobs:
    """Carries out effects in procrastinate tasks.

    The task takes its context, and its retry from here:

        @queue.task(pass_context=True, retry=jobs.retry(3))

    Args:
        app: A `Doubtless` or a `Doubtless.sync`, open while the worker runs.
        database: A word for procrastinate's database. Jobs are numbered, and a database that is
            created anew begins with 1 again: then it needs another word.

    Raises:
        SettingsError: No word, or an asynchronous application and no event loop is running here.
    """

    def __init__(self, app: App, *, database: str) -> None:
        if not database:
            raise SettingsError("database: a word for procrastinate's database")
        self._carrier = Carrier(app)
        self._database = database

    def retry(self, retry: Retry = False) -> BaseRetryStrategy:
        """Return the retry of a task that calls us; `retry` is its own, for all other failures."""
        return _Retry(get_retry_strategy(retry))

    def call(
        self,
        context: JobContext,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        part: str = "",
    ) -> Json:
        """Carry the effect out, at most once, and return its result. In a task that blocks.

        Whatever starts this job again finds the same operation; a job that is deferred anew is
        another intent.

        Args:
            context: The job's.
            tool: The tool's name.
            arguments: JSON-ready. Others at the same place are refused.
            operation_id: An id of the intent itself, in place of the one by the job.
            part: Tells several calls of a tool in one job apart.

        Raises:
            LookedAtLater: It is open (unknown, accepted, awaiting approval). Let it through.
            NotDone: It provably had no effect, and a retry of the job may act.
            WontBeDone: It failed or was refused for good.
            SettingsError: The task has no `retry=jobs.retry(…)`.
            BadRequest: It can't be carried out as it was written.
        """
        asked = self._asked(context, tool, arguments, operation_id, part)
        try:
            if not _may_retry(context):
                _tell_not_done(self._carrier.known(asked))
            outcome = self._carrier.call(asked)
        except (*AWAY, Closed) as error:
            later = LookedAtLater(str(error), after_s=AGAIN_MIN_S)
        else:
            if not is_open(outcome):
                return result_of(outcome)
            later = LookedAtLater(outcome.message, after_s=look_again_s(outcome))
        connector = context.app.connector.get_sync_connector()
        connector.execute_query(SPARE, job_id=context.job.id)
        raise later

    async def call_async(
        self,
        context: JobContext,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        operation_id: str | None = None,
        part: str = "",
    ) -> Json:
        """Do as `call` does, in an asynchronous task."""
        asked = self._asked(context, tool, arguments, operation_id, part)
        try:
            if not _may_retry(context):
                _tell_not_done(await self._carrier.known_async(asked))
            outcome = await self._carrier.call_async(asked)
        except (*AWAY, Closed) as error:
            later = LookedAtLater(str(error), after_s=AGAIN_MIN_S)
        else:
            if not is_open(outcome):
                return result_of(outcome)
            later = LookedAtLater(outcome.message, after_s=look_again_s(outcome))
        await context.app.connector.execute_query_async(SPARE, job_id=context.job.id)
        raise later

    def _asked(
        self,
        context: JobContext,
        tool: str,
        arguments: Mapping[str, Json],
        operation_id: str | None,
        part: str,
    ) -> Effect:
        job = context.job
        if not isinstance(context.task.retry_strategy, _Retry):
            raise SettingsError(
                f"task {job.task_name}: declare it with retry=jobs.retry(…), or it would count as"
                " failed while it isn't known what it did"
            )
        place = None
        if job.id is not None:
            place = Place(engine="procrastinate", flow=(self._database, str(job.id)))
        return effect(
            place,
            tool,
            arguments,
            run=f"{job.task_name}/{job.id}",
            operation_id=operation_id,
            part=part,
            otherwise="the job has no id",
        )


def _may_retry(context: JobContext) -> bool:
    """Whether the task permits that what provably wasn't done is done now."""
    strategy, job = context.task.retry_strategy, context.job
    assert strategy is not None  # noqa: S101 - callers have seen it
    refused = strategy.get_retry_decision(exception=NotDone(""), job=job) is None
    return job.attempts > 0 or not refused  # a job that is started again was permitted to


def _tell_not_done(known: Outcome | None) -> None:
    """Fail with what was found out since the job was looked at; to call again would be to act."""
    if known is not None and known.retry_allowed:
        result_of(known)


class _Retry(BaseRetryStrategy):
    """What is not known is looked at later. All other failures are the task's own business."""

    def __init__(self, own: BaseRetryStrategy | None) -> None:
        self._own = own

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        if isinstance(exception, LookedAtLater):
            after = datetime.timedelta(seconds=exception.after_s)
            return RetryDecision(retry_at=datetime.datetime.now(datetime.UTC) + after)
        if self._own is None or isinstance(exception, FINAL):
            return None
        found = self._own.get_retry_exception(exception=exception, job=job)
        return None if found is None else found.retry_decision
