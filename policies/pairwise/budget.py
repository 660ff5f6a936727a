"""Whether a test may start now: by the number of running tests, today's cost, and the allowed hours."""

from collections.abc import Sequence
from dataclasses import dataclass

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_THURSDAY = 3
"""1 January 1970 was a Thursday."""


@dataclass(frozen=True)
class Window:
    """Hours of UTC on some days of the week; a ``to_minute`` at or before ``from_minute`` is on the next day.

    ``days``: 0 for Monday; empty for all.
    """

    from_minute: int
    to_minute: int
    days: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not (0 <= self.from_minute < 1440 and 0 <= self.to_minute <= 1440 and self.days <= set(range(7))):
            raise ValueError(f"{self}: minutes are from 0 to 1440, days from 0 to 6")

    @property
    def minutes(self) -> int:
        return (self.to_minute - self.from_minute) % 1440 or 1440

    def opens_s(self, day: int) -> float | None:
        """When it opens on a day (days since 1970); None if it does not."""
        if self.days and (day + _THURSDAY) % 7 not in self.days:
            return None
        return float(day * DAY_S + self.from_minute * MINUTE_S)


@dataclass(frozen=True)
class Budget:
    """What tests may cost; 0 GPU-seconds a day and no windows mean no limit."""

    pairs_at_once: int = 1
    gpu_seconds_per_day: float = 0.0
    windows: tuple[Window, ...] = ()


def day_of(at_s: float) -> int:
    """Days since 1970, of UTC."""
    return int(at_s // DAY_S)


def closes_s(windows: Sequence[Window], now_s: float) -> float | None:
    """When the window that is open now closes; None while all are closed, infinity without windows."""
    if not windows:
        return float("inf")
    today = day_of(now_s)
    spans = [(window.opens_s(day), window.minutes * MINUTE_S) for window in windows for day in (today - 1, today)]
    ends = [opens + length for opens, length in spans if opens is not None and opens <= now_s < opens + length]
    return max(ends, default=None)


def opens_s(windows: Sequence[Window], now_s: float) -> float:
    """When the next window opens; now if one is open."""
    if closes_s(windows, now_s) is not None:
        return now_s
    today = day_of(now_s)
    result = (window.opens_s(day) for window in windows for day in range(today, today + 9))
    return min(opens for opens in result if opens is not None and opens > now_s)


def fits_window(budget: Budget, now_s: float, longest_s: float) -> bool:
    """Whether a test that starts now ends before the window does."""
    end_s = closes_s(budget.windows, now_s)
    return end_s is not None and now_s + longest_s <= end_s


def affordable(budget: Budget, now_s: float, *, running: int, used_gpu_s: float, gpus: int, longest_s: float) -> int:
    """How many tests of ``gpus`` GPUs may start now, each of which may take ``longest_s``.

    ``used_gpu_s`` is the cost of today's tests, with running tests counted at their full ``longest_s``. A test that
    would outlast the window does not start.
    """
    if not fits_window(budget, now_s, longest_s):
        return 0
    room = budget.pairs_at_once - running
    if budget.gpu_seconds_per_day > 0:
        room = min(room, int((budget.gpu_seconds_per_day - used_gpu_s) // (gpus * longest_s)))
    return max(0, room)


def next_check_s(budget: Budget, now_s: float, longest_s: float) -> float:
    """The next time at which the clock alone may allow more tests: a window opens, or a new day begins."""
    tomorrow = float((day_of(now_s) + 1) * DAY_S)
    end_s = closes_s(budget.windows, now_s)
    if end_s is None:
        return opens_s(budget.windows, now_s)
    return min(tomorrow, end_s) if now_s + longest_s > end_s else tomorrow
