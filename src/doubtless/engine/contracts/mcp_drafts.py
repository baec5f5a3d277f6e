"""The contract of an upstream MCP tool that nobody wrote one for."""

from doubtless.core.contract import Contract
from doubtless.transports.mcp_servers import ServerRules, ToolClaims


def contract_of(
    server: ServerRules,
    tool: ToolClaims,
    *,
    errors_definitive: bool = False,
    name: str | None = None,
) -> Contract:
    """Return the contract of a tool by what its server claims of it.

    `readOnlyHint` makes it a read. Everything else is `time_sensitive`, valid for an hour: never
    looked up, never sent again, and an unknown goes straight to a person.

    Args:
        server: How it is reached; stored with every operation.
        tool: What the server says of it.
        errors_definitive: Whether `isError` is declared to prove that nothing was done.
        name: Our name of it, where it isn't the server's own (of several servers).

    Raises:
        ContractError: Its name or schema can't be a contract's.
    """
    raise NotImplementedError
