"""A process of its own on a ledger: `python -m tests.ledger.process COMMAND URL …`.

Each line that it prints tells what was acknowledged to it.
"""

import sys
from collections.abc import Callable
from functools import partial

from tests.ledger import samples

from doubtless.ledger.store import open_ledger


def say(line: str) -> None:
    print(line, flush=True)


def endless(url: str, prefix: str) -> None:
    """Begin operations one after another, and name each as soon as it is acknowledged."""
    with open_ledger(url) as ledger:
        number = 0
        while True:
            operation_id = f"{prefix}-{number}"
            made = samples.operation(operation_id)
            ledger.write(partial(samples.begin, made=made))
            say(operation_id)
            number += 1


def some(url: str, prefix: str, count: str) -> None:
    """Begin that many operations."""
    with open_ledger(url) as ledger:
        for number in range(int(count)):
            made = samples.operation(f"{prefix}-{number}")
            ledger.write(partial(samples.begin, made=made))
        say("done")


def create(url: str) -> None:
    """Wait for a line, open the ledger, and tell its id."""
    say("ready")
    sys.stdin.readline()
    with open_ledger(url) as ledger:
        ledger.write(lambda tx: None)
        say(ledger.id.hex())


if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    commands: dict[str, Callable[..., None]] = {"endless": endless, "some": some, "create": create}
    commands[command](*arguments)
