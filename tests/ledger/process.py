"""A process of its own on a ledger: `python -m tests.ledger.process COMMAND URL …`.

Each line that it prints tells what was acknowledged to it.
"""

import sys
import threading
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


def settle(url: str, prefix: str, count: str) -> None:
    """Wait for a line, then begin and settle that many operations, several at once."""
    done = threading.Semaphore(0)

    def begun(operation_id: str, value: object, error: BaseException | None) -> None:
        assert error is None, error
        ledger.submit(partial(samples.end, operation_id=operation_id), ended)

    def ended(value: object, error: BaseException | None) -> None:
        assert error is None, error
        done.release()

    with open_ledger(url) as ledger:
        say("ready")
        sys.stdin.readline()
        for number in range(int(count)):
            made = samples.operation(f"{prefix}-{number}")
            ledger.submit(partial(samples.begin, made=made), partial(begun, made.id))
            if number % 7 == 6:  # so that groups of both processes alternate
                done.acquire()
        for _ in range(int(count) - int(count) // 7):
            done.acquire()
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
    commands: dict[str, Callable[..., None]] = {
        "endless": endless,
        "some": some,
        "settle": settle,
        "create": create,
    }
    commands[command](*arguments)
