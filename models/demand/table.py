"""The training table: feature rows, the future they had, and where they come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.features.demand import COLUMN, DAY_S, FEATURES, HORIZONS_S, steps_ahead, transform

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TrainingTable:
    """``features`` (n, F) at origins, ``targets`` (n, H) the values ``HORIZONS_S`` later (NaN unknown).

    ``series`` and ``groups`` (n,) name each row's series and its group, within which nothing may be split.
    ``origins_s`` (n,) is the start of each origin's bucket in the series' own seconds.
    """

    features: Array
    targets: Array
    series: NDArray[np.str_]
    groups: NDArray[np.str_]
    origins_s: Array

    def __post_init__(self) -> None:
        rows = len(self.features)
        if self.features.shape != (rows, len(FEATURES)) or self.targets.shape != (rows, len(HORIZONS_S)):
            raise ValueError(f"features {self.features.shape} and targets {self.targets.shape} do not fit together")
        if not len(self.series) == len(self.groups) == len(self.origins_s) == rows:
            raise ValueError("series, groups and origins must have one entry per row")

    def __len__(self) -> int:
        return len(self.features)

    def where(self, mask: NDArray[np.bool_]) -> "TrainingTable":
        """The rows that ``mask`` selects."""
        return TrainingTable(
            self.features[mask], self.targets[mask], self.series[mask], self.groups[mask], self.origins_s[mask]
        )

    def log_ratios(self) -> Array:
        """Targets as logarithms relative to the last value, on the floor of each row; shape (n, H)."""
        last, floor = self.features[:, [COLUMN["last_value"]]], self.features[:, [COLUMN["floor"]]]
        return np.log(self.targets + floor) - np.log(last + floor)


def training_table(series: Sequence[DemandSeries], groups: Mapping[str, str] | None = None) -> TrainingTable:
    """Rows at every observed origin past the first day of every series, finer series summed to the grid.

    Raises ValueError when no series has a day of history and a future to learn from.
    """
    parts = [
        _rows(demand_series.resampled(GRID_S), (groups or {}).get(demand_series.name, demand_series.name))
        for demand_series in series
    ]
    parts = [part for part in parts if len(part)]
    if not parts:
        raise ValueError("nothing to learn from: every series is shorter than a day and an hour")
    return joined(parts)


def joined(parts: Sequence[TrainingTable]) -> TrainingTable:
    """The rows of several tables, in their order."""
    return TrainingTable(
        np.concatenate([part.features for part in parts]),
        np.concatenate([part.targets for part in parts]),
        np.concatenate([part.series for part in parts]),
        np.concatenate([part.groups for part in parts]),
        np.concatenate([part.origins_s for part in parts]),
    )


def future(value: Array, step_s: int) -> Array:
    """The value each horizon later at every bucket, shape (n, H); NaN past the end and in gaps."""
    columns = np.full((len(value), len(HORIZONS_S)), np.nan)
    for column, horizon in enumerate(HORIZONS_S):
        ahead = steps_ahead(horizon, step_s)
        columns[: max(0, len(value) - ahead), column] = value[ahead:]
    return columns


def _rows(series: DemandSeries, group: str) -> TrainingTable:
    targets = future(series.value, series.step_s)
    finite = np.flatnonzero(np.isfinite(series.value))
    first = finite[0] if len(finite) else len(series)
    usable = (np.arange(len(series)) >= first + DAY_S // series.step_s) & np.isfinite(series.value)
    origins = np.flatnonzero(usable & np.isfinite(targets).any(1))
    names, groups = np.full(len(origins), series.name), np.full(len(origins), group)
    return TrainingTable(transform(series, origins), targets[origins], names, groups, series.times_s[origins])
