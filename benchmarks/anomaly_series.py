"""Real demand with anomalies put into it: what ``benchmarks.anomalies`` looks for, the same for the same seed."""

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.data.demand.table import DemandSeries
from kopt.features.demand import DAY_S

Array = NDArray[np.float64]
Random = np.random.Generator

DAYS, QUIET_DAYS = 14, 4
"""Of each series its newest days, of which in the first nothing is put and no alarm counts."""
PER_SERIES = 2
_BUSY = 0.3
"""Of the series' mean: a service that sleeps has nothing to lose, so anomalies begin where demand is above this."""


@dataclass(frozen=True)
class Injected:
    """One anomaly: buckets ``[first, end)`` in which an alarm about it may begin."""

    kind: str
    size: float
    first: int
    end: int


@dataclass(frozen=True)
class Shape:
    """Factors of demand over the buckets of an anomaly, whether demand stays at the last of them, and its size."""

    factors: Array
    stays: bool
    size: float


def _spike(hour: int, random: Random) -> Shape:
    size = float(random.choice([2.0, 3.0, 5.0]))
    return Shape(np.full(max(1, int(hour * random.uniform(0.25, 1.5))), size), False, size)


def _drop(hour: int, random: Random) -> Shape:
    size = float(random.choice([0.5, 0.25, 0.1]))
    return Shape(np.full(int(hour * random.uniform(0.5, 3.0)), size), False, size)


def _level_shift(hour: int, random: Random) -> Shape:
    size = float(random.choice([0.33, 0.5, 2.0, 3.0]))
    return Shape(np.full(6 * hour, size), True, size)


def _dead(hour: int, random: Random) -> Shape:
    return Shape(np.zeros(int(hour * random.uniform(0.5, 6.0))), False, 0.0)


def _ramp(hour: int, random: Random) -> Shape:
    size = float(random.choice([0.33, 2.0, 3.0, 4.0]))
    return Shape(np.concatenate([np.linspace(1.0, size, 4 * hour), np.full(4 * hour, size)]), False, size)


KINDS: Mapping[str, Callable[[int, Random], Shape]] = {
    "spike": _spike,
    "drop": _drop,
    "level shift": _level_shift,
    "dead service": _dead,
    "slow ramp": _ramp,
}


def injected(series: DemandSeries, seed: int) -> tuple[DemandSeries, tuple[Injected, ...]]:
    """The newest days of a series with ``PER_SERIES`` anomalies at random times, in equal parts of the time."""
    digest = hashlib.sha256(f"{seed}/{series.name}".encode()).digest()
    random = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    value, hour = newest(series).value.copy(), max(1, 3600 // series.step_s)
    quiet = QUIET_DAYS * DAY_S // series.step_s
    edges = np.linspace(quiet, len(value), PER_SERIES + 1).astype(int)
    anomalies = []
    for begin, end in itertools.pairwise(edges):
        kind = str(random.choice(list(KINDS)))
        shape = KINDS[kind](hour, random)
        first = _busy_bucket(value, int(begin), int(end) - len(shape.factors) - hour, random)
        last = first + len(shape.factors)
        level = np.maximum(value[first:last], _BUSY * np.nanmean(value)) if shape.size > 1 else value[first:last]
        value[first:last] += (shape.factors - 1) * level
        if shape.stays:
            value[last:] *= shape.size
        anomalies.append(Injected(kind, shape.size, first, last))
    counted = np.where(np.isfinite(value), np.maximum(value, 0.0), np.nan)
    return DemandSeries(series.name, 0.0, series.step_s, counted), tuple(anomalies)


def newest(series: DemandSeries) -> DemandSeries:
    return DemandSeries(series.name, 0.0, series.step_s, series.value[-DAYS * DAY_S // series.step_s :])


def _busy_bucket(value: Array, begin: int, end: int, random: Random) -> int:
    busy = begin + np.flatnonzero(value[begin:end] > _BUSY * np.nanmean(value))
    return int(random.choice(busy)) if len(busy) else int(random.integers(begin, end))
