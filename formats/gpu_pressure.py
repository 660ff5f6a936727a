"""How hard the GPUs of nodes are used, as queries of Prometheus over what our telemetry agent or dcgm-exporter gives.

``kopt_gpu_sm_active_ratio`` and ``DCGM_FI_PROF_SM_ACTIVE`` need profiling metrics (Hopper and newer, or DCGM).
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from kopt.core.sharing.pressure import Pressure

Series = tuple[Mapping[str, str], list[tuple[float, float]]]
"""Labels, and Unix seconds with values."""


def _of_nodes(ours: str, exporters: str) -> str:
    return f'max by (node) ({ours} or label_replace({exporters},"node","$1","Hostname","(.+)"))'


PRESSURE_QUERIES = {
    "sm_active": _of_nodes("kopt_gpu_sm_active_ratio", "DCGM_FI_PROF_SM_ACTIVE"),
    "memory": _of_nodes(
        "kopt_gpu_memory_used_bytes / kopt_gpu_memory_total_bytes",
        "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)",
    ),
}
"""By the field of Pressure: the busiest, or fullest, GPU of each node."""


def series_points(answer: Iterable[Any]) -> Iterator[Series]:
    """Of a matrix as Prometheus answers it, finite numbers alone. Raises ValueError for anything else."""
    try:
        for item in answer:
            labels = {str(key): str(value) for key, value in item["metric"].items()}
            numbers = [(float(at_s), float(value)) for at_s, value in item["values"]]
            yield labels, [(at_s, value) for at_s, value in numbers if math.isfinite(value)]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError("not a matrix of numbers as Prometheus answers it") from error


def pressures_by_node(answers: Mapping[str, Iterable[Series]]) -> dict[str, list[tuple[float, Pressure]]]:
    """Of the answers to ``PRESSURE_QUERIES``: by node, over time."""
    result: dict[str, dict[float, Pressure]] = defaultdict(dict)
    for field, answer in answers.items():
        for labels, points in answer:
            of_node = result[labels.get("node", "")]
            for at_s, value in points:
                of_node[at_s] = replace(of_node.get(at_s, Pressure()), **{field: value})
    return {node: sorted(points.items()) for node, points in result.items()}
