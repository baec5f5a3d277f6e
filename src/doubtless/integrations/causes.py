"""What stands behind an exception of a tool: its own word, or a connection that broke."""

from typing import Final

OF_PROTOCOLS: Final = ("McpError", "MCPError")  # whatever they say, the tool did not


def is_broken(error: BaseException) -> bool:
    """Whether a time-out or a broken connection stands behind it, in whatever it is wrapped.

    Then it is no answer of the tool, and its contract can't make it a definitive one.
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, TimeoutError | ConnectionError | EOFError):
            return True
        if type(found).__name__ in OF_PROTOCOLS:
            return True
        found = found.__cause__ or found.__context__
    return False
