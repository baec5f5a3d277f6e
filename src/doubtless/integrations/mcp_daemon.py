"""The local service as a process: `python -m doubtless.integrations.mcp_daemon`, by the shim.

It reads its settings from standard input, and answers with one line of JSON: `ready` with its pid,
`busy` if another one has the place, or `error`. Then it is on its own: in a session and a process
tree of its own, so that whoever ends a client with all its children doesn't end it.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from doubtless.errors import DoubtlessError
from doubtless.integrations.mcp_place import GatewaySettings, Place


def main() -> int:
    """Serve until it is idle or ended by a signal."""
    settings = GatewaySettings.from_text(sys.stdin.buffer.read())
    if os.fork():
        os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    place = Place.of(settings)
    if place.lock() is None:
        _tell(1, {"busy": True})
        return 0
    # Whatever prints belongs to the log. The shim is answered through a descriptor of its own.
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        from doubtless.integrations.mcp_service import run  # noqa: PLC0415 - slow

        run(settings, place, lambda said: _tell(answers, said))
    except (DoubtlessError, OSError, ImportError) as error:
        _tell(answers, {"error": str(error) or type(error).__name__})
        return 1
    return 0


def _tell(answers: int, said: Mapping[str, object]) -> None:
    """Answer the shim, which may have gone; it waits for the end of this descriptor."""
    with suppress(OSError):
        os.write(answers, json.dumps(said).encode() + b"\n")
        os.close(answers)


if __name__ == "__main__":
    sys.exit(main())
