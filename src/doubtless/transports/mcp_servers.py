"""MCP servers as they are declared: how one is started or reached. Needs no library.

What is here is stored with operations: credentials are named, never held.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from doubtless.core.model import Json

START_MS: Final = 30_000

OPERATION_ID: Final = "doubtless.dev/operation-id"
"""In `_meta` of every call: our operation."""

IDEMPOTENCY_KEY: Final = "doubtless.dev/idempotency-key"
"""In `_meta` of every call: the same in all attempts of one operation."""

CORRELATION_ID: Final = "doubtless.dev/correlation-id"
"""In `_meta` of every call: of this attempt, or the caller's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerRules:
    """One upstream server: a command that speaks MCP on its pipes, or the URL of an endpoint.

    Equal rules share one connection in each process. No secret is in it.
    """

    name: str
    command: tuple[str, ...] = ()  # argv; or `url`, never both
    cwd: str | None = None
    env: tuple[tuple[str, str], ...] = ()  # beside PATH, HOME and the like
    env_credentials: tuple[tuple[str, str], ...] = ()  # variable → name of a credential
    inherits: bool = False  # all that stands in the environment of the process that starts it
    url: str | None = None
    credential: str | None = None  # of the endpoint
    header: str | None = None  # that carries it as it is; None: "Authorization: Bearer …"
    private: bool = False  # the URL's host name may stand for a private or loopback address
    tls_ca: str | None = None
    handshake: bool = False  # one of before 2026, which never answers a question it doesn't know
    timeout_ms: int = START_MS  # to start or connect, shake hands and list the tools

    def to_json(self) -> dict[str, Json]:
        """Return what `from_json` takes; what is as by default is left out."""
        found: dict[str, Json] = {"name": self.name}
        if self.command:
            found["command"] = list(self.command)
        secret: dict[str, Json] = {name: {"credential": of} for name, of in self.env_credentials}
        if env := {**dict(self.env), **secret}:
            found["env"] = env
        for key in ("cwd", "url", "credential", "header", "tls_ca"):
            if (text := getattr(self, key)) is not None:
                found[key] = text
        for key in ("inherits", "private", "handshake"):
            if getattr(self, key):
                found[key] = True
        if self.timeout_ms != START_MS:
            found["timeout_ms"] = self.timeout_ms
        return found

    @classmethod
    def from_json(cls, said: Mapping[str, Json]) -> "ServerRules":
        """Read what `to_json` wrote."""
        env = cast("Mapping[str, Json]", said.get("env", {}))
        secret = {
            name: str(each["credential"]) for name, each in env.items() if isinstance(each, Mapping)
        }
        return cls(
            name=str(said["name"]),
            command=tuple(cast("list[str]", said.get("command", []))),
            cwd=cast("str | None", said.get("cwd")),
            env=tuple(sorted((name, str(env[name])) for name in env if name not in secret)),
            env_credentials=tuple(sorted(secret.items())),
            inherits=said.get("inherits") is True,
            url=cast("str | None", said.get("url")),
            credential=cast("str | None", said.get("credential")),
            header=cast("str | None", said.get("header")),
            private=said.get("private") is True,
            tls_ca=cast("str | None", said.get("tls_ca")),
            handshake=said.get("handshake") is True,
            timeout_ms=cast("int", said.get("timeout_ms", START_MS)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolClaims:
    """What a server says of one of its tools. Claims: nothing here is known to be so."""

    name: str
    description: str = ""
    input_schema: Mapping[str, Json] | None = None
    read_only: bool = False  # `annotations.readOnlyHint`
