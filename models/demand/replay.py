"""Several histories replayed in step, as if they had happened at the same time: a call costs the same for all of them.

The mixture and the calibration work bucket by bucket, so what is slow is the number of steps and not their size. A
replay of forty series takes about as long as one of the longest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.features.demand import HORIZONS_S
from kopt.models.demand.calibration import LEVELS, Calibration
from kopt.models.demand.online import Glance, OnlineState

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Track:
    """What one series brings: values (n,) with NaN for gaps, feature rows (n, F), the global model's log-ratios
    (n, H, 2) and (n, H)."""

    value: Array
    rows: Array
    trees: Array
    network: Array

    def __len__(self) -> int:
        return len(self.value)


@dataclass(frozen=True)
class Run:
    """The forecasts at every bucket of a track: centre and width (n, H), thresholds (n, H, levels), and the scores
    (n, H) that the bucket settled."""

    centre: Array
    width: Array
    thresholds: Array
    scores: Array

    @classmethod
    def empty(cls, buckets: int) -> "Run":
        shape = (buckets, len(HORIZONS_S))
        return cls(np.empty(shape), np.empty(shape), np.empty((*shape, len(LEVELS))), np.empty(shape))


def replay(tracks: Sequence[Track], step_s: int, thresholds: Array) -> list[Run]:
    """Each track from an empty state on; all have buckets of ``step_s`` seconds. ``thresholds`` (H, levels) start."""
    order = sorted(range(len(tracks)), key=lambda i: -len(tracks[i]))
    runs = [Run.empty(len(track)) for track in tracks]
    state, calibration = OnlineState.new(step_s, len(order)), Calibration.new(thresholds, step_s, len(order))
    for bucket, active in _steps([len(tracks[i]) for i in order]):
        if active < len(state.gram):
            state, calibration = state.part(slice(active)), calibration.part(slice(active))
        now = [tracks[i] for i in order[:active]]
        glance = Glance(
            np.array([item.rows[bucket] for item in now]),
            np.array([item.trees[bucket] for item in now]),
            np.array([item.network[bucket] for item in now]),
        )
        outlook, scores = state.observe(np.array([item.value[bucket] for item in now]), glance)
        current = calibration.observe(scores)
        for row, i in enumerate(order[:active]):
            run = runs[i]
            run.centre[bucket], run.width[bucket] = outlook.centre[row], outlook.width[row]
            run.thresholds[bucket], run.scores[bucket] = current[row], scores[row]
    return runs


def _steps(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Buckets and how many tracks, the longest first, still go on there."""
    active = len(lengths)
    for bucket in range(max(lengths, default=0)):
        while lengths[active - 1] <= bucket:
            active -= 1
        yield bucket, active
