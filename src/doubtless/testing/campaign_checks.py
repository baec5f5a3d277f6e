"""What callers were told, what the ledger holds and what the provider counted: do they agree?"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from doubtless.core.model import State
from doubtless.ledger import attempts, journal, operations
from doubtless.ledger.codec import integer_of, text_of
from doubtless.ledger.store import Ledger, Transaction
from doubtless.testing.campaign_callers import History, Word

REPLAYED_MAX: Final = 1_000  # operations whose journal is replayed
SUCCEEDED: Final = "succeeded"
FINAL: Final = (SUCCEEDED, "failed", "rejected_by_policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One operation, as the ledger has it."""

    state: State
    ref: str


EVERY: Final = "select id, state, ref from operation where tenant = 'main'"
OPEN: Final = """
    select count(*)
      from operation
     where tenant = 'main' and state not in ('succeeded', 'failed', 'rejected', 'cancelled')
"""
CRASHED: Final = """
    select count(*) from attempt where tenant = 'main' and observation like '%"cause":"crash"%'
"""
LOOKED: Final = "select count(*) from evidence where tenant = 'main' and source = 'lookup'"
AGAIN: Final = "select count(*) from attempt where tenant = 'main' and number > 1"
LATE: Final = "select count(*) from evidence where tenant = 'main' and detail like 'late: %'"


def held(tx: Transaction) -> dict[str, Held]:
    """Return every operation by id."""
    return {
        text_of(name): Held(state=State(text_of(state)), ref=text_of(ref))
        for name, state, ref in tx.tuples(EVERY)
    }


def count(tx: Transaction, sql: str) -> int:
    """Return the one number that a statement asks for."""
    return integer_of(tx.tuples(sql)[0][0])


def seen(tx: Transaction) -> Counter[str]:
    """Return what the ledger tells of what happened to its operations."""
    return Counter(
        {
            "attempts found crashed": count(tx, CRASHED),
            "look-ups": count(tx, LOOKED),
            "late answers": count(tx, LATE),
            "second and later sends": count(tx, AGAIN),
        }
    )


def of_the_ledger(
    history: History, found: Mapping[str, Held], effects: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return what is wrong, by its kind; a kind without an operation is right.

    Args:
        history: What callers were told.
        found: What the ledger holds.
        effects: The provider's own count, by the operation's reference.
    """
    refs = {each.ref for each in found.values()}
    acted = {name: effects.get(each.ref, 0) for name, each in found.items()}
    last = {name: _last_final(words) for name, words in history.words.items()}
    return {
        "doubled": [f"{ref}: {n}" for ref, n in effects.items() if n > 1],
        "acknowledged and lost": sorted(history.acknowledged() - found.keys()),
        "effects that no operation has": sorted(effects.keys() - refs),
        "not settled": [name for name, each in found.items() if not each.state.ends],
        "succeeded without an effect": [
            name
            for name, each in found.items()
            if each.state is State.SUCCEEDED and not acted[name]
        ],
        "ended otherwise with an effect": [
            name
            for name, each in found.items()
            if each.state.ends and each.state is not State.SUCCEEDED and acted[name]
        ],
        "told otherwise than it ended": [
            f"{name}: {last[name]}, {found[name].state}"
            for name in last.keys() & found.keys()
            if last[name] is not None and (last[name] == SUCCEEDED) != _succeeded(found[name])
        ],
    }


def _succeeded(each: Held) -> bool:
    return each.state is State.SUCCEEDED


def _last_final(words: Iterable[Word]) -> str | None:
    finals = [word for word in words if word.status in FINAL]
    return max(finals, key=lambda word: word.ended_s).status if finals else None


def of_the_history(history: History) -> dict[str, list[str]]:
    """Return where answers about one operation contradict each other, by the kind of fault.

    An answer that came before a request began binds the answer to that request.
    """
    wrong: dict[str, list[str]] = {
        "told of success and later otherwise": [],
        "told of success and acted on again": [],
        "told of failure and of success without a repeat": [],
        "acknowledged and later unknown to the service": [],
    }
    for name, words in history.words.items():
        for kind in sorted(set(_contradictions(words))):
            wrong[kind].append(name)
    return wrong


def _contradictions(words: Sequence[Word]) -> Iterable[str]:
    for word in words:
        earlier = [each for each in words if each.ended_s < word.begun_s]
        if any(each.status == SUCCEEDED for each in earlier) and word.acknowledges:
            if word.status != SUCCEEDED:
                yield "told of success and later otherwise"
            elif word.calls and not word.already_done:
                yield "told of success and acted on again"
        if any(each.acknowledges for each in earlier) and word.code == 404:
            yield "acknowledged and later unknown to the service"
        failed = [each.ended_s for each in earlier if each.status == "failed"]
        if failed and word.status == SUCCEEDED:
            # A call that began before may have been told late; one in between may have acted.
            repeats = (each for each in words if each.calls and each.ended_s > min(failed))
            if not any(each.begun_s <= word.ended_s for each in repeats):
                yield "told of failure and of success without a repeat"


def of_the_journals(ledger: Ledger, names: Iterable[str]) -> list[str]:
    """Return the operations whose journal, replayed, gives something else than what is stored."""
    return [
        name
        for name in islice(names, REPLAYED_MAX)
        if not ledger.read(partial(_replays, name=name))
    ]


def _replays(tx: Transaction, *, name: str) -> bool:
    replayed = journal.replay(journal.journal_of(tx, "main", name))
    stored = operations.get(tx, "main", name), attempts.attempts_of(tx, "main", name)
    return (replayed.operation, replayed.attempts) == stored


def summed(wrong: Mapping[str, Sequence[str]]) -> Counter[str]:
    """Return how many there are of each kind."""
    return Counter({kind: len(names) for kind, names in wrong.items()})
