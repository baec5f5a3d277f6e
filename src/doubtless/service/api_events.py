"""The inbox over HTTP: what is in it, what matches nothing, and events from queues."""

from starlette.responses import Response

from doubtless.service.models import Inbox, Ingest, MatchEvent
from doubtless.service.routing import OPERATOR, WORKER, Asked, Row, reply


async def listed(asked: Asked) -> Response:
    """Return events, newest first, without what they said."""
    said = asked.query(Inbox)
    page = await asked.actor.events(
        matched=said.matched, source=said.source, limit=said.limit, cursor=said.cursor
    )
    return reply({"events": [each.to_json() for each in page.events], "cursor": page.cursor})


async def match(asked: Asked) -> Response:
    """Match an event to an operation because a person says so."""
    said = asked.body(MatchEvent)
    outcome = await asked.actor.match(
        asked.path["event_id"],
        said.operation_id,
        operator=asked.principal.name,
        note=said.note,
    )
    asked.note(operation_id=outcome.operation_id, outcome=outcome.status)
    return reply(outcome.to_json())


async def ingest(asked: Asked) -> Response:
    """Take in an event, under the rules of the inbox. It is durable when this is answered."""
    said = asked.body(Ingest)
    taken = await asked.actor.ingest(
        said.source, said.event, event_id=said.event_id, occurred_at=said.occurred_at
    )
    asked.note(source=taken.source, operation_id=taken.operation_id)
    return reply(taken.to_json())


ROWS = (
    Row(
        method="GET",
        path="/v1/events",
        name="events",
        summary="The inbox, newest first; `matched=false` is what belongs to no operation.",
        roles=OPERATOR,
        answer=listed,
        query=Inbox,
        answers={200: "A page of events, without what they said."},
        returns="Events",
    ),
    Row(
        method="POST",
        path="/v1/events",
        name="ingest",
        summary="Take in an event from a queue, or from an application's own handler.",
        roles=WORKER,
        answer=ingest,
        body=Ingest,
        answers={
            200: "It is stored; `new` says whether it was there before.",
            404: "No events are declared of that source.",
        },
        returns="Event",
    ),
    Row(
        method="POST",
        path="/v1/events/{event_id}/match",
        name="match",
        summary="Match an event to an operation, because a person says so.",
        roles=OPERATOR,
        answer=match,
        body=MatchEvent,
        answers={
            200: "The operation's outcome.",
            404: "There is no such event, or no such operation.",
            409: "It was matched before, or doesn't speak of that operation's tool.",
        },
        returns="Outcome",
    ),
)
