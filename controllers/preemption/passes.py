"""A pass that fails is tried again: the same for everybody who takes GPUs for those who wait."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable

from kopt.cluster.api import ApiError, Conflict, NotFound
from kopt.cluster.lease import Deposed

_LOG = logging.getLogger(__name__)
SOON_S, AFTER_TROUBLE_S = 1.0, 2.0


class Passes(ABC):
    """``step`` does what there is to do and says in how many seconds to look again, should nothing change before."""

    troubles = 0
    """Passes that failed."""
    broken_off = 0
    """Those, and what met a change by others."""

    async def step(self) -> float:
        """Raises Deposed."""
        return await self._tried(self._step())

    async def _tried(self, work: Awaitable[float]) -> float:
        """What goes wrong with one must not hold up the others: it is tried again at the next pass."""
        try:
            return await work
        except (Conflict, NotFound) as error:
            self.broken_off += 1
            _LOG.info("it has changed meanwhile: %s", error)
            return SOON_S
        except Deposed:
            raise
        except ApiError as error:
            _LOG.warning("a pass failed and is tried again: %s", error)
        except Exception:  # noqa: BLE001 - edge: a fault of ours must not keep everybody who is held
            _LOG.exception("a pass failed and is tried again")
        self.troubles += 1
        self.broken_off += 1
        return AFTER_TROUBLE_S

    @abstractmethod
    async def _step(self) -> float: ...
