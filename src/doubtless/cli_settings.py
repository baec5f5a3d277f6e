"""Settings of the command line: flags first, then variables, then doubtless.toml, then defaults."""

import functools
import json
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from doubtless.errors import SettingsError

FILE: Final = "doubtless.toml"
LEDGER: Final = "sqlite:///doubtless.db"
CONTRACTS: Final = "contracts.toml"
TENANT: Final = "main"

Command: TypeAlias = Callable[..., int]
F = TypeVar("F", bound=Callable[..., object])


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is in force. `said` names what was not left to its default, `flags` what a flag said."""

    ledger: str = LEDGER
    tenant: str = TENANT
    contracts: str = CONTRACTS
    secrets: str | None = None
    principal: str = "local"
    operator: str | None = None
    app: str | None = None
    said: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()


OPTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "ledger": ("ADDRESS", f"The ledger's address [default: {LEDGER}]"),
    "tenant": ("NAME", f"Whose part of the ledger [default: {TENANT}]"),
    "contracts": ("FILE", f"The contract file [default: {CONTRACTS}]"),
    "secrets": ("FOLDER", "A folder with one file for each credential"),
    "principal": ("NAME", "In whose name calls are made [default: local]"),
    "operator": ("NAME", "Who decides [default: the name of the system's user]"),
    "app": ("MODULE:NAME", "A Doubtless object in code, which brings ledger and tools"),
}
"""Each setting, with the word for its value and its help. All of them may stand in the file."""


def with_settings(*names: str) -> Callable[[Command], Command]:
    """Give a command the options `names`, and call it with the `settings` in force."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: object) -> int:
            said = {name: values.pop(name) for name in names}
            return command(settings=in_force(said), **values)

        for name in reversed(names):
            metavar, text = OPTIONS[name]
            variable = f"DOUBTLESS_{name.upper()}"
            option = click.option(
                f"--{name}", metavar=metavar, envvar=variable, help=text, show_envvar=True
            )
            run = option(run)
        return run

    return decorate


def in_force(said: Mapping[str, object]) -> Settings:
    """Put together what flags and variables said, and what the file says.

    Raises:
        SettingsError: The file can't be read, or has a key or a value that it may not have.
    """
    context = click.get_current_context()
    flags = {
        name for name in said if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    values = from_file(Path(FILE)) | {
        name: str(value) for name, value in said.items() if value is not None
    }
    if "tenant" in values and "tenant" in said:
        _check_tenant(values["tenant"], flags, said)
    found = replace(Settings(), said=frozenset(values), flags=frozenset(flags))
    return replace(found, **values)  # type: ignore[arg-type]


def _check_tenant(name: str, flags: Collection[str], said: Mapping[str, object]) -> None:
    from doubtless.engine.book import checked_tenant  # noqa: PLC0415 - slow, and seldom needed

    place = f"{FILE}: tenant" if said["tenant"] is None else "DOUBTLESS_TENANT"
    try:
        checked_tenant(name)
    except SettingsError as error:
        raise SettingsError(f"{'--tenant' if 'tenant' in flags else place}: {error}") from error


def from_file(path: Path) -> dict[str, str]:
    """Read the settings file; an absent one says nothing.

    Raises:
        SettingsError: It can't be read, or has a key or a value that it may not have.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path} can't be read: {error}") from error
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: this is not TOML: {error}") from error
    known = ", ".join(OPTIONS)
    wrong = [f"{path}: no setting {name!r}: use {known}" for name in found if name not in OPTIONS]
    wrong += [
        f'{path}: {name} must be text in quotes: {name} = "…"'
        for name, value in found.items()
        if name in OPTIONS and not (isinstance(value, str) and value)
    ]
    if wrong:
        raise SettingsError("\n".join(wrong))
    return found


# --- kinds of values -----------------------------------------------------------------------------

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Duration(click.ParamType[int]):
    """A time such as 250ms, 30s, 15m, 24h or 7d, as milliseconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read it."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", str(value))
        if found is None:
            self.fail(f"{value!r} is no duration: write 250ms, 30s, 15m, 24h or 7d.", param, ctx)
        return int(found[1]) * UNITS_MS[found[2]]


DURATION: Final = Duration()


class KeepTime(click.ParamType[str]):
    """For how long settled operations keep what they carry: a day at least, such as 90d."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Check it."""
        from doubtless.engine.retention import keep_ms  # noqa: PLC0415 - slow, and seldom needed

        try:
            keep_ms(str(value))
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
        return str(value)


KEEP_TIME: Final = KeepTime()


class Arguments(click.ParamType[dict[str, object]]):
    """A JSON object that means one thing only; `-` reads it from standard input."""

    name = "object"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, object]:
        """Read it."""
        if isinstance(value, dict):
            return value
        try:
            text = sys.stdin.buffer.read().decode() if value == "-" else str(value)
            found = json.loads(text, object_pairs_hook=_no_twins, parse_constant=_no_constant)
        except json.JSONDecodeError as error:
            place = f"line {error.lineno}, column {error.colno}"
            self.fail(f"this is not JSON: {error.msg} at {place}.", param, ctx)
        except (ValueError, RecursionError) as error:
            self.fail(f"{error}.", param, ctx)
        if not isinstance(found, dict):
            self.fail('an object is wanted, such as \'{"charge": "ch_1"}\'.', param, ctx)
        return found


ARGUMENTS: Final = Arguments()


def _no_twins(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    twins = sorted({name for name in names if names.count(name) > 1})
    if twins:
        raise ValueError(f"it says {', '.join(twins)} twice")
    return dict(pairs)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def length(ms: int) -> str:
    """Write a time for people, in its two largest units: 2h 05m, 4.2s."""
    if ms < 0:
        return f"-{length(-ms)}"
    seconds = ms // 1000
    for big, small, size, part in (("d", "h", 86_400, 3_600), ("h", "m", 3_600, 60)):
        if seconds >= size:
            return f"{seconds // size}{big} {seconds % size // part:02}{small}"
    if seconds >= 60:
        return f"{seconds // 60}m {seconds % 60:02}s"
    return f"{ms / 1000:.1f}s" if ms >= 1000 else f"{ms}ms"
