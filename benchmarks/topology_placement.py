"""Which GPUs of a node: what chosen sets carry, held against the best of all sets by an independent reference.

    python -m benchmarks topology

The reference (``benchmarks.link_capacity``) spreads traffic over all wires by a linear programme; it is none of what
choices are made by. Machines are those whose GPUs are not all alike: the DGX-1's cube mesh, a node of four MI250X cards
(AMD's CDNA 2 white paper), and with KOPT_DATA_DIR the recorded outputs of tools. Every size of set is asked of every
state of the node that a few draws give: free GPUs at random, a share alone. "vendor" is the rule of the device plugins:
pairs score by their links, and the set with the highest sum is taken (NVIDIA's go-gpuallocator).
"""

import os
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from benchmarks import irregular_nodes
from benchmarks.link_capacity import ring_capacity_gbps
from benchmarks.tables import markdown
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.formats.topology import FormatError, parse
from kopt.topology.from_node import machine_from
from kopt.topology.graph import Machine
from kopt.topology.hardware import CUBE_MESH, MI250X_NODE
from kopt.topology.sets import within_node as within
from kopt.topology.sets.across_nodes import NodeOffer, choose_nodes

_DRAWS, _SEED = 40, 7
_ALIKE = 0.999
_PAIR_SCORE = {LinkType.PIX: 60, LinkType.PXB: 40, LinkType.PHB: 30, LinkType.NODE: 20, LinkType.PCIE: 20}

Chooser = Callable[[NodeTopology, Machine, Sequence[int], int, random.Random], tuple[int, ...]]


def _ours(node: NodeTopology, machine: Machine, free: Sequence[int], count: int, rng: random.Random) -> tuple[int, ...]:
    del node, rng
    found = within.choose_gpus(machine, free, count)
    assert found is not None
    return found.gpus


def _by_pairs(
    node: NodeTopology, machine: Machine, free: Sequence[int], count: int, rng: random.Random
) -> tuple[int, ...]:
    del machine, rng
    score = {(min(one.a, one.b), max(one.a, one.b)): _pair_score(one) for one in node.links}
    return max(
        combinations(sorted(free), count),
        key=lambda gpus: sum(score.get(pair, 10) for pair in combinations(gpus, 2)),
    )


def _pair_score(link: TopologyLink) -> int:
    return 100 * (link.count or 1) if link.type.direct else _PAIR_SCORE.get(link.type, 10)


def _at_random(
    node: NodeTopology, machine: Machine, free: Sequence[int], count: int, rng: random.Random
) -> tuple[int, ...]:
    del node, machine
    return tuple(sorted(rng.sample(list(free), count)))


def _lowest(
    node: NodeTopology, machine: Machine, free: Sequence[int], count: int, rng: random.Random
) -> tuple[int, ...]:
    del node, machine, rng
    return tuple(sorted(free)[:count])


_CHOOSERS: Mapping[str, Chooser] = {
    "kopt": _ours,
    "pair score (vendors' device plugins)": _by_pairs,
    "lowest indexes": _lowest,
    "random": _at_random,
}


def main(arguments: Sequence[str] = ()) -> int:
    del arguments
    rng, reached = random.Random(_SEED), {name: defaultdict[str, list[float]](list) for name in _CHOOSERS}
    names = []
    for name, node in _machines():
        machine = machine_from(node)
        cases = list(_cases(machine, rng))
        if cases:
            names.append(name)
        for free, count, capacity in cases:
            best = max(capacity.values())
            for chooser, choose in _CHOOSERS.items():
                reached[chooser][name].append(capacity[choose(node, machine, free, count, rng)] / best)
    rows = []
    for chooser, found in reached.items():
        every = [value for one in found.values() for value in one]
        means = [float(np.mean(found[name])) for name in names]
        rows.append((chooser, f"{np.mean(means):.3f}", f"{min(every):.2f}", *(f"{one:.3f}" for one in means)))
    print(f"Share of the best set's capacity; {len(names)} machines, {len(every):,} questions each way:\n")
    print(markdown(("", "mean of machines", "worst", *names), rows))
    for kind, shares in _by_name(irregular_nodes.shares()).items():
        print(f"{kind}: {len(shares)} questions, mean {np.mean(shares):.3f}, worst {min(shares):.2f}.")
    print("\n" + _times() + "\n" + irregular_nodes.times())
    return 0


def _by_name(shares: Iterable[tuple[str, float]]) -> Mapping[str, list[float]]:
    found = defaultdict[str, list[float]](list)
    for name, share in shares:
        found[name].append(share)
    return found


def _machines() -> Iterator[tuple[str, NodeTopology]]:
    yield "DGX-1 cube mesh", _meshed("V100-SXM2-16GB", "nvidia", LinkType.NVLINK, CUBE_MESH)
    yield "4x MI250X", _meshed("MI250X", "amd", LinkType.XGMI, MI250X_NODE)
    folder = Path(os.environ.get("KOPT_DATA_DIR", "")) / "topology"
    seen = set()
    for path in sorted(folder.glob("nvidia_topo_m/*")) + sorted(folder.glob("rocm_showtopo/*")):
        try:
            node = parse(path.read_text(errors="replace"))
        except FormatError:
            continue
        if isinstance(node, NodeTopology) and len(node.gpus) >= 4 and node.links:
            links = (len(node.gpus), *sorted((one.a, one.b, one.type, one.count) for one in node.links))
            if links not in seen:
                seen.add(links)
                yield path.name.rsplit("_", 1)[0].removeprefix("mut-")[:24], node


def _meshed(name: str, vendor: str, kind: LinkType, links: Sequence[tuple[int, int, int]]) -> NodeTopology:
    joined = [TopologyLink(a, b, kind, count) for a, b, count in links]
    linked = {(a, b) for a, b, _ in links}
    others = [pair for pair in combinations(range(8), 2) if pair not in linked]
    joined += [TopologyLink(a, b, LinkType.NODE if a // 4 == b // 4 else LinkType.SYS) for a, b in others]
    gpus = tuple(TopologyGpu(index, name, numa=index // 4) for index in range(8))
    return NodeTopology("node", gpus, tuple(joined), vendor=vendor)


def _cases(machine: Machine, rng: random.Random) -> Iterator[tuple[tuple[int, ...], int, dict[tuple[int, ...], float]]]:
    """Free GPUs, how many are asked for and what each set carries; states in which all sets are alike tell nothing."""
    gpus = machine.node.gpus
    known: dict[tuple[int, ...], float] = {}
    for _ in range(_DRAWS):
        free = tuple(sorted(rng.sample(gpus, rng.randint(3, len(gpus)))))
        count = rng.randint(2, min(6, len(free) - 1))
        capacity = {}
        for one in combinations(free, count):
            if one not in known:
                known[one] = ring_capacity_gbps(machine.node, one)
            capacity[one] = known[one]
        if min(capacity.values()) < _ALIKE * max(capacity.values()):
            yield free, count, capacity


def _times() -> str:
    """Milliseconds for the best four of eight and for jobs on 64 nodes, nothing known before."""
    rng = random.Random(_SEED)
    node = _meshed("V100-SXM2-16GB", "nvidia", LinkType.NVLINK, CUBE_MESH)
    within_ms, across_ms = [], []
    for _ in range(60):
        machines = [machine_from(node) for _ in range(8)]
        began = time.perf_counter()
        within.choose_gpus(machines[0], range(8), 4)
        within_ms.append(1000 * (time.perf_counter() - began))
        offers = [
            NodeOffer(
                f"n{n}", machines[n % 8], tuple(sorted(rng.sample(range(8), rng.randint(0, 8)))), (f"r{n // 16}",)
            )
            for n in range(64)
        ]
        began = time.perf_counter()
        choose_nodes(offers, rng.choice([2, 4, 8, 16, 32, 64]))
        across_ms.append(1000 * (time.perf_counter() - began))
    return (
        f"Best 4 of 8: median {np.median(within_ms):.1f} ms, P99 {np.quantile(within_ms, 0.99):.1f} ms (goal 50); "
        f"64 nodes of 8 makes: median {np.median(across_ms):.0f} ms, P99 {np.quantile(across_ms, 0.99):.0f} (goal 200)."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
