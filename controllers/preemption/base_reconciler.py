"""What the reconcilers of Kueue's Workloads and of plain pods have in common."""

from abc import ABC, abstractmethod

from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.retry import Retrying


class BaseReconciler(Retrying, ABC):
    """``step`` does what there is to do and returns in how many seconds to run again if nothing changes before."""

    def __init__(self, isolation: Isolation | None) -> None:
        super().__init__(isolation or Isolation("preemption"))

    async def step(self) -> float:
        """Raises Deposed."""
        return await self._tried(self._step)

    @abstractmethod
    async def _step(self) -> float: ...
