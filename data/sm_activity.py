"""SMs that pods use, and the pressure on the GPUs of nodes, from a Prometheus that scrapes GPU exporters.

Our telemetry agent gives ``kopt_gpu_sm_active_ratio`` and ``kopt_gpu_busy_ratio`` (Hopper and newer), dcgm-exporter
``DCGM_FI_PROF_SM_ACTIVE`` and ``DCGM_FI_PROF_GR_ENGINE_ACTIVE``. SMs that were busy over the time in which kernels ran
are those that a pod fills while it runs. GPUs that several pods have are of no pod.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from kopt.core.sharing.pressure import Pressure, SmUse
from kopt.data.demand.prometheus import PrometheusError, Server
from kopt.formats.gpu_pressure import PRESSURE_QUERIES, Series, pressures_by_node, series_points

Pod = tuple[str, str]
"""Namespace and name."""
_STEP_S = 30
_LEAST_BUSY = 0.02
"""Of less time than this the width is noise."""


def read_sm_use(server: Server, since_s: float, now_s: float) -> Mapping[Pod, SmUse]:
    """Of pods that had a GPU alone in the last ``since_s`` seconds. Raises PrometheusError."""
    active = _of_pods("kopt_gpu_sm_active_ratio", "DCGM_FI_PROF_SM_ACTIVE")
    busy = _of_pods("kopt_gpu_busy_ratio", "DCGM_FI_PROF_GR_ENGINE_ACTIVE")
    width = f"{active} / ({busy} > {_LEAST_BUSY})"
    uses, widths = (
        dict(_by_pod(server.query_range(_high(query, since_s), now_s, now_s, 1))) for query in (active, width)
    )
    # What hardly ever ran may fill all of them.
    return {pod: SmUse(use, max(use, widths.get(pod, 1.0))) for pod, use in uses.items()}


def read_pressure(
    server: Server, since_s: float, now_s: float, slowdown_query: str = ""
) -> tuple[Mapping[str, list[tuple[float, Pressure]]], Mapping[Pod, list[tuple[float, float]]]]:
    """By node, of its busiest GPU; and the slow-down by pod, as ``slowdown_query`` gives it with labels ``namespace``
    and ``pod``. Raises PrometheusError."""
    start_s = now_s - since_s
    series = {
        field: _points(server.query_range(query, start_s, now_s, _STEP_S)) for field, query in PRESSURE_QUERIES.items()
    }
    pressures = pressures_by_node(series)
    slowdowns = server.query_range(slowdown_query, start_s, now_s, _STEP_S) if slowdown_query else []
    by_pod = {(labels.get("namespace", ""), labels.get("pod", "")): points for labels, points in _points(slowdowns)}
    return pressures, by_pod


def _of_pods(ours: str, exporters: str) -> str:
    """One series for each pod, also where the exporter's own pod has taken the labels."""
    moved = f'label_replace({exporters}{{exported_pod!=""}},"namespace","$1","exported_namespace","(.*)")'
    moved = f'label_replace({moved},"pod","$1","exported_pod","(.*)")'
    own = f'{exporters}{{exported_pod="",container!="",pod!=""}}'
    return f'max by (namespace,pod) ({ours}{{pod!=""}} or {moved} or {own})'


def _high(query: str, since_s: float) -> str:
    return f"quantile_over_time(0.95, ({query})[{math.ceil(since_s)}s:{_STEP_S}s])"


def _by_pod(answer: list[dict[str, Any]]) -> Iterator[tuple[Pod, float]]:
    for labels, points in _points(answer):
        if points and labels.get("pod"):
            yield (labels.get("namespace", ""), labels["pod"]), min(1.0, max(0.0, points[-1][1]))


def _points(answer: list[dict[str, Any]]) -> Iterator[Series]:
    try:
        yield from series_points(answer)
    except ValueError as error:
        raise PrometheusError(str(error)) from error
