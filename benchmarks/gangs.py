"""Releases of gangs in 100,000 random snapshots, each checked by another way of counting, and what a decision takes.

A release is false if one of the gangs in its deadlock could start without it, if it stops a gang that has its minimum,
is young or may not be stopped, if nothing waits in a circle, or if the gang that it is for does not start by it.
"""

import random
import sys
import time
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from benchmarks.tables import markdown
from kopt.core.reason import Reason
from kopt.policies.gangs import Gang, GangPod, GangSettings, GangSnapshot, Release, releases

SNAPSHOTS = 100_000
HOLD = GangSettings(60.0)
_NOW_S = 100.0
_LARGE = ((250, 40), (1250, 200))
"""Nodes and half-placed gangs of the snapshots that are timed."""


def main(arguments: Sequence[str] = ()) -> int:
    count = int(arguments[0]) if arguments else SNAPSHOTS
    decided = false = 0
    for seed in range(count):
        snapshot = random_snapshot(random.Random(seed))
        for release in releases(snapshot, HOLD):
            decided += 1
            try:
                check_release(snapshot, release)
            except AssertionError as error:
                false += 1
                print(f"seed {seed}: {error}", file=sys.stderr)
    print(markdown(("snapshots", "releases", "false"), [(f"{count:,}", f"{decided:,}", str(false))]))
    rows = [(str(nodes), str(gangs), f"{_decision_ms(nodes, gangs):.1f}") for nodes, gangs in _LARGE]
    print(markdown(("nodes", "half-placed gangs", "a decision (ms, median of 5)"), rows))
    return 1 if false else 0


def random_snapshot(chance: random.Random) -> GangSnapshot:
    """Up to four gangs of up to four pods on up to four nodes, many of them half-placed."""
    nodes = [f"n{index}" for index in range(chance.randint(1, 4))]
    gangs = []
    for name in ("g0", "g1", "g2", "g3")[: chance.randint(1, 4)]:
        size, gpus = chance.randint(1, 4), chance.choice((1000, 2000))
        allowed = frozenset(chance.sample(nodes, chance.randint(1, len(nodes))))
        pods = []
        for index in range(size):
            node = chance.choice(("", *sorted(allowed)))
            bound_s = chance.choice((0.0, 0.0, 30.0, 95.0)) if node else 0.0
            refused = not node and chance.random() < 0.8
            pods.append(GangPod(f"{name}-{index}", {"gpu": gpus}, node, bound_s, refused))
        spared = Reason("GANG_WRITING", "") if chance.random() < 0.1 else None
        loss_gpu_s = chance.choice((None, 0.0, 10.0, 1e6))
        minimum = chance.randint(1, size)
        gangs.append(Gang(name, tuple(pods), minimum, allowed, chance.randint(0, 1), 0.0, loss_gpu_s, spared))
    free = {node: {"gpu": chance.choice((0, 0, 0, 1000))} for node in nodes}
    return GangSnapshot(tuple(gangs), free, _NOW_S)


def check_release(cluster: GangSnapshot, release: Release) -> None:
    """Raises AssertionError for a release that is not needed, or of no use. Pods of a gang are alike here."""
    stuck = {
        gang.name: gang
        for gang in cluster.gangs
        if 0 < len(gang.bound) < gang.minimum
        and any(pod.refused for pod in gang.open)
        and all(cluster.now_s - pod.bound_s >= HOLD.hold_s for pod in gang.bound)
    }
    stopped = {each.name for each in release.gangs}
    assert release.beneficiary.name in stuck, "it is for a gang that does not wait"
    assert release.beneficiary.name not in stopped, "it stops what it is for"
    assert stopped <= set(release.deadlock) <= set(stuck), "it stops what is not stuck"
    now = _freed(cluster, [])
    assert not any(_starts(stuck[name], now) for name in release.deadlock), "one of them starts without a release"
    assert all(each.spared is None for each in release.gangs), "it stops what may not be stopped"
    for each in release.surplus:
        assert each.gang.spared is None, "it takes pods of what may not be stopped"
        assert len(each.gang.bound) - len(each.pods) >= each.gang.minimum, "it takes pods below a minimum"
    pods = [pod for each in release.gangs for pod in each.bound] + [pod for it in release.surplus for pod in it.pods]
    assert pods, "it frees nothing"
    assert _starts(release.beneficiary, _freed(cluster, pods)), "what it is for does not start"
    assert _in_a_circle([stuck[name] for name in release.deadlock], now, cluster), "nothing waits in a circle"


def _freed(cluster: GangSnapshot, pods: Sequence[GangPod]) -> dict[str, int]:
    free = {node: amounts["gpu"] for node, amounts in cluster.free.items()}
    for pod in pods:
        free[pod.node] += pod.requests["gpu"]
    return free


def _places(gang: Gang, free: dict[str, int]) -> int:
    gpus = gang.pods[0].requests["gpu"]
    return sum(max(0, free.get(node, 0)) // gpus for node in gang.nodes)


def _starts(gang: Gang, free: dict[str, int]) -> bool:
    return _places(gang, free) >= gang.missing


def _in_a_circle(gangs: Sequence[Gang], now: dict[str, int], cluster: GangSnapshot) -> bool:
    def waits(gang: Gang, other: Gang) -> bool:
        after = _freed(cluster, other.bound)
        return min(gang.missing, _places(gang, after)) > min(gang.missing, _places(gang, now))

    return any(
        all(waits(ring[index], ring[(index + 1) % len(ring)]) for index in range(len(ring)))
        for size in range(2, len(gangs) + 1)
        for ring in permutations(gangs, size)
    )


def _decision_ms(nodes: int, gangs: int) -> float:
    """Pairs of gangs that hold a node each of two and lack the other; all other nodes are full."""
    made = []
    for number in range(gangs):
        pair = number // 2
        allowed = frozenset({f"n{2 * pair}", f"n{2 * pair + 1}"})
        pods = (GangPod("0", {"gpu": 8000}, f"n{number}", 0.0), GangPod("1", {"gpu": 8000}, refused=True))
        made.append(Gang(f"g{number}", pods, 2, allowed))
    snapshot = GangSnapshot(tuple(made), {f"n{index}": {"gpu": 0} for index in range(nodes)}, _NOW_S)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        assert len(releases(snapshot, HOLD)) == gangs // 2, "each pair is a deadlock"
        took.append(1000 * (time.perf_counter() - began))
    return float(np.median(took))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
