"""What every part of an application's surface stands on."""

from abc import ABC, abstractmethod

from doubtless.core.model import Principal
from doubtless.engine.opened import OpenApp
from doubtless.engine.registry import Registry

WAIT_EXTRA_S = 5.0  # a call waits for its tool's time-out and this long


class Surface(ABC):
    """An application in the hands of one principal."""

    registry: Registry
    _principal: Principal

    @property
    @abstractmethod
    def _opened(self) -> OpenApp:
        """What exists while the application is open.

        Raises:
            DoubtlessError: It is not.
        """
