"""What GPU exporters reported over days, as OpenMetrics text for ``RunningPrometheus``."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

EVERY_S = 300
DAY_S = 86_400.0


@dataclass(frozen=True)
class Metric:
    """One series that ends now: a value, or one by the seconds that are left until now."""

    name: str
    labels: Mapping[str, str]
    value: float | Callable[[float], float]
    span_s: float = 2 * DAY_S

    def lines(self, now_s: float) -> Iterator[str]:
        labels = ",".join(f'{name}="{value}"' for name, value in self.labels.items())
        for left in range(int(self.span_s), -1, -EVERY_S):
            value = self.value(left) if callable(self.value) else self.value
            yield f"{self.name}{{{labels}}} {value!r} {now_s - left:.0f}".replace(" nan ", " NaN ")


def history(*metrics: Metric) -> str:
    """The series by their names, as the format wants them."""
    now_s = time.time()
    lines = []
    for name in dict.fromkeys(metric.name for metric in metrics):
        lines.append(f"# TYPE {name} gauge")
        lines += [line for metric in metrics if metric.name == name for line in metric.lines(now_s)]
    return "\n".join([*lines, "# EOF", ""])


def dcgm(namespace: str, pod: str, gpu: int = 0, *, moved: bool = False, **labels: str) -> dict[str, str]:
    """Labels as NVIDIA's dcgm-exporter writes them; ``moved`` where the scrape's own labels won over its."""
    prefix = "exported_" if moved else ""
    own = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x7k2p"} if moved else {}
    of = {f"{prefix}namespace": namespace, f"{prefix}pod": pod, f"{prefix}container": "main"}
    base = {"gpu": str(gpu), "UUID": f"GPU-{pod}-{gpu}", "modelName": "NVIDIA H100 80GB HBM3", "Hostname": "node-1"}
    return own | of | base | {"job": "dcgm-exporter"} | labels


def amd(namespace: str, pod: str, gpu: int = 0, **labels: str) -> dict[str, str]:
    """Labels as AMD's device-metrics-exporter writes them."""
    base = {"gpu_id": str(gpu), "hostname": "node-2", "card_series": "AMD Instinct MI300X OAM", "gpu_partition_id": "0"}
    of = {"namespace": namespace, "pod": pod, "container": "main", "gpu_compute_partition_type": "spx"}
    return of | base | {"job": "amd-metrics"} | labels
