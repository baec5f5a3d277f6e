"""A folder with a contract that writes files, and what the tests ask of both."""

from contextlib import contextmanager
from pathlib import Path

from tests.actions.agent import eventually

from doubtless import Doubtless
from doubtless.transports import files_write

CONTRACT = """
[files]
root = "files"

[tools.save]
effect = "file"
timeout = "2s"
in_flight_horizon = "100ms"
recovery_deadline = "30s"
retry = { attempts = 1 }

[tools.save.arguments]
type = "object"
required = ["name"]
additionalProperties = false
properties.name = { type = "string" }
properties.text = { type = "string" }

[tools.save.file]
WHAT

[tools.save.file.pace]
interval = "200ms"
"""
WRITES = 'path = "reports/{args.name}.md"\ncontent = "{args.text}"'
ANSWER_S = 25
TEXT = "the report\n"


def prepared(tmp_path: Path) -> Path:
    """Make the folder of a test ready."""
    (tmp_path / "files" / "reports").mkdir(parents=True)
    declare(tmp_path, WRITES)
    return tmp_path


def declare(folder: Path, what: str) -> None:
    text = CONTRACT.replace("WHAT", what)
    (folder / "contracts.toml").write_text(text, encoding="utf-8")


def opened(folder: Path, **options) -> Doubtless:
    contracts = folder / "contracts.toml"
    return Doubtless(f"sqlite:///{folder}/d.db", contracts=contracts, **options)


async def save(app: Doubtless, operation_id: str | None = "one", text: str = TEXT, name="q3"):
    return await app.call("save", {"name": name, "text": text}, operation_id=operation_id)


async def reviewed(app: Doubtless) -> None:
    async def is_reviewed() -> bool:
        return (await app.outcome("one")).state == "manual_review"

    await eventually(is_reviewed)


def report(folder: Path, name: str = "q3") -> Path:
    return folder / "files" / "reports" / f"{name}.md"


def kept(folder: Path) -> tuple[int, int]:
    """Return what changes with each write of a report."""
    found = report(folder).stat()
    return found.st_ino, found.st_mtime_ns


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in (folder / "files" / "reports").iterdir())


@contextmanager
def meanwhile(monkeypatch, step: str, act):
    """Let somebody act right before a step of ours."""
    real = getattr(files_write.Draft, step)

    def bent(*arguments):
        monkeypatch.setattr(files_write.Draft, step, real)
        act()
        return real(*arguments)

    monkeypatch.setattr(files_write.Draft, step, bent)
    yield
