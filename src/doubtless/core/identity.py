"""One intent, one operation: hashes, keys, and what happens when two calls mean the same.

Canonical JSON is RFC 8785. The key is derived from the ledger's and the operation's identity alone,
so that no attempt, process or model can ever make a second one.
"""

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import rfc8785

from doubtless.core.contract import KeyFormat
from doubtless.core.model import Cause, Json, State

OPERATION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
DEPTH_MAX = 100  # of nested JSON; deeper input is refused before anything recurses into it

_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"


class NotCanonical(ValueError):
    """A value can't be written as canonical JSON; the text says where and why."""


def canonical(value: Json) -> bytes:
    """Return the RFC 8785 form of `value`, in UTF-8.

    Raises:
        NotCanonical: NaN, an infinity, an integer beyond ±(2**53−1), a lone surrogate, or nesting
            deeper than `DEPTH_MAX`.
    """
    try:
        return rfc8785.dumps(_plain(value, DEPTH_MAX))
    except (ValueError, TypeError, RecursionError) as error:
        raise NotCanonical(str(error) or type(error).__name__) from error


def _plain(value: Json, left: int) -> Json:
    """Return the same value of dictionaries and lists alone, not nested too deep."""
    if left == 0:
        raise NotCanonical(f"nested deeper than {DEPTH_MAX} levels")
    if isinstance(value, bytes | bytearray | memoryview):
        raise NotCanonical("bytes are no JSON")
    if isinstance(value, Mapping):
        return {name: _plain(member, left - 1) for name, member in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(member, left - 1) for member in value]
    if isinstance(value, float) and 2**53 <= abs(value) < 1e21:  # written without an exponent
        raise NotCanonical(f"{value} is beyond ±(2**53 - 1), and would be read back as an integer")
    return value


def sha256(content: bytes) -> str:
    """Return `sha256:` and 64 lower-case hex digits."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def payload_hash(tool: str, arguments: Mapping[str, Json], volatile: Sequence[str] = ()) -> str:
    """Hash what is asked for: tool and arguments, those declared `volatile` left out."""
    stable = {name: value for name, value in arguments.items() if name not in volatile}
    return hash_of(tool, canonical(stable))


def hash_of(tool: str, stable: bytes) -> str:
    """Hash a tool and its arguments, which are canonical already, as `payload_hash` does."""
    # Canonical JSON sorts its members, and "arguments" comes before "tool".
    return sha256(b'{"arguments":' + stable + b',"tool":' + _name(tool) + b"}")


@lru_cache(maxsize=1024)
def _name(tool: str) -> bytes:
    return canonical(tool)


def derive(ledger_id: bytes, operation_id: str) -> bytes:
    """Return the operation's 128 bits: no two ledgers and no two operations share them."""
    return hashlib.sha256(ledger_id + operation_id.encode()).digest()[:16]


def encode_key(bits: bytes, form: KeyFormat) -> str:
    """Write 128 bits in a provider's alphabet.

    `uuid` sets version 4 and variant (RFC 9562) and is 36 characters; `hex32` is 32, `base32hex`
    26 and `base36` 25 characters, all lower case.
    """
    match form:
        case KeyFormat.UUID:
            return str(uuid.UUID(bytes=bits, version=4))
        case KeyFormat.HEX32:
            return bits.hex()
        case KeyFormat.BASE32HEX:
            return reference(bits)
        case KeyFormat.BASE36:
            return _base36(int.from_bytes(bits, "big")).rjust(25, "0")


def reference(bits: bytes) -> str:
    """Return the untouched 128 bits as 26 characters of lower-case base32hex (RFC 4648, no pad).

    This is what goes into the provider's objects, so that they can be told to be ours.
    """
    return base64.b32hexencode(bits).decode().rstrip("=").lower()


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, rest = divmod(number, 36)
        digits = _BASE36[rest] + digits
    return digits


def is_operation_id(text: str) -> bool:
    """Whether a caller may use `text` as an operation id."""
    return OPERATION_ID.fullmatch(text) is not None


def business_key(arguments: Mapping[str, Json], names: Sequence[str]) -> str | None:
    """Return the object acted on as canonical JSON, or None where the contract names none."""
    if not names:
        return None
    return canonical({name: arguments.get(name) for name in names}).decode()


def claim_of(key: str | None, *, principal: str, session_id: str, payload: str) -> str:
    """Return what is claimed while an operation is open: its object, or else its own payload."""
    if key is not None:
        return key
    return json.dumps(["payload", principal, session_id, payload], separators=(",", ":"))


# --- meeting another operation -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What matters of an operation that a call may turn out to mean."""

    id: str
    tool: str
    principal: str
    payload_hash: str
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a caller asks for."""

    tool: str
    principal: str
    payload_hash: str
    operation_id: str | None  # only if the caller said one


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """It is that operation: return its outcome, or go on with it."""

    operation_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Nothing is created or sent. `by` stands in the way; None where it may not be shown."""

    code: Cause
    by: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class New:
    """It is an intent of its own."""


Meeting: TypeAlias = Join | Refuse | New


def meet(
    asked: Asked, *, same_id: Known | None, holder: Known | None, twin: Known | None
) -> Meeting:
    """Say what a call means, given who is there already.

    Args:
        asked: The call.
        same_id: The operation that has the caller's id.
        holder: The one that holds the claim on the same object.
        twin: One of the same payload and session that succeeded within the dedupe window.
    """
    if same_id is not None:
        if same_id.principal != asked.principal:
            return Refuse(code=Cause.OPERATION_ID_TAKEN, by=None)
        if (same_id.tool, same_id.payload_hash) != (asked.tool, asked.payload_hash):
            return Refuse(code=Cause.PAYLOAD_MISMATCH, by=same_id.id)
        return Join(operation_id=same_id.id)
    if holder is not None:
        same = (holder.principal, holder.tool, holder.payload_hash) == (
            asked.principal,
            asked.tool,
            asked.payload_hash,
        )
        if same and asked.operation_id is None:
            return Join(operation_id=holder.id)
        shown = holder.id if holder.principal == asked.principal else None
        return Refuse(code=Cause.TARGET_UNRESOLVED, by=shown)
    if twin is not None and asked.operation_id is None:
        return Join(operation_id=twin.id)
    return New()
