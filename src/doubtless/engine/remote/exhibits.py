"""What people look at, through a service: exhibits of attempts, and an open page."""

from collections.abc import Mapping
from typing import cast

from doubtless.core.model import Json
from doubtless.engine.exhibits import Exhibit
from doubtless.engine.remote.asking import Remote, checked, members, part
from doubtless.engine.remote.wire import Ask


class RemoteExhibits(Remote):
    """What attempts left, and the page of one that the service has open."""

    async def exhibits(self, operation_id: str) -> list[Exhibit]:
        """Do as `Exhibits.exhibits` says. Agents are not shown them."""
        path = f"/v1/operations/{part(operation_id)}/exhibits"
        found = await self._wire.get(path, operation_id=operation_id)
        return [_read(each) for each in members(found, "exhibits")]

    async def exhibit(self, operation_id: str, name: str, *, attempt: int | None = None) -> bytes:
        """Do as `Exhibits.exhibit` says. Agents are not shown it."""
        path = f"/v1/operations/{part(operation_id)}/exhibits/{part(name)}"
        query = {} if attempt is None else {"attempt": str(attempt)}
        return await self._bytes(path, query, operation_id=operation_id, name=name)

    async def picture(self, operation_id: str) -> bytes:
        """Do as `Exhibits.picture` says, of a page that the service itself has open."""
        path = f"/v1/operations/{part(operation_id)}/live"
        return await self._bytes(path, {}, operation_id=operation_id)

    async def _bytes(self, path: str, query: Mapping[str, str], **known: object) -> bytes:
        ask = Ask(method="GET", path=path, query=query, is_of_bytes=True)
        return checked(await self._wire.ask(ask), **known).content


def _read(told: Mapping[str, Json]) -> Exhibit:
    return Exhibit(
        name=str(told["name"]),
        attempt=cast("int", told["attempt"]),
        at=str(told["at"]),
        size=cast("int", told["size"]),
        media_type=str(told["media_type"]),
    )
