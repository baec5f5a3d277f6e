"""Writing and finding what `contracts explain` says of tools."""

import json
from collections.abc import Iterator, Sequence

import click

from doubtless.cli_act import opened
from doubtless.cli_settings import Settings
from doubtless.cli_text import Line, Style, columns, wrapped, write
from doubtless.core.contract import Contract
from doubtless.engine.contracts import load_contracts
from doubtless.engine.contracts.boundary import Boundary, Known
from doubtless.engine.contracts.explain import Explanation, explain
from doubtless.engine.contracts.values import near
from doubtless.errors import BadRequest


def run(settings: Settings, tools: Sequence[str], *, as_json: bool) -> int:
    """Explain the tools that are named, or all."""
    found = [explain(each) for each in _chosen(_declared(settings), tools)]
    if as_json:
        data = {"tools": [each.to_json() for each in found]}
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return 0
    for number, each in enumerate(found):
        if number:
            click.echo()
        write(_lines(each))
    return 0


def _declared(settings: Settings) -> dict[str, Contract]:
    """Return the contracts of the file, or of the application in code."""
    if settings.app is None:
        return dict(load_contracts(settings.contracts).tools)
    application = opened(settings, worker=False, tools=True)
    return {each.contract.tool: each.contract for each in application.registry}


def _chosen(declared: dict[str, Contract], names: Sequence[str]) -> list[Contract]:
    """Return those that are named, or all.

    Raises:
        BadRequest: There is none of that name.
    """
    for name in names:
        if name not in declared:
            raise BadRequest(f"no tool {name!r} is declared: {near(name, sorted(declared))}")
    return [declared[name] for name in names or declared]


# --- for people ----------------------------------------------------------------------------------


def _lines(told: Explanation) -> Iterator[Line]:
    width = columns()
    automatic = "fully automatic" if told.fully_automatic else "not fully automatic"
    yield Line(f"{told.tool}: {automatic}", "strong")
    if told.description:
        yield from wrapped(told.description, width=width, first="  ")
    yield from wrapped(told.does, width=width, first="  does    ")
    yield from wrapped(f"{told.effect}: {told.means}", width=width, first="  effect  ")
    yield from _title("Its way, and what is known if it breaks there")
    for number, place in enumerate(told.path, 1):
        yield from _place(number, place, width)
    yield from wrapped(f"If our process dies: {told.if_we_die}", width=width, first="  ")
    yield from _title("On an unknown")
    for each in told.on_unknown:
        yield from _told(each.name, each.text, width, label=14)
    if told.decisions:
        yield from _title("What a person may decide")
    for each in told.decisions:
        yield from _told(each.name, each.text, width, label=24)
    yield from _listed("Why", told.why, width)
    yield from _listed("What would make it more automatic", told.more_automatic, width)


def _title(text: str) -> Iterator[Line]:
    yield Line("")
    yield Line(text, "strong")


def _place(number: int, place: Boundary, width: int) -> Iterator[Line]:
    style: Style = "good" if place.known is Known.NOT_SENT else "waits"
    yield Line(f"  {number:>2} {place.name}: {place.known}", style)
    yield from wrapped(place.means, width=width, first=" " * 5)
    proof = f"Proof: {place.proof}" if place.proof else "Proof: none here."
    yield from wrapped(proof, width=width, first=" " * 5)


def _told(name: str, text: str, width: int, *, label: int) -> Iterator[Line]:
    yield from wrapped(text, width=width, first=f"  {name:<{label}}")


def _listed(title: str, texts: Sequence[str], width: int) -> Iterator[Line]:
    if texts:
        yield from _title(title)
    for text in texts:
        yield from wrapped(text, width=width, first="  - ")
