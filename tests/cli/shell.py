"""Commands as processes of their own, in a folder of their own."""

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from doubtless import cli
from doubtless.testing.demo_stage import SOURCE_ROOT, contracts
from doubtless.testing.provider import ProviderProcess

COLUMNS_MAX = 100


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(**variables: str) -> dict[str, str]:
    """Return an environment without settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DOUBTLESS_")}
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        kept.pop(name, None)
    return {**kept, "PYTHONPATH": str(SOURCE_ROOT), "PYTHONIOENCODING": "utf-8", **variables}


class Shell:
    """A folder in which commands are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.folder / 'doubtless.db'}"

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "doubtless.cli", *words],
            cwd=self.folder,
            env=environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )

    def run(self, *words: str, stdin: str = "", **variables: str) -> Result:
        """Run a command. Whatever happens in it, it prints no traceback."""
        with self.start(*words, **variables) as process:
            out, err = process.communicate(stdin, timeout=50)
        found = Result(code=process.returncode, out=out, err=err)
        assert "Traceback" not in out + err, out + err
        return found

    def here(self, *words: str, **variables: str) -> Result:
        """Run a command in this process, which is quicker than one of its own."""
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, environment(**variables), clear=True),
            contextlib.chdir(self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = cli.main(words)
        found = Result(code=code, out=out.getvalue(), err=err.getvalue())
        assert "Traceback" not in found.out + found.err
        return found

    def declare(self, provider: ProviderProcess, *, timeout_ms: int = 1000) -> None:
        """Write the contract file: a refund that can be looked up, and a bid that can't."""
        text = contracts(provider.url, timeout_ms=timeout_ms)
        (self.folder / "contracts.toml").write_text(text, encoding="utf-8")

    def call(self, tool: str, *words: str, **arguments: object) -> Result:
        """Call a tool, in this process."""
        return self.here("call", tool, "--json", json.dumps(arguments), *words)

    def call_apart(self, tool: str, *words: str, **arguments: object) -> Result:
        """Call a tool, in a process of its own."""
        return self.run("call", tool, "--json", json.dumps(arguments), *words)


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line.rstrip()) > COLUMNS_MAX]
