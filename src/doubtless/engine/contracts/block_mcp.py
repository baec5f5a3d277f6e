"""`[tools.X.mcp]`: a tool of an upstream MCP server, and the tool that finds what it did."""

import re
from collections.abc import Iterator, Mapping
from typing import ClassVar, Final, Literal

from pydantic import Field

from doubtless.core.contract import Contract, Kind, LookupRules
from doubtless.core.effects import NO_EFFECT, RULES
from doubtless.core.model import Effect, Json, Source
from doubtless.engine.contracts.block import BlockTable, Place, Wrong
from doubtless.engine.contracts.boundary import GATE, RECORDED, Way, doubtful, harmless
from doubtless.engine.contracts.table import Table
from doubtless.engine.contracts.values import (
    Criteria,
    Duration,
    Expression,
    HeaderTemplates,
    TemplateMembers,
    Text,
    near,
)
from doubtless.engine.templates import names_in
from doubtless.transports.mcp_servers import ServerRules

HORIZON_MS: Final = 120_000
DEFINITIVE: Final = "definitive"
ANSWER: Final = "answer"  # of what has no effect
OURS: Final = "doubtless.dev/"

_RESERVED: Final = re.compile(r"(?:[^/]*\.)?(?:modelcontextprotocol|mcp)(?:\.[^/]*)?/.*")
_KEY: Final = "{operation.idempotency_key}"
_NOT_HERE: Final = frozenset(
    {
        Effect.FILE,
        Effect.SHELL_READ,
        Effect.SHELL_WRITE,
        Effect.KEYED_CREATE,
        Effect.CONDITIONAL_UPDATE,
        Effect.BROWSER,
    }
)


class FindTable(Table):
    """`lookup` of `[tools.X.mcp]`: another tool of the server, which only reads."""

    tool: Text
    arguments: TemplateMembers = Field(default_factory=dict)
    items: Expression = "@"
    where: Criteria | None = None  # default: our ref or id stands somewhere in the item
    equal: Criteria = Field(default_factory=dict)
    complete: Expression | None = None
    id: Expression | None = None
    authoritative: bool = False
    lag: Duration | None = None  # must be said with authoritative
    in_flight_horizon: Duration | None = None


class McpTable(BlockTable):
    """`[tools.X.mcp]`."""

    KIND: ClassVar[Kind] = Kind.MCP
    EFFECTS: ClassVar[frozenset[Effect]] = frozenset(Effect) - _NOT_HERE
    TABLES: ClassVar[frozenset[str]] = frozenset({"idempotency"})

    server: Text  # of `[servers.X]`
    tool: Text  # the server's own name of it
    arguments: TemplateMembers = Field(default_factory=dict)  # beside the caller's
    headers: HeaderTemplates = Field(default_factory=dict)  # of a server at a URL
    meta: TemplateMembers = Field(default_factory=dict)
    meta_key: Text | None = None  # where `_meta` carries the key, if the server takes one
    errors: Literal["definitive", "unknown"] | None = None  # default: what the server says
    lookup: FindTable | None = None

    def action(self, place: Place) -> dict[str, Json]:
        """Return what is stored: how the server is reached too."""
        said = self.model_dump(
            mode="json",
            exclude_none=True,
            exclude={"pace", "errors", "meta_key", "lookup"},
            exclude_defaults=True,
        )
        server = place.servers.get(self.server, ServerRules(name=self.server))
        said["server"] = escaped(server.to_json())
        said["key"] = _KEY
        if self.meta_key is not None:
            said["meta"] = {**self.meta, self.meta_key: _KEY}
        if self.lookup is not None:
            said["lookup"] = _lookup(self.lookup)
        if self.errors == DEFINITIVE or (self.errors is None and self.server in place.definite):
            said["errors"] = DEFINITIVE
        return said

    def action_of(self, place: Place, effect: Effect) -> dict[str, Json]:
        """Return `action`. The error of a read is its answer, whatever is declared."""
        said = self.action(place)
        return {**said, "errors": ANSWER} if effect in NO_EFFECT else said

    def look(self, horizon_ms: int | None) -> LookupRules | None:
        """Return how the other tool is asked; None where none is declared."""
        look = self.lookup
        if look is None:
            return None
        horizons = (look.in_flight_horizon, horizon_ms, HORIZON_MS)
        return LookupRules(
            name=look.tool,
            speaks=Source.OBJECT,
            boundary="provider",
            authoritative=look.authoritative,
            lag_ms=look.lag or 0,
            confirmations=3,
            in_flight_horizon_ms=next(each for each in horizons if each is not None),
            interval_ms=5_000,
            interval_max_ms=60_000,
            timeout_ms=10_000,
        )

    def wrong(self, contract: Contract) -> Iterator[Wrong]:
        """Yield what can't be meant."""
        server = ServerRules.from_json(_members(contract.action, "server"))
        if not server.command and server.url is None:
            wrong = f"there is no server {self.server!r}."
            mend = f'declare [servers.{self.server}] with command = ["…"], or url = "https://…".'
            yield Wrong(key="server", wrong=wrong, mend=mend)
        elif self.headers and server.url is None:
            wrong = "a server on pipes gets no headers."
            yield Wrong(key="headers", wrong=wrong, mend="put it into arguments or meta.")
        for name in {*self.meta, self.meta_key or "key"}:
            if _RESERVED.fullmatch(name) or name.startswith(OURS) or name == "progressToken":
                wrong = f"{name!r} is a name that others have reserved."
                yield Wrong(key="meta", wrong=wrong, mend='use one of the server: "example.com/x".')
        if contract.key is not None and contract.key.place != "code":
            mend = f'say in mcp: arguments = {{ {contract.key.name} = "{_KEY}" }}, or headers.'
            wrong = "the key's place is said in another table."
            yield Wrong(key="arguments", wrong=wrong, mend=mend)
        if self.lookup is not None:
            yield from _wrong_lookup(self.lookup, contract)

    def doubtful(self, contract: Contract) -> Iterator[Wrong]:
        """Yield a tool whose errors are not declared: even a refusal then waits for people."""
        said = self.errors is not None or (contract.action or {}).get("errors") is not None
        if contract.effect not in NO_EFFECT and not said:
            wrong = (
                "isError proves nothing unless that is declared: even arguments that the tool "
                "refuses would wait for a person."
            )
            mend = (
                f'say errors = "definitive" here or in [servers.{self.server}] if its errors mean '
                'that nothing was done, else errors = "unknown".'
            )
            yield Wrong(key="errors", wrong=wrong, mend=mend)
        look = self.lookup
        if look is not None and look.authoritative and look.items != "@" and not look.complete:
            wrong = "an absence from a list counts even if the list goes on."
            mend = 'say complete = "!more", or how else the tool tells that it is whole.'
            yield Wrong(key="lookup.complete", wrong=wrong, mend=mend)

    @staticmethod
    def problem(members: Mapping[str, Json]) -> str | None:
        """Say why a rendered call can't be made as it is."""
        for name, value in _members(members, "headers").items():
            text = str(value)
            if not text or not text.isascii() or not text.isprintable() or text != text.strip():
                return f"headers: {name} is empty, or no line of printable ASCII"
        return None

    @staticmethod
    def target(members: Mapping[str, Json]) -> str:
        """Name server and tool."""
        server = _members(members, "server")
        command = server.get("command")
        argv = " ".join(map(str, command)) if isinstance(command, list | tuple) else ""
        place = server.get("url") or argv or "nowhere"
        return f"MCP tool {members['tool']} of {server.get('name')} ({place})"

    @staticmethod
    def question(members: Mapping[str, Json]) -> str:
        """Say which tool is asked."""
        look = _members(members, "lookup")
        if not look:
            return "no tool that finds it is declared"
        return f"MCP tool {look['tool']} of {_members(members, 'server').get('name')}"

    @staticmethod
    def way(members: Mapping[str, Json]) -> Way:
        """Return its way: the server, the call, the tool, the result."""
        look = _members(members, "lookup")
        found, absent = _spoken(look)
        definite = members.get("errors") is not None
        error = "isError, as declared: refused, not done." if definite else "isError: nothing."
        return Way(
            tie=_tie(members),
            recognises=_recognises(look),
            absent="nothing of this operation is found" if look else "",
            missing=_missing(look),
            path=(
                *RECORDED,
                harmless(
                    "the server",
                    "It is started or connected to, and agrees on the protocol.",
                    "our link to it: no call was written.",
                ),
                GATE,
                doubtful(
                    "the call", "Its first byte leaves. From here on only the server can tell."
                ),
                doubtful("the tool", "It acts.", f"{found} {absent}".strip()),
                doubtful(
                    "the result",
                    "It comes back whole, or not.",
                    f"a result without isError: done. {error} An error of the protocol, or none "
                    "of both: nothing.",
                ),
            ),
        )


def escaped(value: Json) -> Json:
    """Write a value so that it is itself once it is rendered as a template."""
    if isinstance(value, str):
        return value.replace("{", "{{").replace("}", "}}")
    if isinstance(value, Mapping):
        return {name: escaped(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [escaped(member) for member in value]
    return value


def _lookup(look: FindTable) -> dict[str, Json]:
    said: dict[str, Json] = look.model_dump(
        mode="json", exclude_none=True, exclude={"lag", "in_flight_horizon"}
    )
    for name in ("items", "complete", "id"):
        if name in said:
            said[name] = escaped(said[name])  # expressions, whose braces are JMESPath's
    return said


def _wrong_lookup(look: FindTable, contract: Contract) -> Iterator[Wrong]:
    if not RULES[contract.effect].looks_up:
        wrong = f"{contract.effect.value} is never looked up: it goes straight to a person."
        mend = "leave it out, or declare the effect that it has."
        yield Wrong(key="lookup", wrong=wrong, mend=mend)
    if look.authoritative and look.lag is None:
        wrong = "absence is claimed, and nothing says how far what it reads trails."
        yield Wrong(key="lookup.lag", wrong=wrong, mend='say it: lag = "30s".')
    if look.where is None:
        return
    named = names_in(look.where)
    if not any(name.startswith("operation.") for name in named):
        wrong = "no {operation.…} ties what is found to this operation."
        mend = "put {operation.ref} into the call's arguments, and ask for it here."
        yield Wrong(key="lookup.where", wrong=wrong, mend=mend)
    required = contract.arguments.get("required")
    sure = required if isinstance(required, list | tuple) else ()
    for name in sorted(named):
        kind, _, rest = name.partition(".")
        if kind == "args" and rest.partition(".")[0] not in sure:
            wrong = f"{rest!r} is optional, and where it is not given anything would match."
            mend = f"list it in arguments.required; known there: {near(rest, list(sure))}"
            yield Wrong(key="lookup.where", wrong=wrong, mend=mend)


def _members(of: Mapping[str, Json] | None, name: str) -> Mapping[str, Json]:
    found = (of or {}).get(name)
    return found if isinstance(found, Mapping) else {}


def _tie(members: Mapping[str, Json]) -> str:
    """Say what of the operation the call carries, where a server is known to look."""
    for place in ("arguments", "headers", "meta"):
        named = sorted(
            each for each in names_in(dict(_members(members, place))) if "args" not in each
        )
        if named:
            return f"{{{named[0]}}}, carried in the call's {place}"
    return ""


def _recognises(look: Mapping[str, Json]) -> str:
    if not look:
        return ""
    by = ", ".join(_members(look, "where")) or "its mark, the operation's ref or id"
    return f"what {look['tool']} finds carries {by}"


def _spoken(look: Mapping[str, Json]) -> tuple[str, str]:
    if not look:
        return "", ""
    claims = look.get("authoritative") is True
    absent = "Not found, once that counts: not done." if claims else "Not found: nothing."
    return f"{look['tool']}. Found with our mark: done.", absent


def _missing(look: Mapping[str, Json]) -> str:
    if not look:
        return (
            "carry {operation.ref} in its arguments, and name the tool that finds it: "
            'lookup = { tool = "…", items = "…", where = { … } }'
        )
    claims = look.get("authoritative") is True
    return "" if claims else "say authoritative = true in lookup, if it lists all that there is"
