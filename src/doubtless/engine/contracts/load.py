"""Contracts from a file or from code: validated, with every default filled in.

    contracts = load_contracts("contracts.toml")
    contracts.tools["create_refund"].timeout_ms

Whatever is wrong is told at once, as one `ContractError`; each problem names the file, the table,
the key, what is wrong and the mend.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

from doubtless.core.contract import Contract, Kind, SourceRules
from doubtless.engine.contracts.block import Place
from doubtless.engine.contracts.build import build
from doubtless.engine.contracts.defaults import Default
from doubtless.engine.contracts.draft import Draft, touch_arguments
from doubtless.engine.contracts.file import FilesTable, SourceTable, ToolTable
from doubtless.engine.contracts.mcp_tables import (
    ServerTable,
    errors_in_server,
    server_rules,
    warnings_in_server,
)
from doubtless.engine.contracts.problems import Reading, read_table, unknown_keys
from doubtless.engine.contracts.rules import untold_errors, warnings_in
from doubtless.engine.contracts.sources import (
    TOLERANCE_MS,
    WebhookRules,
    errors_in_source,
    source_rules,
    warnings_in_source,
    webhook_rules,
)
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import near
from doubtless.errors import ContractError, Problem
from doubtless.transports.mcp_servers import ServerRules

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_T = TypeVar("_T", bound=Table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contracts:
    """All that a file declares."""

    file: str = ""
    tools: Mapping[str, Contract] = field(default_factory=dict)
    sources: Mapping[str, SourceRules] = field(default_factory=dict)
    webhooks: Mapping[str, WebhookRules] = field(default_factory=dict)  # by source
    servers: Mapping[str, ServerRules] = field(default_factory=dict)  # upstream MCP servers
    definite: frozenset[str] = frozenset()  # those whose errors prove that nothing was done
    warnings: tuple[Problem, ...] = ()
    defaults: Mapping[str, tuple[Default, ...]] = field(default_factory=dict)  # by tool


def load_contracts(path: str | Path) -> Contracts:
    """Read a contract file.

    Raises:
        ContractError: It can't be read, or something in it is wrong: all of it at once.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        wrong = f"it can't be read: {error}."
        raise _broken(str(path), wrong, "name a readable file in UTF-8.") from error
    return parse_contracts(text, str(path))


def parse_contracts(text: str, file: str) -> Contracts:
    """Read contracts from the text of a file; `file` is only named in problems.

    Raises:
        ContractError: Something in it is wrong: all of it at once.
    """
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The parser's own text ends in "(at line 3, column 7)".
        raise _broken(file, f"this is not TOML: {error}.", "mend it at that place.") from error
    problems = unknown_keys(data, ["files", "servers", "sources", "tools"], file=file, table="")
    servers = dict(_readings(ServerTable, data, "servers", file=file, problems=problems))
    place = _place(data, file, servers, problems)
    sources = dict(_readings(SourceTable, data, "sources", file=file, problems=problems))
    tools = dict(_readings(ToolTable, data, "tools", file=file, problems=problems))
    for name, source in sources.items():
        if source.table is not None:
            problems += errors_in_source(file, name, source.table)
    drafts = [
        _draft(
            file,
            name,
            tool.table,
            whole=tool.whole,
            problems=problems,
            sources=sources,
            place=place,
        )
        for name, tool in tools.items()
        if tool.table is not None
    ]
    problems += [problem for draft in drafts for problem in untold_errors(draft, problems)]
    if problems:
        raise ContractError(problems)
    found = _contracts(file, drafts, sources)
    return replace(
        found,
        servers=place.servers,
        definite=place.definite,
        warnings=(*_of_servers(file, servers), *found.warnings),
    )


def _of_servers(file: str, servers: Mapping[str, Reading[ServerTable]]) -> Iterator[Problem]:
    for name, server in servers.items():
        if server.table is not None:
            yield from warnings_in_server(file, name, server.table)


def _broken(file: str, wrong: str, mend: str) -> ContractError:
    return ContractError([Problem(file=file, table="", key="", wrong=wrong, mend=mend)])


def _readings(
    model: type[_T], data: Mapping[str, object], kind: str, *, file: str, problems: list[Problem]
) -> Iterator[tuple[str, Reading[_T]]]:
    """Yield what came of each table of a kind; what is wrong with one is added to `problems`."""
    tables = data.get(kind, {})
    if not isinstance(tables, dict):
        problems.append(
            Problem(file=file, table="", key=kind, wrong="it must be a table.", mend=f"[{kind}.X]")
        )
        return
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            wrong = f"{name!r} can't be a name."
            mend = "use 1 to 64 letters, digits, _ and -."
            problems.append(Problem(file=file, table=kind, key=name, wrong=wrong, mend=mend))
        reading = read_table(model, table, file=file, table=f"{kind}.{name}")
        problems.extend(reading.problems)
        yield name, reading


def _place(
    data: Mapping[str, object],
    file: str,
    servers: Mapping[str, Reading[ServerTable]],
    problems: list[Problem],
) -> Place:
    """Return where relative paths are meant from, and the servers that tools may name."""
    folder = Path(file).parent.absolute()
    reading = read_table(FilesTable, data.get("files", {}), file=file, table="files")
    problems.extend(reading.problems)
    root = reading.table.root if reading.table is not None else None
    said = {name: reading.table for name, reading in servers.items() if reading.table}
    for name, server in said.items():
        problems += errors_in_server(file, name, server)
    return Place(
        folder=folder,
        files_root=folder / root if root is not None else folder,
        servers={name: server_rules(name, server, folder) for name, server in said.items()},
        definite=frozenset(name for name, server in said.items() if server.is_definite),
    )


def _draft(
    file: str,
    name: str,
    said: ToolTable,
    *,
    whole: bool,
    problems: Sequence[Problem],
    sources: Mapping[str, Reading[SourceTable]],
    place: Place,
) -> Draft:
    reading = sources.get(said.source or "")
    source = reading.table if reading else None
    webhook = source.webhook if source else None
    contract, defaults = build(
        name,
        said,
        source_rules(said.source or name, source) if source else SourceRules(name=name),
        kind=blocks[0].KIND if (blocks := said.blocks()) else Kind.HTTP,
        place=place,
        tolerance_ms=webhook_rules(webhook).tolerance_ms if webhook else TOLERANCE_MS,
    )
    return Draft(
        file=file,
        said=said,
        contract=contract,
        defaults=defaults,
        sources=tuple(sources),
        # What a malformed source declares is told with it.
        webhook=webhook is not None or source is None,
        whole=whole,
        arguments_whole=not touch_arguments(name, problems),
    )


def _contracts(
    file: str, drafts: Sequence[Draft], sources: Mapping[str, Reading[SourceTable]]
) -> Contracts:
    tables = {name: reading.table for name, reading in sources.items() if reading.table}
    tools = {draft.contract.tool: draft.contract for draft in drafts}
    warnings = [
        each for name, said in tables.items() for each in warnings_in_source(file, name, said)
    ]
    warnings += [each for draft in drafts for each in warnings_in(draft)]
    warnings += [each for draft in drafts for each in _decides(draft, tuple(tools))]
    return Contracts(
        file=file,
        tools=tools,
        sources={name: source_rules(name, said) for name, said in tables.items()},
        webhooks={
            name: webhook_rules(said.webhook) for name, said in tables.items() if said.webhook
        },
        warnings=tuple(warnings),
        defaults={draft.contract.tool: draft.defaults for draft in drafts},
    )


def _decides(draft: Draft, tools: Sequence[str]) -> Iterator[Problem]:
    """Yield the tools that a read decides about and that this file lacks; code may have them."""
    for name in draft.contract.read.decides if draft.contract.read else ():
        if name not in tools:
            yield draft.problem("read", "decides", f"no tool {name!r} here.", near(name, tools))
