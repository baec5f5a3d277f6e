"""Statements of the user's for PostgreSQL: their values by name, and which of them may run."""

import re
from functools import lru_cache
from typing import Final

from doubtless.errors import StatementRefused

_TOKENS: Final = re.compile(
    r"""
    (?<![\w$])(?P<dollar>\$(?:[^\W\d]\w*)?\$)   # a string begins
  | (?<![\w$])(?P<number>\$\d)
  | (?<![\w$])[eE]'(?:[^'\\]|''|\\.)*'
  | '(?:[^']|'')*'
  | "(?:[^"]|"")*"
  | --[^\n]*
  | (?P<comment>/\*)
  | ::
  | :(?P<name>[a-z_][a-z0-9_]*)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_COMMENTS: Final = re.compile(r"/\*|\*/")
_BEFORE: Final = re.compile(r"(?:[\s;(]|--[^\n]*)*")
_VERB: Final = re.compile(r"[a-z]*", re.IGNORECASE)

COURSE: Final = frozenset(
    {"abort", "begin", "commit", "end", "prepare", "release", "rollback", "savepoint", "start"}
)
SETTINGS: Final = frozenset({"deallocate", "discard", "reset", "set"})
ALLOWED: Final = frozenset(
    {
        "alter",
        "analyze",
        "call",
        "close",
        "comment",
        "create",
        "declare",
        "delete",
        "do",
        "drop",
        "explain",
        "fetch",
        "grant",
        "insert",
        "lock",
        "merge",
        "move",
        "notify",
        "refresh",
        "reindex",
        "revoke",
        "security",
        "select",
        "show",
        "table",
        "truncate",
        "update",
        "values",
        "with",
    }
)


@lru_cache(maxsize=512)
def read(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `$1`, `$2`, … in place of `:name`, and the names by number.

    Raises:
        StatementRefused: It is none that can run within a transaction of the user's.
    """
    if (why := _refusal(sql)) is not None:
        raise StatementRefused(why)
    written, names, place = list[str](), list[str](), 0
    while (found := _TOKENS.search(sql, place)) is not None:
        end = found.end()
        if found["number"]:
            raise StatementRefused(f"values are bound by name: write :name, and not {found[0]}")
        if found["dollar"]:
            closing = sql.find(found[0], end)
            end = len(sql) if closing < 0 else closing + len(found[0])
        elif found["comment"]:
            end = _end_of_comment(sql, found.start())
        name = found["name"]
        written.append(sql[place : end if name is None else found.start()])
        if name is not None:
            if name not in names:
                names.append(name)
            written.append(f"${names.index(name) + 1}")
        place = end
    return "".join((*written, sql[place:])), tuple(names)


def _refusal(sql: str) -> str | None:
    place = 0
    while True:
        found = _BEFORE.match(sql, place)
        place = found.end() if found is not None else place
        if not sql.startswith("/*", place):
            break
        place = _end_of_comment(sql, place)
    matched = _VERB.match(sql, place)
    verb = matched[0].lower() if matched is not None else ""
    if verb in ALLOWED:
        return None
    if verb in COURSE:
        return "the block itself begins and ends its transaction: leave it, or raise"
    if verb in SETTINGS:
        return f"{verb}: settings may not be changed in a transaction"
    return f"{verb or 'what does not begin with a verb'}: no statement of this kind is run here"


def _end_of_comment(sql: str, place: int) -> int:
    """Return where the comment that begins at `place` ends. Comments nest."""
    depth = 0
    for found in _COMMENTS.finditer(sql, place):
        depth += 1 if found[0] == "/*" else -1
        if depth == 0:
            return found.end()
    return len(sql)
