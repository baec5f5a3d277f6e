"""docs/evidence.md: figures as they were measured, each written by the run itself."""

import datetime
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

INTRODUCTION: Final = """# Evidence

What was measured, by the runs themselves. Every section is written by the command that it names;
nothing here is typed by hand. Another machine gives other figures for time, and the same counts.
"""


def record(page: Path, name: str, title: str, command: str, lines: Sequence[str]) -> None:
    """Write one section of the page of evidence, in place of what the last such run wrote.

    Args:
        page: The page; made if it is absent.
        name: Tells sections apart: lower-case letters and hyphens.
        title: The section's heading.
        command: What was run.
        lines: Markdown.
    """
    text = page.read_text(encoding="utf-8") if page.exists() else INTRODUCTION
    body = "\n".join([f"## {title}", "", f"`{command}`, {circumstances()}.", "", *lines])
    section = f"<!-- {name} -->\n{body}\n<!-- /{name} -->\n"
    old = re.compile(rf"<!-- {re.escape(name)} -->.*?<!-- /{re.escape(name)} -->\n", re.DOTALL)
    found = old.search(text)
    if found is None:
        text = f"{text.rstrip()}\n\n{section}"
    else:
        text = text[: found.start()] + section + text[found.end() :]
    page.write_text(text, encoding="utf-8")


def circumstances() -> str:
    """Say when, on what and of which state of the code a run was made."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return f"{day}, commit {_commit()}, Python {platform.python_version()}, {os.cpu_count()} cores"


def _commit() -> str:
    """Return the commit that runs, marked if something was changed since."""
    folder = Path(__file__).parent
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty=+changes", "--exclude=*"],  # noqa: S607
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return told.stdout.strip()
