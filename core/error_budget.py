"""When failures burn an error budget too fast: the multiwindow, multi-burn-rate alert of Google's SRE workbook,
chapter 5, https://sre.google/workbook/alerting-on-slos/. Pure: times are passed in.
"""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Objective:
    """``target`` is the share that should go well; times in seconds. Both windows have to burn faster than ``rate``
    times what the budget allows: the long one shows that it matters, the short one that it goes on."""

    target: float = 0.99
    rate: float = 14.4
    long_s: float = 3600.0
    short_s: float = 300.0
    least: int = 20
    """Fewer failures within the long window are no evidence."""

    @property
    def highest_share(self) -> float:
        """Of failures, in both windows."""
        return min(1.0, self.rate * (1 - self.target))


@dataclass(frozen=True)
class Burn:
    """What the windows show: shares of failures, and how many there were in the long one."""

    long: float
    short: float
    failed: int
    total: int


class ErrorBudget:
    """Counts that only grow, looked at from time to time."""

    def __init__(self, objective: Objective | None = None) -> None:
        self.objective = objective or Objective()
        self._samples: deque[tuple[float, int, int]] = deque()
        """(time, good, bad)."""

    def observe(self, at_s: float, good: int, bad: int) -> None:
        """Totals since the process began, at a time not before the last one."""
        self._samples.append((at_s, good, bad))
        while len(self._samples) > 2 and self._samples[1][0] <= at_s - self.objective.long_s:
            self._samples.popleft()

    def burn(self, since_s: float = float("-inf")) -> Burn | None:
        """None where the budget holds, or where there is too little since ``since_s`` to say."""
        if len(self._samples) < 2:
            return None
        now_s = self._samples[-1][0]
        bad, total = self._within(max(since_s, now_s - self.objective.long_s))
        bad_now, total_now = self._within(max(since_s, now_s - self.objective.short_s))
        if bad < self.objective.least or not total_now:
            return None
        burn = Burn(bad / total, bad_now / total_now, bad, total)
        return burn if min(burn.long, burn.short) >= self.objective.highest_share else None

    def _within(self, since_s: float) -> tuple[int, int]:
        """Failures and calls after the first look at or after ``since_s``, or the one before it for a whole window."""
        times = [at_s for at_s, _, _ in self._samples]
        first = min(bisect_left(times, since_s), len(times) - 1)
        _, good_then, bad_then = self._samples[first]
        _, good, bad = self._samples[-1]
        return bad - bad_then, good + bad - good_then - bad_then
