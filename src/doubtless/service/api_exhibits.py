"""What people look at: exhibits of attempts, and an open page. Nothing here takes input."""

from typing import Final

from starlette.responses import Response

from doubtless.core.model import Role
from doubtless.engine.exhibits import media_type
from doubtless.service.api_operations import NOT_FOUND
from doubtless.service.models import WhichAttempt
from doubtless.service.routing import OPERATOR, Asked, Row, reply

INERT: Final = {
    # It comes from elsewhere: a browser must run nothing of it, nor guess what it is.
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


async def exhibits(asked: Asked) -> Response:
    """Return what there is to look at."""
    operation_id = asked.path["operation_id"]
    found = await asked.actor.exhibits(operation_id)
    told = [each.to_json() for each in found]
    return reply({"operation_id": operation_id, "exhibits": told})


async def exhibit(asked: Asked) -> Response:
    """Return one exhibit as it was kept."""
    name, attempt = asked.path["exhibit"], asked.query(WhichAttempt).attempt
    content = await asked.actor.exhibit(asked.path["operation_id"], name, attempt=attempt)
    return Response(content, headers=INERT, media_type=media_type(name))


async def live(asked: Asked) -> Response:
    """Return the page of an operation as it is now."""
    content = await asked.actor.picture(asked.path["operation_id"])
    return Response(content, headers=INERT, media_type="image/jpeg")


SEERS: Final = OPERATOR | {Role.AUDITOR}

ROWS: Final = (
    Row(
        method="GET",
        path="/v1/operations/{operation_id}/exhibits",
        name="exhibits",
        summary="What the attempts of an operation left to look at: pictures, texts, output.",
        roles=SEERS,
        answer=exhibits,
        answers={200: "Their names, attempts and sizes, oldest first.", 404: NOT_FOUND},
        returns="Exhibits",
    ),
    Row(
        method="GET",
        path="/v1/operations/{operation_id}/exhibits/{exhibit}",
        name="exhibit",
        summary="One exhibit; of the latest attempt that has it.",
        roles=SEERS,
        answer=exhibit,
        query=WhichAttempt,
        answers={200: "The exhibit, as it was kept.", 404: "There is none of that name."},
        returns="Bytes",
        media="*/*",
    ),
    Row(
        method="GET",
        path="/v1/operations/{operation_id}/live",
        name="live",
        summary="The page of an operation as it is now, to be watched: nothing can be done in it.",
        roles=OPERATOR,
        answer=live,
        answers={
            200: "A picture.",
            404: "No page of it is open in this process; `detail` names the last picture.",
        },
        returns="Bytes",
        media="image/jpeg",
    ),
)
