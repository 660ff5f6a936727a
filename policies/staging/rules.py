"""When a failed download is retried."""

from dataclasses import dataclass

from kopt.core.staging.manifest import Trouble

NEVER = frozenset({Trouble.BAD_REQUEST, Trouble.BAD_NAME})
"""Failures that only another spec can fix."""
SLOW = frozenset(
    {
        Trouble.DENIED,
        Trouble.NOT_FOUND,
        Trouble.EMPTY,
        Trouble.TOO_MANY,
        Trouble.NO_ROOM,
        Trouble.DESTINATION,
    }
)
"""Failures that need intervention where we cannot look: a Secret, a bucket, a disk."""


@dataclass(frozen=True)
class StagingRules:
    """Times in seconds. Raises ValueError for values out of range."""

    first_pause_s: float = 10.0
    """After a transient failure; doubles with each."""
    longest_pause_s: float = 300.0
    slow_pause_s: float = 600.0
    """After a failure that needs intervention."""
    at_once: int = 8
    """Concurrent downloads in the cluster."""
    per_namespace: int = 0
    """Concurrent downloads of one namespace; 0: all but one."""
    stalled_s: float = 900.0
    """A download without progress for this long loses its slot."""
    longest_s: float = 43_200.0
    """So does one that has run for this long while others wait, or whose log cannot be read; it later resumes."""
    node_budget_bytes: int | None = None
    """Space for copies on one node; None: copies are evicted only when a disk is full."""
    keep_unused_s: float | None = None
    """A copy that is unused for this long is removed; None: only when its space is needed."""

    def __post_init__(self) -> None:
        if not 0 < self.first_pause_s <= self.longest_pause_s or self.slow_pause_s <= 0 or self.at_once < 1:
            raise ValueError("pauses must be positive, longest_pause_s not below first_pause_s, at_once at least 1")
        if self.per_namespace < 0 or self.stalled_s <= 0 or self.longest_s <= 0:
            raise ValueError("per_namespace must not be negative, stalled_s and longest_s must be positive")

    @property
    def share(self) -> int:
        """How many concurrent downloads one namespace may have."""
        return min(self.at_once, self.per_namespace or max(1, self.at_once - 1))

    def pause_s(self, reason: Trouble | None, failures: int) -> float | None:
        """From the ``failures``-th failure in a row to the next attempt; None for never."""
        if reason in NEVER:
            return None
        if reason in SLOW:
            return self.slow_pause_s
        return float(min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(30, max(0, failures - 1))))
