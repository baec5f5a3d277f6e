"""Addresses of ledgers, and how they are shown: without a password, wherever it stands in them."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlencode

SCHEMA: Final = "doubtless"
POSTGRES: Final = frozenset({"postgres", "postgresql"})

_USER: Final = re.compile(r"(?<=://)([^/?#@:]*):[^/?#]*@")
_OPTION: Final = re.compile(r"(?i)([?&\s][a-z_]*(?:pass|secret)[a-z_]*\s*=)[^&\s]*")


def scheme_of(address: str) -> str:
    """Return what stands before the first colon, in lower case."""
    return address.partition(":")[0].lower()


def is_postgres(address: str) -> bool:
    """Whether an address is one of a PostgreSQL ledger."""
    return scheme_of(address) in POSTGRES


def schema_of(address: str) -> tuple[str, str]:
    """Return an address as libpq takes it, and `schema` of it, the one option that is ours."""
    base, _, query = address.partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    rest = urlencode([option for option in options if option[0] != "schema"])
    return f"{base}?{rest}" if rest else base, dict(options).get("schema", SCHEMA)


def masked(address: str) -> str:
    """Return an address as it may be printed and logged: what could be a password is `***`."""
    return _OPTION.sub(r"\1***", _USER.sub(r"\1:***@", address))


def without_passwords(told: str, given: Mapping[str, object]) -> str:
    """Take the passwords among the parts of an address out of what a driver said, in one line."""
    for name, value in given.items():
        if "pass" in name and value:
            told = told.replace(str(value), "***")
    return " ".join(told.split())
