"""On which host something was done: what is kept on a disk can be asked about there alone."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from doubtless.core.model import Json

_MACHINE_ID = Path("/etc/machine-id")  # machine-id(5)


@lru_cache(maxsize=1)
def _machine() -> str:
    try:
        return _MACHINE_ID.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def this_place(owner: str) -> dict[str, Json]:
    """Return what tells this host from others, restarts aside.

    Args:
        owner: The identity of this process, as `Workplace.owner`.
    """
    host: Json = json.loads(owner).get("host", "")
    return {"host": host, "machine": _machine()}


def elsewhere(baseline: Json, owner: str) -> str | None:
    """Say on which other host an operation began; None where it was here."""
    place = baseline.get("place") if isinstance(baseline, Mapping) else None
    if place == this_place(owner):
        return None
    host = place.get("host") if isinstance(place, Mapping) else None
    return f"it began on the host {host}, and only that one can tell"
