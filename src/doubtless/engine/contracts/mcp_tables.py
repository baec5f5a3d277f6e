"""`[servers.X]`: upstream MCP servers. What may be said of one, and what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from doubtless.engine.contracts.sources import is_loopback, wrong_url
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import Credential, HeaderName, Period, Text
from doubtless.errors import Problem
from doubtless.transports.mcp_servers import START_MS, ServerRules

DEFINITIVE: Final = "definitive"
OF_URLS: Final = ("credential", "header", "private", "ca")
OF_COMMANDS: Final = ("cwd", "env")


class SecretTable(Table):
    """The value of an environment variable that is a secret: its name, never itself."""

    credential: Credential


class ServerTable(Table):
    """`[servers.X]`."""

    command: list[Text] | None = None  # argv
    cwd: Text | None = None  # from the contract file's folder, which is the default too
    env: dict[str, str | SecretTable] = Field(default_factory=dict)
    url: Text | None = None
    credential: Credential | None = None
    header: HeaderName | None = None  # that carries it as it is; default: Authorization: Bearer
    private: bool = False
    ca: Text | None = None
    handshake: bool = False  # it is one of before 2026, and hangs at what it doesn't know
    timeout: Period | None = None  # to start or connect, and to agree on the protocol
    errors: Literal["definitive", "unknown"] | None = None  # of all its tools

    @property
    def is_definite(self) -> bool:
        """Whether an error of any of its tools is declared to prove that nothing was done."""
        return self.errors == DEFINITIVE


def server_rules(name: str, said: ServerTable, folder: Path) -> ServerRules:
    """Fill the defaults of a server in; relative paths are meant from `folder`."""
    plain = {key: each for key, each in said.env.items() if isinstance(each, str)}
    secret = {
        key: each.credential for key, each in said.env.items() if isinstance(each, SecretTable)
    }
    return ServerRules(
        name=name,
        command=tuple(said.command or ()),
        cwd=str(folder / (said.cwd or "")) if said.command else None,
        env=tuple(sorted(plain.items())),
        env_credentials=tuple(sorted(secret.items())),
        url=said.url,
        credential=said.credential,
        header=said.header,
        private=said.private,
        tls_ca=str(folder / said.ca) if said.ca is not None else None,
        handshake=said.handshake,
        timeout_ms=said.timeout or START_MS,
    )


def errors_in_server(file: str, name: str, said: ServerTable) -> Iterator[Problem]:
    """Yield what is wrong with a server whose every key is well-formed."""

    def problem(key: str, wrong: str, mend: str) -> Problem:
        return Problem(file=file, table=f"servers.{name}", key=key, wrong=wrong, mend=mend)

    if (said.command is None) == (said.url is None):
        wrong = "it is started, or it is reached: one of both."
        yield problem("command", wrong, 'say command = ["…"], or url = "https://…".')
        return
    if said.command == []:
        yield problem("command", "it is empty.", "name the program and its arguments.")
    if said.url is not None and (wrong := wrong_url(said.url, bare=False)):
        yield problem("url", wrong, 'write only scheme, host, port and path: "https://…/mcp".')
    others = OF_COMMANDS if said.url is not None else OF_URLS
    for key in others:
        if key in said.model_fields_set:
            whose = "started" if said.url is not None else "reached"
            yield problem(key, f"it belongs to a server that is {whose}.", "leave it out.")
    if said.header is not None and said.credential is None:
        yield problem("header", "it would carry nothing.", 'say credential = "…" too.')


def warnings_in_server(file: str, name: str, said: ServerTable) -> Iterator[Problem]:
    """Yield what is allowed and should be known."""
    if said.url is None or said.credential is None:
        return
    parts = urlsplit(said.url)
    if parts.scheme == "http" and not is_loopback(parts):
        wrong = f"the credential {said.credential!r} would travel in clear text."
        yield Problem(file=file, table=f"servers.{name}", key="url", wrong=wrong, mend="use https.")
