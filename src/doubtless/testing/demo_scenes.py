"""The scenes of the demonstration. Each returns what it has to tell, line by line."""

import json
import signal
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import anyio
import httpx2

from doubtless import Doubtless, Outcome
from doubtless.core.model import Json
from doubtless.testing.demo_stage import TIMEOUT_S, Stage, shown

AMOUNT: Final = 500
SETTLED_S: Final = 30.0
UNKNOWN: Final = "unknown_reconciliation_required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One scene: its title, and how it is played."""

    title: str
    play: Callable[[Stage], Iterator[str]]


def naive(stage: Stage) -> Iterator[str]:
    """Play an agent that sends again what timed out, as most HTTP clients and frameworks do."""
    stage.set()
    tries = 0
    for _ in range(3):
        tries += 1
        try:
            answer = httpx2.post(
                f"{stage.provider.url}/v1/refunds",
                json={"charge": "ch_1", "amount": AMOUNT},
                timeout=TIMEOUT_S,
                trust_env=False,
            )
        except httpx2.TimeoutException:
            yield f"POST /v1/refunds   no answer within {TIMEOUT_S:g} s, so it is sent again"
            continue
        yield f"POST /v1/refunds   {answer.status_code}, and the agent is content"
        break
    yield stage.counted("naive", "refund", effects=2, requests=2)


def lost_answer(stage: Stage) -> Iterator[str]:
    """Play the same agent through doubtless, with the same lost answer."""
    stage.set()
    told: list[str] = []

    async def agent() -> None:
        arguments: dict[str, Json] = {"charge": "ch_2", "amount": AMOUNT}
        async with Doubtless(stage.ledger, contracts=stage.contracts) as app:
            first = await app.call("refund", arguments, operation_id="refund-2")
            told.extend(_said("call        ", first, stage))
            again = await app.call("refund", arguments)
            same = again.operation_id == first.operation_id
            stage.claim("lost answer", "the repeat joins", "yes", "yes" if same else "no")
            told.append(f"call again  joined {again.operation_id}, and sent nothing")
            last = await app.wait("refund-2", timeout=SETTLED_S)
            request = (first.reconcile or {}).get("request")
            told.append(f"afterwards  {last.status}: found by {request}")
            stage.claim("lost answer", "first told", UNKNOWN, first.status)
            stage.claim("lost answer", "in the end", "succeeded", last.status)

    anyio.run(agent)
    yield from told
    yield stage.counted("lost answer", "refund", effects=1, requests=1)


def _said(label: str, outcome: Outcome, stage: Stage) -> Iterator[str]:
    yield f"{label}{outcome.status}"
    indent = " " * len(label)
    message = outcome.message.partition(". It is")[0] + "."
    yield from textwrap.wrap(
        f"“{message}”", stage.width - 6, initial_indent=indent, subsequent_indent=indent
    )


def crash(stage: Stage) -> Iterator[str]:
    """Kill the process that calls, between the effect and its record; a new one takes over."""
    stage.set(timeout_s=20.0)  # so that nothing is recorded before the kill
    words = ["call", "refund", "--operation-id", "refund-3"]
    words += ["--json", json.dumps({"charge": "ch_3", "amount": AMOUNT})]
    with stage.start(*words) as process:
        try:
            stage.provider.wait_for(lambda provider: bool(provider.effects()), timeout_s=SETTLED_S)
        finally:
            process.kill()
    killed = process.returncode == -signal.SIGKILL
    stage.claim("crash", "killed on the way", "yes", "yes" if killed else "no")
    yield shown(words)
    yield f"            killed (SIGKILL, pid {process.pid}) as soon as the provider had refunded"
    code, printed = stage.run(*words, "--wait", f"{SETTLED_S:g}s")
    stage.claim("crash", "exit code", 0, code)
    status = json.loads(printed)["status"] if code == 0 else printed
    yield "$ the same again, in a new process on the same ledger, with --wait 30s"
    yield f"            {status}, exit code {code}"
    yield stage.counted("crash", "refund", effects=1, requests=1)


def review(stage: Stage) -> Iterator[str]:
    """Lose the answer of something that nobody can look up: a person has to decide."""
    stage.set()

    async def agent() -> Outcome:
        arguments: dict[str, Json] = {"lot": "lot 7", "amount": 12_000}
        async with Doubtless(stage.ledger, contracts=stage.contracts) as app:
            return await app.call("place_bid", arguments, operation_id="bid-4")

    outcome = anyio.run(agent)
    stage.claim("review", "told", UNKNOWN, outcome.status)
    yield f"call        {outcome.status}"
    words = ["operations", "list", "--state", "unresolved"]
    code, printed = stage.run(*words)
    stage.claim("review", "exit code", 0, code)
    yield shown(words)
    yield from printed.splitlines()[:4]
    stage.claim("review", "in the queue", "yes", "yes" if "bid-4" in printed else "no")
    yield stage.counted("review", "bid", effects=1, requests=1)


def timeline(stage: Stage) -> Iterator[str]:
    """Show what happened to one operation, with its evidence."""
    words = ["operations", "show", "refund-2", "--brief"]
    code, printed = stage.run(*words)
    stage.claim("timeline", "exit code", 0, code)
    yield shown(words)
    yield from printed.splitlines()


SCENES: Final = (
    Scene(title="An agent that repeats what timed out", play=naive),
    Scene(title="The same agent through doubtless, the same lost answer", play=lost_answer),
    Scene(title="The process dies between the effect and its record", play=crash),
    Scene(title="Nothing can prove it: a person decides, and nothing is repeated", play=review),
    Scene(title="What happened to the refund of scene 2", play=timeline),
)
