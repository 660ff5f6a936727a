"""Conformal intervals: how far answers were off on machines, and on questions to known machines, that a fit left out.

The score is |log(measured) - log(answer)| by the model's own standard deviation; its 90 % quantile (machines weigh
alike, and questions to a machine) per regime of sizes, and apart for hardware that is known and that is not, is what
intervals are wide. Splits are by machine, so that coverage holds on machines never seen (Barber et al., 2023).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from kopt.models.bandwidth.curves import Labelled, Point, answer, held_out
from kopt.models.bandwidth.residual import KernelSettings, Residual

PROBABILITY = 0.9
_KNOWN_FOLDS = 8
_GROUP_FOLDS = 12
_NEAR = 0.98
"""Hardware so alike counts as known."""
_DEFAULT = 1.645
_FASTER = 0.4
"""Of the half of an interval that reaches to slower answers, what reaches to faster ones between nodes: cards that are
shared, partly used or badly set up slow a network, and nothing makes one faster than its cards."""


class Regime(StrEnum):
    LATENCY = "latency"
    """Up to 64 KiB: intervals are those of the latency."""
    MIDDLE = "middle"
    LARGE = "large"


def regime(size_bytes: int) -> Regime:
    return Regime.LATENCY if size_bytes <= 65536 else Regime.LARGE if size_bytes >= 64 * 2**20 else Regime.MIDDLE


@dataclass(frozen=True)
class Score:
    machine: str
    cell: object
    key: tuple[str, float]
    value: float


@dataclass(frozen=True)
class Widths:
    """Standard deviations on either side of the answer, by regime and whether the hardware is known."""

    scales: Mapping[tuple[str, bool], float]

    def at(self, size_bytes: int, near: float) -> float:
        return self.scales.get((regime(size_bytes).value, near >= _NEAR), _DEFAULT)


def faster_spread(spread: float, near: float, domains: int) -> float:
    """How far, in log units, a latency may lie below the answer where ``spread`` is how far it may lie above. They are
    the same on one node and for hardware that was measured."""
    return spread * _FASTER if domains > 1 and near < _NEAR else spread


def fit_widths(points: Sequence[Point], labelled: Labelled, settings: KernelSettings) -> Widths:
    """Refits without some of the data and scores the answers to it."""
    return widths_of(list(_cross_validated(points, labelled, settings)))


def widths_of(scores: Sequence[Score]) -> Widths:
    """``key`` of a score is the regime and how alike the hardware was."""
    keyed = defaultdict(list)
    for score in scores:
        keyed[score.key[0], score.key[1] >= _NEAR].append(score)
    return Widths({key: _quantile(part) for key, part in sorted(keyed.items())})


def _cross_validated(points: Sequence[Point], labelled: Labelled, settings: KernelSettings) -> Iterator[Score]:
    for labels, of, most in ((labelled.groups, _group, _GROUP_FOLDS), (labelled.cells, held_out, _KNOWN_FOLDS)):
        names = sorted(set(labels.tolist()))
        for fold in range(min(most, len(names))):
            out = set(names[fold::most])
            keep: NDArray[np.bool_] = ~np.isin(labels, list(out))
            if keep.sum() >= 2:
                residual = Residual.fit(labelled.only(keep), settings)
                yield from _scores(residual, (point for point in points if of(point) in out))


def _group(point: Point) -> str:
    return point.group


def _scores(residual: Residual, points: Iterable[Point]) -> Iterator[Score]:
    cached: dict[tuple[bytes, int], tuple[float, float, float]] = {}
    for point in points:
        key = (point.descriptor.tobytes(), point.bytes)
        if key not in cached:
            cached[key] = answer(residual, point.gpus, point.descriptor, point.knot, point.share)
        mean, deviation, near = cached[key]
        if point.gpus.unknown:
            continue
        score = abs(point.value - mean) / deviation
        yield Score(point.group, point.cell, (regime(point.bytes).value, near), score)


def _quantile(scores: Sequence[Score]) -> float:
    """Weighted so that every machine counts the same; a little above 90 % as machines are few."""
    cells: dict[str, dict[object, list[float]]] = defaultdict(lambda: defaultdict(list))
    for score in scores:
        cells[score.machine][score.cell].append(score.value)
    weighted_errors = sorted(
        (value, 1 / (len(cells) * len(machine) * len(values)))
        for machine in cells.values()
        for values in machine.values()
        for value in values
    )
    level = min(0.97, PROBABILITY * (1 + 1 / (len(cells) + 1)))
    at = int(np.searchsorted(np.cumsum([weight for _, weight in weighted_errors]), level * (1 - 1e-12)))
    return float(np.clip(weighted_errors[min(at, len(weighted_errors) - 1)][0], 0.8, 6.0))
