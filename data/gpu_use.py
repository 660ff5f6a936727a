"""GPU memory and activity of pods over days, from a Prometheus that scrapes GPU exporters.

NVIDIA's dcgm-exporter gives ``DCGM_FI_DEV_FB_USED`` in MiB, ``DCGM_FI_PROF_GR_ENGINE_ACTIVE`` as a share and
``DCGM_FI_DEV_GPU_UTIL`` in per cent (its ``etc/default-counters.csv``), MIG devices with ``GPU_I_ID``. AMD's
device-metrics-exporter gives ``gpu_used_vram`` and ``gpu_gfx_activity`` with the labels ``pod`` and ``namespace`` (its
*List of Available Metrics*), in some releases with ``amd_`` before. One range query per series answers for all pods; a
point at time T stands for the step that ends at T. The containers of a pod are not told apart: the highest counts. Our
telemetry agent gives ``kopt_gpu_memory_used_bytes``, ``kopt_gpu_busy_ratio`` and, for each pod, ``kopt_gpu_held``.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kopt.core.hardware.gpu_telemetry import HELD
from kopt.core.units import Bytes, format_span
from kopt.core.workload.measured import MeasuredUse
from kopt.data.demand.prometheus import PrometheusError, Server, rows_of
from kopt.formats.gpu_metrics import MetricsError, exporters

Pod = tuple[str, str]
"""Namespace and name."""

_MEMORY = ("DCGM_FI_DEV_FB_USED", "gpu_used_vram", "amd_gpu_used_vram", "kopt_gpu_memory_used_bytes")
_TOTAL = ("gpu_total_vram", "amd_gpu_total_vram", "kopt_gpu_memory_total_bytes")
ACTIVITY = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
    "kopt_gpu_busy_ratio": 1.0,
    "DCGM_FI_DEV_GPU_UTIL": 100.0,
    "gpu_gfx_activity": 100.0,
    "amd_gpu_gfx_activity": 100.0,
}
"""Series of activity and what they call a whole, the better ones first."""
_LABELS = (
    "namespace,pod,exported_namespace,exported_pod,UUID,gpu,gpu_uuid,gpu_id,Hostname,hostname,GPU_I_ID,gpu_partition_id,"
    "gpu_compute_partition_type,modelName,card_series,card_model,job,node,uuid,partition,model"
)
_STEPS = 168
_SHORTEST_STEP_S = 300
"""Longer than intervals of scrapes, so that a step without a reading is a gap."""
_SHARED_FROM = 0.1
"""A GPU is shared where other pods had it in more of a pod's steps than this: one follows the other in a step, too."""


@dataclass(frozen=True)
class Readings:
    """Use by pod, and the pods whose readings were no numbers. ``is_named``: some series says whose GPU it is.
    ``until_s``: when the window ended, in Unix seconds."""

    uses: Mapping[Pod, MeasuredUse]
    not_numbers: frozenset[Pod]
    is_named: bool
    until_s: float = math.inf

    @property
    def activity(self) -> Mapping[Pod, float]:
        """Share of time, 0 to 1, in which kernels ran on a pod's GPUs."""
        return {pod: use.activity for pod, use in self.uses.items() if use.activity is not None}


class NoGpuSeriesError(PrometheusError):
    """Prometheus answers, and has no series of a GPU exporter."""


def read_gpu_use(server: Server, since_s: float, namespace: str = "", now_s: float | None = None) -> Readings:
    """The last ``since_s`` seconds before ``now_s`` (now) of every pod, or of those of a namespace.

    Raises PrometheusError where the server does not answer, and NoGpuSeriesError where no exporter is scraped.
    """
    until_s = time.time() if now_s is None else now_s
    step_s = min(max(math.ceil(since_s / _STEPS), _SHORTEST_STEP_S), math.ceil(since_s))
    # The last point has to be now, also where the steps do not fill the window.
    first_s = until_s - (max(int(since_s // step_s), 1) - 1) * step_s

    def ask(name: str, function: str) -> list[dict[str, Any]]:
        query = _query(name, function, step_s, namespace)
        return server.query_range(query, first_s, until_s, step_s)

    devices = _Devices(step_s)
    for name in (*_MEMORY, *_TOTAL):
        for labels, points in rows_of(ask(name, "max_over_time")):
            devices.add_memory(name, labels, points)
    if not devices.gpus and not _is_scraped(server, since_s, until_s):
        raise NoGpuSeriesError(
            f"{server.display_url} has no series of a GPU exporter in {format_span(since_s)}: neither "
            "DCGM_FI_DEV_FB_USED of NVIDIA's dcgm-exporter nor gpu_used_vram of AMD's device-metrics-exporter "
            "nor kopt_gpu_memory_used_bytes of the telemetry agent; is one of them scraped?"
        )
    for name in ACTIVITY:
        for labels, points in rows_of(ask(name, "avg_over_time")):
            devices.add_activity(name, labels, points)
    for labels, points in rows_of(ask(HELD, "max_over_time")):
        devices.add_holder(labels, points)
    return replace(devices.readings(), until_s=until_s)


def _query(name: str, function: str, step_s: int, namespace: str) -> str:
    selectors = [""] if not namespace else [_own(namespace), f'exported_namespace="{namespace}"']
    over_time = " or ".join(f"{function}({name}{{{selector}}}[{step_s}s])" for selector in selectors)
    return f"max by ({_LABELS}) ({over_time})"


def _own(namespace: str) -> str:
    return f'namespace="{namespace}",exported_namespace=""'


def _is_scraped(server: Server, since_s: float, until_s: float) -> bool:
    names = "|".join(_MEMORY)
    query = f'count(present_over_time({{__name__=~"{names}"}}[{math.ceil(since_s)}s]))'
    return bool(server.query_range(query, until_s, until_s, 1))


@dataclass
class _Gpu:
    """What one pod's time on one GPU or partition showed."""

    labels: Mapping[str, str]
    peaks: dict[str, float] = field(default_factory=dict)
    steps: set[float] = field(default_factory=set)
    jobs: set[str] = field(default_factory=set)
    activity: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def used_bytes(self) -> Bytes | None:
        try:
            return exporters.used_bytes(self.peaks)
        except MetricsError:
            return None

    def shares(self) -> list[float]:
        """Activity by step, of the best series that there is."""
        return next((self.activity[name] for name in ACTIVITY if self.activity[name]), [])


class _Devices:
    """Collects what series say, by pod and GPU."""

    def __init__(self, step_s: int) -> None:
        self._step_s = step_s
        self.gpus: dict[tuple[Pod, str], _Gpu] = {}
        self._together: set[Pod] = set()

    def add_memory(self, name: str, labels: Mapping[str, str], points: list[tuple[float, float]]) -> None:
        gpu = self._gpu(labels)
        if gpu is None:
            return
        numbers = {at_s: value for at_s, value in points if math.isfinite(value) and value >= 0}
        if not numbers:
            return
        short = name.removeprefix("amd_").upper()
        gpu.peaks[short] = max(gpu.peaks.get(short, 0.0), *numbers.values())
        if name in _MEMORY:
            gpu.steps |= numbers.keys()
            gpu.jobs |= {labels.get("job", "")} - {""}

    def add_activity(self, name: str, labels: Mapping[str, str], points: list[tuple[float, float]]) -> None:
        gpu = self._gpu(labels)
        if gpu is not None:
            whole = ACTIVITY[name]
            gpu.activity[name] += [min(value / whole, 1.0) for _, value in points if 0 <= value <= 1.01 * whole]

    def add_holder(self, labels: Mapping[str, str], points: list[tuple[float, float]]) -> None:
        """A pod that has a GPU beside others: the telemetry agent writes the GPU's figures once, with no pod."""
        try:
            pod, gpu = exporters.pod_of(labels), exporters.identity(labels)
        except MetricsError:
            return
        whole = self.gpus.get((("", ""), gpu))
        if whole is None or (pod, gpu) in self.gpus or not pod[1]:
            return
        steps = whole.steps & {at_s for at_s, _ in points}
        if steps:
            self.gpus[pod, gpu] = _Gpu(whole.labels, whole.peaks, steps, whole.jobs, whole.activity)
            self._together.add(pod)

    def _gpu(self, labels: Mapping[str, str]) -> _Gpu | None:
        try:
            return self.gpus.setdefault((exporters.pod_of(labels), exporters.identity(labels)), _Gpu(labels))
        except MetricsError:
            return None

    def readings(self) -> Readings:
        pods: dict[Pod, list[_Gpu]] = defaultdict(list)
        holders = Counter((gpu, step) for (_, gpu), item in self.gpus.items() for step in item.steps)
        shared = set(self._together)
        for (pod, gpu), item in self.gpus.items():
            if not pod[1]:
                continue
            pods[pod].append(item)
            others = sum(holders[gpu, step] > 1 for step in item.steps)
            if others > max(1.0, _SHARED_FROM * len(item.steps)):
                shared.add(pod)
        uses = {pod: use for pod, items in pods.items() if (use := self._use(items, pod in shared)) is not None}
        return Readings(uses, frozenset(pods.keys() - uses.keys()), bool(pods))

    def _use(self, items: list[_Gpu], is_shared: bool) -> MeasuredUse | None:
        peaks = [peak for item in items if (peak := item.used_bytes()) is not None]
        if not peaks:
            return None
        shares = [share for item in items for share in item.shares()]
        steps = set().union(*(item.steps for item in items))
        labels = items[0].labels
        return MeasuredUse(
            max(peaks),
            float(len(steps) * self._step_s),
            activity=sum(shares) / len(shares) if shares else None,
            activity_high=max(shares, default=None),
            gpu=exporters.model_of(labels),
            partition=any(exporters.is_partition(item.labels) for item in items),
            shared=is_shared,
            jobs=tuple(sorted(set().union(*(item.jobs for item in items)))),
        )
