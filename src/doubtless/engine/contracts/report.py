"""What `contracts check` prints: for each tool what is known after a broken connection, and why."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from doubtless.core.contract import Contract
from doubtless.core.effects import NO_EFFECT
from doubtless.core.model import Json
from doubtless.engine.contracts import Contracts
from doubtless.engine.contracts.answers import Answers, answers_of, target_of
from doubtless.engine.contracts.blocks import BLOCKS
from doubtless.engine.contracts.defaults import Default
from doubtless.errors import Problem

WIDTH: Final = 92
QUESTIONS: Final = (
    (
        "ties",
        "What ties retries to one operation?",
        "nothing: declare the provider's key, or put {operation.ref} into the object",
    ),
    (
        "asks",
        "Where can the caller ask for the result?",
        "nowhere: declare a look-up, or events",
    ),
    (
        "proofs",
        "What proof remains when the connection breaks?",
        "none: let a look-up match {operation.ref}, and claim absence where it is true",
    ),
)


def check_report(contracts: Contracts) -> str:
    """Write the report as plain text, at most 100 columns wide; no trailing line break."""
    lines: list[str] = []
    for name, contract in contracts.tools.items():
        answers = answers_of(contract)
        lines += _tool_lines(contract, answers)
        lines += _default_lines(contracts.defaults.get(name, ()))
        lines += _warning_lines(_warnings_of(contracts, f"tools.{name}"))
        lines.append("")
    for kind in ("sources", "servers"):
        told = [each for each in contracts.warnings if each.table.startswith(f"{kind}.")]
        if told:
            lines += [kind.capitalize(), *_warning_lines(told), ""]
    return "\n".join([*lines, _summary(contracts)])


def check_data(contracts: Contracts) -> Json:
    """Return the report for machines, ready for JSON."""
    return {
        "file": contracts.file,
        "tools": [
            _tool_data(contracts, name, contract) for name, contract in contracts.tools.items()
        ],
        "warnings": [_problem_data(each) for each in contracts.warnings],
    }


def _tool_data(contracts: Contracts, name: str, contract: Contract) -> Json:
    answers = answers_of(contract)
    return {
        "tool": name,
        "effect": contract.effect.value,
        "target": target_of(contract),
        "fully_automatic": answers.automatic,
        "ties": answers.ties,
        "asks": answers.asks,
        "proofs": answers.proofs,
        "unknown": answers.unknown,
        "defaults": {each.key: each.value for each in contracts.defaults.get(name, ())},
        "warnings": [_problem_data(each) for each in _warnings_of(contracts, f"tools.{name}")],
    }


def _problem_data(problem: Problem) -> Json:
    return {
        "table": problem.table,
        "key": problem.key,
        "wrong": problem.wrong,
        "mend": problem.mend,
    }


def _warnings_of(contracts: Contracts, table: str) -> list[Problem]:
    return [each for each in contracts.warnings if f"{each.table}.".startswith(f"{table}.")]


def _tool_lines(contract: Contract, answers: Answers) -> Iterator[str]:
    state = "fully automatic" if answers.automatic else "not fully automatic"
    yield f"{contract.tool}  [{contract.effect.value}]  {state}"
    yield from _wrapped(target_of(contract), indent=2)
    for field, question, none in () if contract.effect in NO_EFFECT else QUESTIONS:
        yield f"  {question}"
        said: Sequence[str] = getattr(answers, field)
        for answer in said or (_none(contract, none),):
            yield from _wrapped(answer, indent=4)
    yield "  What happens with an unknown?"
    yield from _wrapped(answers.unknown, indent=4)


def _none(contract: Contract, usual: str) -> str:
    """Say that there is no answer, and what would give one."""
    if contract.action is None:
        return usual
    missing = BLOCKS[contract.kind].way(contract.action).missing
    word = usual.partition(":")[0]
    return f"{word}: {missing}" if missing else word


def _default_lines(defaults: Sequence[Default]) -> Iterator[str]:
    if not defaults:
        return
    yield "  Defaults in force"
    width = max(len(each.key) for each in defaults)
    for each in defaults:
        yield from _wrapped(f"{each.key:<{width}} = {each.value}", indent=4, hang=width + 3)


def _warning_lines(warnings: Sequence[Problem]) -> Iterator[str]:
    if not warnings:
        return
    yield "  Warnings"
    for each in warnings:
        place = ".".join(part for part in (each.table, each.key) if part)
        yield from _wrapped(f"{place}: {each.wrong} Mend: {each.mend}", indent=4, hang=2)


def _wrapped(text: str, *, indent: int, hang: int = 2) -> list[str]:
    """Wrap at words only, so that an expression or a URL can be copied whole."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hang),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _summary(contracts: Contracts) -> str:
    automatic = sum(answers_of(contract).automatic for contract in contracts.tools.values())
    counts = [
        _counted(len(contracts.tools), "tool"),
        f"{automatic} fully automatic",
        _counted(len(contracts.warnings), "warning"),
    ]
    return f"{contracts.file}: {', '.join(counts)}."


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
