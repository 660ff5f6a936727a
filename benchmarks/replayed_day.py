"""A day of a cluster, played in minutes onto a real API server: do page, dashboards, alerts, command line and cost say
the same, and what is true?

As ``tests/day`` has it, at 1,250 nodes with 8 GPUs: pods of a trace's jobs, kube-state-metrics, the telemetry agents of
all nodes (the product's code over made-up drivers), a real Prometheus with the shipped rules, the meter and the pages.
An hour of the day passes in a fraction of one, and so do the windows of the rules that look back an hour. Prints tables
in Markdown; returns 1 where something does not agree.

    python -P -m benchmarks replayed-day
    KOPT_REPLAYED_NODES=20 KOPT_REPLAYED_MINUTES=5 python -P -m benchmarks replayed-day

Jobs are as many as ``KOPT_REPLAYED_JOBS`` at most; ``KOPT_REPLAYED_PICTURES`` is a folder for pictures of the pages at
the end. After each table stands who used the machine since the one before, and how long Prometheus took for its rules:
on two cores that says what gives way first. From 200 nodes on an agent reads where something has changed, and else
about every half a minute: what agents use here is not what they cost then.
"""

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil

TRACE = "philly_first_half.csv.gz"
NODES, MINUTES, MOST_JOBS_OF_A_NODE, MOST_JOBS = 1_250, 30.0, 6, 3_000
MOMENTS = (0.5, 0.8, 1.0)
"""Of the day: after a node is lost, while its pods are there still; after an XID; the end."""


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
    jobs = int(os.environ.get("KOPT_REPLAYED_JOBS", min(MOST_JOBS, MOST_JOBS_OF_A_NODE * nodes)))
    plan = planned(read_jobs(path), nodes, most_jobs=jobs)
    print(f"{nodes:,} nodes x 8 GPUs, {len(plan.runs):,} pods, a day in {span_s / 60:g} min\n", flush=True)
    return _played(plan, nodes, span_s)


def _played(plan: "Plan", nodes: int, span_s: float) -> int:  # type: ignore[name-defined]  # noqa: F821
    from controlplane.kwok import Kwok
    from controlplane.plane import ControlPlane

    from tests.day import answers
    from tests.day.agents import LARGE
    from tests.day.plan import DAY_S
    from tests.day.running import Times, home_of, running_day

    times = Times(span_s)
    if nodes >= LARGE:
        # As seldom as by the chart's defaults.
        times = Times(span_s, read_s=10, scrape_s=30, evaluate_s=30, reconcile_s=60)
    if times.hour_s < 2 * times.evaluate_s:
        print(f"an hour passes in {times.hour_s:.0f} s, too soon for what is seen every {times.evaluate_s:.0f} s\n")
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
                load = _Load(day.prometheus)
                print(load.text(), flush=True)
                for moment in MOMENTS:
                    day.player.until(moment * DAY_S)
                    asked_s = time.monotonic()
                    rows = answers.settled(lambda: answers.now(day), 60 + 2 * times.late_s)
                    wrong += sum(bool(row.wrong) for row in rows)
                    took_s = time.monotonic() - asked_s
                    print(f"\nAt {moment:.0%} of the day, {took_s:.0f} s later:\n\n{answers.written(rows)}", flush=True)
                    print(f"\n{load.text()}; actions late by at most {day.player.latest_s:.1f} s", flush=True)
                rows = answers.settled(lambda: answers.so_far(day), 60)
                wrong += sum(bool(row.wrong) for row in rows)
                print(f"\nThe day:\n\n{answers.written(rows)}")
                if folder_of_pictures := os.environ.get("KOPT_REPLAYED_PICTURES"):
                    # Not before: it needs a browser.
                    from tests.day import pictures

                    pictures.photograph(day.pages, Path(folder_of_pictures))
                print(f"\n{day.agents.slowest}")
        finally:
            kwok.stop()
            plane.stop()
    return int(wrong > 0)


class _Load:
    """What processes used of the cores since it was asked last, and how long Prometheus' rules took."""

    def __init__(self, prometheus: str) -> None:
        self._prometheus = prometheus
        self._before_s: Counter[str] = Counter()
        self._at_s = time.monotonic()

    def text(self) -> str:
        now, at_s = self._cpu_s(), time.monotonic()
        used = {name: seconds for name, value in now.items() if (seconds := value - self._before_s[name]) >= 1}
        names = [f"{name} {seconds:.0f}" for name, seconds in sorted(used.items(), key=lambda each: -each[1])]
        self._before_s, passed_s, self._at_s = now, at_s - self._at_s, at_s
        load = os.getloadavg()[0]
        return f"CPU seconds of {passed_s:.0f} s: {', '.join(names)}; rules: {self._rules()}; load {load:.0f}"

    def _cpu_s(self) -> Counter[str]:
        result: Counter[str] = Counter()
        own = psutil.Process()
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):
                times = process.cpu_times()
                result["replay and agents" if process == own else _name(process)] += times.user + times.system
        return result

    def _rules(self) -> str:
        """Seconds of the latest evaluation of each group that took a second and more, and of all."""
        reply = httpx.get(f"{self._prometheus}/api/v1/rules", timeout=60, trust_env=False).json()
        took_s = {group["name"]: group["evaluationTime"] for group in reply["data"]["groups"]}
        long = [f"{name} {seconds:.1f} s" for name, seconds in took_s.items() if seconds >= 1]
        return ", ".join([*long, f"all {sum(took_s.values()):.1f} s"])


def _name(process: psutil.Process) -> str:
    """Of a program; of those in Python, what it was asked for."""
    words = process.cmdline()
    known = [word for word in words if word in ("meter", "kopt.cli.local.pages")]
    return known[0] if known else process.name()


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
