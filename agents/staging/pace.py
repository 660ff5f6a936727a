"""A limit that all parts share."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_BURST_S = 0.5


class Pace:
    """A token bucket of bytes, half a second deep; ``rate`` None lets everything pass."""

    def __init__(
        self,
        rate: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._free_at = clock()
        """When what was taken so far has been paid."""

    async def consume(self, amount: int) -> None:
        """Waits until ``amount`` bytes may have come."""
        if self._rate is None:
            return
        now = self._clock()
        self._free_at = max(self._free_at, now - _BURST_S) + amount / self._rate
        if self._free_at > now:
            await self._sleep(self._free_at - now)
