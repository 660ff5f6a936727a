"""Which part of a demand series a model was trained on, known again by content.

A series is cut into days (UTC days where its start is known, else days since its start); a day's digest is the
same under any name and in any longer or shorter cut.
"""

import hashlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import GRID_S, DemandSeries
from kopt.models.registry.artifact import ModelCard, TrainedOn

_DAY_S = 86_400
_MINIMUM_LEVELS = 10
"""Days with fewer distinct values (an idle service) look alike everywhere and prove nothing."""


def fingerprint(series: DemandSeries) -> TrainedOn:
    """How a model's card remembers a series it was trained on."""
    on_grid = series.resampled(GRID_S)
    digest = hashlib.sha256(_content(on_grid.value)).hexdigest()
    days = tuple(dict.fromkeys(day for _, day in _days(on_grid)))
    return TrainedOn(series.name, digest, on_grid.start_s, on_grid.start_s + len(on_grid) * on_grid.step_s, days)


def trained_until(card: ModelCard, series: DemandSeries) -> int:
    """Buckets of the series on its grid that the model may have been trained on: 0 for one it has never seen."""
    on_grid = series.resampled(GRID_S)
    trained_days = {day for trained_on in card.training_data for day in trained_on.days}
    ends = [end for end, day in _days(on_grid) if day in trained_days]
    if not ends:
        digest = fingerprint(series).digest
        return len(on_grid) if any(trained_on.digest == digest for trained_on in card.training_data) else 0
    # The day in progress when the model was trained has no digest of its own: the clock tells.
    until_s = [
        trained_on.end_s for trained_on in card.training_data if trained_on.name == series.name and series.start_known
    ]
    by_clock = [int((end_s - on_grid.start_s) // on_grid.step_s) for end_s in until_s]
    return min(len(on_grid), max([*ends, *by_clock]))


def _days(series: DemandSeries) -> Iterator[tuple[int, str]]:
    """End (bucket) and short digest of every whole day that is not almost constant."""
    day = _DAY_S // series.step_s
    first = int(-series.start_s % _DAY_S // series.step_s) if series.start_known else 0
    for start in range(first, len(series) - day + 1, day):
        values = series.value[start : start + day]
        if len(np.unique(values[np.isfinite(values)])) >= _MINIMUM_LEVELS:
            yield start + day, hashlib.sha256(_content(values)).hexdigest()[:16]


def _content(value: NDArray[np.float64]) -> bytes:
    """Bytes of the values, the same whatever kind of NaN marks a gap and however sums were rounded."""
    rounded = np.round(value.astype(np.float64), 6)
    return np.where(np.isfinite(rounded), rounded + 0.0, -1.0).astype("<f8").tobytes()
