"""Answers of the bandwidth model held against measurements, and the weights and quantiles of their errors."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.models.bandwidth.curves import Point
from kopt.models.bandwidth.intervals import Regime, regime


@dataclass(frozen=True)
class Answer:
    """To one row, in logarithms of the latency; ``deviation`` 0 where a baseline knows none."""

    point: Point
    lacking: float
    """log(measured / answered)."""
    deviation: float = 0.0
    near: float = 0.0
    spread: float = 0.0
    """How far the 90 % interval reaches above the answered latency."""
    faster: float = 0.0
    """How far it reaches below."""


def error(answer: Answer) -> float:
    """Of the latency up to 64 KiB, of the bandwidth above."""
    sign = -1 if regime(answer.point.bytes) is Regime.LATENCY else 1
    return abs(float(np.expm1(sign * answer.lacking)))


def inside(answer: Answer) -> bool:
    """Does the interval hold the measurement?"""
    return -answer.faster <= answer.lacking <= answer.spread


def weights(rows: Sequence[Answer]) -> NDArray[np.float64]:
    """Every machine counts the same, and every (GPUs, nodes, collective) of a machine."""
    cells: dict[str, dict[object, int]] = defaultdict(lambda: defaultdict(int))
    for one in rows:
        cells[one.point.cell[0]][one.point.cell] += 1
    return np.array(
        [1 / (len(cells) * len(cells[one.point.cell[0]]) * cells[one.point.cell[0]][one.point.cell]) for one in rows]
    )


def quantile(values: NDArray[np.float64], weights: NDArray[np.float64], probability: float) -> float:
    order = np.argsort(values, kind="stable")
    at = int(np.searchsorted(np.cumsum(weights[order]), probability * weights.sum() * (1 - 1e-12)))
    return float(values[order][min(at, len(values) - 1)])
