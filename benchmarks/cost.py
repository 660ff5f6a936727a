"""Cost: whether sums close and pods are charged what they held although the meter misses things, and how fast costs of
10,000 pods over 30 days are answered.

Beside the meter, in the same worlds: charging pods as they are seen once a minute, as an exporter that is scraped shows
them, with the share that they request and what is scraped alone; and the same answer from a table with a row for each
pod and day.
"""

import heapq
import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kopt.cli.cost.commands import answer
from kopt.cli.cost.reading import Source
from kopt.controllers.meter.store import CostStore, Window
from kopt.core.cost.metering import Attributes, Capacity, Demand, MeteredNode, MeteredPod, Offer, Rule, Segment
from kopt.core.cost.prices import shipped_prices
from kopt.policies.cost import Changes, Meter, Observation, advance, steady
from kopt.policies.cost.attribution import By
from kopt.policies.cost.report import MOST_ROWS

from .tables import markdown

H100 = Offer("H100-SXM5-80GB", "lambda")
DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
SEEDS, DAYS, NODES = range(100, 110), 30, 10
BEGAN_MS = 1_764_547_200_000  # 2025-12-01
MIX = {(1, 1000): 0.5, (8, 1000): 0.3, (1, 250): 0.2}


@dataclass
class World:
    """The truth: when pods were bound and ended, and how large they were when."""

    rng: np.random.Generator
    nodes: dict[str, MeteredNode] = field(default_factory=dict)
    pods: dict[str, MeteredPod] = field(default_factory=dict)
    held: dict[str, float] = field(default_factory=dict)
    """GPU·ms by pod, as charged at the node."""
    count: int = 0

    def free(self, node: MeteredNode) -> int:
        used = [pod.demand for pod in self.pods.values() if pod.node == node.name]
        return node.capacity_milli - sum(demand.count * demand.charged(Rule.MAX) for demand in used)


@dataclass
class Metered:
    """What is stored: GPU·ms by subject, and of nodes."""

    segments: dict[tuple[str, str, int], Segment] = field(default_factory=dict)
    capacities: dict[tuple[str, int], Capacity] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)
    meters: dict[str, Meter] = field(default_factory=dict)
    metered_ms: int | None = None
    clock_ms: float = 0.0
    ticked_ms: int = 0
    wrong_ms: int = 0
    departed: dict[str, int] = field(default_factory=dict)

    def look(self, world: World, now_ms: int, *, restarted: bool = False) -> None:
        if self.metered_ms is None or restarted:
            self.clock_ms = max(float(now_ms + self.wrong_ms), float(self.metered_ms or 0))
        else:
            self.clock_ms = steady(self.clock_ms, now_ms + self.wrong_ms, now_ms - self.ticked_ms)
        self.ticked_ms = now_ms
        at_ms = int(self.clock_ms)
        gap = restarted and self.metered_ms is not None and at_ms - self.metered_ms > 3 * MINUTE_MS
        observation = Observation(
            at_ms, world.nodes, list(world.pods.values()), self.departed, self.metered_ms, gap, frozenset(self.recorded)
        )
        meters, changes = advance(self.meters, observation, Rule.MAX, MIX)
        for segment in changes.segments:
            self.segments[segment.node_uid, segment.subject, segment.start_ms] = segment
        for item in changes.capacities:
            self.capacities[item.node_uid, item.start_ms] = item
        self.recorded |= set(changes.ended)
        self.meters, self.metered_ms, self.departed = dict(meters), at_ms, {}

    def used(self) -> dict[str, int]:
        result: dict[str, int] = {}
        for segment in self.segments.values():
            end_ms = segment.end_ms if segment.end_ms is not None else self.metered_ms or 0
            result[segment.subject] = result.get(segment.subject, 0) + segment.milli * (end_ms - segment.start_ms)
        return result

    def capacity(self) -> int:
        return sum(
            item.milli * ((item.end_ms if item.end_ms is not None else self.metered_ms or 0) - item.start_ms)
            for item in self.capacities.values()
        )


def replayed(seed: int, *, faults: bool) -> tuple[float, float, float, float]:
    """Σ against node-hours as stored, against the truth; error of what pods are charged, of the meter and sampled.

    Shares of the GPU time of nodes, or of pods."""
    rng = np.random.default_rng(seed)
    world, metered = World(rng), Metered()
    for number in range(NODES):
        world.nodes[f"n{number}"] = MeteredNode(f"n{number}", f"node-{number}", 8, H100, BEGAN_MS)
    metered.look(world, BEGAN_MS)
    sampled: dict[str, float] = {}
    events: list[tuple[int, int, str, str]] = []
    numbers = iter(range(10**9))

    def plan(at_ms: float, kind: str, about: str = "") -> None:
        heapq.heappush(events, (int(at_ms), next(numbers), kind, about))

    end_ms = BEGAN_MS + DAYS * DAY_MS
    plan(BEGAN_MS, "arrives")
    plan(BEGAN_MS + MINUTE_MS, "sample")
    if faults:
        for day in range(DAYS):
            for _ in range(4):
                plan(BEGAN_MS + (day + rng.random()) * DAY_MS, "dies")
            plan(BEGAN_MS + (day + rng.random()) * DAY_MS, "clock")
            plan(BEGAN_MS + (day + rng.random()) * DAY_MS, "cut")
    down_until_ms, last_ms = 0, BEGAN_MS
    while events and events[0][0] < end_ms:
        at_ms, _, kind, about = heapq.heappop(events)
        _hold(world, at_ms - last_ms)
        last_ms = at_ms
        if kind == "sample":
            # A scrape while the exporter's target is away shows nothing.
            if at_ms >= down_until_ms:
                for uid, pod in world.pods.items():
                    sampled[uid] = sampled.get(uid, 0.0) + pod.demand.count * MINUTE_MS
            plan(at_ms + MINUTE_MS, "sample")
            continue
        if kind == "dies":
            metered.departed = {}
            # Usually the standby leads within seconds; at times all of it is away for minutes.
            down_until_ms = int(
                at_ms + (rng.uniform(2_000, 20_000) if rng.random() < 0.9 else rng.uniform(60_000, 600_000))
            )
            plan(down_until_ms, "returns")
        elif kind == "clock":
            metered.wrong_ms = int(rng.choice([-HOUR_MS, HOUR_MS, -MINUTE_MS, MINUTE_MS]))
            plan(at_ms + rng.uniform(1, 10) * MINUTE_MS, "clock is right")
        elif kind == "clock is right":
            metered.wrong_ms = 0
        else:
            _changes(world, metered, kind, about, at_ms, plan, watched=at_ms >= down_until_ms)
        if at_ms >= down_until_ms:
            metered.look(world, at_ms, restarted=kind == "returns")
    metered.look(world, end_ms)
    _hold(world, end_ms - last_ms)
    return _errors(world, metered, sampled, (metered.metered_ms or 0) - BEGAN_MS)


def _hold(world: World, span_ms: int) -> None:
    for uid, pod in world.pods.items():
        world.held[uid] = world.held.get(uid, 0.0) + pod.demand.count * pod.demand.charged(Rule.MAX) / 1000 * span_ms


def _changes(
    world: World, metered: Metered, kind: str, about: str, at_ms: int, plan: Callable[..., None], *, watched: bool
) -> None:
    rng = world.rng
    if kind == "arrives":
        plan(at_ms + rng.exponential(HOUR_MS / 5), "arrives")
        demand = [Demand(1), Demand(4), Demand(8), Demand(1, 500, 250), Demand(1, 125, 143)][rng.integers(5)]
        room = [n for n in world.nodes.values() if world.free(n) >= demand.count * demand.charged(Rule.MAX)]
        if room:
            world.count += 1
            uid = f"p{world.count}"
            node = min(room, key=world.free)
            world.pods[uid] = MeteredPod(uid, node.name, demand, at_ms)
            plan(at_ms + rng.lognormal(np.log(2 * HOUR_MS), 1.2), "ends", uid)
            if demand.count == 1 and demand.memory_milli == 500:
                plan(at_ms + rng.exponential(HOUR_MS), "shrinks", uid)
    elif kind == "ends" and about in world.pods:
        del world.pods[about]
        if watched:
            metered.departed[about] = int(metered.clock_ms + at_ms - metered.ticked_ms)
    elif kind == "shrinks" and about in world.pods:
        world.pods[about] = replace(world.pods[about], demand=Demand(1, 250, 100))
    elif kind == "cut":
        empty = [uid for uid, node in world.nodes.items() if world.free(node) == node.capacity_milli]
        if empty:
            world.nodes[empty[0]] = replace(world.nodes[empty[0]], offer=replace(H100, capacity=f"cut-{at_ms}"))


def _errors(
    world: World, metered: Metered, sampled: dict[str, float], metered_ms: int
) -> tuple[float, float, float, float]:
    used, true_ms = metered.used(), NODES * 8 * DAYS * DAY_MS
    closure = abs(sum(used.values()) - metered.capacity()) / metered.capacity()
    against_truth = abs(sum(used.values()) / 1000 - true_ms) / true_ms
    total = sum(world.held.values())
    by_meter = sum(abs(used.get(uid, 0) / 1000 - held) for uid, held in world.held.items()) / total
    by_samples = sum(abs(sampled.get(uid, 0.0) - held) for uid, held in world.held.items()) / total
    return closure, against_truth, by_meter, by_samples


def filled(path: Path, pods: int = 10_000, nodes: int = 1_250) -> CostStore:
    """30 days of pods that run for hours to days, each with one to three segments, and what is idle around them."""
    rng = np.random.default_rng(1)
    store = CostStore(path)
    store.begin("benchmark", Rule.MAX)
    segments, listed = [], []
    until_ms = BEGAN_MS + DAYS * DAY_MS
    for number in range(pods):
        node, gpus = int(rng.integers(nodes)), int(rng.choice([1, 2, 4, 8]))
        start_ms = BEGAN_MS + int(rng.uniform(0, DAYS * DAY_MS))
        cuts = sorted({start_ms, *(start_ms + int(rng.exponential(12 * HOUR_MS)) for _ in range(rng.integers(1, 4)))})
        labels = {"team": f"team-{number % 40}"} if number % 7 else {}
        attributes = Attributes(f"space-{number % 60}", f"pod-{number}", f"jobs/train-{number // 4}", "gpus", labels)
        listed.append(MeteredPod(f"uid-{number}", f"node-{node}", Demand(gpus), start_ms, attributes=attributes))
        for cut_ms, next_ms in itertools.pairwise(cuts):
            segments.append(Segment(f"n{node}", f"uid-{number}", cut_ms, min(next_ms, until_ms), gpus * 1000, H100))
    for node in range(nodes):
        for start_ms in range(BEGAN_MS, until_ms, 2 * DAY_MS):
            for kind in ("idle:unallocated", "idle:stranded"):
                segments.append(Segment(f"n{node}", kind, start_ms, start_ms + 2 * DAY_MS, 2000, H100))
    capacities = tuple(Capacity(f"n{node}", f"node-{node}", BEGAN_MS, None, 8000, H100) for node in range(nodes))
    store.store("benchmark", Changes(tuple(segments), capacities, tuple(listed)), until_ms)
    return store


def _timed(work: Callable[[], object], times: int = 7) -> tuple[float, float]:
    """Medians in ms: of CPU time, and of the wall's, which depends on what else runs."""
    cpu, wall = [], []
    for _ in range(times):
        start_s, start_cpu_s = time.perf_counter(), time.process_time()
        work()
        cpu.append((time.process_time() - start_cpu_s) * 1000)
        wall.append((time.perf_counter() - start_s) * 1000)
    return statistics.median(cpu), statistics.median(wall)


def _daily_rows(path: Path, store: CostStore) -> sqlite3.Connection:
    """The rival: a row for each pod and day."""
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE daily (day INTEGER, subject TEXT, namespace TEXT, used INTEGER)")
    rows = [
        (day, f"uid-{pod}", f"space-{pod % 60}", 1000) for day in range(DAYS) for pod in range(len(store.attributes()))
    ]
    database.executemany("INSERT INTO daily VALUES (?, ?, ?, ?)", rows)
    database.commit()
    return database


def queries() -> int:
    with tempfile.TemporaryDirectory() as folder:
        store = filled(Path(folder) / "cost.db")
        window = Window(BEGAN_MS, BEGAN_MS + DAYS * DAY_MS)
        source = Source(store, window, shipped_prices())
        rows, slowest = [], 0.0
        for by in (By.NAMESPACE, By.TEAM, By.QUEUE, By.MODEL, By.NODE, By.WORKLOAD, By.POD):
            # As the command asks by default: the first thousand rows, and the sum of the others.
            cpu, wall = _timed(lambda by=by: answer(source, by, limit=MOST_ROWS))  # type: ignore[misc]
            slowest = max(slowest, cpu)
            rows.append([f"kopt cost --by {by.value}", f"{cpu:.0f} ms", f"{wall:.0f} ms"])
        cpu, wall = _timed(lambda: answer(source, By.POD))
        rows.append(["all rows: kopt cost --by pod --limit 0", f"{cpu:.0f} ms", f"{wall:.0f} ms"])
        daily = _daily_rows(Path(folder) / "daily.db", store)
        query = "SELECT namespace, SUM(used) FROM daily WHERE day < 30 GROUP BY namespace"
        cpu, wall = _timed(lambda: daily.execute(query).fetchall())
        rows.append(["a row for each pod and day, by namespace", f"{cpu:.0f} ms", f"{wall:.0f} ms"])
        daily.close()
        store.close()
    print(markdown(["10,000 pods, 1,250 nodes, 30 days", "CPU, median of 7", "wall"], rows))
    return int(slowest > 100)


def faults() -> int:
    rows = []
    worst = 0.0
    for faults in (False, True):
        results = [replayed(seed, faults=faults) for seed in SEEDS]
        closure, truth, by_meter, by_samples = (max(column) for column in zip(*results, strict=True))
        worst = max(worst, closure, truth)
        rows.append(
            ["with faults" if faults else "undisturbed", *(f"{x:.4%}" for x in (closure, truth, by_meter, by_samples))]
        )
    print(
        markdown(
            [
                "30 days, worst of 10 seeds",
                "Σ − nodes as stored",
                "Σ − true node-hours",
                "pods, meter",
                "pods, sampled",
            ],
            rows,
        )
    )
    return int(worst > 0.001)


def main() -> int:
    return faults() + queries()
