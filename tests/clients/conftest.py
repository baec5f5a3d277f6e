"""One application of each kind, on ledgers of their own, with the same tools and provider."""

import dataclasses
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest
from tests.scenarios.contracts import written
from tests.service.serving import Stage, staged

from doubtless import Doubtless
from doubtless.core.model import Principal, Role
from doubtless.testing.provider import ProviderProcess, spawn_provider

KINDS = ("local", "blocking", "remote", "blocking remote")
AGENT, OPERATOR = "agent-1", "night-shift"  # as `tests.service.serving.ROLES` has them

APPROVED = """
[tools.approved]
effect = "write"
source = "payments"
valid_for = "1h"
request = { method = "POST", path = "/v1/refunds", json = { charge = "{args.charge}" } }
approval = {}

[tools.approved.arguments]
type = "object"
required = ["charge"]
properties.charge = { type = "string" }

[tools.approved.lookup]
path = "/v1/refunds"
query = { charge = "{args.charge}" }
items = "data"
where = { "metadata.operation" = "{operation.ref}" }
"""
EVENTS = {
    "source.webhook": {"scheme": "standard", "credential": "hook"},
    "events": {
        "types": ["refund.created"],
        "match": {"ref": "metadata.operation"},
        "applied": "status == 'succeeded'",
    },
}


@pytest.fixture(scope="session")
def running_provider() -> Iterator[ProviderProcess]:
    with spawn_provider() as running:
        yield running


@pytest.fixture
def provider(running_provider: ProviderProcess) -> ProviderProcess:
    running_provider.configure({})
    running_provider.reset()
    return running_provider


def contracts_of(provider: ProviderProcess, changes: dict[str, Any] | None = None) -> str:
    return written(provider.url, {**EVENTS, **(changes or {})}) + APPROVED


class Blocked:
    """A blocking application, as a test of coroutines calls it: each call in a thread."""

    def __init__(self, hands: Any) -> None:
        self._hands = hands

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._hands, name)
        if name in ("on_settled", "tool"):
            return partial(_in_a_thread_now, method)

        async def called(*arguments: Any, **options: Any) -> Any:
            return await anyio.to_thread.run_sync(partial(method, *arguments, **options))

        return called


def _in_a_thread_now(method: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    return method(*arguments, **options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hands:
    """An agent's and an operator's application."""

    agent: Any
    operator: Any
    worker: Any
    kind: str
    stage: Stage | None = None


@asynccontextmanager
async def opened(kind: str, folder: Path, contracts: str) -> AsyncIterator[Hands]:
    """Open an application of one kind."""
    secrets = folder / "secrets"
    secrets.mkdir()
    (secrets / "hook").write_text("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", encoding="utf-8")
    if "remote" in kind:
        with staged(folder, contracts, "--secrets", str(secrets)) as stage:
            url, tokens = stage.serving.url, stage.tokens
            make = Doubtless if kind == "remote" else Doubtless.sync
            async with (
                entered(make(url, token=tokens["agent"])) as agent,
                entered(make(url, token=tokens["operator"])) as operator,
                entered(make(url, token=tokens["worker"])) as worker,
            ):
                yield Hands(agent=agent, operator=operator, worker=worker, kind=kind, stage=stage)
        return
    (folder / "contracts.toml").write_text(contracts, encoding="utf-8")
    options: dict[str, Any] = {"contracts": folder / "contracts.toml", "principal": AGENT}
    make = Doubtless if kind == "local" else Doubtless.sync
    async with entered(make(f"sqlite:///{folder / 'doubtless.db'}", **options)) as app:
        operator = await other(app, OPERATOR, Role.OPERATOR)
        worker = await other(app, "queue", Role.WORKER)
        yield Hands(agent=app, operator=operator, worker=worker, kind=kind)


async def other(app: Any, name: str, role: Role) -> Any:
    """Return a local application in the hands of another principal."""
    found = app.actor(Principal(name=name, role=role))
    return Blocked(await found) if inspect.isawaitable(found) else found


@asynccontextmanager
async def entered(app: Any) -> AsyncIterator[Any]:
    """Open an application, blocking or not."""
    if isinstance(app, Doubtless):
        async with app:
            yield app
        return
    await anyio.to_thread.run_sync(app.__enter__)
    try:
        yield Blocked(app)
    finally:
        await anyio.to_thread.run_sync(partial(app.__exit__, None, None, None))


@pytest.fixture(params=KINDS)
async def hands(request, provider, tmp_path) -> AsyncIterator[Hands]:
    """An application of each kind in turn."""
    async with opened(request.param, tmp_path, contracts_of(provider)) as found:
        yield found
