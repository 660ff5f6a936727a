"""How careful pre-emption is."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class PreemptionSettings:
    """Raises ValueError for values out of range."""

    stale_s: float = 30.0
    """A status older than this says nothing about now."""
    min_confidence: float = 0.5
    """Of a status, 0 to 1; below it the gang counts as not understood."""
    max_protection_s: float = 6 * 3600.0
    """A gang that has not been seen safe for so long loses our guard: the native scheduler may act as if we were not
    there. We still never pick it."""
    wait_price: float = 0.1
    """GPU-seconds of lost work that a waiting GPU's second is worth: 300 seconds for 8 GPUs must save 240."""
    recheck_s: float = 15.0
    """While waiting for a better moment, look again at least so often."""
    act_s: float = 10.0
    """From a decision until its victims are gone: no write may be expected to begin within it."""
    write_guard_s: float = 90.0
    """Before a checkpoint is expected to be durable, its write may be under way for so long."""
    unpaced_s: float = 750.0
    """With fewer than three intervals seen no rhythm is known: no write is expected for so long after a checkpoint."""
    usual_s: float = 1800.0
    """Between two checkpoints of a gang of which no interval was seen."""
    caution: float = 0.4
    """A write is held possible when this share of the shortest interval is still left, where no rhythm is known."""
    early: float = 0.15
    """Of regular checkpoints one may come this share of their period sooner than any did so far."""
    regular: float = 0.3
    """Checkpoints count as regular where the middle half of their intervals spans at most this share of the median."""
    aside: float = 2.0
    """It is left to the native scheduler at once where that loses at most so many times what gangs would lose that may
    still become safe within the waiting budget."""
    stands_aside: bool = True
    """Where the native scheduler makes room by its own rule; False where it takes nobody."""
    restart_s: float = 120.0
    """Starting again takes so long where nothing tells: of gangs of whose checkpoints nothing is known."""
    hold_s: float = 120.0
    """After victims were taken for a workload, no others are taken for it for so long."""
    settle_s: float = 120.0
    """A victim that is still seen running so long after its pre-emption has not gone: it no longer counts as room."""
    resumed_s: float = 1800.0
    """A gang that was pre-empted before is left alone for so long after it started again."""
    reversal_s: float = 4 * 3600.0
    """Whoever made room for a workload does not take its place within this time."""
    most_per_gang: int = 3
    """Pre-emptions of one gang within a day, by anyone."""
    most_per_hour: int = 60
    """Pre-emptions of ours, in any hour."""
    reclaims_any_priority: bool = False
    """A queue takes back what it owns from borrowers of any priority (Kueue's ``reclaimWithinCohort: Any``)."""
    search_steps: int = 50_000
    """Steps of the search among more than 20 candidates; up to 20 it is exact."""

    def __post_init__(self) -> None:
        for one in fields(self):
            if not getattr(self, one.name) >= 0:
                raise ValueError(f"{one.name} is {getattr(self, one.name)}, it must not be negative")
        if self.min_confidence > 1:
            raise ValueError(f"a confidence of {self.min_confidence:g} is not in [0, 1]")
