"""Which tests of a benchmark may start or have to give way, by the observed cluster."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kopt.cluster.client.resources import Object
from kopt.cluster.workloads.node_selection import runs_on
from kopt.controllers.pairwise.ports import Cluster
from kopt.controllers.pairwise.spec import Benchmark
from kopt.controllers.pairwise.test_stage import Test
from kopt.controllers.pairwise.views import ObservedNode, ObservedPod
from kopt.core.hardware.pairwise import Health, MeasuredPair, Pair
from kopt.core.units import counted
from kopt.policies.pairwise.budget import affordable, fits_window, next_check_s
from kopt.policies.pairwise.tournament import next_pairs, pairs_to_measure


@dataclass(frozen=True)
class Plan:
    """``start`` these now; ``state`` and ``why`` say what keeps more from starting; plan again at ``again_s``."""

    pairs: list[Pair] = field(default_factory=list)
    due_at_s: Mapping[Pair, float] = field(default_factory=dict)
    start: list[Pair] = field(default_factory=list)
    state: str = "UpToDate"
    why: str = ""
    again_s: float = float("inf")

    def due(self, now_s: float) -> int:
        return sum(self.due_at_s.get(pair, 0.0) <= now_s for pair in self.pairs)


def plan(
    benchmark: Benchmark,
    cluster: Cluster,
    tests: list[Test],
    measured: Iterable[MeasuredPair],
    now_s: float,
    used_gpu_s: float,
    not_before_s: Mapping[Pair, float],
) -> Plan:
    """``tests`` are those of all benchmarks; ``not_before_s`` puts off pairs that were just taken away."""
    nodes = participants(benchmark, cluster.nodes())
    if len(nodes) < 2:
        return Plan(
            state="TooFewNodes", why=f"{counted(len(nodes), 'node')} ready, matching and with {benchmark.resource}"
        )
    pairs = pairs_to_measure(nodes, benchmark.partners)
    due_at_s = _due(benchmark, measured)
    running = [test.pair for test in tests if test.benchmark == benchmark.name]
    due_at_s |= dict.fromkeys(running, float("inf"))
    put_off = due_at_s | {
        pair: max(until, due_at_s.get(pair, 0.0)) for pair, until in not_before_s.items() if until > now_s
    }
    later = min((at for item in pairs if (at := put_off.get(item, 0.0)) > now_s), default=float("inf"))
    result = Plan(pairs, due_at_s, [], "Measuring" if running else "UpToDate", "", later)
    if not result.due(now_s):
        return result
    room = affordable(
        benchmark.budget,
        now_s,
        running=len(running),
        used_gpu_s=used_gpu_s,
        gpus=benchmark.gpus,
        longest_s=benchmark.timeout_s,
    )
    if not room:
        return _no_room(result, benchmark, len(running), now_s)
    busy = {name for test in tests for name in test.pair} | occupied(benchmark, cluster, nodes)
    start = next_pairs(pairs, put_off, now_s, busy=busy, at_most=room)
    if start:
        return Plan(pairs, due_at_s, start, "Measuring", "", later)
    why = f"of {len(nodes)} nodes {len(nodes) - len(busy & nodes.keys())} are free of GPU pods and of pods that wait"
    return Plan(pairs, due_at_s, [], "Measuring" if running else "NodesBusy", why, later)


def participants(benchmark: Benchmark, nodes: Mapping[str, ObservedNode]) -> dict[str, ObservedNode]:
    """Nodes that are ready, are selected, have the GPUs and let the template's pod run."""
    pod: Object = benchmark.template["spec"]
    return {
        name: node
        for name, node in nodes.items()
        if node.ready
        and node.gpus.get(benchmark.resource, 0) >= benchmark.gpus_per_node
        and benchmark.selector.items() <= node.labels.items()
        and runs_on(pod, node.labels, node.taints)
    }


def occupied(benchmark: Benchmark, cluster: Cluster, nodes: Mapping[str, ObservedNode]) -> set[str]:
    """Nodes whose GPUs are in use, or may be what a pending pod of at least the tests' priority waits for."""
    used: Counter[str] = Counter()
    floor = cluster.priority(benchmark.priority_class)
    result = set()
    for pod in cluster.pods():
        if pod.node and not pod.ended:
            used[pod.node] += pod.wants.get(benchmark.resource, 0)
            if benchmark.idle_only:
                result.add(pod.node)
        elif pod.pending and pod.job is None and pod.priority >= floor:
            result |= {name for name, node in nodes.items() if pod.may_use(benchmark.resource, node)}
    return result | {
        name for name, node in nodes.items() if node.gpus[benchmark.resource] - used[name] < benchmark.gpus_per_node
    }


def in_the_way(test: Test, benchmark: Benchmark, cluster: Cluster) -> ObservedPod | None:
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


def _due(benchmark: Benchmark, measured: Iterable[MeasuredPair]) -> dict[Pair, float]:
    """From when each pair is due again: all of its collectives were measured, the first of them then."""
    of_pair: dict[Pair, list[MeasuredPair]] = {}
    for measured_pair in measured:
        if measured_pair.gpus_per_node == benchmark.gpus_per_node and measured_pair.collective in benchmark.collectives:
            of_pair.setdefault(measured_pair.nodes, []).append(measured_pair)

    def again_s(measured_pair: MeasuredPair) -> float:
        failed = measured_pair.health is Health.FAILED
        return measured_pair.measured_at + (benchmark.retry_after_s if failed else benchmark.repeat_after_s)

    return {
        pair: min(map(again_s, measured_pairs))
        for pair, measured_pairs in of_pair.items()
        if len(measured_pairs) == len(benchmark.collectives)
    }


def _no_room(result: Plan, benchmark: Benchmark, running: int, now_s: float) -> Plan:
    budget = benchmark.budget
    again_s = min(result.again_s, next_check_s(budget, now_s, benchmark.timeout_s))
    if running >= budget.pairs_at_once:
        return result
    if not fits_window(budget, now_s, benchmark.timeout_s):
        state, why = "OutsideWindow", "no window is open for as long as a test may take"
    else:
        state = "BudgetSpent"
        why = f"what is left of {budget.gpu_seconds_per_day:g} GPU-seconds a day is less than a test may take"
    return Plan(result.pairs, result.due_at_s, [], "Measuring" if running else state, why, again_s)
