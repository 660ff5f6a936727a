"""Online calibration: probes measured on this cluster pull answers about it towards them.

The state is a value (JSON): up to ``MOST`` probes with what the model lacked at each and how sure it had been.
An answer is the posterior of a Gaussian process over (collective, GPUs, nodes, size) given the probes of the same
machine and software, so that a few shrink it a little, many of the same question wholly, and others stay as they were.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kopt.core.bandwidth import BandwidthError, Collective

MOST = 256
_SHARED, _OWN = 0.45, 0.5
"""Of the variance that all questions to a machine have in common, and those of one collective, GPUs and nodes."""
_SIZES = 4.0
"""Length scale in log2 of the bytes."""
_ERROR = 0.03
"""Standard deviation of one probe's logarithm."""


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
class Calibration:
    probes: tuple[Probe, ...] = ()

    def adding(self, probe: Probe) -> "Calibration":
        """Keeps the newest."""
        return Calibration((*self.probes, probe)[-MOST:])

    def correction(
        self, machine: str, software: str, kind: Collective, gpus: int, nodes: int, size_bytes: int, deviation: float
    ) -> tuple[float, float]:
        """What to add to the logarithm of the latency, and the standard deviation that is left."""
        known = [one for one in self.probes if (one.machine, one.software) == (machine, software)]
        if not known:
            return 0.0, deviation
        asked = Probe(machine, software, kind.value, gpus, nodes, math.log2(max(1, size_bytes)), 0.0, deviation)
        between = np.array([[_shared(a, b) for b in known] for a in known])
        to = np.array([_shared(asked, one) for one in known])
        solved = np.linalg.solve(between + _ERROR**2 * np.eye(len(known)), to)
        left = max(0.02 * deviation**2, deviation**2 - float(solved @ to))
        return float(solved @ np.array([one.lacking for one in known])), math.sqrt(left)

    def to_dict(self) -> dict[str, Any]:
        return {"version": 1, "probes": [asdict(one) for one in self.probes]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Calibration":
        """Raises BandwidthError for anything else than ``to_dict`` gives."""
        try:
            if document["version"] != 1:
                raise ValueError("another version")
            found = tuple(Probe(**one) for one in document["probes"])
            numbers = [(one.log_bytes, one.lacking, one.deviation, one.gpus, one.nodes) for one in found]
            if not np.all(np.isfinite(np.array(numbers, dtype=float))):
                raise ValueError("a number is not finite")
        except (KeyError, TypeError, ValueError) as error:
            raise BandwidthError(f"not a calibration ({error})") from error
        return cls(found[-MOST:])


def _shared(a: Probe, b: Probe) -> float:
    """Covariance: what the surer of two answers may lack, as far as the questions are alike."""
    return _alike(a, b) * min(a.deviation, b.deviation) ** 2


def _alike(a: Probe, b: Probe) -> float:
    size = math.exp(-((a.log_bytes - b.log_bytes) ** 2) / (2 * _SIZES**2))
    same = (a.collective, a.gpus, a.nodes) == (b.collective, b.gpus, b.nodes)
    return size * (_SHARED + _OWN * same) + (1 - _SHARED - _OWN) * (same and a.log_bytes == b.log_bytes)
