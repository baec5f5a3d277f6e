"""The limits of style that no linter checks.

Docstrings, columns and bare excepts are ruff's business, the direction of imports import-linter's.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import pytest

ROOT: Final = Path(__file__).parent.parent
SOURCES: Final = sorted((ROOT / "src").rglob("*.py"))
TESTS: Final = sorted((ROOT / "tests").rglob("*.py"))

FUNCTION_LINES_MAX: Final = 40
FILE_LINES_MAX: Final = 400

# Public names whose types must say Any, each with the reason: {"doubtless/x.py:Class.name": "…"}.
ANY_ALLOWED: Final[dict[str, str]] = {}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def naming(word: str, paths: list[Path]) -> list[Path]:
    """Return the files in which a word stands at all: only these need be parsed."""
    return [path for path in paths if word in path.read_text(encoding="utf-8")]


def place(path: Path, name: object) -> str:
    return f"{path.relative_to(ROOT).as_posix()}:{name}"


def body_lines(function: Function) -> int:
    """Count the lines from the first statement after the docstring to the last."""
    has_docstring = ast.get_docstring(function, clean=False) is not None
    statements = function.body[1:] if has_docstring else function.body
    if not statements:
        return 0
    return (statements[-1].end_lineno or 0) - statements[0].lineno + 1


def public_types(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, list[ast.expr]]]:
    """Yield each public name of a module or class with the annotations that a caller sees."""
    for node in body:
        match node:
            case ast.ClassDef(name=name) if not name.startswith("_"):
                yield from public_types(node.body, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if not name.startswith("_") or name.startswith("__"):
                    yield f"{prefix}{name}", signature(node)
            case ast.AnnAssign(target=ast.Name(id=name)) if not name.startswith("_"):
                yield f"{prefix}{name}", [node.annotation]


def signature(function: Function) -> list[ast.expr]:
    spec = function.args
    arguments = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
    annotations = [argument.annotation for argument in arguments if argument is not None]
    return [found for found in (*annotations, function.returns) if found is not None]


def says_any(annotation: ast.expr) -> bool:
    for node in ast.walk(annotation):
        match node:
            case ast.Name(id="Any") | ast.Attribute(attr="Any"):
                return True
            case ast.Constant(value=str(quoted)) if "Any" in quoted:
                return True
    return False


def fixed_sleeps(tree: ast.Module) -> Iterator[int]:
    """Yield the lines that sleep for a time written as a number."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="sleep") | ast.Name(id="sleep"),
                args=[ast.Constant(value=int() | float()), *_],
            ):
                yield node.lineno


def test_functions_are_short():
    long = {
        place(path, node.name): body_lines(node)
        for path in SOURCES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and body_lines(node) > FUNCTION_LINES_MAX
    }
    assert long == {}


def test_files_are_short():
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {path: count for path, count in lines.items() if count > FILE_LINES_MAX} == {}


def test_every_module_is_named_after_what_it_holds():
    assert [path for path in SOURCES if path.stem in {"utils", "util", "helpers", "misc"}] == []


def test_public_types_never_say_any():
    found = {
        place(path, name).removeprefix("src/")
        for path in naming("Any", SOURCES)
        for name, annotations in public_types(parse(path).body)
        if any(says_any(annotation) for annotation in annotations)
    }
    assert sorted(found ^ ANY_ALLOWED.keys()) == []


def test_tests_wait_for_conditions_and_never_for_a_fixed_time():
    sleeping = naming("sleep(", TESTS)
    assert [place(path, line) for path in sleeping for line in fixed_sleeps(parse(path))] == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("def f():\n    '''Say.\n\n    More.\n    '''\n    a = 1\n\n    return a", 3),
        ("def f(): return 1", 1),
        ("def f():\n    '''Only this.'''", 0),
    ],
)
def test_a_docstring_does_not_count_as_body(source, lines):
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    assert body_lines(function) == lines


def test_any_is_found_in_arguments_results_fields_and_quotes():
    source = """
def a(x: list[Any]): ...
def b(*, x: "typing.Any"): ...
async def c() -> typing.Any: ...
class D:
    e: dict[str, Any]
    def f(self, **x: Any): ...
    def _hidden(self, x: Any): ...
class _Hidden:
    x: Any
def fine(x: int) -> str: ...
"""
    found = [
        name
        for name, annotations in public_types(ast.parse(source).body)
        if any(says_any(annotation) for annotation in annotations)
    ]
    assert found == ["a", "b", "c", "D.e", "D.f"]


def test_a_fixed_sleep_is_found_and_a_computed_one_is_not():
    source = "time.sleep(0.1)\nawait anyio.sleep(1)\nsleep(2)\ntime.sleep(delay_s)"
    tree = compile(source, "<test>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert sorted(fixed_sleeps(tree)) == [1, 2, 3]
