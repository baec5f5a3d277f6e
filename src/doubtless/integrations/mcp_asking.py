"""Showing a person where to approve. What comes back over the agent's connection approves nothing.

A client that can, shows its user the place: a URL, or a form with nothing to fill in. Accepting it
only says that it was seen. The ledger alone tells whether somebody approved.
"""

import logging
from typing import Final

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from doubtless.core.model import State
from doubtless.core.outcome import Outcome
from doubtless.integrations.mcp_calls import Caller

SHOWN_S: Final = 600.0
"""How long a client's dialog may stand open while the call waits."""
ENDED_S: Final = 30.0  # for what was approved while the dialog stood open
STATE: Final = "operation:"
REQUEST: Final = "approval"

_log = logging.getLogger("doubtless.gateway")


class Asking:
    """Says where operations are approved, and shows it where a client can.

    Args:
        approve_at: A URL with `{id}`, where a person approves; None: the command line.
        ledger: The ledger's address as a person may be shown it.
        tenant: Whose part of it.
    """

    def __init__(self, approve_at: str | None, *, ledger: str, tenant: str) -> None:
        self._approve_at, self._ledger, self._tenant = approve_at, ledger, tenant

    def where(self, outcome: Outcome) -> str:
        """Return the URL or the command by which a person approves."""
        if self._approve_at is not None:
            return self._approve_at.replace("{id}", outcome.operation_id)
        tenant = "" if self._tenant == "main" else f" --tenant {self._tenant}"
        return f"doubtless approve {outcome.operation_id} --ledger {self._ledger}{tenant} --note …"

    def words(self, outcome: Outcome) -> str:
        """Say what a person is shown."""
        return (
            f"{outcome.tool} waits for a person's approval. Approve or deny it at:"
            f" {self.where(outcome)}\nClosing or accepting this message approves nothing."
        )

    def asked_before(self, params: types.CallToolRequestParams) -> str | None:
        """Return the operation that a repeated request is about, whose user was shown the place.

        It is only read, as the caller's own; what the user answered is not looked at.
        """
        state = params.request_state
        return state.removeprefix(STATE) if state and state.startswith(STATE) else None

    async def show(
        self,
        context: ServerRequestContext[dict[str, object], object],
        caller: Caller,
        outcome: Outcome,
    ) -> Outcome | types.InputRequiredResult:
        """Show the place where the client can, and return what is known afterwards."""
        abilities = context.session.client_capabilities
        can = abilities.elicitation if abilities is not None else None
        if can is None:
            return outcome
        by_url = self._approve_at is not None and can.url is not None
        if not by_url and can.url is not None and can.form is None:
            return outcome  # it can open a URL only, and there is none
        request = self._request(outcome, by_url=by_url, version=context.protocol_version)
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return types.InputRequiredResult(
                input_requests={REQUEST: request}, request_state=STATE + outcome.operation_id
            )
        with anyio.CancelScope() as dialog:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_elicit, context, request, dialog)
                outcome = await caller.actor.wait(outcome.operation_id, timeout=SHOWN_S)
                dialog.cancel()
        return await self.afterwards(caller, outcome.operation_id)

    async def afterwards(self, caller: Caller, operation_id: str) -> Outcome:
        """Return what is known once a person was shown the place, whatever was answered there.

        Raises:
            OperationNotFound: The caller has no such operation.
        """
        outcome = await caller.actor.outcome(operation_id)
        if outcome.state == State.AWAITING_APPROVAL:
            return outcome
        return await caller.actor.wait(operation_id, timeout=ENDED_S)

    def _request(self, outcome: Outcome, *, by_url: bool, version: str) -> types.ElicitRequest:
        words = self.words(outcome)
        if not by_url:
            # Nothing to fill in, so that there is nothing to take for an approval.
            form: types.ElicitRequestedSchema = {"type": "object", "properties": {}}
            params = types.ElicitRequestFormParams(message=words, requested_schema=form)
            return types.ElicitRequest(params=params)
        modern = version in MODERN_PROTOCOL_VERSIONS
        return types.ElicitRequest(
            params=types.ElicitRequestURLParams(
                message=words,
                url=self.where(outcome),
                elicitation_id=None if modern else outcome.operation_id,
            )
        )


async def _elicit(
    context: ServerRequestContext[dict[str, object], object],
    request: types.ElicitRequest,
    dialog: anyio.CancelScope,
) -> None:
    """Show a client's user the place. The answer is not even looked at."""
    related = ServerMessageMetadata(related_request_id=context.request_id)
    try:
        await context.session.send_request(request, types.ElicitResult, metadata=related)
    except (MCPError, ValidationError) as error:
        _log.info("the place to approve could not be shown: %s", type(error).__name__)
    dialog.cancel()
