"""The examples of docs/engines.md and other pages, to be run as they are written."""

import re
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")


def of(engine: str, **here: str) -> dict[str, Any]:
    """Run the first example of an engine, and return its names.

    `here` gives addresses of this place for those that are written: `{"amqp": "memory://"}` for
    whatever begins with amqp://.
    """
    section = PAGE.split(f"\n## {engine}\n")[1].split("\n## ")[0]
    found = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    source = found[1]
    for scheme, address in here.items():
        source, count = re.subn(rf'"{scheme}://[^"]*"', repr(address), source)
        assert count == 1, f"no address that begins with {scheme}://"
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(source, "docs/engines.md", "exec"), names)  # noqa: S102 - it is our own page
    return names


def first_of(page: str, section: str = "", **given: Any) -> dict[str, Any]:
    """Run the first example of another page, or of a section of it, and return its names."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    if section:
        text = text.split(f"\n## {section}\n")[1]
    found = re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"__name__": "example", **given}
    exec(compile(found[1], f"docs/{page}", "exec"), names)  # noqa: S102 - it is our own page
    return names
