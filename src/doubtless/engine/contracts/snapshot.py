"""A contract as text and back: what the ledger keeps beside every operation, by digest.

The text is canonical JSON (RFC 8785), so that equal contracts give equal digests. It names
credentials and never holds one.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Final, TypeVar, cast

import rfc8785

from doubtless.core.contract import (
    ApprovalRules,
    ConditionRules,
    Contract,
    EventRules,
    KeyFormat,
    KeyRules,
    Kind,
    LookupRules,
    OnAbsent,
    ReadRules,
    RequestRules,
    ResponseRules,
    RetryRules,
    SourceRules,
    Stores,
)
from doubtless.core.model import Effect, Json, Source

_Part = TypeVar("_Part")

# Members whose text stands for more than text. All other members of a part are what JSON says.
_ENUMS: Final[Mapping[str, type[StrEnum]]] = {
    "effect": Effect,
    "kind": Kind,
    "on_absent": OnAbsent,
    "format": KeyFormat,
    "stores": Stores,
    "speaks": Source,
}
# Written only where they say something, so that the digests of older contracts stay as they were.
_LATER: Final[Mapping[str, object]] = {"action": None, "speaks": Source.LOOKUP}
_PARTS: Final[Mapping[str, type]] = {
    "source": SourceRules,
    "request": RequestRules,
    "response": ResponseRules,
    "key": KeyRules,
    "condition": ConditionRules,
    "lookups": LookupRules,
    "events": EventRules,
    "approval": ApprovalRules,
    "read": ReadRules,
    "retry": RetryRules,
}


def dump_contract(contract: Contract) -> str:
    """Write a contract as canonical JSON. `read_contract` gives an equal one.

    Raises:
        ValueError: It holds a number or a text that canonical JSON can't write.
    """
    return rfc8785.dumps(_plain(contract)).decode()


def read_contract(text: str) -> Contract:
    """Read what `dump_contract` wrote; members that it does not name have their defaults.

    Raises:
        ValueError: The text is no contract, or of a release that knew more.
    """
    try:
        return _part(Contract, json.loads(text))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a contract of this release: {error}") from error


def contract_digest(contract: Contract) -> str:
    """Return `sha256:…` over the text of `dump_contract`."""
    return "sha256:" + hashlib.sha256(dump_contract(contract).encode()).hexdigest()


def _plain(value: object) -> Json:
    if is_dataclass(value) and not isinstance(value, type):
        said = {each.name: getattr(value, each.name) for each in fields(value)}
        return {
            name: _plain(member)
            for name, member in said.items()
            if name not in _LATER or member != _LATER[name]
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(member) for member in value]
    return cast("Json", value)


def _part(kind: type[_Part], members: Mapping[str, Json]) -> _Part:
    return kind(**{name: _member(name, value) for name, value in members.items()})


def _member(name: str, value: Json) -> object:
    if isinstance(value, str) and name in _ENUMS:
        return _ENUMS[name](value)
    if isinstance(value, Mapping) and name in _PARTS:
        return _part(_PARTS[name], value)
    if isinstance(value, list) and name == "lookups":
        return tuple(_part(LookupRules, look) for look in value)
    # A request's body is JSON of its own; every other list is a tuple of ours.
    if isinstance(value, list) and name != "json":
        return tuple(value)
    return value
