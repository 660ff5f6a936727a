"""Settings of the preemption policy."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class PreemptionSettings:
    """Raises ValueError for values out of range."""

    stale_s: float = 30.0
    """A status older than this is ignored."""
    min_confidence: float = 0.5
    """Required of a status, 0 to 1; below it the gang's state counts as unknown."""
    max_protection_s: float = 6 * 3600.0
    """A gang that has not been safe to kill for this long is no longer guarded from the native scheduler. It is still
    never one of our victims."""
    wait_price: float = 0.1
    """GPU-seconds of lost work that a waiting GPU's second is worth: 300 seconds for 8 GPUs must save 240."""
    recheck_s: float = 15.0
    """While waiting for a better time, decide again at least this often."""
    act_s: float = 10.0
    """From a decision until its victims have terminated: no write may be expected to begin within this time."""
    write_guard_s: float = 90.0
    """Before a checkpoint is expected to be durable, its write may be under way for this long."""
    unpaced_s: float = 750.0
    """With fewer than three observed intervals no write is expected for this long after a checkpoint."""
    usual_s: float = 1800.0
    """Assumed interval between two checkpoints of a gang without an observed interval."""
    caution: float = 0.4
    """Without a known rhythm, a write counts as possible once this share of the shortest interval is left."""
    early: float = 0.15
    """A regular checkpoint may come earlier than any so far by this share of the period."""
    regular: float = 0.3
    """Checkpoints count as regular if the middle half of their intervals spans at most this share of the median."""
    aside: float = 2.0
    """It is left to the native scheduler at once if that loses at most this many times what gangs would lose that may
    still become safe within the waiting budget."""
    stands_aside: bool = True
    """Whether the native scheduler preempts by its own rule; False if it never preempts."""
    restart_s: float = 120.0
    """Assumed duration of a restart for gangs whose checkpoints are unknown."""
    hold_s: float = 120.0
    """After a preemption for a workload, no further victims are selected for it for this long."""
    settle_s: float = 120.0
    """A victim that still runs this long after its preemption no longer counts as room."""
    resumed_s: float = 1800.0
    """A gang that was preempted before is protected for this long after its restart."""
    reversal_s: float = 4 * 3600.0
    """A gang that was preempted for a workload does not preempt that workload within this time."""
    most_per_gang: int = 3
    """Preemptions of one gang within a day, by any component."""
    most_per_hour: int = 60
    """Preemptions by this policy within any hour."""
    reclaims_any_priority: bool = False
    """A queue reclaims its own quota from borrowers of any priority (Kueue's ``reclaimWithinCohort: Any``)."""
    search_steps: int = 50_000
    """Steps of the search among more than 20 candidates; up to 20 it is exact."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) >= 0:
                raise ValueError(f"{field.name} is {getattr(self, field.name)}, it must not be negative")
        if self.min_confidence > 1:
            raise ValueError(f"min_confidence is {self.min_confidence:g}, it must be in [0, 1]")
