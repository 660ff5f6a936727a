"""Measured rows become residual curves: per descriptor the mean of log(measured / analytic) at each knot."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.bandwidth import Collective
from kopt.models.bandwidth.features import KNOTS, Vector, describe, scale, weights_at
from kopt.models.bandwidth.residual import Curves, Residual
from kopt.models.bandwidth.rows import MeasuredRow
from kopt.topology.collective_cost import analytic
from kopt.topology.set_links import GpuSet

_LEAST_WEIGHT = 0.4
_REACH = 0.12
"""Standard deviation, per knot, of carrying a residual to sizes that were not measured."""
_SMOOTH = 0.3
_SPREAD_LEAST = 0.03


@dataclass(frozen=True)
class Point:
    """A row in the residual's terms. ``cell`` is what rows are averaged over: machine, GPUs, nodes and collective."""

    group: str
    cell: tuple[str, int, int, Collective]
    descriptor: Vector
    knot: int
    share: float
    bytes: int
    value: float
    gpus: GpuSet


def points(rows: Iterable[MeasuredRow]) -> list[Point]:
    """Descriptor and residual of each row."""
    curves: dict[tuple[GpuSet, Collective], Vector] = {}
    result = []
    for row in rows:
        gpus, kind = row.query.gpus(), row.query.collective
        if (gpus, kind) not in curves:
            curves[gpus, kind] = describe(gpus, kind)
        below, share = weights_at(row.query.bytes)
        value = float(np.log(row.latency_us / analytic(gpus, kind, row.query.bytes).latency_us))
        cell = (row.machine, gpus.count, gpus.nodes, kind)
        result.append(Point(row.machine_class, cell, curves[gpus, kind], below, share, row.query.bytes, value, gpus))
    return result


def answer(residual: Residual, gpus: GpuSet, descriptor: Vector, knot: int, share: float) -> tuple[float, float, float]:
    """Mean and standard deviation of log(measured / analytic), and how alike the nearest known hardware is."""
    mean, deviation, near = residual.at(descriptor, knot, share)
    times = scale(gpus)
    return times * mean, times * deviation, near


@dataclass(frozen=True)
class Labelled:
    """Curves with the machine class and the (class, collective, GPUs) that each was measured on."""

    curves: Curves
    groups: NDArray[np.str_]
    cells: NDArray[np.str_]

    def only(self, keep: NDArray[np.bool_]) -> Curves:
        result = self.curves
        return Curves(result.descriptors[keep], result.values[keep], result.variances[keep])


def held_out(point: Point) -> str:
    """What is left out together where the machine is known: (class, collective, GPUs per node)."""
    return f"{point.group}\0{point.cell[3]}\0{point.cell[1]}"


def curves(rows: Sequence[Point]) -> Labelled:
    """One curve per cell and descriptor. Raises ValueError without any row."""
    if not rows:
        raise ValueError("no measured collective to learn from")
    cells: dict[tuple[object, bytes], list[Point]] = defaultdict(list)
    for point in rows:
        cells[point.cell, point.descriptor.tobytes()].append(point)
    parts = list(cells.values())
    fitted = [_curve(part) for part in parts]
    descriptors = np.array([part[0].descriptor for part in parts])
    result = Curves(descriptors, np.array([v for v, _ in fitted]), np.array([s for _, s in fitted]))
    groups, labels = np.array([part[0].group for part in parts]), np.array([held_out(part[0]) for part in parts])
    return Labelled(result, groups, labels)


def _curve(rows: Sequence[Point]) -> tuple[Vector, Vector]:
    """Straight pieces through the medians of each size, smoothed a little; beyond what was measured, flat."""
    sizes: dict[int, list[Point]] = defaultdict(list)
    for point in rows:
        sizes[point.bytes].append(point)
    hats = np.zeros((len(sizes), len(KNOTS)))
    values, spreads = np.zeros(len(sizes)), np.zeros(len(sizes))
    for n, part in enumerate(sizes.values()):
        array = np.array([point.value / scale(point.gpus) for point in part])
        hats[n, part[0].knot], hats[n, part[0].knot + 1] = 1 - part[0].share, part[0].share
        values[n] = np.median(array)
        spreads[n] = np.median(np.abs(array - values[n])) * 1.48
    mass = hats.sum(0)
    supported = np.flatnonzero(mass >= min(_LEAST_WEIGHT, mass.max()))
    second = np.diff(np.eye(len(KNOTS)), 2, axis=0) * _SMOOTH
    ridge = np.eye(len(KNOTS)) * 1e-6
    solved = np.linalg.solve(hats.T @ hats + second.T @ second + ridge, hats.T @ values)
    curve: Vector = np.asarray(solved, dtype=np.float64)
    error = max(_SPREAD_LEAST, float(np.std(values - hats @ curve)), float(np.median(spreads))) ** 2
    variance: Vector = np.asarray(error / np.maximum(1.0, mass), dtype=np.float64)
    for n in range(len(KNOTS)):
        nearest = supported[np.abs(supported - n).argmin()]
        if nearest != n:
            curve[n], variance[n] = curve[nearest], variance[nearest] + (_REACH * abs(n - nearest)) ** 2
    return curve, variance
