"""How many small inference pods a GPU takes until requests are slowed by more than 1.3 times at the 99th percentile.

Each pod answers a window of twelve hours of public traces of requests, as in ``benchmarks.sharing``, of which the
traces kept back there are used; nothing was fitted to this. A pod's slow-down is the 99th percentile of its latency
over that of the same requests on a GPU alone, and the worst pod of all windows counts. *replicas*: of NVIDIA's device
plugin by MPS or in turns, all of them taken. *kopt*: as many pods of a GPU as the policy plans for 48 on a node.
*most*: the largest number of equal parts that keeps the bound, found by trying all: what a planner could reach that
knew the future. Interference is the model of ``simulator.sharing``, as no measurements of many pods on one GPU are
public.

    python -m benchmarks density
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.sharing import SERVICE_S, SPAN_S, drawn_arrivals, request_series
from benchmarks.tables import markdown
from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.sharing.modes import SharingExecutor, SharingMode
from kopt.data.demand.table import DemandSeries
from kopt.policies.fractions.sharing import (
    ClientShare,
    Sharer,
    SharingHardware,
    SharingPlan,
    SharingSettings,
    plan_node,
)
from kopt.simulator.sharing import Service, SharedGpu, replay

_BOUND, _QUANTILE, _WINDOWS, _MOST = 1.3, 0.99, 3, 12
_NODE = 48
"""Pods of a node that are planned for."""
_FEWEST = 500
"""Requests in a window; those with fewer have no 99th percentile to speak of, and are drawn again."""
_H100 = SharingHardware(SharingExecutor.DEVICE_PLUGIN, 81_559, (9, 0))


@dataclass(frozen=True)
class Small:
    """``width``: of the SMs, in per cent; ``pull``: on bandwidth and caches, per share of SMs that neighbours use.
    ``busiest``: the part of its time that a pod has work in its busiest minutes."""

    name: str
    width: int
    mib: int
    pull: float
    busiest: float


@dataclass(frozen=True)
class Window:
    """``alone_s``: of each service the quantile of its latency on a GPU of its own."""

    services: Sequence[Service]
    alone_s: Sequence[float]


FAMILIES = (
    Small("little work, as published (pull 0.7)", 10, 6_000, 0.7, 0.2),
    Small("little work, as published (pull 1.2)", 10, 6_000, 1.2, 0.2),
    Small("busier (40 %)", 10, 6_000, 0.7, 0.4),
    Small("much bandwidth (pull 3)", 10, 6_000, 3.0, 0.2),
    Small("wider (20 % of the SMs)", 20, 6_000, 0.7, 0.2),
)


def main() -> int:
    """Print the table."""
    series = request_series()[1::2]
    if not series:
        print("No traces of requests: KOPT_DATA_DIR names a folder with demand/.", file=sys.stderr)
        return 0
    rows = [row for number, family in enumerate(FAMILIES) for row in _rows(family, series, number)]
    print(markdown(["family", "way", "pods per GPU", "slow-down, p99", f"within {_BOUND}"], rows))
    return 0


def _rows(family: Small, series: Sequence[DemandSeries], number: int) -> list[tuple[str, ...]]:
    windows = [_window(family, series, np.random.default_rng([number, window])) for window in range(_WINDOWS)]
    sharers = [replace(windows[0].services[0].sharer, name=f"pod-{at}") for at in range(_NODE)]
    planned = plan_node(_H100, sharers, SharingSettings())
    ways = {
        "a GPU for each": (SharingMode.EXCLUSIVE, 1),
        "4 replicas in turns": (SharingMode.TIME_SLICING, 4),
        "4 replicas by MPS": (SharingMode.MPS, 4),
        "10 replicas by MPS": (SharingMode.MPS, 10),
        "kopt": (planned.mode, planned.replicas),
    }
    found = {name: (pods, _worst(family, windows, mode, pods)) for name, (mode, pods) in ways.items()}
    tried = ((pods, _worst(family, windows, SharingMode.MPS, pods)) for pods in range(_MOST, 1, -1))
    found["most"] = next((each for each in tried if each[1] <= _BOUND), (1, 1.0))
    return [
        (family.name, name, str(pods), f"{slowdown:.2f}", "yes" if slowdown <= _BOUND else "no")
        for name, (pods, slowdown) in found.items()
    ]


def _services(family: Small, series: Sequence[DemandSeries], generator: np.random.Generator) -> list[Service]:
    result = []
    for at in range(_MOST):
        arrivals: list[float] = []
        while len(arrivals) < _FEWEST:
            item = series[int(generator.integers(len(series)))]
            arrivals = drawn_arrivals(item, generator, family.busiest)
        sharer = Sharer(
            f"pod-{at}", WorkloadClass.INFERENCE, family.width, family.width * 4 // 10, family.mib, owner="a"
        )
        result.append(Service(sharer, arrivals, SERVICE_S, 5 * SERVICE_S))
    return result


def _window(family: Small, series: Sequence[DemandSeries], generator: np.random.Generator) -> Window:
    services = _services(family, series, generator)
    return Window(services, _latencies(SharedGpu(services, ()), SharingMode.EXCLUSIVE))


def _worst(family: Small, windows: Sequence[Window], mode: SharingMode, pods: int) -> float:
    """The largest slow-down of a pod in any window."""
    result = 1.0
    for window in windows if mode is not SharingMode.EXCLUSIVE else ():
        shared = _latencies(SharedGpu(window.services[:pods], (), pull=family.pull), mode)
        result = max(result, *(after / before for before, after in zip(window.alone_s, shared, strict=False)))
    return result


def _latencies(gpu: SharedGpu, mode: SharingMode) -> list[float]:
    """Of each pod the quantile."""
    count = len(gpu.services)
    percent = 100 if mode is SharingMode.EXCLUSIVE else 100 // count
    shares = tuple(ClientShare(each.name, percent, each.mib) for each in gpu.sharers)
    run = replay(gpu, [SharingPlan(mode, count, shares)], SPAN_S)
    return [float(np.quantile(each, _QUANTILE)) for each in run.latencies_s]


if __name__ == "__main__":
    raise SystemExit(main())
