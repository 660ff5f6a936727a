"""The typed table of inference demand: one evenly spaced series per service."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
GRID_S = 300
"""Finer series are summed to this step (five minutes) before anything is learned from them."""


class DemandDataError(ValueError):
    """Demand data that cannot be used. ``series`` and ``row`` (from 0, None = the whole series) say where."""

    def __init__(self, message: str, *, series: str = "", row: int | None = None) -> None:
        where = (f"series {series!r}" if series else "") + ("" if row is None else f", row {row}")
        super().__init__(f"{where.strip(', ')}: {message}" if where else message)
        self.series, self.row = series, row


@dataclass(frozen=True)
class DemandSeries:
    """Demand of one service in buckets of ``step_s`` seconds.

    ``value[i]`` is the amount in ``[start_s + i*step_s, start_s + (i+1)*step_s)`` in ``unit``; NaN is a gap in
    collection, never zero demand. Token arrays and ``tenants`` (demand by tenant) have the same length or are absent.
    ``start_known`` says that ``start_s`` is Unix time, so calendar features may be used.
    """

    name: str
    start_s: float
    step_s: int
    value: Array
    unit: str = "requests"
    start_known: bool = False
    in_tokens: Array | None = None
    out_tokens: Array | None = None
    tenants: Mapping[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not math.isfinite(self.start_s):
            raise DemandDataError(f"start of {self.start_s} s is not a time", series=self.name)
        if self.step_s <= 0:
            raise DemandDataError(f"step of {self.step_s} s is not positive", series=self.name)
        if self.value.ndim != 1 or not len(self.value):
            raise DemandDataError("no values", series=self.name)
        for label, other in self._columns().items():
            if other.shape != self.value.shape:
                raise DemandDataError(f"{label} has {len(other)} buckets, value {len(self.value)}", series=self.name)
        # NaN passes this comparison, infinity and negatives do not.
        wrong = np.flatnonzero((self.value < 0) | np.isinf(self.value))
        if len(wrong):
            row = int(wrong[0])
            raise DemandDataError(f"value {self.value[row]:g} is not a demand", series=self.name, row=row)

    def _columns(self) -> dict[str, Array]:
        tokens = {"in_tokens": self.in_tokens, "out_tokens": self.out_tokens}
        return {k: v for k, v in tokens.items() if v is not None} | {f"tenant {k}": v for k, v in self.tenants.items()}

    def __len__(self) -> int:
        return len(self.value)

    @property
    def times_s(self) -> Array:
        """Start of every bucket in seconds, shape (n,)."""
        return self.start_s + self.step_s * np.arange(len(self.value), dtype=np.float64)

    @property
    def days(self) -> float:
        return len(self.value) * self.step_s / 86400

    def upto(self, index: int) -> "DemandSeries":
        """The buckets up to and including ``index``."""
        return self.mapped(lambda column: column[: index + 1])

    def tail(self, buckets: int) -> "DemandSeries":
        """The last ``buckets`` buckets, with the start moved."""
        kept = min(buckets, len(self.value))
        cut = self.mapped(lambda column: column[len(column) - kept :])
        return replace(cut, start_s=self.start_s + (len(self.value) - kept) * self.step_s)

    def resampled(self, step_s: int = GRID_S) -> "DemandSeries":
        """Sums to a coarser step; a coarse bucket with more than one gap in it is a gap, with one it is scaled up.

        Buckets are counted from the first; a rest that does not fill a coarse bucket is dropped. Series that are
        coarser already stay as they are.
        """
        if self.step_s >= step_s:
            return self
        if step_s % self.step_s:
            raise DemandDataError(f"step {self.step_s} s does not divide {step_s} s", series=self.name)
        factor = step_s // self.step_s
        if len(self.value) < factor:
            raise DemandDataError(f"{len(self.value)} buckets do not fill one of {step_s} s", series=self.name)
        return replace(self.mapped(lambda column: _sum_buckets(column, factor)), step_s=step_s)

    def mapped(self, change: Callable[[Array], Array]) -> "DemandSeries":
        """``change`` applied to every column: value, tokens and tenants alike."""
        return replace(
            self,
            value=change(self.value),
            in_tokens=None if self.in_tokens is None else change(self.in_tokens),
            out_tokens=None if self.out_tokens is None else change(self.out_tokens),
            tenants={name: change(column) for name, column in self.tenants.items()},
        )


def _sum_buckets(column: Array, factor: int) -> Array:
    blocks = column[: len(column) // factor * factor].reshape(-1, factor)
    finite = np.isfinite(blocks).sum(1)
    mean = np.nansum(blocks, 1) / np.maximum(finite, 1)
    summed: Array = np.where(finite >= max(1, factor - 1), mean * factor, np.nan)
    return summed
