"""One pass after another over what may be preempted for: the same for Kueue's Workloads and for plain pods."""

from abc import ABC, abstractmethod

from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.retry import Retrying


class RepeatedPass(Retrying, ABC):
    """``step`` does what there is to do and says in how many seconds to look again, should nothing change before."""

    def __init__(self, isolation: Isolation | None) -> None:
        super().__init__(isolation or Isolation("preemption"))

    async def step(self) -> float:
        """Raises Deposed."""
        return await self._tried(self._step)

    @abstractmethod
    async def _step(self) -> float: ...
