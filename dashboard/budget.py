"""The share of a core that the pages' process may use for what is new in the cluster."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

_SHARE = 1 / 3
"""Of a core."""


class CpuBudget:
    """All that is ``spent`` takes a third of a core together, however long each takes. What waits for a server costs
    nothing; what the process does for others meanwhile counts as well, so that it is rather less than a third."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.process_time,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """``cpu``: seconds of all threads, as refreshes also work in some."""
        self._clock, self._cpu, self._sleep = clock, cpu, sleep
        self._free_at_s, self._counted_s = 0.0, 0.0

    @asynccontextmanager
    async def spent(self) -> AsyncIterator[None]:
        """Begins as soon as what was used before is made up for."""
        while (left_s := self._free_at_s - self._clock()) > 0:
            await self._sleep(left_s)
        began_s, before_s = self._clock(), self._cpu()
        try:
            yield
        finally:
            # What several do at once counts once.
            now_s = self._cpu()
            used_s, self._counted_s = now_s - max(before_s, self._counted_s), now_s
            self._free_at_s = max(self._free_at_s, began_s) + used_s / _SHARE
