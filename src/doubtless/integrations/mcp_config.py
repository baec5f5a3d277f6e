"""The gateway's own file: what it serves, for whom, and on which ledger.

Relative paths in it begin at the folder where it lies, since a client starts its servers anywhere.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from doubtless.errors import SettingsError

SQLITE: Final = "sqlite:///"
KEYS: Final = (
    "scope", "ledger", "tenant", "principal", "contracts", "secrets", "idle", "approve_at",
)  # fmt: skip
SERVERS: Final = "servers"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayFile:
    """What a gateway's file says. Its servers are read by the service alone."""

    folder: Path
    values: Mapping[str, str] = field(default_factory=dict)
    servers: Mapping[str, Mapping[str, object]] = field(default_factory=dict)


def read_gateway_file(path: str | Path) -> GatewayFile:
    """Read a gateway's file.

    Raises:
        SettingsError: It can't be read, or has a key or a value that it may not have.
    """
    place = Path(path).absolute()
    try:
        found = tomllib.loads(place.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: this is not TOML: {error}") from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} can't be read: {error}") from error
    servers = found.pop(SERVERS, {})
    known = ", ".join((*KEYS, f"[{SERVERS}.NAME]"))
    wrong = [f"{path}: no key {name!r}: use {known}" for name in found if name not in KEYS]
    wrong += [
        f'{path}: {name} must be text in quotes: {name} = "…"'
        for name, value in found.items()
        if name in KEYS and not (isinstance(value, str) and value)
    ]
    if not isinstance(servers, dict) or not all(
        isinstance(each, dict) for each in servers.values()
    ):
        wrong.append(f"{path}: {SERVERS}: write tables, such as [{SERVERS}.pay]")
    if wrong:
        raise SettingsError("\n".join(wrong))
    return GatewayFile(folder=place.parent, values=found, servers=servers)


def absolute(value: str, folder: Path) -> str:
    """Return a path that begins at a folder, if it begins nowhere."""
    return str(folder / Path(value).expanduser())


def absolute_ledger(address: str, folder: Path) -> str:
    """Return a ledger's address in which a relative path begins at a folder."""
    path = address.removeprefix(SQLITE)
    if path == address or path.startswith("/") or not path:
        return address
    return f"{SQLITE}{folder / path}"
