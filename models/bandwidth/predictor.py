"""The bandwidth predictor: analytic time × exp(learned residual), with conformal intervals."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from kopt.core.bandwidth import MAX_BYTES, BandwidthError, BandwidthEstimate, Collective
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.models.bandwidth.calibration import Calibration, Probe
from kopt.models.bandwidth.curves import answer, curves, points
from kopt.models.bandwidth.features import NAMES, describe, weights_at
from kopt.models.bandwidth.intervals import PROBABILITY, Widths, fit_widths
from kopt.models.bandwidth.residual import KernelSettings, Residual
from kopt.models.bandwidth.rows import MeasuredRow
from kopt.models.base import Predictor
from kopt.policies.bandwidth.analytic import Analytic, analytic
from kopt.policies.bandwidth.graph import Machine
from kopt.policies.bandwidth.sets import GpuSet, gpu_set

UNREGISTERED = ModelVersion("bandwidth", "unregistered")
_FACTS, _ARRAYS = "bandwidth.json", "residual.safetensors"
_VERSION = 1
_UNKNOWN_SPREAD = 1.0
"""Half an interval in log units where the GPU, a link or the network is not known: a factor of 2.7 either way."""


@dataclass(frozen=True)
class BandwidthQuestion:
    """The GPUs ``gpus`` of each of ``nodes`` nodes. ``machine_key`` names the cluster whose probes count."""

    machine: Machine = field(repr=False)
    gpus: tuple[int, ...]
    collective: Collective
    bytes: int
    nodes: int = 1
    machine_key: str = ""


@dataclass(frozen=True)
class _Answer:
    gpus: GpuSet
    physics: Analytic
    log_latency: float
    deviation: float
    spread: float
    near: float
    residual: float


class BandwidthPredictor(Predictor):
    """``fit`` takes measured rows; ``calibration`` may be set to what was probed on this cluster."""

    name: ClassVar[str] = "bandwidth"

    def __init__(self, settings: KernelSettings | None = None) -> None:
        self.settings = settings or KernelSettings()
        self.version = UNREGISTERED
        self.calibration = Calibration()
        self._residual: Residual | None = None
        self._widths = Widths({})

    def fit(self, table: Sequence[MeasuredRow]) -> Self:
        """Raises ValueError on a table without a row."""
        found = points(table)
        labelled = curves(found)
        self._residual = Residual.fit(labelled.curves, self.settings)
        self._widths = fit_widths(found, labelled, self.settings)
        return self

    def estimate(self, request: BandwidthQuestion) -> BandwidthEstimate:
        """Raises BandwidthError for a question that cannot be asked: GPUs that are not there, a size out of range."""
        found = self._answer(request)
        return _estimate(request.gpus, request.collective, request.bytes, found, self.version)

    def estimate_set(self, gpus: GpuSet, kind: Collective, size_bytes: int) -> BandwidthEstimate:
        """The same for a set that was read before."""
        if not 1 <= size_bytes <= MAX_BYTES:
            raise BandwidthError(f"{size_bytes:,} bytes are no message; from 1 to {MAX_BYTES:,} are understood")
        return _estimate(tuple(range(gpus.count)), kind, size_bytes, self._of(gpus, kind, size_bytes, ""), self.version)

    def observe(self, request: BandwidthQuestion, latency_us: float) -> None:
        """A probe measured on this cluster. Raises BandwidthError for a time that is none."""
        if not (math.isfinite(latency_us) and latency_us > 0):
            raise BandwidthError(f"{latency_us} µs is no time")
        kept, self.calibration = self.calibration, Calibration()
        try:
            found = self._answer(request)
        finally:
            self.calibration = kept
        lacking = math.log(latency_us) - found.log_latency
        probe = Probe(
            request.machine_key, _software(found.gpus), request.collective.value, found.gpus.count, request.nodes,
            math.log2(request.bytes), lacking, found.deviation,
        )  # fmt: skip
        self.calibration = kept.adding(probe)

    def predict(self, request: BandwidthQuestion) -> tuple[Prediction, ...]:
        """Latency in microseconds and bus bandwidth in GB/s; refused where the question cannot be asked."""
        try:
            found = self.estimate(request)
        except BandwidthError as error:
            reason = Reason("NO_SUCH_SET", f"{error}.")
            units = ("us", "bus_GB/s")
            return tuple(Prediction.refusal(reason, unit=unit, model=self.version) for unit in units)
        ratio = found.bus_low_gigabytes_per_s / found.bus_high_gigabytes_per_s
        shared = (PROBABILITY, 0.2 * ratio if found.unknown else ratio, self.version, found.reasons)
        values = (
            (found.latency_us, found.latency_low_us, found.latency_high_us, "us"),
            (found.bus_gigabytes_per_s, found.bus_low_gigabytes_per_s, found.bus_high_gigabytes_per_s, "bus_GB/s"),
        )  # fmt: skip
        probability, confidence, version, reasons = shared
        return tuple(
            Prediction(value, low, high, probability, unit, confidence, version, reasons)
            for value, low, high, unit in values
        )

    def explain(self, request: BandwidthQuestion) -> tuple[Reason, ...]:
        """Which algorithm and wires bound it, and how much was learned on top."""
        try:
            return _reasons(self._answer(request))
        except BandwidthError as error:
            return (Reason("NO_SUCH_SET", f"{error}."),)

    def _answer(self, request: BandwidthQuestion) -> _Answer:
        if not 1 <= request.bytes <= MAX_BYTES:
            raise BandwidthError(f"{request.bytes:,} bytes are no message; from 1 to {MAX_BYTES:,} are understood")
        if self._residual is None:
            raise ValueError("the bandwidth predictor has not been fitted; call fit or load first")
        gpus = gpu_set(request.machine, request.gpus, request.nodes)
        return self._of(gpus, request.collective, request.bytes, request.machine_key)

    def _of(self, gpus: GpuSet, kind: Collective, size_bytes: int, key: str) -> _Answer:
        if self._residual is None:
            raise ValueError("the bandwidth predictor has not been fitted; call fit or load first")
        physics = analytic(gpus, kind, size_bytes)
        mean, deviation, near = answer(self._residual, gpus, describe(gpus, kind), *weights_at(size_bytes))
        width = self._widths.at(size_bytes, near)
        added = 0.0
        if self.calibration.probes:
            added, deviation = self.calibration.correction(
                key, _software(gpus), kind, gpus.count, gpus.nodes, size_bytes, deviation
            )
        log_latency = math.log(physics.latency_us) + mean + added
        spread = spread_of(deviation, width, gpus)
        return _Answer(gpus, physics, log_latency, deviation, spread, near, mean + added)

    def save(self, folder: Path) -> None:
        if self._residual is None:
            raise ValueError("the bandwidth predictor has not been fitted; there is nothing to save")
        one = self._residual
        arrays = {"inducing": one.inducing, "weights": one.weights, "reductions": one.reductions}
        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, folder / _ARRAYS)
        widths = [[name, known, value] for (name, known), value in sorted(self._widths.scales.items())]
        facts = {"version": _VERSION, "names": NAMES, "settings": asdict(self.settings), "widths": widths}
        (folder / _FACTS).write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / _FACTS
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            if facts["version"] != _VERSION or tuple(facts["names"]) != NAMES:
                raise ValueError("the model was fitted on other descriptors; train it again")
            loaded = cls(settings_of(facts["settings"]))
            loaded._widths = Widths({(str(name), bool(known)): float(v) for name, known, v in facts["widths"]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: not a saved bandwidth predictor ({error})") from error
        path = folder / _ARRAYS
        try:
            arrays = load_file(path)
            loaded._residual = Residual(
                loaded.settings, arrays["inducing"], arrays["weights"], arrays["reductions"]
            )  # fmt: skip
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ValueError(f"{path}: no residual of a bandwidth predictor ({error})") from error
        return loaded


def spread_of(deviation: float, width: float, gpus: GpuSet) -> float:
    """Half the interval in log units; what is not known of the hardware comes on top."""
    return math.hypot(width * deviation, _UNKNOWN_SPREAD if gpus.unknown else 0.0)


def settings_of(parameters: Mapping[str, Any]) -> KernelSettings:
    """From JSON, where tuples are lists."""
    read: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items()}
    return KernelSettings(**read)


def _software(gpus: GpuSet) -> str:
    one = gpus.software
    return f"{one.transport} {one.tuned} {one.version[0]}.{one.version[1]} {one.algorithm}"


def _estimate(
    gpus: tuple[int, ...], kind: Collective, size_bytes: int, found: _Answer, version: ModelVersion
) -> BandwidthEstimate:
    latency_us, spread = math.exp(found.log_latency), math.exp(found.spread)
    algorithm_gbps = size_bytes / latency_us / 1e3
    bus_gbps = algorithm_gbps * kind.bus_factor(found.gpus.ranks)
    return BandwidthEstimate(
        gpus, found.gpus.nodes, kind, size_bytes, latency_us, latency_us / spread,
        latency_us * spread, algorithm_gbps, bus_gbps, bus_gbps / spread, bus_gbps * spread,
        found.gpus.ring_gbps or found.gpus.network_gbps, PROBABILITY, found.physics.algorithm,
        bool(found.gpus.unknown), version, _reasons(found),
    )  # fmt: skip


def _reasons(found: _Answer) -> tuple[Reason, ...]:
    gpus, physics = found.gpus, found.physics
    links = {"switch": "through link switches", "mesh": "over direct links", "pcie": "over PCIe", "alone": "alone"}
    text = (
        f"{gpus.count} GPUs {links[gpus.way.value]} in each of {gpus.nodes} node(s): {physics.algorithm} at "
        f"{physics.gigabytes_per_s:.3g} GB/s takes {physics.latency_us:.4g} µs."
    )
    numbers: dict[str, float | int | str] = {
        "analytic_us": physics.latency_us, "ring_gigabytes_per_s": gpus.ring_gbps,
        "network_gigabytes_per_s": gpus.network_gbps,
    }  # fmt: skip
    learned = f"Measurements of like hardware say × {math.exp(found.residual):.2f} (likeness {found.near:.2f} of 1)."
    reasons = [
        Reason("ANALYTIC", text, numbers),
        Reason("LEARNED", learned, {"factor": math.exp(found.residual), "likeness": found.near}),
    ]
    if gpus.unknown:
        what = ", ".join(gpus.unknown)
        reasons.append(Reason("UNKNOWN_TOPOLOGY", f"Unknown topology, so the interval is wide: {what}."))
    return tuple(reasons)
