"""Secrets, by name. They live in the process that calls the provider, and nowhere else.

Looked for as `DOUBTLESS_SECRET_<NAME>` (upper case, `-` as `_`), then as a file of that name in the
secrets folder.
"""

import base64
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from doubtless.core.contract import Contract, SourceRules
from doubtless.core.model import Json
from doubtless.engine.contracts import WebhookRules
from doubtless.errors import SettingsError


class Credentials:
    """Finds secrets. It keeps none, and shows none."""

    def __init__(
        self, folder: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._environment = os.environ if environment is None else environment

    def find(self, name: str) -> str:
        """Return the secret called `name`, without white space around it.

        Raises:
            SettingsError: There is none, or it is empty. The text names where to put it.
        """
        variable = "DOUBTLESS_SECRET_" + name.upper().replace("-", "_")
        secret = self._environment.get(variable, "").strip()
        if not secret and self._folder is not None:
            try:
                secret = (self._folder / name).read_text(encoding="utf-8").strip()
            except FileNotFoundError:
                secret = ""
            except (OSError, ValueError) as error:
                raise SettingsError(f"the secret {name!r} can't be read: {error}") from error
        if not secret:
            place = f" or the file {name} in {self._folder}" if self._folder else ""
            raise SettingsError(f"there is no secret {name!r}: set {variable}{place}")
        return secret

    def live(self, name: str) -> tuple[str, ...]:
        """Return the live secrets called `name`, one on each line: two while one is replaced.

        Raises:
            SettingsError: There is none, or it is empty. The text names where to put it.
        """
        lines = (line.strip() for line in self.find(name).splitlines())
        return tuple(line for line in lines if line)

    def check(
        self, contracts: Iterable[Contract], webhooks: Mapping[str, WebhookRules] | None = None
    ) -> None:
        """Be sure that every secret is there that a contract or a source's webhook wants.

        Raises:
            SettingsError: Naming every missing one and the tools and webhooks that want it.
        """
        wanted: dict[str, list[str]] = {}
        for contract in contracts:
            for name in sorted(_named(contract)):
                wanted.setdefault(name, []).append(contract.tool)
        for source, rules in (webhooks or {}).items():
            wanted.setdefault(rules.credential, []).append(f"the webhook of {source}")
        missing: list[str] = []
        for name, tools in wanted.items():
            try:
                self.find(name)
            except SettingsError as error:
                missing.append(f"{error} (wanted by {', '.join(sorted(tools))})")
        if missing:
            raise SettingsError("\n".join(missing))

    def headers(self, source: SourceRules) -> dict[str, str]:
        """Return the header that authorises a call to `source`; none where it needs none.

        `basic` takes a secret of the form `user:password` (RFC 7617).

        Raises:
            SettingsError: The secret is missing.
        """
        if source.credential is None:
            return {}
        secret = self.find(source.credential)
        match source.auth_scheme:
            case "basic":
                token = base64.b64encode(secret.encode()).decode()
                return {source.auth_header: f"Basic {token}"}
            case "header":
                return {source.auth_header: secret}
            case _:
                return {source.auth_header: f"Bearer {secret}"}


def _named(contract: Contract) -> set[str]:
    """Return the names of all secrets that a tool's source and its block name."""
    found = {contract.source.credential} if contract.source.credential is not None else set()
    rest: list[Json] = [contract.action]
    while rest:
        part = rest.pop()
        if isinstance(part, Mapping):
            name = part.get("credential")
            found |= {name} if isinstance(name, str) else set()
            rest.extend(part.values())
        elif isinstance(part, Sequence) and not isinstance(part, str):
            rest.extend(part)
    return found
