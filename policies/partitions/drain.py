"""Which node with pods is emptied to be cut anew, where that is worth what is lost by it.

AMD's memory mode is that of a whole node, so that where all nodes are in use none would ever change. What is won is the
compute of the requests that get a partition, for as long as nothing else changes; what is lost is the work at risk of
the pods that are evicted, what would have run on them meanwhile, and the minutes that a node takes to change. Both are
GPU seconds. Pods that end by themselves soon are waited for instead where that costs less.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kopt.policies.partitions.configurations import NodeOption
from kopt.policies.partitions.plan import Array, PartitionPool, PlanNode


@dataclass(frozen=True)
class RunningPod:
    """A pod on a node. ``gpus``: what it has of GPUs. ``lost_gpu_s``: its work at risk and its restart, None where it
    must not be ended now or nobody knows; ``remaining_s``: the time until it ends by itself, None without one."""

    name: str
    gpus: float
    lost_gpu_s: float | None
    remaining_s: float | None = None


@dataclass(frozen=True)
class DrainSettings:
    """``horizon_s``: so long what is won counts. ``outage_s``: a node takes so long to change. ``least_ratio``: what is
    won has to be so many times what is lost."""

    horizon_s: float
    outage_s: float = 600.0
    least_ratio: float = 2.0


@dataclass(frozen=True)
class Drain:
    """``evicts``: pods are evicted; else they are waited for, ``until_s`` from now. ``won_gpu_s``, ``lost_gpu_s``: as
    above, without what evicted pods would go on to do elsewhere. ``served``: waiting requests that get a partition."""

    node: str
    option: NodeOption
    evicts: bool
    until_s: float
    won_gpu_s: float
    lost_gpu_s: float
    served: Mapping[str, int]


@dataclass(frozen=True)
class Refusal:
    """Why a node is not emptied."""

    node: str
    message: str


def best_drain(
    pool: PartitionPool, running: Mapping[str, Sequence[RunningPod]], settings: DrainSettings
) -> tuple[Drain | None, list[Refusal]]:
    """The one node that is worth most, after what ``pool`` can do with idle ones. ``running``: pods by node, of nodes
    that may be emptied. One at a time: the next look sees what it has changed."""
    pending = pool.vector(pool.pending)
    free = sum((np.maximum(0, _spare(pool, node)) for node in pool.nodes), np.zeros(len(pool.names)))
    lacking = np.maximum(0, pending - free)
    if not lacking.any():
        return None, []
    best: Drain | None = None
    refusals = []
    for node in pool.nodes:
        if node.name not in running:
            continue
        pods = running[node.name]
        drains = [_drain(pool, node, option, pods, lacking, free, settings) for option in pool.options]
        worth = [each for each in drains if each.won_gpu_s > 0]
        if not worth:
            continue
        drain = max(worth, key=lambda each: each.won_gpu_s - each.lost_gpu_s)
        if drain.lost_gpu_s == np.inf:
            named = ", ".join(pod.name for pod in pods if pod.lost_gpu_s is None and pod.remaining_s is None)
            refusals.append(Refusal(node.name, f"what ending {named} costs is not known, nor when they end"))
        elif drain.won_gpu_s < settings.least_ratio * drain.lost_gpu_s:
            refusals.append(
                Refusal(
                    node.name,
                    f"it would win {drain.won_gpu_s:.0f} GPU seconds and cost {drain.lost_gpu_s:.0f}; "
                    f"it has to win {settings.least_ratio:g} times as much",
                )
            )
        elif best is None or drain.won_gpu_s - drain.lost_gpu_s > best.won_gpu_s - best.lost_gpu_s:
            best = drain
    return best, refusals


def _spare(pool: PartitionPool, node: PlanNode) -> Array:
    return pool.vector(node.instances) - pool.vector(node.used)


def _drain(
    pool: PartitionPool,
    node: PlanNode,
    option: NodeOption,
    pods: Sequence[RunningPod],
    lacking: Array,
    free: Array,
    settings: DrainSettings,
) -> Drain:
    """What emptying ``node`` for ``option`` wins and costs. What is free on it now is lost to those that would have
    had it, and what is evicted wants a partition like its own."""
    own, spare = pool.vector(option.instances), np.maximum(0, _spare(pool, node))
    elsewhere = free - spare
    evicted = pool.vector(node.used)
    wants = pool.vector(pool.pending)
    before = np.minimum(wants, free)
    gives = elsewhere + own
    gained_dies = float((np.minimum(wants, gives) - before) @ pool.slices)
    homeless = np.maximum(0, evicted - np.maximum(0, gives - wants)) @ pool.slices
    per_gpu = float(pool.geometry.compute_slices)
    gpus = float(pool.vector(node.instances) @ pool.slices) / per_gpu
    won = gained_dies / per_gpu * settings.horizon_s
    evicting = _sum([pod.lost_gpu_s for pod in pods]) + float(homeless) / per_gpu * settings.horizon_s
    until_s = _latest([pod.remaining_s for pod in pods])
    idle = float("inf")
    if until_s <= settings.horizon_s:
        # What a pod leaves is not used until the last has ended.
        idle = sum(pod.gpus * (until_s - (pod.remaining_s or 0.0)) for pod in pods)
        idle += (gpus - sum(pod.gpus for pod in pods)) * until_s
    evicts = evicting < idle
    served = np.minimum(lacking, np.maximum(0, np.minimum(wants, gives) - before))
    if idle < np.inf and not evicts:
        won = gained_dies / per_gpu * max(0.0, settings.horizon_s - until_s)
    return Drain(
        node.name,
        option,
        evicts,
        0.0 if evicts else until_s,
        won,
        min(evicting, idle) + gpus * settings.outage_s,
        {name: int(count) for name, count in zip(pool.names, served, strict=True) if count},
    )


def _sum(values: Sequence[float | None]) -> float:
    return float("inf") if any(value is None for value in values) else float(sum(value or 0.0 for value in values))


def _latest(values: Sequence[float | None]) -> float:
    return (
        float("inf") if any(value is None for value in values) else max([value or 0.0 for value in values], default=0.0)
    )
