"""The route table of the HTTP API. What it does not list does not exist."""

from typing import Final

from doubtless.service import (
    api_approvals,
    api_events,
    api_exhibits,
    api_operations,
    api_people,
    api_reads,
    api_stream,
)
from doubtless.service.routing import Row

ROWS: Final[tuple[Row, ...]] = (
    *api_operations.ROWS,
    *api_people.ROWS,
    *api_approvals.ROWS,
    *api_events.ROWS,
    *api_reads.ROWS,
    *api_exhibits.ROWS,
    *api_stream.ROWS,
)
