"""Histories of a request become evenly spaced series; what does not fit names its field."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries
from kopt.serving.contract.common import MAX_POINTS
from kopt.serving.contract.schemas import Amounts, DemandRequest, SeriesIn
from kopt.serving.http.problems import invalid

Floats = NDArray[np.float64]

UNIX_FROM_S = 1e9
"""Times from here on (the year 2001) are Unix time, so that the calendar counts; smaller ones are relative."""
LARGEST_AMOUNT = 1e15
_SLACK_S = 1e-3


def demand_series(request: DemandRequest) -> list[DemandSeries | None]:
    """One series per entry, None where it has no history. Raises Problem (422) with the field."""
    names = [entry.name for entry in request.series]
    if len(set(names)) != len(names):
        repeated = next(i for i, name in enumerate(names) if name in names[:i])
        raise invalid(f"series.{repeated}.name", "this name occurs twice in the request")
    return [_series(f"series.{i}", entry, request.unit) for i, entry in enumerate(request.series)]


def _series(path: str, entry: SeriesIn, unit: str) -> DemandSeries | None:
    if entry.t is None or entry.value is None:
        _refuse_columns_without_times(path, entry)
        return None
    times = np.array(entry.t, dtype=np.float64)
    step_s, slots = _grid(path, times)
    size = int(slots[-1]) + 1

    def column(name: str, amounts: Amounts) -> Floats:
        return _on_grid(f"{path}.{name}", amounts, slots, size)

    return DemandSeries(
        name=entry.name,
        start_s=float(times[0]),
        step_s=step_s,
        value=column("value", entry.value),
        unit=unit,
        start_known=bool(times[0] >= UNIX_FROM_S),
        in_tokens=None if entry.in_tok is None else column("in_tok", entry.in_tok),
        out_tokens=None if entry.out_tok is None else column("out_tok", entry.out_tok),
        tenants={name: column(f"tenants.{name}", amounts) for name, amounts in (entry.tenants or {}).items()},
    )


def _refuse_columns_without_times(path: str, entry: SeriesIn) -> None:
    columns = {"in_tok": entry.in_tok, "out_tok": entry.out_tok, "tenants": entry.tenants}
    for name, column in columns.items():
        if column is not None:
            raise invalid(f"{path}.{name}", "needs t and value beside it")


def _grid(path: str, times: Floats) -> tuple[int, NDArray[np.int64]]:
    """The step in whole seconds (300 for a single time) and each time's slot on it."""
    if len(times) == 1:
        return 300, np.zeros(1, dtype=np.int64)
    gaps = np.diff(times)
    if not gaps.min() > 0:
        at = int(np.flatnonzero(gaps <= 0)[0]) + 1
        word = "repeats the time before it" if gaps[at - 1] == 0 else "is earlier than the time before it"
        raise invalid(f"{path}.t.{at}", f"{word}; send times in rising order")
    step_s = round(float(gaps.min()))
    if step_s < 1 or step_s > 86_400:
        raise invalid(f"{path}.t", f"the step of {float(gaps.min()):g} s is not between 1 s and a day")
    if step_s == gaps.min() == gaps.max() and len(times) <= MAX_POINTS:
        return step_s, np.arange(len(times))
    slots = np.rint((times - times[0]) / step_s)
    if slots[-1] >= MAX_POINTS:
        raise invalid(f"{path}.t", f"spans {slots[-1] + 1:g} buckets of {step_s} s; the limit is {MAX_POINTS}")
    off = np.flatnonzero(np.abs(times - times[0] - slots * step_s) > _SLACK_S)
    if len(off):
        raise invalid(f"{path}.t.{int(off[0])}", f"is not on the step of {step_s} s counted from the first time")
    return step_s, slots.astype(np.int64)


def _on_grid(path: str, amounts: Sequence[float | None], slots: NDArray[np.int64], size: int) -> Floats:
    if len(amounts) != len(slots):
        raise invalid(path, f"has {len(amounts)} items, t has {len(slots)}")
    array = np.array(amounts, dtype=np.float64)
    # NaN passes both comparisons: it is a gap.
    wrong = np.flatnonzero((array < 0) | (array > LARGEST_AMOUNT))
    if len(wrong):
        raise invalid(f"{path}.{int(wrong[0])}", "a demand is not negative, not infinite and at most 1e15")
    if size == len(array):
        return array
    placed = np.full(size, np.nan)
    placed[slots] = array
    return placed
