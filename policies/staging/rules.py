"""When a download that failed is tried again."""

from dataclasses import dataclass

from kopt.core.staging import Trouble

NEVER = frozenset({Trouble.BAD_REQUEST, Trouble.BAD_NAME})
"""Another spec is needed."""
SLOW = frozenset({
    Trouble.DENIED, Trouble.NOT_FOUND, Trouble.EMPTY, Trouble.TOO_MANY, Trouble.NO_ROOM, Trouble.DESTINATION,
})  # fmt: skip
"""Somebody has to do something, where we have no right to look: a Secret, a bucket, a disk."""


@dataclass(frozen=True)
class StagingRules:
    """Times in seconds. Raises ValueError for values out of range."""

    first_pause_s: float = 10.0
    """After a failure that may go by itself; doubles with each."""
    longest_pause_s: float = 300.0
    slow_pause_s: float = 600.0
    """After a failure that somebody has to mend."""
    at_once: int = 8
    """Downloads in the cluster at a time."""
    node_budget_bytes: int | None = None
    """What copies may take of one node; None: they are taken away only where a disk is full."""
    keep_unused_s: float | None = None
    """A copy that nobody has used for so long is taken away; None: only where room is needed."""

    def __post_init__(self) -> None:
        if not 0 < self.first_pause_s <= self.longest_pause_s or self.slow_pause_s <= 0 or self.at_once < 1:
            raise ValueError("pauses are positive, the longest is not below the first, and one download is allowed")

    def pause_s(self, reason: Trouble | None, failures: int) -> float | None:
        """From the ``failures``-th failure in a row to the next try; None for never."""
        if reason in NEVER:
            return None
        if reason in SLOW:
            return self.slow_pause_s
        return float(min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(30, max(0, failures - 1))))
