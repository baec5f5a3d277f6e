"""A workflow of Temporal. Its module is imported anew for each sandbox, so it imports little."""

from datetime import timedelta

from temporalio import workflow


@workflow.defn
class Pays:
    @workflow.run
    async def run(self) -> None:
        await workflow.execute_activity("refund", start_to_close_timeout=timedelta(seconds=9))
