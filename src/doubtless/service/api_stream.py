"""Subscribers of settlements over HTTP: up to where each was told, kept for it in the ledger."""

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, StringConstraints
from starlette.responses import Response

from doubtless.engine.settlements import NAME_MAX
from doubtless.service.api_operations import BOTH
from doubtless.service.models import PLAIN, Body, Query, whole
from doubtless.service.routing import Asked, Row, reply

Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=NAME_MAX, pattern=PLAIN),
    Field(description="The subscriber's, among those of its principal.", examples=["billing"]),
]
Seq = Annotated[int, Field(ge=0, le=2**53 - 1)]


class Subscription(Query):
    """Which subscriber, and where it begins if it is new."""

    name: Name
    after: Annotated[Seq, BeforeValidator(whole)] = 0


class Position(Body):
    """A step of whoever delivers to a subscriber. One holder at a time does."""

    name: Name
    holder: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{16,64}$")]
    step: Literal["take", "advance", "release"]
    after: Seq = 0  # where a new name begins, or up to which it was told


async def read(asked: Asked) -> Response:
    """Return up to which settlement a subscriber was told."""
    said = asked.query(Subscription)
    position = asked.actor.position(said.name, holder="", after=said.after)
    return reply({"name": said.name, "after": await position.read(), "held": False})


async def move(asked: Asked) -> Response:
    """Take a subscriber for a while, note up to which it was told, or let it go."""
    said = asked.body(Position)
    position = asked.actor.position(said.name, holder=said.holder, after=said.after)
    held, after = False, None
    match said.step:
        case "take":
            after = await position.take()
            held = after is not None
        case "advance":
            held = await position.advance(said.after)
        case "release":
            await position.release()
    return reply({"name": said.name, "after": after, "held": held})


ROWS: Final = (
    Row(
        method="GET",
        path="/v1/subscriptions",
        name="subscription",
        summary="Up to which settlement a subscriber was told.",
        roles=BOTH,
        answer=read,
        query=Subscription,
        answers={200: "The `id` of the last one, to go on after."},
        returns="Subscription",
    ),
    Row(
        method="POST",
        path="/v1/subscriptions",
        name="subscribe",
        summary="Take a subscriber for 15 s, note how far it was told, or let it go.",
        roles=BOTH,
        answer=move,
        body=Position,
        answers={
            200: "`held`: whether the holder has it now. To `take`: `after` is where to begin."
        },
        returns="Subscription",
    ),
)
