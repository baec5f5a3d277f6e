"""Every promise is proven by a test, and every id that a test names is a promise."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from tests.requirements import REQUIREMENTS

TESTS = Path(__file__).parent
ID = re.compile(r"[A-Z][A-Z0-9]*(-[A-Z0-9]+)*-\d+[a-z]?")


def marks_in(source: str) -> Iterator[ast.Call]:
    """Yield each `pytest.mark.proves(…)`, whether on a function, a class or a module."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="proves")):
                yield node


def ids_of(mark: ast.Call) -> list[str | None]:
    """Return the ids of one mark, None for an argument that is not a plain string."""
    return [
        argument.value
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        else None
        for argument in mark.args
    ]


@functools.cache
def marks_by_place() -> dict[str, list[str | None]]:
    return {
        f"{path.relative_to(TESTS)}:{mark.lineno}": ids_of(mark)
        for path in sorted(TESTS.rglob("test_*.py"))
        for mark in marks_in(path.read_text(encoding="utf-8"))
    }


def test_every_promise_is_proven_by_a_test():
    proven = {name for names in marks_by_place().values() for name in names}
    assert sorted(REQUIREMENTS.keys() - proven) == []


def test_every_id_that_a_test_names_is_a_promise():
    unknown = {
        place: names
        for place, names in marks_by_place().items()
        if not names or not all(name in REQUIREMENTS for name in names)
    }
    assert unknown == {}


def test_every_promise_has_a_well_formed_id_and_a_sentence():
    for name, sentence in REQUIREMENTS.items():
        assert ID.fullmatch(name), name
        assert sentence.endswith("."), name


def test_marks_are_found_wherever_they_stand():
    source = """
pytestmark = pytest.mark.proves("A-1")
@pytest.mark.proves("A-2", "A-3")
class TestGroup:
    @pytest.mark.proves()
    @pytest.mark.proves(computed)
    async def test_member(self): ...
"""
    found = sorted((mark.lineno, ids_of(mark)) for mark in marks_in(source))
    assert found == [(2, ["A-1"]), (3, ["A-2", "A-3"]), (5, []), (6, [None])]
