"""The bandwidth predictor: analytic time × exp(learned residual), with conformal intervals."""

import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from safetensors.numpy import save_file

from kopt.core.hardware.bandwidth import (
    MAX_BYTES,
    BandwidthError,
    BandwidthEstimate,
    Collective,
    MeasuredCollective,
    Transport,
)
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import format_bytes
from kopt.models.bandwidth.calibration import Calibration, Probe
from kopt.models.bandwidth.curves import answer, curves, points
from kopt.models.bandwidth.features import NAMES, describe, weights_at
from kopt.models.bandwidth.intervals import PROBABILITY, Widths, faster_spread, fit_widths
from kopt.models.bandwidth.residual import KernelSettings, Residual
from kopt.models.bandwidth.rows import MeasuredRow
from kopt.models.base import Predictor
from kopt.models.registry.model_files import read_json, read_tensors
from kopt.topology.collective_cost import Analytic, analytic
from kopt.topology.graph import Machine
from kopt.topology.set_links import GpuSet, gpu_set

UNREGISTERED = ModelVersion("bandwidth", "unregistered")
_DOCUMENT, _ARRAYS = "bandwidth.json", "residual.safetensors"
_VERSION = 1
_WIDE, _NARROWED = math.log(1.5), 0.8
"""Intervals are wide from a factor of 1.5 either way; a probe is worth it that takes a fifth of the width or more."""
_UNKNOWN_SPREAD = 1.0
"""Half an interval in log units where the GPU, a link or the network is not known: a factor of 2.7 either way."""
_SOCKETS_SPREAD, _SOCKETS_GBPS = 0.7, 5.0
"""The same where sockets drive cards of 40 Gbit/s and more: 3 to 19 GB/s are published of such."""


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
    collective: Collective
    bytes: int
    physics: Analytic
    log_latency: float
    deviation: float
    """Of the logarithm; what is not known of the hardware is in it, so that probes take it away."""
    width: float
    """Deviations on either side of the answer that hold it with ``PROBABILITY``."""
    near: float
    residual: float
    most_faster: float
    """How far the latency may lie below the answer at most, whatever the deviation; in log units."""

    @property
    def spread(self) -> float:
        """How far the latency may lie above the answer, in log units."""
        return self.width * self.deviation

    @property
    def faster(self) -> float:
        """How far it may lie below."""
        return min(self.spread, self.most_faster)


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
        result = points(table)
        labelled = curves(result)
        self._residual = Residual.fit(labelled.curves, self.settings)
        self._widths = fit_widths(result, labelled, self.settings)
        return self

    def estimate(self, request: BandwidthQuestion) -> BandwidthEstimate:
        """Raises BandwidthError for a question that cannot be asked: GPUs that are not there, a size out of range."""
        result = self._answer(request)
        return _estimate(request.gpus, request.collective, request.bytes, result, self.version)

    def estimate_set(self, gpus: GpuSet, kind: Collective, size_bytes: int) -> BandwidthEstimate:
        """The same for a set that was read before."""
        if not 1 <= size_bytes <= MAX_BYTES:
            raise BandwidthError(f"{size_bytes:,} bytes are no message; from 1 to {MAX_BYTES:,} are understood")
        return _estimate(tuple(range(gpus.count)), kind, size_bytes, self._of(gpus, kind, size_bytes, ""), self.version)

    def observe(self, request: BandwidthQuestion, latency_us: float) -> None:
        """A probe measured on this cluster. Raises BandwidthError for an invalid time."""
        if not (math.isfinite(latency_us) and latency_us > 0):
            raise BandwidthError(f"{latency_us} µs is no time")
        kept, self.calibration = self.calibration, Calibration()
        try:
            result = self._answer(request)
        finally:
            self.calibration = kept
        lacking = math.log(latency_us) - result.log_latency
        probe = Probe(
            request.machine_key,
            _software(result.gpus),
            request.collective.value,
            result.gpus.domain_gpus,
            result.gpus.domains,
            math.log2(request.bytes),
            lacking,
            result.deviation,
        )
        self.calibration = kept.adding(probe)

    def observing(self, machine: Machine, probe: MeasuredCollective, gpus: tuple[int, ...], nodes: int) -> Self:
        """A copy that follows ``probe`` as well; ``gpus`` and ``nodes`` are those of the question that it is given
        with. Raises BandwidthError for a probe that cannot be."""
        result = copy.copy(self)
        selected, over = probe.gpus or gpus, probe.nodes or nodes
        result.observe(BandwidthQuestion(machine, selected, probe.collective, probe.bytes, over), probe.latency_us)
        return result

    def predict(self, request: BandwidthQuestion) -> tuple[Prediction, ...]:
        """Latency in microseconds and bus bandwidth in GB/s; refused where the question cannot be asked."""
        try:
            bandwidth_estimate = self.estimate(request)
        except BandwidthError as error:
            reason = Reason("NO_SUCH_SET", f"{error}.")
            units = ("us", "bus_GB/s")
            return tuple(Prediction.refusal(reason, unit=unit, model=self.version) for unit in units)
        ratio = bandwidth_estimate.bus_low_gigabytes_per_s / bandwidth_estimate.bus_high_gigabytes_per_s
        shared = (
            PROBABILITY,
            0.2 * ratio if bandwidth_estimate.unknown else ratio,
            self.version,
            bandwidth_estimate.reasons,
        )
        values = (
            (
                bandwidth_estimate.latency_us,
                bandwidth_estimate.latency_low_us,
                bandwidth_estimate.latency_high_us,
                "us",
            ),
            (
                bandwidth_estimate.bus_gigabytes_per_s,
                bandwidth_estimate.bus_low_gigabytes_per_s,
                bandwidth_estimate.bus_high_gigabytes_per_s,
                "bus_GB/s",
            ),
        )
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
        spread = spread_of(deviation, width, gpus)
        deviation, added = spread / width, 0.0
        if self.calibration.probes:
            added, deviation = self.calibration.correction(
                key, _software(gpus), kind, gpus.domain_gpus, gpus.domains, size_bytes, deviation
            )
        log_latency = math.log(physics.latency_us) + mean + added
        # A machine that probes show to be slow may still answer other questions as its hardware would.
        faster = faster_spread(spread, near, gpus.domains) + max(0.0, added)
        return _Answer(gpus, kind, size_bytes, physics, log_latency, deviation, width, near, mean + added, faster)

    def save(self, folder: Path) -> None:
        if self._residual is None:
            raise ValueError("the bandwidth predictor has not been fitted; there is nothing to save")
        residual = self._residual
        arrays = {"inducing": residual.inducing, "weights": residual.weights, "reductions": residual.reductions}
        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, folder / _ARRAYS)
        widths = [[name, known, value] for (name, known), value in sorted(self._widths.scales.items())]
        document = {"version": _VERSION, "names": NAMES, "settings": asdict(self.settings), "widths": widths}
        (folder / _DOCUMENT).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        path = folder / _DOCUMENT
        try:
            document = read_json(path)
            if document["version"] != _VERSION or tuple(document["names"]) != NAMES:
                raise ValueError("the model was fitted on other descriptors; train it again")
            loaded = cls(settings_of(document["settings"]))
            loaded._widths = Widths({(str(name), bool(known)): float(v) for name, known, v in document["widths"]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path}: not a saved bandwidth predictor ({error})") from error
        path = folder / _ARRAYS
        try:
            arrays = read_tensors(path)
            loaded._residual = Residual(loaded.settings, arrays["inducing"], arrays["weights"], arrays["reductions"])
        except (ValueError, KeyError) as error:
            raise ValueError(f"{path}: no residual of a bandwidth predictor ({error})") from error
        return loaded


def spread_of(deviation: float, width: float, gpus: GpuSet) -> float:
    """Half the interval in log units; what is not known of the hardware comes on top."""
    return math.hypot(width * deviation, doubt_of(gpus))


def doubt_of(gpus: GpuSet) -> float:
    """Half an interval in log units for what a description cannot tell."""
    if gpus.unknown:
        return _UNKNOWN_SPREAD
    return _SOCKETS_SPREAD if _by_sockets(gpus) else 0.0


def _by_sockets(gpus: GpuSet) -> bool:
    is_fast = gpus.network is not None and gpus.network.card_gbps >= _SOCKETS_GBPS
    return is_fast and gpus.software.transport is Transport.SOCKETS


def settings_of(parameters: Mapping[str, Any]) -> KernelSettings:
    """From JSON, where tuples are lists."""
    read: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in parameters.items()}
    return KernelSettings(**read)


def _software(gpus: GpuSet) -> str:
    software = gpus.software
    return f"{software.transport} {software.tuned} {software.version[0]}.{software.version[1]} {software.algorithm}"


def _estimate(
    gpus: tuple[int, ...], kind: Collective, size_bytes: int, result: _Answer, version: ModelVersion
) -> BandwidthEstimate:
    latency_us, spread, faster = math.exp(result.log_latency), math.exp(result.spread), math.exp(result.faster)
    algorithm_gbps = size_bytes / latency_us / 1e3
    bus_gbps = algorithm_gbps * kind.bus_factor(result.gpus.ranks)
    return BandwidthEstimate(
        gpus,
        result.gpus.nodes,
        kind,
        size_bytes,
        latency_us,
        latency_us / faster,
        latency_us * spread,
        algorithm_gbps,
        bus_gbps,
        bus_gbps / spread,
        bus_gbps * faster,
        result.gpus.ring_gbps or result.gpus.network_gbps,
        PROBABILITY,
        result.physics.algorithm,
        bool(result.gpus.unknown),
        version,
        _reasons(result),
    )


def _reasons(result: _Answer) -> tuple[Reason, ...]:
    gpus, physics = result.gpus, result.physics
    links = {"switch": "through link switches", "mesh": "over direct links", "pcie": "over PCIe", "alone": "alone"}
    text = (
        f"{gpus.count} GPUs {links[gpus.way.value]} in each of {gpus.nodes} node(s): {physics.algorithm} at "
        f"{physics.gigabytes_per_s:.3g} GB/s takes {physics.latency_us:.4g} µs."
    )
    numbers: dict[str, float | int | str] = {
        "analytic_us": physics.latency_us,
        "ring_gigabytes_per_s": gpus.ring_gbps,
        "network_gigabytes_per_s": gpus.network_gbps,
    }
    learned = f"Measurements of like hardware say × {math.exp(result.residual):.2f} (likeness {result.near:.2f} of 1)."
    reasons = [
        Reason("ANALYTIC", text, numbers),
        Reason("LEARNED", learned, {"factor": math.exp(result.residual), "likeness": result.near}),
    ]
    if gpus.unknown:
        what = ", ".join(gpus.unknown)
        reasons.append(Reason("UNKNOWN_TOPOLOGY", f"Unknown topology, so the interval is wide: {what}."))
    elif _by_sockets(gpus):
        assert gpus.network is not None
        text = (
            f"What sockets reach of cards of {gpus.network.card_gbps * 8:.3g} Gbit/s hangs on cores and settings, so "
            "the interval is wide."
        )
        reasons.append(Reason("UNKNOWN_TOPOLOGY", text))
    advice = _probe_advice(result)
    return (*reasons, advice) if advice is not None else tuple(reasons)


def _probe_advice(result: _Answer) -> Reason | None:
    """Which measurement would narrow a wide interval, and to what: on two nodes where that tells enough of all."""
    gpus = result.gpus
    if result.spread < _WIDE:
        return None
    for nodes in sorted({min(gpus.nodes, 2 * gpus.domain_nodes), gpus.nodes}):
        doublings = math.log2(gpus.domains / math.ceil(nodes / gpus.domain_nodes))
        narrowed = result.width * Calibration.deviation_after_probe(result.deviation, doublings)
        if narrowed <= _NARROWED * result.spread:
            return _advised(result, nodes, narrowed)
    return None


def _advised(result: _Answer, nodes: int, narrowed: float) -> Reason:
    gpus = result.gpus
    bus_gbps = result.bytes * result.collective.bus_factor(gpus.ranks) / math.exp(result.log_latency) / 1e3
    low, high = bus_gbps / math.exp(narrowed), bus_gbps * math.exp(min(narrowed, result.faster))
    text = (
        f"One {result.collective} of {format_bytes(result.bytes)} on {gpus.count} GPUs of {nodes} node(s), measured "
        f"and given as a probe, would narrow the interval from {bus_gbps / math.exp(result.spread):.3g} to "
        f"{bus_gbps * math.exp(result.faster):.3g} GB/s to a factor of {math.exp(narrowed):.2f} either way at most."
    )
    numbers = {"nodes": nodes, "low_gigabytes_per_s": low, "high_gigabytes_per_s": high}
    return Reason("PROBE_ADVISED", text, numbers)
