"""A function tool that leaves a line in a file, so that its effects can be counted."""

from pathlib import Path

from doubtless import Call, Doubtless


def act(folder: Path) -> None:
    """Have the effect."""
    with (folder / "effects").open("a", encoding="utf-8") as file:
        file.write("done\n")


def effects(folder: Path) -> int:
    file = folder / "effects"
    return len(file.read_text(encoding="utf-8").splitlines()) if file.exists() else 0


def register(app: Doubtless, folder: Path) -> None:
    """Declare the tool. Absence would order a resend: who believed it too early would act twice."""

    @app.tool(effect="write", timeout="2s", in_flight_horizon="100ms", recovery_deadline="30s")
    async def note(call: Call) -> str:
        act(folder)
        return "noted"
