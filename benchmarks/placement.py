"""Placement: GPUs allocated on the openb trace by policy, beside the published figures, and the cost of a decision.

The protocol of the paper that published trace and reference (Weng et al., ATC 2023): every variant's pods shuffled by
seeds 42-51, copies appended (or pods removed) to 130 % of the fleet's GPUs, arrivals only. kopt learns typical pods
from the arrivals so far; "kopt, given the trace" knows the trace's distribution beforehand, as fragmentation gradient
descent does in the paper. Replays are kept under ``KOPT_HOME/bench`` by the digest of code and data: the first run
takes about eight minutes on two cores, the next ones seconds.

    python -m benchmarks.placement [--fresh] [--seeds N]
"""

import argparse
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

import kopt.data.jobs.openb
import kopt.policies.placement
import kopt.simulator.placement.load
import kopt.simulator.placement.replay
from kopt.core.scheduling.cluster import GpuRequest
from kopt.core.scheduling.placement import FleetNode, PodRequest
from kopt.core.units import GIB, Bytes, MilliGpu
from kopt.data.jobs.openb import read_nodes, read_pods
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.choose import choose
from kopt.policies.placement.state import FleetState, allocate, release
from kopt.policies.placement.typical import TypicalPods
from kopt.simulator.placement.study import Expectation, Run, Scenario, study

LOAD, FIRST_SEED, SEEDS, WORKERS = 1.3, 42, 10, 2
TARGETS = {"default": 95.6, "cpu250": 93.41, "gpushare100": 86.90, "gpuspec33": 94.55, "multigpu50": 97.18}
"""Per cent to reach on default, published fragmentation gradient descent to be ahead of elsewhere."""
PUBLISHED = {"random": 87.5, "dot-product": 90.9, "packing": 92.0, "best-fit": 93.1, "fgd": 95.4}
"""Per cent on default, from the paper."""
COLUMNS: Mapping[str, tuple[str, Expectation | None]] = {
    "kopt": ("kopt", None),
    "kopt, given the trace": ("kopt", Expectation.TRACE),
    "fgd": ("fgd", None),
    "best-fit": ("best-fit", None),
    "packing": ("packing", None),
    "dot-product": ("dot-product", None),
    "random": ("random", None),
}
FLEETS = (1_250, 12_500)
DECISIONS, KEPT = 3_000, 200


def allocation(folder: Path, cache: Path, seeds: Sequence[int]) -> tuple[str, bool]:
    """The table of all variants, and whether kopt is ahead everywhere."""
    nodes = read_nodes(folder / "openb_node_list_gpu_node.csv")
    rows, ahead = [], True
    for file in sorted(folder.glob("openb_pod_list_*.csv"), key=lambda one: ("default" not in one.name, one.name)):
        variant = file.stem.removeprefix("openb_pod_list_")
        # What is neither ours as it runs nor its strongest rival is for scale: three seeds outside default.
        counts = {name: len(seeds) if variant == "default" or name in ("kopt", "fgd") else 3 for name in COLUMNS}
        scenario = Scenario(nodes, read_pods(file), LOAD)
        began = time.perf_counter()
        shares = {
            name: 100 * _replayed(scenario, *COLUMNS[name], seeds[: counts[name]], cache, file) for name in COLUMNS
        }
        print(f"{variant}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        reach = max(TARGETS.get(variant, 0.0), float(shares["fgd"].mean()))
        ahead &= float(shares["kopt"].mean()) > reach
        cells = [
            f"{one.mean():.2f} ± {one.std(ddof=1):.2f}" if len(one) > 1 else f"{one[0]:.2f}" for one in shares.values()
        ]
        published = f"{TARGETS[variant]:.2f}" if variant in TARGETS else "–"
        rows.append((variant, published, *cells, "yes" if shares["kopt"].mean() > reach else "NO"))
    paper = [f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else "" for name in COLUMNS]
    rows.insert(1, ("default, as published", "", *paper, ""))
    return _markdown(("variant", "to reach", *COLUMNS, "ahead"), rows), ahead


def _replayed(
    scenario: Scenario, policy: str, expects: Expectation | None, seeds: Sequence[int], cache: Path, file: Path
) -> np.ndarray:
    """Final shares by seed, from the cache where these were replayed before."""
    key = f"{policy} {expects} {LOAD} {list(seeds)} {_digest(file)}"
    kept = cache / f"placement-{hashlib.sha256(key.encode()).hexdigest()[:24]}.npy"
    if not kept.exists():
        replays = study(scenario, [Run(policy, seed, expects) for seed in seeds], WORKERS)
        cache.mkdir(parents=True, exist_ok=True)
        np.save(kept, np.array([one.allocated for one in replays]), allow_pickle=False)
    shares: np.ndarray = np.load(kept, allow_pickle=False)
    return shares


def latency() -> str:
    """`choose` alone, in this process: kinds of request known, nodes changing with every decision, 70 % allocated."""
    rows = []
    for count in FLEETS:
        chance = np.random.default_rng(0)
        kinds, state, cache = _filled(count, chance)
        cold = [_milliseconds(partial(cache.outlook, state, one)) for one in kinds]
        warm, placed = [], []
        for _ in range(DECISIONS):
            request = kinds[chance.integers(len(kinds))]
            began, cpu = time.perf_counter(), time.thread_time()
            choice = choose(state, request, cache=cache)
            warm.append((1e3 * (time.perf_counter() - began), 1e3 * (time.thread_time() - cpu)))
            if choice.node is not None:
                allocate(state, choice.node, choice.gpus, request)
                placed.append((choice.node, choice.gpus, request))
            if len(placed) > KEPT:
                release(state, *placed.pop(0))
        wall, cpu_ms = np.array(warm).T
        target = "≤ 2 ms" if count == FLEETS[0] else "≤ 12 ms"
        rows.append(
            (
                f"{8 * count:,} GPUs",
                f"{np.percentile(wall, 50):.2f}",
                f"{np.percentile(wall, 99):.2f}",
                f"{np.percentile(cpu_ms, 99):.2f}",
                target,
                f"{np.percentile(cold, 50):.1f}",
            )
        )
    head = ("fleet", "P50 ms", "P99 ms", "P99 ms of CPU", "aim for P99", "first of a kind, P50 ms")
    return _markdown(head, rows)


def _filled(nodes: int, chance: np.random.Generator) -> tuple[list[PodRequest], FleetState, FragmentationCache]:
    """Nodes of 8 GPUs in three models, 70 % allocated at random; kinds of request as the trace has them."""
    pairs = zip(chance.integers(1, 12, 80), chance.choice([110, 230, 320, 470, 650, 810, 1000], 80), strict=True)
    shares = list(dict.fromkeys(_request(int(cpu), 1, int(milli)) for cpu, milli in pairs))
    kinds = list(dict.fromkeys([*shares, *(_request(8 * count, count, 1000) for count in (2, 4, 8))]))
    state = FleetState(FleetNode(f"node-{i}", 96_000, Bytes(1 << 40), 8, f"model-{i % 3}") for i in range(nodes))
    allocated = 0
    while allocated < 0.7 * nodes * 8_000:
        row, request = int(chance.integers(nodes)), kinds[chance.integers(len(shares))]
        enough = np.flatnonzero(state.gpu_free_milli[row] >= request.gpus.share)
        if len(enough) and state.cpu_free_milli[row] >= request.cpu_milli:
            allocate(state, row, [int(enough[0])], request)
            allocated += request.gpus.total
    history = [kinds[i] for i in chance.integers(0, len(kinds), 5_000)]
    return kinds, state, FragmentationCache(TypicalPods.learn(history))


def _request(cores: int, count: int, milli: int) -> PodRequest:
    return PodRequest(1_000 * cores, Bytes(4 * GIB), GpuRequest(count, MilliGpu(milli)))


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def _digest(file: Path) -> str:
    """Of everything a replay depends on."""
    found = hashlib.sha256(file.read_bytes())
    found.update((file.parent / "openb_node_list_gpu_node.csv").read_bytes())
    packages = Path(str(kopt.policies.placement.__file__)).parent.glob("*.py")
    modules = (kopt.data.jobs.openb, kopt.simulator.placement.replay, kopt.simulator.placement.load)
    for code in (*sorted(packages), *(Path(str(module.__file__)) for module in modules)):
        found.update(code.read_bytes())
    return found.hexdigest()


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fresh", action="store_true", help="forget cached replays")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many, from 42 on")
    options = parser.parse_args(arguments)
    print(f"### A decision\n\n{latency()}\n", flush=True)
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "jobs" / "openb"
    if not (folder / "openb_node_list_gpu_node.csv").exists():
        print("KOPT_DATA_DIR names no folder with jobs/openb: no allocation measured")
        return int(os.environ.get("KOPT_REQUIRE_DATA") == "1")
    cache = Path(os.environ.get("KOPT_HOME", ".kopt")) / "bench"
    for file in cache.glob("placement-*.npy") if options.fresh else ():
        file.unlink()
    table, ahead = allocation(folder, cache, range(FIRST_SEED, FIRST_SEED + options.seeds))
    print(f"### GPUs allocated at {LOAD:.0%} load, % (mean ± standard deviation over seeds)\n\n{table}")
    return 0 if ahead else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
