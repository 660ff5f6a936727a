"""Online calibration: probes measured on this cluster pull answers about it towards them.

The state is a value (JSON): up to ``MOST`` probes with what the model lacked at each and how sure it had been.
An answer is the posterior of a Gaussian process over (collective, GPUs, nodes, size) given the probes of the same
machine and software, so that a few shrink it a little, many of the same question wholly, and others stay as they were.
How alike questions are was chosen on machines that the model had not seen (``benchmarks.bandwidth_probes``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.bandwidth import BandwidthError, Collective
from kopt.models.bandwidth.features import KNOTS

MOST = 256
_COLLECTIVE = 0.8
"""What two collectives have in common of what a machine lacks; physics and wires are the same, algorithms are not."""
_GPUS, _NODES = 0.7, 0.7
"""The same per doubling of the GPUs of a node, and of the nodes."""
_WITHIN = 0.3
"""And of what goes over the links of one node, with what goes over the network between several."""
_SIZES = 6.0
"""Length scale in log2 of the bytes."""
_ALONE = 0.1
"""Of the variance that one size shares with no other."""
_ERROR = 0.03
"""Standard deviation of one probe's logarithm."""
_SUREST = 0.02
"""Of the variance is left however much was measured."""

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Probe:
    """``lacking``: log(measured / answered) of the latency; ``deviation``: the model's at that question."""

    machine: str
    software: str
    collective: str
    gpus: int
    nodes: int
    log_bytes: float
    lacking: float
    deviation: float


@dataclass(frozen=True)
class _Table:
    """Questions by column."""

    collectives: NDArray[np.str_]
    columns: Matrix
    """log2 of GPUs, of nodes and of bytes; the deviation."""

    @classmethod
    def of(cls, rows: Sequence[tuple[str, int, int, float, float]]) -> "_Table":
        # Beyond the sizes that the model tells apart, one size is as good as another.
        columns = [(math.log2(g), math.log2(n), float(np.clip(b, KNOTS[0], KNOTS[-1])), d) for _, g, n, b, d in rows]
        return cls(np.array([row[0] for row in rows]), np.array(columns))

    def shared(self, other: "_Table") -> Matrix:
        """Covariance: what the surer of two answers may lack, as far as the questions are alike."""
        gpus, nodes, sizes, _ = np.abs(self.columns[:, None] - other.columns).transpose(2, 0, 1)
        same = self.collectives[:, None] == other.collectives
        inside = (self.columns[:, None, 1] == 0) == (other.columns[:, 1] == 0)
        near = np.where(same, 1.0, _COLLECTIVE) * np.where(inside, 1.0, _WITHIN) * _GPUS**gpus * _NODES**nodes
        size = (1 - _ALONE) * np.exp(sizes**2 / (-2 * _SIZES**2)) + _ALONE * (sizes == 0)
        least = np.minimum(self.columns[:, None, 3], other.columns[:, 3])
        array: Matrix = near * size * least**2
        return array


@dataclass(frozen=True)
class _Solved:
    """The probes of one machine and software; computed once, asked often."""

    table: _Table
    inverse: Matrix
    weights: Vector


@dataclass(frozen=True)
class Calibration:
    probes: tuple[Probe, ...] = ()
    _solved: dict[tuple[str, str], _Solved | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def adding(self, *probes: Probe) -> "Calibration":
        """Keeps the newest."""
        return Calibration((*self.probes, *probes)[-MOST:])

    def correction(
        self, machine: str, software: str, kind: Collective, gpus: int, nodes: int, size_bytes: int, deviation: float
    ) -> tuple[float, float]:
        """What to add to the logarithm of the latency, and the standard deviation that is left."""
        key = (machine, software)
        if key not in self._solved:
            self._solved[key] = self._solve([probe for probe in self.probes if (probe.machine, probe.software) == key])
        solved = self._solved[key]
        if solved is None:
            return 0.0, deviation
        query = _Table.of([(kind.value, gpus, nodes, math.log2(max(1, size_bytes)), deviation)])
        to = query.shared(solved.table)[0]
        variance = max(_SUREST * deviation**2, deviation**2 - float(to @ solved.inverse @ to))
        return float(to @ solved.weights), math.sqrt(variance)

    @staticmethod
    def deviation_after_probe(deviation: float, doublings: float) -> float:
        """Standard deviation that one probe of the same collective, GPUs and size would leave, on nodes that are
        fewer by so many doublings."""
        shared = _NODES**doublings * deviation**2
        return math.sqrt(max(_SUREST * deviation**2, deviation**2 - shared**2 / (deviation**2 + _ERROR**2)))

    @staticmethod
    def _solve(probes: Sequence[Probe]) -> _Solved | None:
        if not probes:
            return None
        table = _Table.of(
            [(probe.collective, probe.gpus, probe.nodes, probe.log_bytes, probe.deviation) for probe in probes]
        )
        inverse: Matrix = np.asarray(
            np.linalg.inv(table.shared(table) + _ERROR**2 * np.eye(len(probes))), dtype=np.float64
        )
        return _Solved(table, inverse, inverse @ np.array([probe.lacking for probe in probes]))

    def to_dict(self) -> dict[str, Any]:
        return {"version": 1, "probes": [asdict(probe) for probe in self.probes]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Calibration":
        """Raises BandwidthError for anything else than ``to_dict`` gives."""
        try:
            if document["version"] != 1:
                raise ValueError("another version")
            probes = tuple(Probe(**item) for item in document["probes"])
            numbers = [(probe.log_bytes, probe.lacking, probe.deviation, probe.gpus, probe.nodes) for probe in probes]
            if not np.all(np.isfinite(np.array(numbers, dtype=float))):
                raise ValueError("a number is not finite")
            if any(min(probe.gpus, probe.nodes) < 1 for probe in probes):
                raise ValueError("a probe of no GPU")
        except (KeyError, TypeError, ValueError) as error:
            raise BandwidthError(f"not a calibration ({error})") from error
        return cls(probes[-MOST:])
