"""Services beside batch on one GPU: late requests and GPU-hours of each way to share it, in one run.

Services answer public traces of requests (``KOPT_DATA_DIR/demand``), twelve hours each, scaled so that the busiest
minutes take 40 % of the service's time; a request takes 0.25 s alone and is promised in 1.25 s. The families differ in
what the batch pulls on bandwidth, when it has work, how wide services are, and whether the daemon of MPS dies. The
ladder was made with the development families; the others were run once it was done, on every other series (of which
earlier runs of the development families had drawn windows, too).

*exclusive*: a GPU each. *turns*: time-slicing. *equal parts*: MPS with 100 divided by pods per cent for each. *kopt*:
the policy's plan and its ladder, where a step costs a restart of a minute. Prints Markdown; returns 1 where kopt has
more late requests than a fixed way to share, or holds more GPUs than exclusive, over the families kept back.

    python -m benchmarks sharing
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.tables import markdown
from kopt.core.scheduling.workload_class import WorkloadClass
from kopt.core.sharing.modes import SharingExecutor, SharingMode
from kopt.data.demand.load import load
from kopt.data.demand.table import DemandSeries
from kopt.policies.fractions.ladder import LadderSettings, rungs
from kopt.policies.fractions.sharing import (
    ClientShare,
    Sharer,
    SharingHardware,
    SharingPlan,
    SharingSettings,
    plan_claim,
)
from kopt.simulator.sharing import Batch, Outage, Service, SharedGpu, SharedRun, replay

SPAN_S, SERVICE_S, _PROMISED_S, _BUSIEST = 12 * 3600.0, 0.25, 1.25, 0.4
_H100 = SharingHardware(SharingExecutor.DRA, 81_559, (9, 0))
_SETTINGS, _LADDER = SharingSettings(), LadderSettings()
_SEEDS = 3


@dataclass(frozen=True)
class Family:
    """``widths``: of the services, in per cent of the SMs; ``pull`` as in ``simulator.sharing``."""

    name: str
    widths: tuple[int, ...]
    batch: int
    pull: float
    works: Callable[[float], bool] = lambda _: True
    outage: Outage = Outage()


DEVELOPMENT = (
    Family("compute-bound batch", (30, 20), 60, 0.3),
    Family("as published (pull 0.7)", (30, 20), 60, 0.7),
    Family("as published (pull 1.2)", (30,), 90, 1.2),
    Family("bandwidth-bound batch", (30,), 90, 6.0),
    Family("bandwidth-bound, 20 of 60 min", (30,), 90, 6.0, lambda now_s: now_s % 3600 < 1200),
    Family("a wide service", (70,), 90, 0.7),
    Family("daemon away for 30 min", (30, 20), 60, 0.7, outage=Outage(20_000.0, 21_800.0)),
)
KEPT_BACK = (
    Family("three narrow services", (15, 15, 10), 80, 0.5),
    Family("much bandwidth (pull 3)", (40,), 70, 3.0),
    Family("caches thrashed, 5 of 30 min", (25,), 60, 10.0, lambda now_s: now_s % 1800 < 300),
    Family("two services that do not fit", (45, 35), 50, 0.9),
    Family("light batch", (50,), 30, 1.5),
    Family("daemon away for 2 h", (20,), 90, 1.0, outage=Outage(15_000.0, 22_200.0)),
)


def main() -> int:
    """Print both tables; 0 where nothing is worse over the families kept back."""
    series = request_series()
    if not series:
        print("No traces of requests: KOPT_DATA_DIR names a folder with demand/.", file=sys.stderr)
        return 0
    print("Development\n")
    _table(DEVELOPMENT, series[::2])
    print("\nKept back\n")
    totals = _table(KEPT_BACK, series[1::2])
    late = {name: _share(run) for name, run in totals.items()}
    is_worse = late["kopt"] > min(late["turns"], late["equal parts"])
    return int(is_worse or totals["kopt"].gpu_s > totals["exclusive"].gpu_s)


def _table(families: Sequence[Family], series: Sequence[DemandSeries]) -> dict[str, SharedRun]:
    """Prints one; the sums over all families by way."""
    rows, totals = [], {name: SharedRun() for name in WAYS}
    for number, family in enumerate(families):
        for name, way in WAYS.items():
            run = _merged([way(_gpu(family, series, number, seed)) for seed in range(_SEEDS)])
            totals[name] = _merged([totals[name], run])
            rows.append((family.name, name, *_figures(run)))
    rows += [("all", name, *_figures(run)) for name, run in totals.items()]
    print(markdown(["family", "way", "late requests", "GPU-hours", "batch, GPU-hours alone", "steps"], rows))
    return totals


def request_series() -> list[DemandSeries]:
    """Requests by the minute, for as long as a run at least."""
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "demand"
    if not folder.exists():
        return []
    listed = [item for item in load(folder) if item.unit == "requests" and item.step_s <= 300]
    listed.sort(key=lambda item: item.name)
    return [item for item in listed if len(item.value) * item.step_s >= 2 * SPAN_S]


def _gpu(family: Family, series: Sequence[DemandSeries], number: int, seed: int) -> SharedGpu:
    generator = np.random.default_rng([number, seed])
    services = []
    for at, width in enumerate(family.widths):
        sharer = Sharer(f"service-{at}", WorkloadClass.INFERENCE, width, width * 4 // 10, 12_000, owner="a")
        item = series[int(generator.integers(len(series)))]
        services.append(Service(sharer, drawn_arrivals(item, generator), SERVICE_S, _PROMISED_S))
    batch = Sharer("batch", WorkloadClass.UNATTENDED, family.batch, family.batch, 24_000, owner="a")
    return SharedGpu(services, [Batch(batch, family.pull, family.works)], family.outage)


def drawn_arrivals(item: DemandSeries, generator: np.random.Generator, busiest: float = _BUSIEST) -> list[float]:
    """A window of the series as requests one by one, scaled so that the busiest minutes take that part of the time of a
    service."""
    steps = int(SPAN_S // item.step_s)
    start = int(generator.integers(len(item.value) - steps))
    window = np.nan_to_num(np.asarray(item.value[start : start + steps], dtype=float))
    rates = window / max(float(np.quantile(window, 0.99)), 1e-9) * busiest / SERVICE_S * item.step_s
    counts = generator.poisson(np.minimum(rates, 2 * busiest / SERVICE_S * item.step_s))
    times = [step * item.step_s + generator.random(count) * item.step_s for step, count in enumerate(counts)]
    return sorted(float(at_s) for each in times for at_s in each)


def _fixed(mode: SharingMode) -> Callable[[SharedGpu], SharedRun]:
    def run(gpu: SharedGpu) -> SharedRun:
        percent = 100 if mode is SharingMode.EXCLUSIVE else 100 // len(gpu.sharers)
        shares = tuple(ClientShare(each.name, percent, each.mib) for each in gpu.sharers)
        replicas = 1 if mode is SharingMode.EXCLUSIVE else len(shares)
        return replay(gpu, [SharingPlan(mode, replicas, shares)], SPAN_S)

    return run


def _kopt(gpu: SharedGpu) -> SharedRun:
    plan = plan_claim(_H100, gpu.sharers, _SETTINGS)
    return replay(gpu, rungs(plan, _H100, gpu.sharers, _SETTINGS), SPAN_S, _LADDER)


WAYS: dict[str, Callable[[SharedGpu], SharedRun]] = {
    "exclusive": _fixed(SharingMode.EXCLUSIVE),
    "turns": _fixed(SharingMode.TIME_SLICING),
    "equal parts": _fixed(SharingMode.MPS),
    "kopt": _kopt,
}


def _merged(runs: Sequence[SharedRun]) -> SharedRun:
    total = SharedRun()
    for run in runs:
        total = replace(
            total,
            requests=total.requests + run.requests,
            late=total.late + run.late,
            batch_s=total.batch_s + run.batch_s,
            gpu_s=total.gpu_s + run.gpu_s,
            moves=total.moves + run.moves,
        )
    return total


def _share(run: SharedRun) -> float:
    return run.late / max(1, run.requests)


def _figures(run: SharedRun) -> tuple[str, ...]:
    return f"{_share(run):.2%}", f"{run.gpu_s / 3600:.0f}", f"{run.batch_s / 3600:.0f}", str(run.moves)


if __name__ == "__main__":
    raise SystemExit(main())
