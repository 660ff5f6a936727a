"""The learned residual: log(measured / analytic) as a Gaussian process over hardware descriptors and size.

Kernels are added: a broad one, which carries over to machines never seen; one over all of the hardware; and two over
hardware together with the shape of the question. Per knot of the message size it is a Bayesian linear regression on
features of ``inducing`` descriptors (Nyström; Quiñonero-Candela & Rasmussen, 2005), so that what is stored are
parameters and not the measurements, and an answer takes microseconds. Far from everything that was seen the mean is 0
and the variance that of the prior: the physics answers, and widely.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from kopt.models.bandwidth.features import BROAD, HARDWARE, KNOTS, NAMES, SHAPE, Vector

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class KernelSettings:
    """Standard deviations of the parts in log units, at small and at large messages (of knots between, in between),
    and length scales in units of the descriptors. Physics is nearly right at large messages, so that little is carried
    over between machines there; latencies have much in common."""

    broad: tuple[float, float] = (0.35, 0.07)
    hardware: tuple[float, float] = (0.35, 0.25)
    count: tuple[float, float] = (0.20, 0.20)
    kind: tuple[float, float] = (0.20, 0.12)
    broad_length: float = 1.0
    hardware_length: float = 0.8
    shape_length: float = 1.5
    count_length: float = 0.3
    kind_length: float = 0.8
    noise: float = 0.06
    inducing: int = 128


def _columns(names: tuple[str, ...]) -> NDArray[np.int64]:
    return np.array([NAMES.index(name) for name in names])


_BROAD, _HARDWARE, _SHAPE = _columns(BROAD), _columns(HARDWARE), _columns(SHAPE)
_COUNT, _KIND = _columns(SHAPE[4:]), _columns(SHAPE[:4])
_SMALL, _LARGE = 2, 6
"""Knots up to and from which the small and the large deviations hold: 64 KiB and 256 MiB."""
_JITTER = 1e-8
_LEAST_VARIANCE = 1e-4


class Kernel:
    def __init__(self, settings: KernelSettings) -> None:
        self.settings = settings
        share = np.clip((np.arange(len(KNOTS)) - _SMALL) / (_LARGE - _SMALL), 0, 1)
        ends = np.array([settings.broad, settings.hardware, settings.count, settings.kind])
        self.amplitudes: Matrix = ((1 - share) * ends[:, :1] + share * ends[:, 1:]) ** 2

    def parts(self, a: Matrix, b: Matrix) -> NDArray[np.float64]:
        """The four correlations, (4, a, b)."""
        kernel_settings = self.settings
        near = _bell(a, b, _HARDWARE, kernel_settings.hardware_length)
        shape = _bell(a, b, _SHAPE, kernel_settings.shape_length)
        array: NDArray[np.float64] = np.stack(
            [
                _bell(a, b, _BROAD, kernel_settings.broad_length) * shape,
                near * shape,
                near
                * _bell(a, b, _COUNT, kernel_settings.count_length)
                * _bell(a, b, _KIND, kernel_settings.shape_length),
                near
                * _bell(a, b, _KIND, kernel_settings.kind_length)
                * _bell(a, b, _COUNT, kernel_settings.shape_length),
            ]
        )
        return array

    def at(self, parts: NDArray[np.float64], knot: int) -> Matrix:
        array: Matrix = np.tensordot(self.amplitudes[:, knot], parts, 1)
        return array

    def variance(self, knot: int) -> float:
        return float(self.amplitudes[:, knot].sum())


def _bell(a: Matrix, b: Matrix, columns: NDArray[np.int64], length: float) -> Matrix:
    first, second = a[:, columns], b[:, columns]
    distance = (first**2).sum(1)[:, None] + (second**2).sum(1)[None] - 2 * first @ second.T
    array: Matrix = np.exp(np.maximum(distance, 0.0) / (-2 * length**2))
    return array


@dataclass(frozen=True)
class Curves:
    """Training data: per descriptor the residual at each knot, and the variance of its error."""

    descriptors: Matrix
    values: Matrix
    variances: Matrix


@dataclass(frozen=True)
class Residual:
    """``weights`` (knots, inducing); ``reductions`` (knots, inducing, inducing): what was learned takes k A k' off the
    prior's variance."""

    settings: KernelSettings
    inducing: Matrix
    weights: Matrix
    reductions: NDArray[np.float64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "_kernel", Kernel(self.settings))

    @classmethod
    def fit(cls, curves: Curves, settings: KernelSettings) -> Self:
        kernel = Kernel(settings)
        inducing = _inducing(kernel, curves.descriptors, settings.inducing)
        own, cross = kernel.parts(inducing, inducing), kernel.parts(curves.descriptors, inducing)
        fitted = [
            _knot(
                kernel.at(own, n),
                kernel.at(cross, n),
                curves.values[:, n],
                curves.variances[:, n],
                kernel.variance(n),
                settings.noise,
            )
            for n in range(len(KNOTS))
        ]
        weights, reductions = zip(*fitted, strict=True)
        return cls(settings, inducing, np.array(weights), np.array(reductions))

    def at(self, descriptor: Vector, knot: int, share: float) -> tuple[float, float, float]:
        """Mean and standard deviation in the units of the curves, and how alike the nearest known hardware is."""
        kernel: Kernel = self._kernel  # type: ignore[attr-defined]
        parts = kernel.parts(descriptor[None], self.inducing)[:, 0]
        rows = kernel.amplitudes[:, knot : knot + 2].T @ parts
        means = (rows * self.weights[knot : knot + 2]).sum(1)
        spreads = [
            max(_LEAST_VARIANCE, kernel.variance(n) - float(row @ self.reductions[n] @ row))
            for n, row in zip((knot, knot + 1), rows, strict=True)
        ]
        variance = (1 - share) * spreads[0] + share * spreads[1]
        return float((1 - share) * means[0] + share * means[1]), variance**0.5, float(parts[1].max())


def _knot(
    own: Matrix, cross: Matrix, values: Vector, variances: Vector, variance: float, noise: float
) -> tuple[Vector, Matrix]:
    whiten = np.linalg.inv(np.linalg.cholesky(own + _JITTER * np.eye(len(own))))
    features = cross @ whiten.T
    lost = np.maximum(0.0, variance - (features**2).sum(1))
    weight = 1 / (variances + lost + noise**2)
    precision = np.eye(len(own)) + (features * weight[:, None]).T @ features
    covariance = np.linalg.inv(precision)
    mean = covariance @ (features.T @ (weight * values))
    return whiten.T @ mean, whiten.T @ (np.eye(len(own)) - covariance) @ whiten


def _inducing(kernel: Kernel, descriptors: Matrix, most: int) -> Matrix:
    """Descriptors that tell most of the others: pivoted Cholesky."""
    distinct = np.unique(descriptors, axis=0)
    middle = len(KNOTS) // 2
    remaining = np.full(len(distinct), kernel.variance(middle))
    factors: list[Vector] = []
    selected: list[int] = []
    while len(selected) < min(most, len(distinct)):
        pivot = int(remaining.argmax())
        if remaining[pivot] < _LEAST_VARIANCE:
            break
        column = kernel.at(kernel.parts(distinct, distinct[[pivot]]), middle)[:, 0]
        for factor in factors:
            column = column - factor * factor[pivot]
        factors.append(column / remaining[pivot] ** 0.5)
        remaining = np.maximum(0.0, remaining - factors[-1] ** 2)
        selected.append(pivot)
    return distinct[selected]
