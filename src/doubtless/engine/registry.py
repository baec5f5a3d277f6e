"""The tools that this process knows: their contracts, and the code behind them.

A contract is kept by digest, so that an operation goes on under the one it was prepared with. Code
is found by the tool's name: it may have been registered before or after the operation was made.
"""

import importlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias, cast

import jsonschema_rs

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.model import Json, Operation, Source
from doubtless.engine.contracts import (
    Lookup,
    WebhookRules,
    contract_digest,
    dump_contract,
    read_contract,
)
from doubtless.errors import BadArguments, SettingsError, UnknownTool
from doubtless.transports.function import Body

LEFT_TO_ITS_RUN_MS = 3_000  # from when it is due; whoever has its run looks once a second

Ask: TypeAlias = Callable[..., "Awaitable[object] | object"]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One registered tool."""

    contract: Contract
    body: Body | None = None  # None: an HTTP tool
    lookups: Mapping[str, Ask] = field(default_factory=dict)  # by the look-up's name

    @cached_property
    def digest(self) -> str:
        """The contract's digest."""
        return contract_digest(self.contract)

    @cached_property
    def snapshot(self) -> str:
        """The contract as canonical JSON."""
        return dump_contract(self.contract)

    @cached_property
    def _validator(self) -> jsonschema_rs.Draft202012Validator:
        schema = dict(self.contract.arguments)
        return jsonschema_rs.Draft202012Validator(schema, offline=True, validate_formats=True)

    def check(self, arguments: Mapping[str, Json]) -> None:
        """Hold arguments against the tool's JSON Schema.

        Raises:
            BadArguments: Naming the place and what is wrong; the provider never sees them.
        """
        for error in self._validator.iter_errors(dict(arguments)):
            where = ".".join(str(step) for step in error.instance_path)
            raise BadArguments(self.contract.tool, where, error.message)


class Registry:
    """All tools of one process, by name and by digest of their contracts."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}
        self._contracts: dict[str, Contract] = {}
        self.can: Callable[[Kind], bool] = lambda _: False  # of kinds with a transport of their own
        self.webhooks: dict[str, WebhookRules] = {}  # by source: how its events are signed, shaped

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def add(self, tool: Tool) -> None:
        """Register a tool.

        Raises:
            SettingsError: Another one has that name.
        """
        name = tool.contract.tool
        if name in self._tools:
            raise SettingsError(f"two tools are called {name!r}: rename one of them")
        self._tools[name] = tool
        self._contracts[tool.digest] = tool.contract

    def renew(self, tool: Tool) -> None:
        """Put a tool in the place of the one that has its name: what is asked for from now on.

        Operations that exist go on under the contract that they were prepared with.
        """
        self._tools[tool.contract.tool] = tool
        self._contracts[tool.digest] = tool.contract

    def tool(self, name: str) -> Tool:
        """Return a tool by name.

        Raises:
            UnknownTool: There is none, with the names of those there are.
        """
        try:
            return self._tools[name]
        except KeyError:
            raise UnknownTool(name, list(self._tools)) from None

    def find(self, name: str) -> Tool | None:
        """Return a tool by name, or None."""
        return self._tools.get(name)

    def contract(self, digest: str, snapshot: Callable[[], str]) -> Contract:
        """Return the contract of that digest, read from its snapshot where it isn't known yet."""
        found = self._contracts.get(digest)
        if found is None:
            found = self._contracts[digest] = read_contract(snapshot())
        return found

    def by_digest(self, digest: str) -> Contract | None:
        """Return a contract that is known here already, or None."""
        return self._contracts.get(digest)

    def can_act(self, contract: Contract) -> bool:
        """Whether this process can carry the tool out."""
        if contract.kind is not Kind.FUNCTION:
            return contract.kind is Kind.HTTP or self.can(contract.kind)
        tool = self._tools.get(contract.tool)
        return tool is not None and tool.body is not None

    def leaves_to_its_run(self, operation: Operation, now_ms: int) -> bool:
        """Whether another process may be about to carry it out, which alone has what it takes."""
        tool = self._tools.get(operation.tool)
        body = tool.body if tool is not None else None
        if body is None or body.has_run is None or operation.due_ms is None:
            return False
        return now_ms < operation.due_ms + LEFT_TO_ITS_RUN_MS and not body.has_run(operation.id)

    def asker(self, contract: Contract, look: LookupRules) -> Ask | None:
        """Return the code of a look-up, or None where this process hasn't got it."""
        tool = self._tools.get(contract.tool)
        if tool is not None and look.name in tool.lookups:
            return tool.lookups[look.name]
        return _imported(look.python) if look.python is not None else None

    def can_ask(self, contract: Contract) -> bool:
        """Whether this process can ask all look-ups of a contract."""
        return all(
            look.request is not None
            or self.asker(contract, look) is not None
            or (look.speaks is not Source.LOOKUP and self.can(contract.kind))
            for look in contract.lookups
        )


def _imported(path: str) -> Ask | None:
    """Import `module:function`; None where that isn't possible here."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit):  # noqa: BLE001 - a module may raise anything
        return None
    return cast("Ask", found) if callable(found) else None


def code_lookups(contract: Contract, said: Lookup | Sequence[Lookup] | None) -> dict[str, Ask]:
    """Return the code of look-ups that were declared as functions, by the look-up's name."""
    looks = [said] if isinstance(said, Lookup) else list(said or ())
    return {
        rules.name: look.function
        for rules, look in zip(contract.lookups, looks, strict=True)
        if callable(look.function)
    }
