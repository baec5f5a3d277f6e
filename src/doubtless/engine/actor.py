"""One principal's hands on an open application."""

from doubtless.core.model import Principal
from doubtless.engine.approving import Approving
from doubtless.engine.browsing import Browsing
from doubtless.engine.calls import Calls
from doubtless.engine.events import Events
from doubtless.engine.exhibits import Exhibits
from doubtless.engine.opened import OpenApp
from doubtless.engine.outbox import Outbox
from doubtless.engine.people import People
from doubtless.engine.reads import Reads
from doubtless.engine.registry import Registry
from doubtless.engine.settlements import Settlements


class Actor(Approving, Browsing, Calls, Events, Exhibits, Outbox, People, Reads, Settlements):
    """What one principal can do with an application that another one opened."""

    def __init__(self, opened: OpenApp, registry: Registry, principal: Principal) -> None:
        self.registry, self._principal = registry, principal
        self._open = opened

    @property
    def _opened(self) -> OpenApp:
        return self._open
