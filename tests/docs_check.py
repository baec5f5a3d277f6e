"""Check the Markdown files: relative links resolve, and Python and TOML examples parse.

Run from anywhere: `python -m tests.docs_check`. Prints what is wrong and exits 1.
"""

import ast
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
FOLDERS: Final = ("docs", "src", "tests")

FENCED: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)``` *$",
    re.MULTILINE | re.DOTALL,
)
INLINE_CODE: Final = re.compile(r"`[^`\n]*`")
LINK: Final = re.compile(r"\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")


def pages() -> Iterator[Path]:
    yield from sorted(ROOT.glob("*.md"))
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.md"))


def broken_links(page: Path, text: str) -> Iterator[str]:
    prose = INLINE_CODE.sub("", FENCED.sub("", text))
    for link in LINK.finditer(prose):
        target = link["target"].partition("#")[0]
        is_elsewhere = ":" in target  # http:, https:, mailto:
        if target and not is_elsewhere and not (page.parent / target).exists():
            yield f"no such file: {target}"


def broken_examples(text: str) -> Iterator[str]:
    for block in FENCED.finditer(text):
        example = textwrap.dedent(block["text"])
        try:
            match block["language"]:
                case "python":
                    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
                    compile(example, "example", "exec", flags)
                case "toml":
                    tomllib.loads(example)
        except (SyntaxError, tomllib.TOMLDecodeError) as error:
            line = text.count("\n", 0, block.start()) + 1
            yield f"the {block['language']} example at line {line} does not parse: {error}"


def problems(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return [*broken_links(page, text), *broken_examples(text)]


def main() -> int:
    found = [
        f"{page.relative_to(ROOT)}: {problem}" for page in pages() for problem in problems(page)
    ]
    print("\n".join(found) or "The docs are sound.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
