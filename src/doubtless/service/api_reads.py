"""What is read over HTTP besides outcomes: sessions, timelines, tools, and how the service is."""

from typing import Final

import anyio.to_thread
from starlette.responses import Response

from doubtless.core.model import Json, Role
from doubtless.engine.contracts.answers import answers_of
from doubtless.engine.registry import Tool
from doubtless.errors import LedgerError
from doubtless.service.api_operations import BOTH, NOT_FOUND
from doubtless.service.models import After, WhoseSession
from doubtless.service.problems import Refused
from doubtless.service.routing import AGENT, ANYBODY, OPERATOR, Asked, Row, reply


async def session(asked: Asked) -> Response:
    """Return what was done in a session: the first thing for a restarted agent."""
    return await _session(asked, asked.path["session_id"])


async def implicit_session(asked: Asked) -> Response:
    """Return what was done without naming a session."""
    return await _session(asked, "")


async def _session(asked: Asked, session_id: str) -> Response:
    whose = asked.query(WhoseSession).principal
    if whose is not None and asked.principal.role is Role.AGENT and whose != asked.principal.name:
        raise Refused(403, "forbidden", "an agent reads its own sessions only: leave principal out")
    record = await asked.actor.session_of(session_id, principal=whose)
    if record is None:
        detail = "several principals, or none, have such a session: say ?principal=…"
        raise Refused(404, "session_not_found", detail)
    return reply(record.to_json())


async def timeline(asked: Asked) -> Response:
    """Return everything that happened to an operation, in order."""
    operation_id = asked.path["operation_id"]
    entries = await asked.actor.timeline(operation_id)
    return reply({"operation_id": operation_id, "timeline": [dict(entry) for entry in entries]})


async def outcomes(asked: Asked) -> Response:
    """Return settlements in the order in which they were committed."""
    said = asked.query(After)
    page = await asked.actor.settlements(after=said.after, limit=said.limit)
    return reply(page.to_json())


async def tools(asked: Asked) -> Response:
    """Return what an agent may call."""
    found = sorted(asked.service.application.registry, key=lambda tool: tool.contract.tool)
    return reply({"tools": [tool_data(tool) for tool in found]})


def tool_data(tool: Tool) -> dict[str, Json]:
    """Describe a tool for an agent."""
    contract = tool.contract
    return {
        "name": contract.tool,
        "description": contract.description,
        "arguments": dict(contract.arguments),
        "effect": contract.effect.value,
        "fully_automatic": answers_of(contract).automatic,
    }


async def healthz(_: Asked) -> Response:
    """Say that the process answers."""
    return reply({"status": "ok"})


async def readyz(asked: Asked) -> Response:
    """Say whether work can be taken: the ledger can be written, and nobody stops the service."""
    if asked.service.is_draining:
        raise Refused(503, "stopping", "the service is being stopped", headers={"Retry-After": "5"})
    ledger = asked.service.ledger
    try:
        await anyio.to_thread.run_sync(lambda: ledger.write(lambda tx: tx.now_ms))
    except LedgerError:
        detail = "the ledger can't be written"
        raise Refused(503, "ledger_unavailable", detail, headers={"Retry-After": "1"}) from None
    return reply({"status": "ready", "tools": len(list(asked.service.application.registry))})


ROWS: Final = (
    Row(
        method="GET",
        path="/v1/sessions/{session_id}",
        name="session",
        summary="What was done in a session: unresolved and recent operations.",
        roles=BOTH,
        answer=session,
        query=WhoseSession,
        answers={200: "The record.", 404: "For an operator: say whose session is meant."},
        returns="Session",
    ),
    Row(
        method="GET",
        path="/v1/sessions",
        name="implicit_session",
        summary="The same of the implicit session, whose calls named none.",
        roles=BOTH,
        answer=implicit_session,
        query=WhoseSession,
        answers={200: "The record.", 404: "For an operator: say whose session is meant."},
        returns="Session",
    ),
    Row(
        method="GET",
        path="/v1/operations/{operation_id}/timeline",
        name="timeline",
        summary="Everything that happened to an operation, in order.",
        roles=OPERATOR | {Role.AUDITOR},
        answer=timeline,
        answers={200: "The entries.", 404: NOT_FOUND},
        returns="Timeline",
    ),
    Row(
        method="GET",
        path="/v1/outcomes",
        name="outcomes",
        summary="Settlements in order, each once with a unique id: an agent its own.",
        roles=BOTH,
        answer=outcomes,
        query=After,
        answers={200: "Those after `after`, and what to ask for next."},
        returns="Settlements",
    ),
    Row(
        method="GET",
        path="/v1/tools",
        name="tools",
        summary="The tools that may be called.",
        roles=AGENT,
        answer=tools,
        answers={200: "Names, descriptions, JSON Schemas, effects."},
        returns="Tools",
    ),
    Row(
        method="GET",
        path="/healthz",
        name="healthz",
        summary="Whether the process answers.",
        roles=ANYBODY,
        answer=healthz,
        answers={200: "It does."},
        returns="Health",
    ),
    Row(
        method="GET",
        path="/readyz",
        name="readyz",
        summary="Whether work can be taken; the ledger is asked.",
        roles=ANYBODY,
        answer=readyz,
        answers={200: "It can.", 503: "It can't: `code` says why."},
        returns="Health",
    ),
)
