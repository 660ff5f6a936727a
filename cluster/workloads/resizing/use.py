"""What containers used of CPU and memory, from the Prometheus that scrapes cAdvisor's metrics."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kopt.core.workload.rightsizing import ContainerUse

if TYPE_CHECKING:
    from kopt.cluster.client.prometheus import Prometheus

Use = Mapping[tuple[str, str, str], ContainerUse]
"""By namespace, pod and container."""
_BY = "namespace, pod, container"
_RATE_S = 300
_LEAST_STEP_S, _MOST_STEPS = 60, 2000
_LARGEST_BYTES = 64 << 20


def queries(namespace: str, since_s: int) -> dict[str, str]:
    """PromQL by field of ContainerUse; as robusta's KRR asks, over windows of five minutes for CPU."""
    step_s = max(_LEAST_STEP_S, since_s // _MOST_STEPS)
    selector = 'container!="",container!="POD"' + (f',namespace="{namespace}"' if namespace else "")
    cpu = f"max by ({_BY}) (rate(container_cpu_usage_seconds_total{{{selector}}}[{_RATE_S}s]))[{since_s}s:{step_s}s]"
    memory = f"max by ({_BY}) (container_memory_working_set_bytes{{{selector}}})[{since_s}s:{step_s}s]"
    return {
        "cpu_p95": f"1000 * quantile_over_time(0.95, {cpu})",
        "cpu_max": f"1000 * max_over_time({cpu})",
        "memory_max_bytes": f"max_over_time({memory})",
        "measured_s": f"{step_s} * count_over_time({memory})",
    }


async def read_use(prometheus: "Prometheus", namespace: str, since_s: int) -> Use:
    """Containers without one of the series are left out. Raises PrometheusError."""
    values: dict[tuple[str, str, str], dict[str, float]] = {}
    for field, query in queries(namespace, since_s).items():
        for labels, value in await prometheus.now(query, _LARGEST_BYTES):
            if value == value:
                key = labels.get("namespace", ""), labels.get("pod", ""), labels.get("container", "")
                values.setdefault(key, {})[field] = value
    return {key: ContainerUse(**fields) for key, fields in values.items() if len(fields) == 4}


def together(uses: "list[ContainerUse | None]") -> ContainerUse | None:
    """Of the same container in every pod of a workload: the highest use, over the shortest time that was measured;
    None where one of them was not measured."""
    measured = [use for use in uses if use is not None]
    if not measured or len(measured) < len(uses):
        return None
    return ContainerUse(
        max(use.cpu_p95 for use in measured),
        max(use.cpu_max for use in measured),
        max(use.memory_max_bytes for use in measured),
        min(use.measured_s for use in measured),
    )
