"""Actions that are no HTTP request: their transports, and the errands that these are sent on.

A transport is made when it is first needed, since the libraries of most are extras.
"""

import importlib
import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import NamedTuple

import rfc8785

from doubtless.core import identity
from doubtless.core.contract import Contract, Kind
from doubtless.core.model import Json
from doubtless.engine.book import BASELINE, EXHIBIT, Begun, Book
from doubtless.errors import LedgerError, SettingsError
from doubtless.ledger import bodies
from doubtless.ledger.store import Ledger, Transaction
from doubtless.transports.base import Action, ActionTransport, Errand, Keep, Workplace


class Maker(NamedTuple):
    """Where the transport of one kind is, and what it needs to be installed."""

    module: str
    name: str  # of a class that takes a `Workplace`
    library: str | None = None
    extra: str = ""


MAKERS: Mapping[Kind, Maker] = MappingProxyType(
    {
        Kind.FILE: Maker("doubtless.transports.files", "FilesTransport"),
        Kind.SHELL: Maker("doubtless.transports.shell", "ShellTransport"),
        Kind.GIT_PUSH: Maker("doubtless.transports.git", "GitTransport"),
        Kind.MAIL: Maker("doubtless.transports.mail", "MailTransport", "aiosmtplib", "mail"),
        Kind.SSH: Maker("doubtless.transports.ssh", "SshTransport", "asyncssh", "ssh"),
        Kind.BROWSER: Maker(
            "doubtless.transports.browser", "BrowserTransport", "playwright", "browser"
        ),
        Kind.MCP: Maker("doubtless.transports.mcp", "McpTransport", "mcp", "mcp"),
    }
)


class Actions:
    """The transports of one process. Each is made when it is first needed.

    Args:
        workplace: What they are given.
    """

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace
        self._made: dict[Kind, ActionTransport] = {}

    def check(self, contracts: Iterable[Contract]) -> None:
        """Be sure that the library of every tool's transport is installed.

        Raises:
            SettingsError: Naming every tool that can't be carried out here, and what to install.
        """
        missing = [
            f"{contract.tool} needs {maker.library}: pip install 'doubtless[{maker.extra}]'"
            for contract in contracts
            if (maker := MAKERS.get(contract.kind)) is not None and not _installed(maker)
        ]
        if missing:
            raise SettingsError("\n".join(missing))

    def can(self, kind: Kind) -> bool:
        """Whether this process can carry out and ask about actions of a kind."""
        maker = MAKERS.get(kind)
        return maker is not None and _installed(maker)

    def transport(self, kind: Kind) -> ActionTransport:
        """Return the transport of a kind.

        Raises:
            SettingsError: Its library is not installed here.
        """
        if kind not in self._made:
            maker = MAKERS[kind]
            try:
                found = getattr(importlib.import_module(maker.module), maker.name)
            except ImportError as error:
                raise SettingsError(
                    f"{kind.value} needs {maker.library}: pip install 'doubtless[{maker.extra}]'"
                ) from error
            self._made[kind] = found(self._workplace)
        return self._made[kind]

    def made(self, kind: Kind) -> ActionTransport | None:
        """Return the transport of a kind, if anything of that kind was done here already."""
        return self._made.get(kind)

    async def aclose(self) -> None:
        """Let go of whatever the transports keep open."""
        made, self._made = list(self._made.values()), {}
        for transport in made:
            await transport.aclose()


def _installed(maker: Maker) -> bool:
    return maker.library is None or find_spec(maker.library) is not None


class Errands:
    """Makes errands from what the ledger holds, and stores what is seen on them."""

    def __init__(self, ledger: Ledger, book: Book) -> None:
        self._ledger, self._book = ledger, book

    def errand(self, operation_id: str, contract: Contract, attempt: int) -> Errand:
        """Return what a transport is told about an operation.

        Raises:
            LedgerError: Its rendered action or its arguments are no longer stored.
        """

        def unit(tx: Transaction) -> Errand:
            record = self._book.load(tx, operation_id)[0]
            operation = record.operation
            action = self._book.request(tx, operation_id)
            arguments = self._book.arguments(tx, operation_id)
            if not isinstance(action, Action) or arguments is None:
                raise LedgerError(f"{operation_id}: its rendered action is no longer stored")
            stored = bodies.body(tx, self._book.tenant, operation_id, BASELINE)
            return Errand(
                operation_id=operation_id,
                ref=operation.ref,
                tool=contract.tool,
                action=action,
                arguments=arguments,
                attempt=attempt,
                baseline=None if stored is None else json.loads(stored),
                duplicate_of=operation.duplicate_of,
                duplicate_ref=self._ref(operation.duplicate_of),
                correlation_id=record.attempts[attempt - 1].correlation_id,
                keep=self._keep(operation_id, attempt),
            )

        return self._ledger.read(unit)

    def _ref(self, operation_id: str | None) -> str | None:
        if operation_id is None:
            return None
        return identity.reference(identity.derive(self._book.ledger_id, operation_id))

    def _keep(self, operation_id: str, attempt: int) -> Keep:
        async def keep(name: str, content: bytes) -> None:
            await self._ledger.commit(
                lambda tx: bodies.put_body(
                    tx, self._book.tenant, operation_id, f"{EXHIBIT}{name}", attempt, content
                )
            )

        return keep

    async def surveyed(self, begun: Begun, baseline: Json) -> Json:
        """Store how things stood before the first attempt, and return what is stored.

        The first survey counts: that of a worker which only stalled doesn't take its place.
        """
        operation_id = begun.record.operation.id

        def unit(tx: Transaction) -> bytes:
            tenant = self._book.tenant
            stored = bodies.body(tx, tenant, operation_id, BASELINE)
            if stored is None:
                stored = rfc8785.dumps(baseline)
                bodies.put_body(tx, tenant, operation_id, BASELINE, 0, stored)
            return stored

        found: Json = json.loads(await self._ledger.commit(unit))
        return found
