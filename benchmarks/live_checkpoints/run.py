"""May it be stopped now? Trainers of many ways run as pods; the answers are compared with what they truly do.

First every trainer saves a few times. Then, at random moments, both endpoints and the pods' annotations are read. Then
urgent work arrives at random moments, and the pre-emption controller stops whom it may. Prints Markdown; returns 1
where somebody was evicted in a write, or could not go on from the last durable checkpoint. Takes about three quarters
of an hour, and needs the trainers' environment (scripts/trainer-env.sh newest) and a C compiler.

    python -m benchmarks live-checkpoints
    python -P -m benchmarks.live_checkpoints.run --moments 200 --evictions 50 --record build/live.json
"""

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.live_checkpoints.moments import Figures, Moment, figures
from benchmarks.live_checkpoints.truth import Kills, Life, kills_of, lives
from benchmarks.live_checkpoints.ways import WAYS, Way
from benchmarks.tables import markdown

if TYPE_CHECKING:
    from benchmarks.live_checkpoints.cluster import Cluster, Eviction

ROOT = Path(__file__).resolve().parents[2]
MOMENTS, EVICTIONS, BETWEEN_S = 1000, 200, 0.6
SEED = 7
SAVES_FIRST, FIRST_S = 3, 600.0
BUDGET_S = 120.0
VIEWS = ("text", "files", "pods")


@dataclass(frozen=True)
class Result:
    """Of one way: figures by view, and what evictions did to it."""

    way: Way
    figures: dict[str, Figures]
    kills: Kills
    waits_s: tuple[float, ...]
    broken: tuple[str, ...]


def main(arguments: Sequence[str] = ()) -> int:
    """Print the table; 0 when nobody was evicted in a write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=MOMENTS)
    parser.add_argument("--evictions", type=int, default=EVICTIONS)
    parser.add_argument("--seed", type=int, default=SEED, help="of the moments and the arrivals of urgent work")
    parser.add_argument("--record", type=Path, help="keep all figures in this file")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(ROOT / "tests"))
    from controlplane.plane import ControlPlane

    command = [ROOT / "scripts" / "trainer-env.sh", "newest"]
    python = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="kopt-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        (folder / "plane").mkdir()
        plane = ControlPlane(folder / "plane")
        try:
            live = folder / "live"
            results, evictions = prove(plane, live, python, options.moments, options.evictions, seed=options.seed)
        finally:
            plane.stop()
    print(report(results, evictions))
    if options.record is not None:
        kept = [asdict(result) for result in results]
        options.record.write_text(json.dumps({"ways": kept, "evictions": [asdict(item) for item in evictions]}))
    return int(any(result.kills.torn or result.kills.set_back for result in results))


def prove(
    plane: Any, folder: Path, python: str, moments: int, evictions: int, ways: Sequence[Way] = WAYS, seed: int = SEED
) -> tuple[list[Result], list["Eviction"]]:
    """Run all of it; figures of each way, and what each arrival of urgent work led to."""
    from controlplane.processes import wait_for

    from benchmarks.live_checkpoints.cluster import controller, running

    chance = random.Random(seed)
    with running(plane, folder, python, len(ways)) as cluster, controller(plane, BUDGET_S):
        for way in ways:
            cluster.start(way)
            time.sleep(chance.uniform(2.0, 6.0))
        wait_for(lambda: all(_saves(cluster, way) >= SAVES_FIRST for way in ways), FIRST_S, "all have saved", 1.0)
        sampled = _sampled(cluster, moments, chance)
        results = _evicted(cluster, evictions, ways, chance)
        history = {way.name: lives(cluster.record(way)) for way in ways}
    return [_result(way, history[way.name], sampled, results) for way in ways], results


def _saves(cluster: "Cluster", way: Way) -> int:
    """``best`` saves when it likes."""
    record = cluster.record(way)
    count = sum(len(life.writes) for life in lives(record)) if record.exists() else 0
    return count + (SAVES_FIRST - 1 if way.name == "best" and count else 0)


def _sampled(cluster: "Cluster", count: int, chance: random.Random) -> dict[str, list[Moment]]:
    sampled: dict[str, list[Moment]] = {view: [] for view in VIEWS}
    for _ in range(count):
        time.sleep(chance.expovariate(1 / BETWEEN_S))
        for view, moment in cluster.moments().items():
            sampled[view].append(moment)
    return sampled


def _evicted(cluster: "Cluster", count: int, ways: Sequence[Way], chance: random.Random) -> list["Eviction"]:
    from controlplane.processes import wait_for

    results, by_name = list["Eviction"](), {way.name: way for way in ways}
    for number in range(count):
        time.sleep(chance.uniform(0.5, 4.0))
        eviction = cluster.evict(number, BUDGET_S)
        results.append(eviction)
        if eviction.way:
            cluster.start(by_name[eviction.way])
            wait_for(lambda job=eviction.way: cluster.runs(job), what=f"{eviction.way} runs")
        print(f"{number + 1}: {eviction.way or 'nobody'} after {eviction.wait_s:.1f} s", file=sys.stderr, flush=True)
    # The last ones look for their checkpoints.
    wait_for(lambda: all(_has_looked(cluster, way) for way in ways), what="all go on", every_s=1.0)
    return results


def _has_looked(cluster: "Cluster", way: Way) -> bool:
    last = lives(cluster.record(way))[-1]
    return bool(last.resumed_step or last.broken or last.writes)


def _result(way: Way, history: list[Life], sampled: dict[str, list[Moment]], evictions: Sequence["Eviction"]) -> Result:
    writes = [write for life in history for write in life.writes]
    by_view = {view: figures(way.name, moments, writes) for view, moments in sampled.items()}
    waits = tuple(eviction.wait_s for eviction in evictions if eviction.way == way.name)
    return Result(way, by_view, kills_of(history), waits, tuple(name for life in history for name in life.broken))


def report(results: Sequence[Result], evictions: Sequence["Eviction"]) -> str:
    """Markdown: a row for each way."""
    head = ["way", "moments; in a write"]
    head += [f"{view}: stoppable, wait, unsafe" for view in ("text alone", "with files", "on the pod")]
    head += ["evictions; in a write; set back"]
    rows = [
        [
            f"{result.way.name}: {result.way.about}",
            f"{result.figures['files'].moments}; {result.figures['files'].in_write}",
            *(_cell(result.figures[view]) for view in VIEWS),
            f"{result.kills.count}; {result.kills.torn}; {result.kills.set_back}",
        ]
        for result in results
    ]
    waits = [eviction.wait_s for eviction in evictions if eviction.way]
    median = f"{statistics.median(waits):.1f} s" if waits else "–"
    nobody = len(evictions) - len(waits)
    return f"{markdown(head, rows)}\n\n{len(evictions)} arrivals, {nobody} without a victim; median wait {median}."


def _cell(item: Figures) -> str:
    wait = f"{item.wait_s:.0f} s" if math.isfinite(item.wait_s) else "never"
    return f"{item.share:.0%}, {wait}, {item.unsafe} of {item.in_write}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
