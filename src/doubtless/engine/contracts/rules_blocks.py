"""Checks of blocks: whether a kind of action can have that effect, and what it can't mean."""

from collections.abc import Iterator
from typing import Final

from doubtless.engine.contracts.draft import Check, Draft
from doubtless.errors import Problem


def _effect(draft: Draft) -> Iterator[Problem]:
    for block in draft.said.blocks():
        effect, allowed = draft.contract.effect, sorted(each.value for each in block.EFFECTS)
        if effect not in block.EFFECTS:
            yield draft.problem(
                "",
                "effect",
                f"what {block.KIND.value} does is no {effect.value}.",
                f"say {' or '.join(allowed)}.",
            )


def _wrong(draft: Draft) -> Iterator[Problem]:
    for block in draft.said.blocks():
        for each in block.wrong(draft.contract):
            yield draft.problem(block.KIND.value, each.key, each.wrong, each.mend)


def _answers(draft: Draft) -> Iterator[Problem]:
    """Yield what only an HTTP request has."""
    for block in draft.said.blocks():
        for name in ("response", "idempotency", "condition", "read"):
            if name in draft.said.model_fields_set - block.TABLES:
                yield draft.problem(
                    "",
                    name,
                    f"{block.KIND.value} gets no answer that this could speak of.",
                    "leave it out.",
                )


def _doubtful(draft: Draft) -> Iterator[Problem]:
    for block in draft.said.blocks():
        for each in block.doubtful(draft.contract):
            yield draft.problem(block.KIND.value, each.key, each.wrong, each.mend)


BLOCK_ERRORS: Final[tuple[Check, ...]] = (_effect, _wrong, _answers)
BLOCK_WARNINGS: Final[tuple[Check, ...]] = (_doubtful,)
