"""What every part of a remote application stands on: one service, asked for JSON."""

from collections.abc import Mapping
from typing import Final, cast
from urllib.parse import quote

from doubtless.core.model import Json
from doubtless.core.outcome import Outcome
from doubtless.engine.opened import OpenApp
from doubtless.engine.remote.errors import error_of
from doubtless.engine.remote.wire import Answer, Ask, Wire
from doubtless.engine.stream import read_outcome
from doubtless.engine.surface import Surface
from doubtless.errors import OperationNotFound, SettingsError

PAGE_MAX: Final = 200  # of the service


class Service(Wire):
    """A service, whose problems are raised as what they stand for."""

    async def get(
        self, path: str, query: Mapping[str, Json] | None = None, **known: object
    ) -> Json:
        """Read something. What isn't said is left out of the query.

        Raises: what the service's problem stands for.
        """
        said = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (query or {}).items()
            if value is not None
        }
        answer = await self.ask(Ask(method="GET", path=path, query=said))
        return checked(answer, **known).body

    async def post(
        self, path: str, body: Mapping[str, Json], *, repeatable: bool, **known: object
    ) -> Json:
        """Do something; members that are None are left out.

        Raises: what the service's problem stands for.
        """
        said = {name: value for name, value in body.items() if value is not None}
        ask = Ask(method="POST", path=path, body=said, repeatable=repeatable)
        return checked(await self.ask(ask), **known).body


class Remote(Surface):
    """An application that runs in a service."""

    _wire: Service

    @property
    def _opened(self) -> OpenApp:
        """Nothing of it is here.

        Raises:
            SettingsError: What was called needs the ledger itself.
        """
        raise SettingsError(
            f"this can't be done from here: it needs the ledger itself, and {self._wire.url} only"
            ' answers requests. Do it with Doubtless("sqlite:///…") where the ledger is'
        )

    async def outcome(self, operation_id: str) -> Outcome:
        """Do as `Calls.outcome` says."""
        path = f"/v1/operations/{part(operation_id)}"
        return read_outcome(await self._wire.get(path, operation_id=operation_id))


def checked(answer: Answer, **known: object) -> Answer:
    """Return an answer that is no problem.

    Raises: what the problem stands for.
    """
    if answer.status >= 400:
        raise error_of(answer, **known)
    return answer


def part(text: str) -> str:
    """Write an id as one part of a path.

    Raises:
        OperationNotFound: It can't be one, so that nothing has it.
    """
    if text in ("", ".", ".."):
        raise OperationNotFound(text)
    return quote(text, safe="")


def members(found: Json, name: str) -> list[Mapping[str, Json]]:
    """Return a list of objects out of an answer."""
    return cast("list[Mapping[str, Json]]", cast("Mapping[str, Json]", found)[name])
