"""The stream of settlements through a service, which also keeps its subscribers' positions."""

from collections.abc import Mapping
from typing import cast

from doubtless.core.model import Json
from doubtless.engine.remote.asking import PAGE_MAX, Service
from doubtless.engine.stream import SettlementPage


async def settlements(service: Service, after: int, limit: int) -> SettlementPage:
    """Return settlements of those that the token's principal may see, 200 at most."""
    query: dict[str, Json] = {"after": after, "limit": min(max(limit, 1), PAGE_MAX)}
    found = await service.get("/v1/outcomes", query)
    return SettlementPage.from_json(cast("Mapping[str, Json]", found))


class RemotePosition:
    """A subscriber's position, kept by the service."""

    def __init__(self, service: Service, name: str, holder: str, begins: int) -> None:
        self._service, self._name = service, name
        self._holder, self._begins = holder, begins

    async def read(self) -> int:
        """Return up to which it was told."""
        query: dict[str, Json] = {"name": self._name, "after": self._begins}
        found = await self._service.get("/v1/subscriptions", query)
        return cast("Mapping[str, int]", found)["after"]

    async def page(self, after: int, limit: int) -> SettlementPage:
        """Return the settlements after that."""
        return await settlements(self._service, after, limit)

    async def take(self) -> int | None:
        """Become the one who delivers; None: another is."""
        found = await self._step("take", self._begins)
        return cast("int | None", found["after"])

    async def advance(self, seq: int) -> bool:
        """Note up to which it was told; False: it was lost to another."""
        return bool((await self._step("advance", seq))["held"])

    async def release(self) -> None:
        """Let others deliver."""
        await self._step("release", self._begins)

    async def _step(self, step: str, after: int) -> Mapping[str, Json]:
        body: dict[str, Json] = {
            "name": self._name,
            "holder": self._holder,
            "step": step,
            "after": after,
        }
        found = await self._service.post("/v1/subscriptions", body, repeatable=True)
        return cast("Mapping[str, Json]", found)
