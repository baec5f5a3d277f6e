"""What follows from a call before anything is recorded: hashes, key, rendered request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from doubtless.core import identity
from doubtless.core.contract import Contract, KeyFormat
from doubtless.core.model import Json, Principal
from doubtless.engine.book import Book
from doubtless.engine.contracts.blocks import BLOCKS
from doubtless.engine.expressions import ExpressionError, holds
from doubtless.engine.registry import Tool
from doubtless.engine.templates import (
    TemplateError,
    TemplateValues,
    render,
    render_request,
    request_digest,
)
from doubtless.errors import BadArguments, BadOperationId, BadSequence
from doubtless.transports.base import Action, HttpRequest

AFTER_MAX = 100  # operations that one can come after


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a caller wants, with all that follows from it already computed."""

    tool: Tool
    principal: Principal
    operation_id: str  # the caller's, or a fresh one
    said_id: bool  # whether it is the caller's
    request_id: str | None  # of this one request, where the caller may have to repeat it
    session_id: str
    correlation_id: str | None
    payload: bytes  # canonical JSON of the arguments
    payload_hash: str
    business_key: str | None
    ref: str
    key: str
    request: HttpRequest | Action | None
    request_digest: str
    needs_approval: bool = False
    supersedes: str | None = None
    duplicate_of: str | None = None
    after: tuple[str, ...] = ()  # operations that must have succeeded first
    on_unknown: str = "stop"
    queued: bool = False  # only made durable: whoever is due carries it out
    in_doubt: tuple[str, ...] = ()  # operations that its caller believes to be open


def draft(  # noqa: PLR0913 - what a caller may say, each by its name
    book: Book,
    tool: Tool,
    arguments: Mapping[str, Json],
    *,
    principal: Principal,
    operation_id: str | None = None,
    request_id: str | None = None,
    session_id: str | None = None,
    correlation_id: str | None = None,
    supersedes: str | None = None,
    duplicate_of: str | None = None,
    after: Sequence[str] = (),
    on_unknown: str = "stop",
    queued: bool = False,
) -> Ask:
    """Work out all that follows from a call, before anything is recorded.

    Raises:
        BadSequence: `after`, `on_unknown` or `supersedes` can't be meant.
        BadOperationId: The id has other characters than it may, or too many.
        BadArguments: They don't fit the schema, can't be canonical JSON, or don't fit the request.
    """
    contract = tool.contract
    named = _sequence(after, on_unknown, supersedes)
    _check_ids(operation_id, request_id)
    payload = _canonical(tool, arguments)
    chosen = operation_id or request_id or book.surroundings.new_id()
    bits = identity.derive(book.ledger_id, chosen)
    form = contract.key.format if contract.key is not None else KeyFormat.UUID
    ref, key = identity.reference(bits), identity.encode_key(bits, form)
    values = TemplateValues(
        args=arguments,
        id=chosen,
        ref=ref,
        idempotency_key=key,
        session_id=session_id or "",
        duplicate_of=duplicate_of,
    )
    payload_hash = _hashed(contract, arguments, payload)
    request = _rendered(contract, values)
    return Ask(
        tool=tool,
        principal=principal,
        operation_id=chosen,
        said_id=operation_id is not None,
        request_id=request_id if operation_id is None else None,
        session_id=session_id or "",
        correlation_id=correlation_id,
        payload=payload,
        payload_hash=payload_hash,
        business_key=identity.business_key(arguments, contract.business_key),
        ref=ref,
        key=key,
        request=request,
        request_digest=request_digest(request) if request is not None else payload_hash,
        needs_approval=_needs_approval(contract, arguments, principal, session_id),
        supersedes=supersedes,
        duplicate_of=duplicate_of,
        after=named,
        on_unknown=on_unknown,
        queued=queued,
    )


def _check_ids(*said: str | None) -> None:
    for each in said:
        if each is not None and not identity.is_operation_id(each):
            raise BadOperationId(each)


def _sequence(after: Sequence[str], on_unknown: str, supersedes: str | None) -> tuple[str, ...]:
    """Return the operations that must have succeeded first, each once."""
    if isinstance(after, str):
        raise BadSequence(f"after: it is a list of operation ids; write [{after[:140]!r}]")
    if on_unknown not in ("stop", "continue"):
        raise BadSequence(f"on_unknown: {on_unknown!r:.140} is neither stop nor continue")
    named = tuple(dict.fromkeys(after))
    if len(named) > AFTER_MAX:
        raise BadSequence(f"after: {len(named)} operations; {AFTER_MAX} are the most")
    for each in (*named, supersedes):
        if each is not None and not identity.is_operation_id(str(each)):
            raise BadSequence(f"after, supersedes: {each!r:.140} is no operation id")
    return named


def _canonical(tool: Tool, arguments: Mapping[str, Json]) -> bytes:
    """Return arguments as canonical JSON, once they are known to fit the tool."""
    try:
        payload = identity.canonical(arguments)
    except identity.NotCanonical as error:
        raise BadArguments(tool.contract.tool, "", str(error)) from error
    tool.check(arguments)
    return payload


def _hashed(contract: Contract, arguments: Mapping[str, Json], payload: bytes) -> str:
    if contract.volatile:
        return identity.payload_hash(contract.tool, arguments, contract.volatile)
    return identity.hash_of(contract.tool, payload)


def _rendered(contract: Contract, values: TemplateValues) -> HttpRequest | Action | None:
    if contract.action is not None:
        return _action(contract, contract.action, values)
    if contract.request is None:
        return None
    try:
        return render_request(
            contract.request,
            contract.source.base_url,
            values,
            key=contract.key,
            condition=contract.condition,
        )
    except TemplateError as error:
        raise BadArguments(contract.tool, "request", str(error)) from error


def _action(contract: Contract, templates: Mapping[str, Json], values: TemplateValues) -> Action:
    """Render an action, and be sure that it can be carried out as it is."""
    try:
        members = render(dict(templates), values)
        identity.canonical(members)
    except (TemplateError, identity.NotCanonical) as error:
        raise BadArguments(contract.tool, contract.kind.value, str(error)) from error
    assert isinstance(members, Mapping)  # noqa: S101 - a mapping renders as one
    why = BLOCKS[contract.kind].problem(members)
    if why is not None:
        raise BadArguments(contract.tool, contract.kind.value, why)
    return Action(kind=contract.kind, members=members)


def _needs_approval(
    contract: Contract, arguments: Mapping[str, Json], principal: Principal, session_id: str | None
) -> bool:
    """Whether a person must authorise it first; an expression that can't be evaluated says yes."""
    if contract.approval is None:
        return False
    if contract.approval.when is None:
        return True
    facts: Json = {"args": arguments, "session_id": session_id, "principal": principal.name}
    try:
        return holds(contract.approval.when, facts)
    except ExpressionError:
        return True
