"""Checks that nothing in a training row comes from after its origin."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries
from kopt.features.rows import HistoricalTable

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Transform = Callable[[DemandSeries, Index], Array]


class LeakError(ValueError):
    """Features know something of the future; the message names series, row and column."""


def assert_causal(
    transform: Transform,
    series: DemandSeries,
    origins: Sequence[int] | None = None,
    names: Sequence[str] = (),
    tolerance: float = 1e-9,
) -> None:
    """Changes everything after an origin, in four ways, and demands the same rows up to it.

    ``origins`` are the buckets to cut after (default: seven over the series); at each, its own row and a few before it
    are compared, to ``tolerance`` relative to their size. Buckets before the first known value have no rows and are
    left out. ``names`` are column names for the message. Raises LeakError.
    """
    first = int(np.argmax(np.isfinite(series.value)))
    last = len(series) - 2
    cuts = origins if origins is not None else np.unique(np.linspace(0, max(last, 0), 9).astype(int)[1:-1])
    for cut in cuts:
        if not first <= cut <= last:
            continue
        rows = np.unique(np.maximum(cut - np.array([0, 1, 12, 288]), first)).astype(np.int64)
        truth = transform(series, rows)
        for way, future in _futures(series, int(cut)).items():
            _compare(truth, transform(future, rows), rows, names, tolerance, f"series {series.name!r}, future {way}")


def assert_point_in_time(table: HistoricalTable) -> None:
    """Demands that no joined row is newer than its origin. Raises LeakError."""
    late = np.flatnonzero(table.features_at_s > table.available_at_s)
    if len(late):
        row = int(late[0])
        ahead_s = table.features_at_s[row] - table.available_at_s[row]
        raise LeakError(
            f"series {str(table.series[row])!r}, row {row}: the features are from {ahead_s:g} s after the origin "
            f"({len(late)} such rows of {len(table)})"
        )


def _futures(series: DemandSeries, cut: int) -> dict[str, DemandSeries]:
    """The series with other futures after bucket ``cut``: removed, unknown, and replaced by far and by other values."""
    noise = np.random.default_rng(cut).uniform(0.2, 5.0, len(series))
    finite = series.value[np.isfinite(series.value)]
    scale = float(finite.max()) + 1.0 if len(finite) else 1.0
    return {
        "removed": series.upto(cut),
        "unknown": _after(series, cut, np.full(len(series), np.nan)),
        "huge": _after(series, cut, 1e6 * scale * noise),
        "random": _after(series, cut, scale * noise),
    }


def _after(series: DemandSeries, cut: int, values: Array) -> DemandSeries:
    ahead = np.arange(len(series)) > cut
    return series.mapped(lambda column: np.where(ahead, values, column))


def _compare(truth: Array, served: Array, rows: Index, names: Sequence[str], tolerance: float, where: str) -> None:
    same = np.isclose(truth, served, rtol=tolerance, atol=tolerance, equal_nan=True)
    if same.all():
        return
    row, column = (int(axis[0]) for axis in np.nonzero(~same))
    name = names[column] if column < len(names) else f"column {column}"
    raise LeakError(
        f"{where}: {name} at bucket {rows[row]} changed from {truth[row, column]:g} to {served[row, column]:g}; "
        "it must not depend on later buckets"
    )
