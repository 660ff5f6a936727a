"""What is remembered of one series between requests, and how a new history brings it up to date."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S, LOOKBACK_S, transform
from kopt.models.demand.calibration import Calibration
from kopt.models.demand.online import Glance, OnlineState, Outlook

Array = NDArray[np.float64]
Predict = Callable[[Array], tuple[Array, Array]]
"""Feature rows → log-ratios of the trees (n, H, 2) and of the network (n, H)."""

REPLAY_S = 4 * DAY_S
"""How much of an unknown series' history is replayed before the first answer."""


@dataclass
class SeriesMemory:
    """Online mixture and calibration of one series as of bucket ``end_s``; empty until the first history.

    Not thread-safe: one request at a time. Its size does not grow with the series.
    """

    state: OnlineState | None = None
    calibration: Calibration | None = None
    end_s: float = np.nan
    last: float = np.nan
    outlook: Outlook | None = None
    """Of one series: the first axis of its arrays has length 1, as that of the state's."""
    row: Array = field(default_factory=lambda: np.empty(0))

    def catch_up(self, series: DemandSeries, predict: Predict, thresholds: Array, replay_s: float = REPLAY_S) -> None:
        """Observe the buckets of ``series`` that are new; one that does not continue what is known starts afresh."""
        first = self._continues(series)
        if first is None:
            first = _first_replayed(series, replay_s)
            self.state, self.calibration = OnlineState.new(series.step_s), Calibration.new(thresholds, series.step_s)
        if first < len(series):
            self._observe(series, np.arange(first, len(series)), predict)

    def _observe(self, series: DemandSeries, origins: NDArray[np.int64], predict: Predict) -> None:
        if self.state is None or self.calibration is None:
            raise ValueError("a memory observes only after it has started")
        recent, shift = _recent(series, int(origins[0]))
        rows = transform(recent, origins - shift)
        trees, network = predict(rows)
        for row, origin in enumerate(origins):
            item = slice(row, row + 1)
            self.outlook, scores = self.state.observe(
                series.value[[origin]], Glance(rows[item], trees[item], network[item])
            )
            self.calibration.observe(scores)
        self.end_s = float(series.start_s + origins[-1] * series.step_s)
        self.last, self.row = float(series.value[origins[-1]]), rows[-1]

    def is_ahead_of(self, series: DemandSeries) -> bool:
        """Is this a late history, less than a day older than what is known? It must not undo newer knowledge."""
        last_s = series.start_s + (len(series) - 1) * series.step_s
        return self.state is not None and 0 < self.end_s - last_s < DAY_S

    def _continues(self, series: DemandSeries) -> int | None:
        """Index of the first new bucket, or None where the history does not contain what is known."""
        if self.state is None or self.state.step_s != series.step_s:
            return None
        position = (self.end_s - series.start_s) / series.step_s
        if position != int(position) or not 0 <= position < len(series):
            return None
        return int(position) + 1 if np.array_equal(series.value[int(position)], self.last, equal_nan=True) else None


def remember(
    series: Sequence[DemandSeries], predict: Predict, thresholds: Array, replay_s: float = REPLAY_S
) -> list[SeriesMemory]:
    """The memory of each series after its history: what ``catch_up`` makes of an empty one.

    Histories of one step and length are replayed together, which takes about a third of the time.
    """
    memories = [SeriesMemory() for _ in series]
    indexes: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, each in enumerate(series):
        if np.isfinite(each.value).any():
            indexes[each.step_s, len(each) - _first_replayed(each, replay_s)].append(index)
    for (step_s, buckets), together in indexes.items():
        _remember_in_step(
            [series[index] for index in together],
            [memories[index] for index in together],
            (OnlineState.new(step_s, len(together)), Calibration.new(thresholds, step_s, len(together))),
            buckets,
            predict,
        )
    return memories


def _remember_in_step(
    series: Sequence[DemandSeries],
    memories: Sequence[SeriesMemory],
    start: tuple[OnlineState, Calibration],
    buckets: int,
    predict: Predict,
) -> None:
    """Fills ``memories`` with the last ``buckets`` of each series."""
    state, calibration = start
    rows = np.stack([transform(*_last(each, buckets)) for each in series])
    flat = predict(rows.reshape(-1, rows.shape[-1]))
    trees, network = (levels.reshape(*rows.shape[:2], *levels.shape[1:]) for levels in flat)
    values = np.stack([each.value[-buckets:] for each in series])
    for bucket in range(buckets):
        glance = Glance(rows[:, bucket], trees[:, bucket], network[:, bucket])
        outlook, scores = state.observe(values[:, bucket], glance)
        calibration.observe(scores)
    for index, (each, memory) in enumerate(zip(series, memories, strict=True)):
        own = slice(index, index + 1)
        memory.state, memory.calibration, memory.outlook = state.part(own), calibration.part(own), outlook.part(own)
        memory.end_s = float(each.start_s + (len(each) - 1) * each.step_s)
        memory.last, memory.row = float(each.value[-1]), rows[index, -1]


def _first_replayed(series: DemandSeries, replay_s: float) -> int:
    finite = np.flatnonzero(np.isfinite(series.value))
    return int(max(finite[0], len(series) - max(2, replay_s // series.step_s)))


def _last(series: DemandSeries, buckets: int) -> tuple[DemandSeries, NDArray[np.int64]]:
    """What rows of the last ``buckets`` depend on, and the indexes of these in it."""
    first = len(series) - buckets
    recent, shift = _recent(series, first)
    return recent, np.arange(first, len(series)) - shift


def _recent(series: DemandSeries, first: int) -> tuple[DemandSeries, int]:
    """The part of a series that rows from ``first`` on can depend on, and how far its indexes are shifted."""
    shift = max(0, first - int(LOOKBACK_S // series.step_s) - 2)
    return (series.tail(len(series) - shift), shift) if shift else (series, 0)
