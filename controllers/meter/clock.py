"""The meter's clock: it goes by a monotonic one, never back, and approaches the wall's."""

import time
from collections.abc import Callable

from kopt.core.cost.metering import Milliseconds
from kopt.policies.cost import steady


class SteadyClock:
    """``wall`` and ``elapsed`` tell seconds."""

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._elapsed = wall, elapsed
        self._at_ms, self._ticked_s = wall() * 1000, elapsed()

    def now_ms(self) -> Milliseconds:
        elapsed_s = self._elapsed()
        self._at_ms = steady(self._at_ms, self._wall() * 1000, (elapsed_s - self._ticked_s) * 1000)
        self._ticked_s = elapsed_s
        return int(self._at_ms)

    def not_before(self, ms: Milliseconds) -> None:
        """What was metered by another process may be ahead."""
        self._at_ms = max(self._at_ms, float(ms))
