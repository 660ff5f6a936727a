"""A pass that fails is tried again: the same for everybody who takes GPUs for those who wait."""

import logging
from abc import ABC, abstractmethod

from kopt.cluster.api import ApiError, Conflict, NotFound

_LOG = logging.getLogger(__name__)
SOON_S, AFTER_TROUBLE_S = 1.0, 2.0


class Passes(ABC):
    """``step`` does what there is to do and says in how many seconds to look again, should nothing change before."""

    troubles = 0
    """Passes that failed."""

    async def step(self) -> float:
        """Raises Deposed."""
        try:
            return await self._step()
        except (Conflict, NotFound) as error:
            _LOG.info("it has changed meanwhile: %s", error)
            return SOON_S
        except ApiError as error:
            _LOG.warning("a pass failed and is tried again: %s", error)
            self.troubles += 1
            return AFTER_TROUBLE_S

    @abstractmethod
    async def _step(self) -> float: ...
