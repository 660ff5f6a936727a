"""How busy each GPU of a cluster is now, and whose it is, from a Prometheus that scrapes GPU exporters."""

import math
import time
from collections.abc import Mapping
from typing import Any

from kopt.core.scheduling.gpu_map import GpuActivity
from kopt.data.demand.prometheus import PrometheusError, Server
from kopt.data.gpu_use import ACTIVITY
from kopt.formats.gpu_metrics import exporters

NEWEST_S = 120
"""Older samples are not now: an exporter that is gone says nothing."""
_LABELS = "namespace,pod,exported_namespace,exported_pod,gpu,gpu_id,Hostname,hostname,node"


def read_gpu_activity(server: Server, now_s: float | None = None) -> Mapping[str, Mapping[str, GpuActivity]]:
    """By node and index of the GPU; partitions of a GPU count as the busiest of them.

    The better series win, as for ``read_gpu_use``. Series without node or index are left out. Raises PrometheusError.
    """
    at_s = time.time() if now_s is None else now_s
    result: dict[str, dict[str, GpuActivity]] = {}
    for name, whole in ACTIVITY.items():
        # Not the last sample of a window: that of a pod which has ended is no longer one by its end in Prometheus.
        query = f"max by ({_LABELS}) ({name} and timestamp({name}) >= {at_s - NEWEST_S:.3f})"
        measured = _by_gpu(server.query_range(query, at_s, at_s, 1), whole)
        for node, gpus in measured.items():
            result[node] = {**gpus, **result.get(node, {})}
    return result


def _by_gpu(answer: list[dict[str, Any]], whole: float) -> dict[str, dict[str, GpuActivity]]:
    result: dict[str, dict[str, GpuActivity]] = {}
    try:
        for item in answer:
            labels = {str(key): str(value) for key, value in item["metric"].items()}
            share = float(item["values"][-1][1]) / whole
            node = labels.get("Hostname") or labels.get("hostname") or labels.get("node", "")
            gpu = labels.get("gpu") or labels.get("gpu_id")
            if not node or not gpu or not (math.isfinite(share) and 0 <= share <= 1.01):
                continue
            gpus = result.setdefault(node, {})
            reported = GpuActivity(min(share, 1.0), exporters.pod_of(labels))
            gpus[gpu] = max(gpus.get(gpu, reported), reported, key=lambda each: (each.busy, each.pod))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise PrometheusError("not a matrix of numbers as Prometheus answers it") from error
    return result
