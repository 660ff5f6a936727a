"""What the pods of workloads really used, from the Prometheus that ``--prometheus`` names."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.errors import Refused
from kopt.cli.output import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kopt.controllers.overview.running_workloads import PodKind
    from kopt.core.workload.measured import MeasuredUse
    from kopt.data.gpu_use import Readings

HINT = "What pods really used is not counted: add --prometheus URL (it scrapes dcgm-exporter or AMD's exporter)"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Question:
    """Where to ask, with which token, and about how many seconds back."""

    url: str
    since_s: int
    token_file: Path | None = None


class Measurements:
    """The readings of a window, by kind of pods."""

    def __init__(self, question: Question, readings: "Readings") -> None:
        self.question = question
        self._readings = readings

    def use_of(self, pod_kind: "PodKind") -> "MeasuredUse | None":
        """What the running pods of a workload used; None without readings of any."""
        from kopt.core.workload.measured import together

        namespace = pod_kind.workload.namespace
        uses = {name: self._readings.uses.get((namespace, name)) for name in pod_kind.pod_names}
        return together(self._since(use, pod_kind.started_s.get(name)) for name, use in uses.items() if use is not None)

    def _since(self, use: "MeasuredUse", started_s: float | None) -> "MeasuredUse":
        """A step with a reading counts in full, however late in it the pod began."""
        longest_s = use.measured_s if started_s is None else max(0.0, self._readings.until_s - started_s)
        return replace(use, measured_s=min(use.measured_s, longest_s))

    @property
    def activity(self) -> "Mapping[tuple[str, str], float]":
        """Share of time in which kernels ran on a pod's GPUs, by namespace and name of those with readings."""
        return self._readings.activity

    def remarks(self, pod_kind: "PodKind") -> list[str]:
        """What is to be known about the readings of a workload, in sentences."""
        use, names = self.use_of(pod_kind), pod_kind.pod_names
        if not names:
            return [f"{pod_kind.label}: not measured, as no pod of it runs"]
        if use is None:
            namespace = pod_kind.workload.namespace
            if any((namespace, name) in self._readings.not_numbers for name in names):
                return [f"{pod_kind.label}: not measured, as the readings of its pods are no numbers (NaN)"]
            return [f"{pod_kind.label}: not measured, as no series names its pods ({', '.join(names[:3])})"]
        result = []
        if use.pods < len(names):
            result.append(f"{pod_kind.label}: {use.pods} of {len(names)} pods were measured")
        if len(use.jobs) > 1:
            jobs = printable(", ".join(use.jobs))
            result.append(f"{pod_kind.label}: several exporters report its GPUs ({jobs}); the highest reading counts")
        return result

    @property
    def hint(self) -> str:
        """What to set where no series names any pod."""
        if self._readings.is_named:
            return ""
        return "The series name no pods: start dcgm-exporter with DCGM_EXPORTER_KUBERNETES=true"


def read(question: Question, namespace: str) -> Measurements:
    """Ask Prometheus about every pod, or those of a namespace. Raises Refused where there is nothing to be had."""
    from kopt.data.demand.prometheus import PrometheusError, Server
    from kopt.data.gpu_use import read_gpu_use

    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise Refused(f"{namespace!r} is no name of a namespace")
    try:
        with Server(question.url, token=read_token(question.token_file)) as server:
            return Measurements(question, read_gpu_use(server, float(question.since_s), namespace))
    except PrometheusError as error:
        raise Refused(f"measured use cannot be read: {error}") from error


def read_token(path: Path | None) -> str:
    """A bearer token for Prometheus; empty without a file. Raises Refused where it cannot be read."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path}: the token cannot be read ({error})") from error


def document(use: "MeasuredUse | None", of_pods: int, window_s: int) -> dict[str, Any]:
    """For programs: bytes, seconds and shares; null without readings."""
    return {
        "peak_bytes": None if use is None else int(use.peak_bytes),
        "activity": None if use is None else use.activity,
        "activity_high": None if use is None else use.activity_high,
        "measured_s": 0.0 if use is None else use.measured_s,
        "window_s": window_s,
        "pods": 0 if use is None else use.pods,
        "of_pods": of_pods,
        "partition": use is not None and use.partition,
        "shared": use is not None and use.shared,
        "scrape_jobs": [] if use is None else list(use.jobs),
    }
