"""Which tests of a benchmark may start or have to give way, from what the cluster shows now."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kopt.cluster.resources import Object
from kopt.controllers.pairs.given import Cluster
from kopt.controllers.pairs.spec import Benchmark
from kopt.controllers.pairs.stages import Test
from kopt.controllers.pairs.views import NodeView, PodView
from kopt.controllers.sizing.selection import runs_on
from kopt.core.pairs import Health, MeasuredPair, Pair
from kopt.policies.pairs.budget import affordable, asks_again_s, fits_window
from kopt.policies.pairs.tournament import next_pairs, pairs_to_measure


@dataclass(frozen=True)
class Plan:
    """``start`` these now; ``state`` and ``why`` say what keeps more from starting; look again at ``again_s``."""

    pairs: list[Pair] = field(default_factory=list)
    due_at_s: Mapping[Pair, float] = field(default_factory=dict)
    start: list[Pair] = field(default_factory=list)
    state: str = "UpToDate"
    why: str = ""
    again_s: float = float("inf")

    def due(self, now_s: float) -> int:
        return sum(self.due_at_s.get(one, 0.0) <= now_s for one in self.pairs)


def plan(benchmark: Benchmark, cluster: Cluster, tests: list[Test], known: Iterable[MeasuredPair], now_s: float,
         used_gpu_s: float, not_before_s: Mapping[Pair, float]) -> Plan:  # fmt: skip
    """``tests`` are those of all benchmarks; ``not_before_s`` puts off pairs that were just taken away."""
    nodes = taking_part(benchmark, cluster.nodes())
    if len(nodes) < 2:
        return Plan(state="TooFewNodes", why=f"{len(nodes)} nodes are ready, match and have {benchmark.resource}")
    pairs = pairs_to_measure(nodes, benchmark.partners)
    due_at_s = _due(benchmark, known)
    running = [one.pair for one in tests if one.benchmark == benchmark.name]
    due_at_s |= dict.fromkeys(running, float("inf"))
    put_off = due_at_s | {
        pair: max(until, due_at_s.get(pair, 0.0)) for pair, until in not_before_s.items() if until > now_s
    }
    later = min((at for one in pairs if (at := put_off.get(one, 0.0)) > now_s), default=float("inf"))
    found = Plan(pairs, due_at_s, [], "Measuring" if running else "UpToDate", "", later)
    if not found.due(now_s):
        return found
    room = affordable(benchmark.budget, now_s, running=len(running), used_gpu_s=used_gpu_s, gpus=benchmark.gpus,
                      longest_s=benchmark.timeout_s)  # fmt: skip
    if not room:
        return _no_room(found, benchmark, len(running), now_s)
    busy = {name for one in tests for name in one.pair} | occupied(benchmark, cluster, nodes)
    start = next_pairs(pairs, put_off, now_s, busy=busy, at_most=room)
    if start:
        return Plan(pairs, due_at_s, start, "Measuring", "", later)
    why = f"of {len(nodes)} nodes {len(nodes) - len(busy & nodes.keys())} are free of GPU pods and of pods that wait"
    return Plan(pairs, due_at_s, [], "Measuring" if running else "NodesBusy", why, later)


def taking_part(benchmark: Benchmark, nodes: Mapping[str, NodeView]) -> dict[str, NodeView]:
    """Nodes that are ready, are selected, have the GPUs and let the template's pod run."""
    pod: Object = benchmark.template["spec"]
    return {
        name: one for name, one in nodes.items()
        if one.ready and one.gpus.get(benchmark.resource, 0) >= benchmark.gpus_per_node
        and benchmark.selector.items() <= one.labels.items() and runs_on(pod, one.labels, one.taints)
    }  # fmt: skip


def occupied(benchmark: Benchmark, cluster: Cluster, nodes: Mapping[str, NodeView]) -> set[str]:
    """Nodes whose GPUs are somebody's, or may be what a pod waits for that is not below the tests in priority."""
    used: Counter[str] = Counter()
    floor = cluster.priority(benchmark.priority_class)
    found = set()
    for pod in cluster.pods():
        if pod.node and not pod.ended:
            used[pod.node] += pod.wants.get(benchmark.resource, 0)
            if benchmark.idle_only:
                found.add(pod.node)
        elif pod.waiting and pod.job is None and pod.priority >= floor:
            found |= {name for name, one in nodes.items() if pod.may_use(benchmark.resource, one)}
    return found | {
        name for name, one in nodes.items() if one.gpus[benchmark.resource] - used[name] < benchmark.gpus_per_node
    }


def in_the_way(test: Test, benchmark: Benchmark, cluster: Cluster) -> PodView | None:
    """A pod that finds no room and could have that of a test."""
    floor = cluster.priority(benchmark.priority_class)
    nodes = cluster.nodes()
    for pod in cluster.pods():
        if (
            pod.unschedulable
            and pod.job is None
            and pod.priority >= floor
            and any(pod.may_use(benchmark.resource, nodes[name]) for name in test.pair if name in nodes)
        ):
            return pod
    return None


def _due(benchmark: Benchmark, known: Iterable[MeasuredPair]) -> dict[Pair, float]:
    """From when each pair is due again: all of its collectives were measured, the first of them then."""
    of_pair: dict[Pair, list[MeasuredPair]] = {}
    for one in known:
        if one.gpus_per_node == benchmark.gpus_per_node and one.collective in benchmark.collectives:
            of_pair.setdefault(one.nodes, []).append(one)

    def again_s(one: MeasuredPair) -> float:
        failed = one.health is Health.FAILED
        return one.measured_at + (benchmark.retry_after_s if failed else benchmark.repeat_after_s)

    return {
        pair: min(map(again_s, found)) for pair, found in of_pair.items() if len(found) == len(benchmark.collectives)
    }


def _no_room(found: Plan, benchmark: Benchmark, running: int, now_s: float) -> Plan:
    budget = benchmark.budget
    again_s = min(found.again_s, asks_again_s(budget, now_s, benchmark.timeout_s))
    if running >= budget.pairs_at_once:
        return found
    if not fits_window(budget, now_s, benchmark.timeout_s):
        state, why = "OutsideWindow", "no window is open for as long as a test may take"
    else:
        state = "BudgetSpent"
        why = f"what is left of {budget.gpu_seconds_per_day:g} GPU-seconds a day is less than a test may take"
    return Plan(found.pairs, found.due_at_s, [], "Measuring" if running else state, why, again_s)
