"""Rows with times become an even grid; whatever cannot be placed without guessing is an error.

Rows that are missing inside a series become gaps (NaN). That is safe only while the gaps are bounded: one stray
time in 1970 must not turn into an array of half a century.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import Array, DemandDataError

UNIX_FROM_S = 5e8
"""Times from here on (1985) are Unix seconds, smaller ones count from the start of the series."""
MAX_BUCKETS = 8_000_000
"""15 years of minutes."""
MAX_GAP_FACTOR = 100
"""A series may have this many times as many buckets as rows."""
RUN_OF_OTHER_STEP = 6
"""So many equal distances in a row that are not the step mean another step, not lost buckets."""
TOLERANCE_S = 2e-3
"""Prometheus and pandas round times to milliseconds."""


@dataclass(frozen=True)
class Gridded:
    """Columns of one series on its even grid, each of shape (n,)."""

    start_s: float
    step_s: int
    columns: Mapping[str, Array]


def on_grid(
    name: str,
    t: Array,
    columns: Mapping[str, Array],
    *,
    step_s: int | None = None,
    rows: NDArray[np.int64] | None = None,
) -> Gridded:
    """Puts rows at times ``t`` (seconds, shape (m,)) onto a grid of ``step_s``, or of the commonest distance.

    ``rows`` are the row numbers to name in errors, by default the position.

    Raises:
        DemandDataError: times that are missing, unsorted, doubled, off the grid, of mixed steps or absurdly far
            apart; values that are negative or infinite.
    """
    numbers = np.arange(len(t)) if rows is None else rows
    _check_values(name, columns, numbers)
    _check_order(name, t, numbers)
    step = step_s or _infer_step(name, t)
    index = _positions(name, t, step, numbers)
    length = int(index[-1]) + 1
    if length > MAX_BUCKETS or length > 1000 + MAX_GAP_FACTOR * len(t):
        stray = lonelier_side(t)
        text = f"{length} buckets of {step} s for {len(t)} rows; t={t[stray]:.0f} looks like a stray time"
        raise DemandDataError(text, series=name, row=int(numbers[stray]))
    placed = {}
    for column, values in columns.items():
        placed[column] = np.full(length, np.nan)
        placed[column][index] = values
    return Gridded(float(t[0]), step, placed)


def lonelier_side(t: NDArray[np.float64] | NDArray[np.int64]) -> int:
    """Position next to the widest distance of sorted times, on the side with fewer of them: the likely stray."""
    widest = int(np.argmax(np.diff(t)))
    return widest if 2 * (widest + 1) < len(t) else widest + 1


def _check_values(name: str, columns: Mapping[str, Array], rows: NDArray[np.int64]) -> None:
    for column, values in columns.items():
        # NaN is a gap and passes this comparison.
        wrong = np.flatnonzero((values < 0) | np.isinf(values))
        if len(wrong):
            text = f"{column} is {values[wrong[0]]:g}; demand is a finite number of at least 0"
            raise DemandDataError(text, series=name, row=int(rows[wrong[0]]))


def _check_order(name: str, t: Array, rows: NDArray[np.int64]) -> None:
    if not len(t):
        raise DemandDataError("no rows", series=name)
    wrong = np.flatnonzero(~np.isfinite(t))
    if len(wrong):
        raise DemandDataError("no time in column t", series=name, row=int(rows[wrong[0]]))
    far = np.flatnonzero(np.abs(t) > 1e11)
    if len(far):
        text = f"t={t[far[0]]:g} is not in seconds (milliseconds? then divide by 1000)"
        raise DemandDataError(text, series=name, row=int(rows[far[0]]))
    distance = np.diff(t)
    late = np.flatnonzero(distance <= 0)
    if len(late):
        here, before = t[late[0] + 1], t[late[0]]
        word = "the same time as" if here == before else "earlier than"
        text = f"t={here:.17g} is {word} the row before (t={before:.17g}); sort the rows and keep one per bucket"
        raise DemandDataError(text, series=name, row=int(rows[late[0] + 1]))


def _infer_step(name: str, t: Array) -> int:
    if len(t) < 2:
        raise DemandDataError("one row does not tell the step; give dt in SERIES.csv or step_s", series=name)
    distances, counts = np.unique(np.round(np.diff(t), 2), return_counts=True)
    step = float(distances[np.argmax(counts)])
    if step < 1 or step != int(step):
        raise DemandDataError(f"rows are {step:g} s apart; steps are whole seconds of at least 1", series=name)
    return int(step)


def _positions(name: str, t: Array, step: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bucket of every row, shape (m,), increasing from 0."""
    exact = (t - t[0]) / step
    index: NDArray[np.int64] = np.round(exact).astype(np.int64)
    tolerance = TOLERANCE_S + np.spacing(np.abs(t).max())
    off = np.flatnonzero(np.abs(exact - index) * step > tolerance)
    if len(off):
        text = f"t={t[off[0]]:.17g} is not a whole number of steps of {step} s after the first row"
        raise DemandDataError(text, series=name, row=int(rows[off[0]]))
    run = _other_step(np.diff(index))
    if run is not None:
        other = int(t[run + 1] - t[run])
        text = f"rows are {other} s apart from here on, but the step is {step} s; one series has one step"
        raise DemandDataError(text, series=name, row=int(rows[run]))
    return index


def _other_step(distance: NDArray[np.int64]) -> int | None:
    """Where a run of equal distances above one step begins, None where there is none."""
    if len(distance) < RUN_OF_OTHER_STEP:
        return None
    windows = np.lib.stride_tricks.sliding_window_view(distance, RUN_OF_OTHER_STEP)
    runs = np.flatnonzero((windows[:, 0] > 1) & (windows == windows[:, :1]).all(1))
    return int(runs[0]) if len(runs) else None
