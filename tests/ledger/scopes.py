"""Whether a statement touches rows of one tenant alone, judged from its structure.

Each table that a statement names must be held to `:tenant`: by an equality that nothing in its
clause can get around, or by one with the tenant of another table that is held so. What is added
must set it. Whatever can't be followed is a complaint: it is never taken to be well.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

Tree: TypeAlias = "list[str | Tree]"

TOKEN: Final = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | ::\w+(?:\[\])? | :\w+ | %\(\w+\)s | \w+
      | <> | <= | >= | \|\| | \S""",
    re.VERBOSE,
)
CLAUSES: Final = frozenset(
    {"from", "where", "on", "group", "having", "order", "limit", "offset", "set", "returning"}
    | {"values", "union", "intersect", "except", "for", "window", "select", "do", "using"}
    | {"join", "inner", "left", "right", "full", "cross", "natural"}
)
"""What begins another part of a statement."""
WHOLE: Final = {
    "meta": "facts about the ledger as a whole: its id and its clock",
    "migration": "the schema is that of all tenants",
    "writer": "connections that write, whoever's: whether a commit of one arrived",
}
"""Tables that belong to the ledger, in rows of 'main', with the reason."""


def tree(sql: str) -> Tree:
    """Return the tokens of a statement; what stands in parentheses is a list of its own."""
    stack: list[Tree] = [[]]
    for found in TOKEN.findall(sql):
        if found == "(":
            stack.append([])
        elif found == ")":
            group = stack.pop()
            stack[-1].append(group)
        elif not found.startswith("--"):
            stack[-1].append(found if found.startswith("'") else found.lower().strip('"'))
    assert len(stack) == 1, sql
    return stack[0]


def complaints(sql: str, tables: Collection[str]) -> list[str]:
    """Return what in a statement isn't held to one tenant.

    Args:
        sql: One statement, or several.
        tables: Those that have a tenant.
    """
    return list(_walk(tree(sql), tables, {}))


def _walk(group: Tree, tables: Collection[str], outer: Mapping[str, bool]) -> Iterator[str]:
    for part in _split(group, {"union", "intersect", "except", ";"}):
        unit = _Unit(part, tables, outer)
        yield from unit.complaints()
        for inner in part:
            if isinstance(inner, list):
                yield from _walk(inner, tables, {**outer, **unit.held})


def _split(tokens: Tree, at: Collection[str]) -> Iterator[Tree]:
    part: Tree = []
    for token in tokens:
        if isinstance(token, str) and token in at:
            yield part
            part = []
        else:
            part.append(token)
    yield part


class _Unit:
    """One select, insert, update or delete, without what stands in parentheses within it."""

    def __init__(self, part: Tree, tables: Collection[str], outer: Mapping[str, bool]) -> None:
        self._part, self._tables, self._outer = part, tables, outer
        self._wrong: list[str] = []
        self._target: int | None = None  # where an insert's table stands
        self._named: dict[str, str] = {}  # alias → table
        self._find()
        self.held = dict.fromkeys(self._named, False)
        self._hold()

    def complaints(self) -> Iterator[str]:
        yield from self._wrong
        yield from (f"{name} is not held" for name, held in self.held.items() if not held)
        if self._target is not None:
            yield from self._insert(self._target)
        for clause, tokens in self._clauses():
            if clause == "set" and ["tenant", "="] in [
                tokens[at : at + 2] for at in range(len(tokens))
            ]:
                yield "a row is given to another tenant"

    # --- which tables ---

    def _find(self) -> None:
        part = self._part
        for at, token in enumerate(part):
            before = part[at - 1] if at else None
            if token == "into":
                self._target = at + 1
            elif token in ("from", "join") and before != "distinct":
                self._items(at + 1)
            elif token in ("left", "right", "full"):
                self._wrong.append("an outer join can't be followed: its condition holds one side")
            elif token == "update" and before not in ("do", "key", "for"):
                self._items(at + 1)

    def _items(self, at: int) -> None:
        """Read tables from a place on, as far as commas go."""
        while True:
            at = self._item(at)
            if self._at(at) != ",":
                return
            at += 1

    def _item(self, at: int) -> int:
        while self._at(at) in ("only", "lateral"):
            at += 1
        table, at = self._name(at)
        alias = table
        if self._at(at) == "as":
            at += 1
        if at < len(self._part) and self._is_alias(self._part[at]):
            alias, at = str(self._part[at]), at + 1
        if table in self._tables:
            if alias in self._named:
                self._wrong.append(f"{alias} is there twice")
            self._named[alias] = table
        return at

    def _name(self, at: int) -> tuple[str, int]:
        """Return the table that is named at a place, if one is, and what comes next."""
        token = self._at(at)
        if token is None:
            self._wrong.append("it ends where a table is expected")
            return "", at
        if isinstance(token, list):
            if token[:1] not in (["select"], ["values"], ["with"]):
                self._wrong.append(f"{token} can't be followed")
            return "", at + 1
        while self._at(at + 1) == ".":
            at += 2
            token = str(self._part[at])
        if isinstance(self._at(at + 1), list):  # a function
            return "", at + 2
        return token, at + 1

    def _at(self, at: int) -> "str | Tree | None":
        return self._part[at] if at < len(self._part) else None

    @staticmethod
    def _is_alias(token: "str | Tree") -> bool:
        return isinstance(token, str) and token.isidentifier() and token not in CLAUSES

    # --- what holds them ---

    def _clauses(self) -> Iterator[tuple[str, Tree]]:
        """Yield each clause: the word it begins with, and its tokens without cases."""
        word, cases = "", 0
        tokens: Tree = []
        for token in self._part:
            cases += (token == "case") - (token == "end")
            if cases or token == "end":
                continue
            if isinstance(token, str) and token in CLAUSES:
                yield word, tokens
                word, tokens = token, []
            else:
                tokens.append(token)
        yield word, tokens

    def _hold(self) -> None:
        same: list[tuple[str, str]] = []
        for clause, tokens in self._clauses():
            # An `or` lets rows of others in, whatever else is said beside it.
            if clause in ("where", "on") and not {"or", "between"} & set(map(str, tokens)):
                for said in _split(tokens, {"and"}):
                    same += self._equality(said)
        for _ in same:
            for left, right in same:
                if self._is_held(left) or self._is_held(right):
                    self.held |= {each: True for each in (left, right) if each in self.held}

    def _equality(self, said: Tree) -> Iterator[tuple[str, str]]:
        sides = list(_split(said, {"="}))
        if len(sides) != 2:
            return
        left, right = (self._operand(side) for side in sides)
        for one, other in ((left, right), (right, left)):
            whole = other == "'main'" and self._named.get(one) in WHOLE
            if one in self.held and (other == ":tenant" or whole):
                self.held[one] = True
        if {left, right} <= self.held.keys() | self._outer.keys():
            yield left, right

    def _operand(self, side: Tree) -> str:
        """Return the alias whose tenant it is, or the one word that it is; "" otherwise."""
        match side:
            case ["tenant"]:
                return next(iter(self._named)) if len(self._named) == 1 else ""
            case [str(alias), ".", "tenant"]:
                return alias
            case [":tenant" | "'main'" as word]:
                return str(word)
        return ""

    def _is_held(self, alias: str) -> bool:
        return self.held[alias] if alias in self.held else self._outer[alias]

    # --- what is added ---

    def _insert(self, at: int) -> Iterator[str]:
        table, columns = self._part[at], self._at(at + 1)
        if table not in self._tables:
            return
        names = [] if not isinstance(columns, list) else list(_split(columns, {","}))
        if ["tenant"] not in names:
            yield f"what is added to {table} has no tenant"
            return
        place = names.index(["tenant"])
        for row in self._rows():
            value = self._operand(row[place]) if place < len(row) else ""
            whole = value == "'main'" and table in WHOLE
            if not (value == ":tenant" or whole or self.held.get(value)):
                yield f"what is added to {table} has the tenant {row[place : place + 1]}"
        for found, token in enumerate(self._part):
            if token == "conflict" and "update" in self._part[found:]:
                target = self._at(found + 1)
                if not (isinstance(target, list) and "tenant" in target):
                    yield f"a row of {table} that is changed instead may be another tenant's"

    def _rows(self) -> Iterator[Sequence[Tree]]:
        """Yield what is added, value by value."""
        for clause, tokens in self._clauses():
            if clause == "select":
                yield list(_split(tokens, {","}))
            elif clause == "values":
                yield from (list(_split(row, {","})) for row in tokens if isinstance(row, list))
