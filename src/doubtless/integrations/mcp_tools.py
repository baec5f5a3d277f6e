"""The tools that the gateway serves: those of upstream servers, and those of the contract file.

Schemas and annotations are handed on as they are; descriptions say besides what a caller must know.
An upstream's tool without a contract gets the strictest one there is.
"""

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
import mcp_types as types

from doubtless.core.contract import Contract, Kind
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Effect, Json
from doubtless.engine.contracts.answers import answers_of
from doubtless.engine.contracts.mcp_drafts import contract_of
from doubtless.engine.registry import Registry, Tool
from doubtless.errors import ContractError
from doubtless.integrations import telling
from doubtless.transports.mcp_servers import ServerRules, ToolClaims
from doubtless.transports.mcp_upstream import Unreachable, Upstreams

OURS: Final = "doubtless_"
"""Put before the names of our own tools where an upstream has one of that name."""

NAME_CHARS_MAX: Final = 64
FRESH_S: Final = 3.0
"""How long a server is asked whose tools are known: it may be busy with a call."""

_NAME: Final = re.compile(f"[A-Za-z0-9_-]{{1,{NAME_CHARS_MAX}}}")
_log = logging.getLogger("doubtless.gateway")


class Unlisted(Exception):
    """No server can say what its tools are; the text says why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fronted:
    """One upstream server, as this gateway serves it."""

    rules: ServerRules
    errors_definitive: bool = False
    prefix: str = ""  # of its tools' names; none where it is the only one


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One tool as a client sees it, and as the ledger knows it."""

    name: str  # for clients
    contract: str  # the ledger's name of it
    tool: types.Tool
    effect: Effect
    is_upstream: bool
    is_declared: bool  # whether somebody wrote a contract for it


@dataclass(frozen=True, slots=True)
class Reading:
    """What the tools are called that only read the ledger."""

    status: str = telling.STATUS_TOOL
    unresolved: str = telling.UNRESOLVED_TOOL


class Catalogue:
    """What is served. Upstreams are asked each time that a client wants the list.

    Args:
        registry: Where contracts of tools are found, and those of upstream tools are put.
        upstreams: The connections.
        servers: What is fronted.
        say: Told once, in a line each, what can't be served and what effectful tools lack.
    """

    def __init__(
        self,
        registry: Registry,
        upstreams: Upstreams,
        servers: Sequence[Fronted],
        *,
        say: Callable[[str], None] = _log.warning,
    ) -> None:
        self._registry, self._upstreams, self._servers = registry, upstreams, servers
        self._say = say
        self._own = {served.name: served for served in self._of_the_file()}
        self._theirs: dict[str, dict[str, Served]] = {}  # by server
        # Contracts that nobody wrote, and whose tools they are.
        self._drafted: dict[str, tuple[str, str]] = {}
        self._known: dict[
            tuple[str, str], tuple[types.Tool, list[Served]]
        ] = {}  # by server and name
        self._unserved: dict[str, None] = {}
        self.failures: list[str] = []  # of the last time that servers were asked
        self._said: set[str] = set()
        self.reading = Reading()

    async def tools(self) -> list[types.Tool]:
        """Return all tools, by name.

        A server that can't be asked now keeps the tools that it had.

        Raises:
            Unlisted: There are servers, and of none of them any tool is known.
        """
        await self._refresh()
        return [*(each.tool for each in self.served()), *self._reading_tools()]

    async def find(self, name: str) -> Served | None:
        """Return a tool, or None if there is none of that name.

        Raises:
            Unlisted: It isn't known, and the servers can't be asked.
        """
        found = self._served().get(name)
        if found is None:
            await self._refresh()
            found = self._served().get(name)
        return found

    def schema(self, name: str) -> Mapping[str, Json] | None:
        """Return the schema of a tool's arguments as it is known; asks no server."""
        found = self._served().get(name)
        return None if found is None else found.tool.input_schema

    def served(self) -> list[Served]:
        """Return what is known so far, by name."""
        return sorted(self._served().values(), key=lambda each: each.name)

    def _findings(self) -> list[str]:
        """Say of each effectful tool that is known so far what it lacks."""
        return [
            line
            for each in self.served()
            if each.effect not in NO_EFFECT
            and (line := lacking(each.name, self._registry.tool(each.contract).contract))
        ]

    def _served(self) -> dict[str, Served]:
        found = dict(self._own)
        for each in self._theirs.values():
            found.update(each)
        return found

    # --- the contract file's own -----------------------------------------------------------------

    def _of_the_file(self) -> Iterator[Served]:
        for tool in self._registry:
            contract = tool.contract
            if contract.kind is not Kind.MCP:
                yield _served(contract, _tool_of(contract))

    # --- upstream --------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        self.failures = []
        async with anyio.create_task_group() as tasks:
            for server in self._servers:  # at once, since one that hangs takes its time
                tasks.start_soon(self._ask, server)
        if self.failures and not self._theirs and not self._own:
            raise Unlisted("; ".join(self.failures))
        self._name_ours()
        for line in (*self.failures, *self._unserved, *self._findings()):
            if line not in self._said:
                self._said.add(line)
                self._say(line)

    async def _ask(self, server: Fronted) -> None:
        listed = None
        is_known = server.rules.name in self._theirs
        try:
            with anyio.move_on_after(FRESH_S if is_known else None):
                listed = await self._upstreams.tools(server.rules)
        except Unreachable as error:
            self.failures.append(str(error))
        if listed is None:
            return  # what is known of it stays
        served = [each for tool in listed for each in self._front(server, tool)]
        self._theirs[server.rules.name] = {each.name: each for each in served}

    def _front(self, server: Fronted, tool: types.Tool) -> list[Served]:
        """Return an upstream's tool as it is served: by each contract for it, or by our own."""
        of = (server.rules.name, tool.name)
        known = self._known.get(of)
        if known is not None and known[0] == tool:
            return known[1]
        served = [_declared(each, tool) for each in self._contracts_for(*of)]
        if not served:
            name = self._free_name(server, tool.name)
            try:
                contract = contract_of(
                    server.rules,
                    _claims(tool),
                    errors_definitive=server.errors_definitive,
                    name=_contract_name(name),
                )
            except ContractError as error:
                self._unserved[f"{tool.name} of {of[0]} is not served: {error}"] = None
                return []
            self._registry.renew(Tool(contract=contract))
            self._drafted[contract.tool] = of
            shown = _shown(tool, contract, name=name, description=tool.description or "")
            served = [_served(contract, shown, is_upstream=True, is_declared=False)]
        self._known[of] = (tool, served)
        return served

    def _free_name(self, server: Fronted, tool: str) -> str:
        """Return the name of a tool that nobody declared: its own, unless it is another's here."""
        of = (server.rules.name, tool)
        wished = f"{server.prefix}{tool}"
        for name in (wished, "_".join(of), f"{wished}_{_digest('/'.join(of))}"):
            called = _contract_name(name)
            if self._registry.find(called) is None or self._drafted.get(called) == of:
                return name
        return wished

    def _contracts_for(self, server: str, tool: str) -> Iterator[Contract]:
        """Yield the contracts that somebody wrote for a server's tool."""
        for each in self._registry:
            action = each.contract.action
            if each.contract.tool in self._drafted or not isinstance(action, Mapping):
                continue
            of = action.get("server")
            is_its = isinstance(of, Mapping) and of.get("name") == server
            if each.contract.kind is Kind.MCP and is_its and action.get("tool") == tool:
                yield each.contract

    # --- our own ---------------------------------------------------------------------------------

    def _name_ours(self) -> None:
        taken = self._served()
        status, unresolved = telling.STATUS_TOOL, telling.UNRESOLVED_TOOL
        self.reading = Reading(
            f"{OURS}{status}" if status in taken else status,
            f"{OURS}{unresolved}" if unresolved in taken else unresolved,
        )

    def _reading_tools(self) -> list[types.Tool]:
        hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        one: dict[str, Json] = {
            "type": "object",
            "properties": {"operation_id": {"type": "string"}},
            "required": ["operation_id"],
            "additionalProperties": False,
        }
        none: dict[str, Json] = {"type": "object", "additionalProperties": False}
        return [
            types.Tool(
                name=self.reading.status,
                description=telling.STATUS_DESCRIPTION,
                input_schema=one,
                annotations=hints,
            ),
            types.Tool(
                name=self.reading.unresolved,
                description=telling.UNRESOLVED_DESCRIPTION,
                input_schema=none,
                annotations=hints,
            ),
        ]


def _contract_name(name: str) -> str:
    """Return a contract's name for a tool's, which may have other characters and be longer."""
    if _NAME.fullmatch(name):
        return name
    return f"{re.sub('[^A-Za-z0-9_-]', '_', name)[: NAME_CHARS_MAX - 9]}_{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _claims(tool: types.Tool) -> ToolClaims:
    hints = tool.annotations
    return ToolClaims(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        read_only=hints is not None and hints.read_only_hint is True,
    )


def _tool_of(contract: Contract) -> types.Tool:
    """Return a tool of the contract file as MCP has it."""
    is_read = contract.effect in NO_EFFECT
    return types.Tool(
        name=contract.tool,
        description=telling.described(contract.description, contract.effect) or None,
        input_schema={"type": "object", **contract.arguments},
        annotations=types.ToolAnnotations(read_only_hint=is_read),
    )


def _declared(contract: Contract, tool: types.Tool) -> Served:
    """Return an upstream's tool as its contract has it: what that says counts."""
    description = contract.description or tool.description or ""
    shown = _shown(tool, contract, name=contract.tool, description=description)
    if contract.arguments.get("properties"):
        schema = {"type": "object", **contract.arguments}
        shown = shown.model_copy(update={"input_schema": schema})
    return _served(contract, shown, is_upstream=True)


def _shown(tool: types.Tool, contract: Contract, *, name: str, description: str) -> types.Tool:
    text = telling.described(description, contract.effect)
    # Whether it may be called as a task is no longer its server's to say.
    return tool.model_copy(update={"name": name, "description": text or None, "execution": None})


def _served(
    contract: Contract, tool: types.Tool, *, is_upstream: bool = False, is_declared: bool = True
) -> Served:
    return Served(
        name=tool.name,
        contract=contract.tool,
        tool=tool,
        effect=contract.effect,
        is_upstream=is_upstream,
        is_declared=is_declared,
    )


def lacking(name: str, contract: Contract) -> str:
    """Say in a line what an effectful tool lacks; "" if nothing."""
    action = contract.action if isinstance(contract.action, Mapping) else {}
    missing = []
    if contract.kind is Kind.MCP and action.get("errors") != "definitive":
        missing.append('no `errors = "definitive"`, so that each isError waits for a person')
    if not contract.lookups and not answers_of(contract).automatic:
        missing.append("no look-up, so that each unknown waits for a person")
    return f"{name}: {'; '.join(missing)}" if missing else ""
