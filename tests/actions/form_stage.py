"""What a test of pages has: the site, and a service that fills its forms in."""

import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.actions.form_server import Forms
from tests.cli.shell import Shell
from tests.service.serving import Serving, Stage, make_tokens, until

from doubtless import Doubtless
from doubtless.engine.blocking import BlockingDoubtless

SECRET = "canary-7/3&x"
LONG, SHORT = "90s", "4s"
TOOLS = {
    "send": ("send", LONG, ""),
    "send_soon": ("send", SHORT, ""),
    "send_briefly": ("send", LONG, 'keep_open = "200ms"'),
    "send_hastily": ("send_hastily", LONG, ""),
    "send_with_password": ("send_with_password", LONG, 'credential = "shop-login"'),
    "attach": ("attach", LONG, ""),
    "stay_before": ("stay_before", LONG, ""),
    "stay_within": ("stay_within", LONG, ""),
    "fail": ("fail", LONG, ""),
    "never_act": ("never_act", LONG, ""),
    "missing": ("is_not_there", LONG, ""),
}
TOOL = """
[tools.{tool}]
effect = "browser"
timeout = "{timeout}"
retry = {{ attempts = 1 }}

[tools.{tool}.arguments]
type = "object"
required = ["mode", "id"]
properties.mode = {{ type = "string" }}
properties.id = {{ type = "string" }}

[tools.{tool}.browser]
script = "form_scripts:{script}"
start_url = "{url}/form?mode={{args.mode}}&id={{args.id}}"
harmless = ["POST {url}/login"]
{more}
"""


def contracts(forms: Forms) -> str:
    return "".join(
        TOOL.format(tool=tool, script=script, timeout=timeout, more=more, url=forms.url)
        for tool, (script, timeout, more) in TOOLS.items()
    )


class House:
    """A service in a folder of its own. It can be killed, and started again."""

    def __init__(self, folder: Path, forms: Forms) -> None:
        self.shell, self.forms, self.folder = Shell(folder), forms, folder
        (folder / "contracts.toml").write_text(contracts(forms), encoding="utf-8")
        shutil.copy(Path(__file__).with_name("form_scripts.py"), folder)
        (folder / "secrets").mkdir()
        (folder / "secrets" / "shop-login").write_text(SECRET, encoding="utf-8")
        self._tokens = make_tokens(self.shell.ledger)
        self.start()

    def start(self) -> None:
        serving = Serving(self.shell, "--secrets", "secrets")
        self.stage = Stage(serving=serving, tokens=self._tokens, shell=self.shell)

    @contextmanager
    def seen_by(self, role: str = "operator") -> Iterator[BlockingDoubtless]:
        """Open it as people do, over HTTP."""
        with Doubtless.sync(self.stage.serving.url, token=self._tokens[role]) as app:
            yield app

    def call(
        self, tool: str, mode: str, operation_id: str, *, wait: str | None = None
    ) -> dict[str, Any]:
        """Call, and return the outcome; the form's id is the operation's."""
        answer = self.stage.call(tool, operation_id, wait=wait, mode=mode, id=operation_id)
        assert answer.status in (200, 202), answer.text
        found: dict[str, Any] = answer.json
        return found

    def outcome(self, operation_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.stage.operator("GET", f"/v1/operations/{operation_id}").json
        return found

    def comes_to(self, operation_id: str, state: str) -> dict[str, Any]:
        found: dict[str, Any] = until(
            lambda: told if (told := self.outcome(operation_id))["state"] == state else None,
            timeout_s=60,
        )
        return found

    def exhibits(self, operation_id: str) -> list[str]:
        path = f"/v1/operations/{operation_id}/exhibits"
        return [each["name"] for each in self.stage.operator("GET", path).json["exhibits"]]

    def text(self, operation_id: str, name: str = "end.txt") -> str:
        path = f"/v1/operations/{operation_id}/exhibits/{name}"
        return self.stage.operator("GET", path).text

    def family(self) -> list[int]:
        """Return the processes that come from the service, its browser's among them."""
        return descendants(self.stage.serving.process.pid)

    def kill(self) -> None:
        self.stage.serving.process.send_signal(signal.SIGKILL)
        self.stage.serving.kill()


def descendants(pid: int) -> list[int]:
    """Return all processes below one, by their parents."""
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found, todo = [], [pid]
    while todo:
        above = todo.pop()
        below = [each for each, parent in parents.items() if parent == above]
        found += below
        todo += below
    return found


def is_gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have waited for it yet."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] in "ZX"
