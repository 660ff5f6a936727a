"""A day of a cluster, played in minutes onto a real API server: do page, dashboards, alerts, command line and cost say
the same, and what is true?

As ``tests/day`` has it, at 1,250 nodes with 8 GPUs: pods of a trace's jobs, kube-state-metrics, the telemetry agents of
all nodes (the product's code over made-up drivers), a real Prometheus with the shipped rules, the meter and the pages.
An hour of the day passes in a fraction of one, and so do the windows of the rules that look back an hour. Prints tables
in Markdown; returns 1 where something does not agree.

    python -P -m benchmarks replayed-day
    KOPT_REPLAYED_NODES=20 KOPT_REPLAYED_MINUTES=5 python -P -m benchmarks replayed-day
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TRACE = "philly_first_half.csv.gz"
NODES, MINUTES, MOST_JOBS_OF_A_NODE = 1_250, 12.0, 6
MOMENTS = (0.5, 0.8, 1.0)
"""Of the day: after a node is lost, while its pods are there still; after an XID; the end."""
LARGE = 200
"""From so many nodes on series are scraped and rules evaluated as seldom as by the chart's defaults."""


def main() -> int:
    """Print the tables; 0 where all agree."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
    from kopt.data.jobs.training import read_jobs
    from tests.day.plan import planned

    path = Path(os.environ.get("KOPT_DATA_DIR", "")) / "jobs" / TRACE
    if not path.is_file():
        print(f"KOPT_DATA_DIR names no folder with jobs/{TRACE}")
        return 2
    nodes = int(os.environ.get("KOPT_REPLAYED_NODES", NODES))
    span_s = 60 * float(os.environ.get("KOPT_REPLAYED_MINUTES", MINUTES))
    plan = planned(read_jobs(path), nodes, most_jobs=max(4_000 if nodes >= LARGE else 0, MOST_JOBS_OF_A_NODE * nodes))
    print(f"{nodes:,} nodes x 8 GPUs, {len(plan.runs):,} pods, a day in {span_s / 60:g} min\n", flush=True)
    return _played(plan, nodes, span_s)


def _played(plan: "Plan", nodes: int, span_s: float) -> int:  # type: ignore[name-defined]  # noqa: F821
    from controlplane.kwok import Kwok
    from controlplane.plane import ControlPlane

    from tests.day import answers
    from tests.day.plan import DAY_S
    from tests.day.running import Times, home_of, running_day

    times = Times(span_s) if nodes < LARGE else Times(span_s, read_s=20, scrape_s=30, evaluate_s=30)
    wrong = 0
    with tempfile.TemporaryDirectory() as name, _environment(home_of(Path(name))):
        folder = Path(name)
        (folder / "plane").mkdir()
        plane = ControlPlane(folder / "plane")
        kwok = Kwok(plane)
        try:
            began_s = time.monotonic()
            with running_day(plane, kwok, folder, plan, times) as day:
                print(f"everything runs after {time.monotonic() - began_s:.0f} s", flush=True)
                for moment in MOMENTS:
                    day.player.until(moment * DAY_S)
                    asked_s = time.monotonic()
                    rows = answers.settled(lambda: answers.now(day), 60 + 2 * times.late_s)
                    wrong += sum(bool(row.wrong) for row in rows)
                    took_s = time.monotonic() - asked_s
                    print(f"\nAt {moment:.0%} of the day, {took_s:.0f} s later:\n\n{answers.written(rows)}", flush=True)
                rows = answers.settled(lambda: answers.so_far(day), 60)
                wrong += sum(bool(row.wrong) for row in rows)
                print(f"\nThe day:\n\n{answers.written(rows)}")
                late_s, read_s = day.player.latest_s, day.agents.slowest_s
                print(f"\nactions late by at most {late_s:.1f} s, all agents read in {read_s:.1f} s")
        finally:
            kwok.stop()
            plane.stop()
    return int(wrong > 0)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


if __name__ == "__main__":
    raise SystemExit(main())
