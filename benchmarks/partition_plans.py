"""How long a plan of partitions takes: ``python -m benchmarks partition-plans``.

Nodes of eight H100s, of which three in four are idle, with the configurations that NVIDIA's GPU operator ships;
requests wait for 40 % of all slices. CPU time, the median and the longest of 20 random pools each.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.tables import markdown
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.policies.partitions.configurations import NodeOption, node_option
from kopt.policies.partitions.plan import PartitionPool, PlanNode, plan_partitions

_POOLS, _GPUS = 20, 8
_SHARES = {"1g.10gb": 70, "2g.20gb": 20, "3g.40gb": 10}
_GEOMETRY = mig_geometry(find_gpu("h100-80gb"))
_BALANCED = {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}


def main(arguments: Sequence[str] = ()) -> int:
    # Importing the solver costs more than a plan.
    plan_partitions(_pool(1, 0, waits=True))
    rows: list[tuple[str, ...]] = []
    for nodes in (12, 125, 1250):
        for label, threshold, waits in (
            ("what waits", None, True),
            ("shares", 0.5, False),
            ("what waits, then shares", 0.5, True),
        ):
            times_ms, changes = [], []
            for seed in range(_POOLS):
                pool = _pool(nodes, seed, waits)
                pool = replace(pool, min_utilization=threshold)
                began = time.process_time()
                plan = plan_partitions(pool)
                times_ms.append(1000 * (time.process_time() - began))
                changes.append(len(plan.changes))
            median, longest = float(np.median(times_ms)), max(times_ms)
            rows.append((f"{nodes * _GPUS:,}", label, f"{median:.1f}", f"{longest:.1f}", f"{np.mean(changes):.0f}"))
    print(markdown(("GPUs", "plans for", "median CPU ms", "longest CPU ms", "nodes cut anew"), rows))
    return 0


def _options() -> list[NodeOption]:
    cuts = {f"all-{p.name}": {p.name: _GEOMETRY.compute_slices // p.compute_slices} for p in _GEOMETRY.profiles}
    cuts["all-1g.20gb"] = {"1g.20gb": 4}
    options = [node_option(_GEOMETRY, _GPUS, name, [(None, cut)]) for name, cut in cuts.items()]
    options.append(node_option(_GEOMETRY, _GPUS, "all-balanced", [(None, _BALANCED)]))
    return [*options, node_option(_GEOMETRY, _GPUS, "all-disabled", [(None, None)])]


def _pool(nodes: int, seed: int, waits: bool) -> PartitionPool:
    random, options = np.random.default_rng(seed), _options()
    members = []
    for at in range(nodes):
        option = options[int(random.integers(len(options)))]
        idle = random.random() < 0.75
        used = {} if idle else {name: int(random.integers(count + 1)) for name, count in option.instances.items()}
        members.append(PlanNode(f"n{at}", option.instances, used, idle))
    slices = 0.4 * nodes * _GPUS * _GEOMETRY.compute_slices
    sizes = {profile.name: profile.compute_slices for profile in _GEOMETRY.profiles}
    asked = random.dirichlet(np.ones(len(sizes)))
    pending = {name: int(slices * share / sizes[name]) for (name, share) in zip(sizes, asked, strict=True)}
    return PartitionPool(_GEOMETRY, members, options, pending if waits else {}, _SHARES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
