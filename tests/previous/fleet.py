"""One process of a fleet, of whichever release is on its path: `python fleet.py LEDGER CONTRACTS`.

It answers each line, `call ID` or `outcome ID`, with a line of JSON, and ends with its input.
"""

import asyncio
import json
import sys
from typing import Any

from doubtless import Doubtless
from doubtless.core.model import Json
from doubtless.errors import DoubtlessError


async def main(ledger: str, contracts: str) -> None:
    async with Doubtless(ledger, contracts=contracts) as app:
        say({"ready": sys.modules["doubtless"].__file__})
        while line := await asyncio.to_thread(sys.stdin.readline):
            word, operation_id = line.split()
            try:
                say(await answer(app, word, operation_id))
            except DoubtlessError as error:
                say({"error": type(error).__name__, "told": str(error)})


async def answer(app: Doubtless, word: str, operation_id: str) -> dict[str, Any]:
    if word == "call":
        arguments: dict[str, Json] = {"charge": operation_id, "amount": 5}
        outcome = await app.call("refund", arguments, operation_id=operation_id)
    else:
        outcome = await app.wait(operation_id, timeout=40)
    return {"status": outcome.status, "already_done": outcome.already_done}


def say(told: dict[str, Any]) -> None:
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except* DoubtlessError as errors:
        for error in errors.exceptions:
            say({"error": type(error).__name__, "told": str(error)})
