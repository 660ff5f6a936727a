"""A queue in GPUs: what runs, what waits in which order, and where it may go. The reduced form of a cluster in which
thousands of futures can be played through."""

from collections import defaultdict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property


@dataclass(frozen=True)
class NodeRoom:
    """A node with the milli-GPU that are free. Nodes of one ``group`` are open to the same workloads."""

    name: str
    free_milli: int
    group: str = ""


@dataclass(frozen=True)
class RunningGpus:
    """What a running workload gives back when it ends: milli-GPU by node, and of each limit that it counts against."""

    name: str
    by_node: Mapping[str, int] = field(default_factory=dict)
    by_limit: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class QueuedGpus:
    """What waits: ``pods`` that start together, each with so many milli-GPU on one node of ``groups`` (None: any)."""

    name: str
    pods: int
    milli_gpus: int
    by_limit: Mapping[str, int] = field(default_factory=dict)
    groups: frozenset[str] | None = None

    @cached_property
    def shape(self) -> Hashable:
        """Equal for what fits in the same places."""
        return self.pods, self.milli_gpus, tuple(sorted(self.by_limit.items())), self.groups


@dataclass(frozen=True)
class QueueModel:
    """``queue`` in the order in which it is admitted; ``strict``: nothing starts before what is ahead of it. Without
    ``nodes`` only limits count."""

    running: tuple[RunningGpus, ...] = ()
    queue: tuple[QueuedGpus, ...] = ()
    nodes: tuple[NodeRoom, ...] = ()
    free_by_limit: Mapping[str, int] = field(default_factory=dict)
    strict: bool = False


class Rooms:
    """The free GPUs of nodes and limits in a course of events, after which ``reset`` undoes it all."""

    def __init__(self, model: QueueModel) -> None:
        self.has_nodes = bool(model.nodes)
        self.limits = dict(model.free_by_limit)
        self._free = {node.name: node.free_milli for node in model.nodes}
        self._group = {node.name: node.group for node in model.nodes}
        self._names = [node.name for node in model.nodes]
        self._bit = {name: 1 << number for number, name in enumerate(self._names)}
        # Nodes as bits: the first of them is found at once, and is the same whatever was started and ended before.
        self._by_free: dict[tuple[str, int], int] = defaultdict(int)
        self.total = 0
        self._changes: list[tuple[str, int]] = []
        self._limits = dict(model.free_by_limit)
        for node in model.nodes:
            self._by_free[node.group, node.free_milli] |= self._bit[node.name]
            self.total += max(0, node.free_milli)

    def start(self, workload: QueuedGpus) -> RunningGpus | None:
        """Give it GPUs, on the fullest nodes with room; None, with nothing changed, where it does not fit."""
        for name, amount in workload.by_limit.items():
            if self.limits.get(name, 0) < amount:
                return None
        by_node: dict[str, int] = {}
        if self.has_nodes:
            if workload.pods * workload.milli_gpus > self.total:
                return None
            for _ in range(workload.pods):
                node = self._fullest(workload)
                if node is None:
                    for name, amount in by_node.items():
                        self._change(name, amount)
                    return None
                self._change(node, -workload.milli_gpus)
                by_node[node] = by_node.get(node, 0) + workload.milli_gpus
        for name, amount in workload.by_limit.items():
            self.limits[name] -= amount
        return RunningGpus(workload.name, by_node, workload.by_limit)

    def fits(self, workload: QueuedGpus) -> bool:
        """Whether it would start now."""
        if workload.pods == 1 or not self.has_nodes:
            # Nothing has to be tried.
            has_quota = all(self.limits.get(name, 0) >= amount for name, amount in workload.by_limit.items())
            return has_quota and (not self.has_nodes or self._fullest(workload) is not None)
        started = self.start(workload)
        if started is not None:
            self.end(started)
        return started is not None

    def end(self, workload: RunningGpus) -> None:
        for name, amount in workload.by_limit.items():
            if name in self.limits:
                self.limits[name] += amount
        for name, amount in workload.by_node.items():
            if name in self._free:
                self._change(name, amount)

    def reset(self) -> None:
        """As it was in the beginning."""
        changes, self._changes = self._changes, []
        for node, amount in reversed(changes):
            self._change(node, -amount)
        self._changes.clear()
        self.limits = dict(self._limits)

    def _fullest(self, workload: QueuedGpus) -> str | None:
        best: tuple[int, str] | None = None
        for (group, free), nodes in self._by_free.items():
            if (
                free < workload.milli_gpus
                or not nodes
                or (workload.groups is not None and group not in workload.groups)
            ):
                continue
            if best is None or (free, group) < best:
                best = free, group
        if best is None:
            return None
        # Nodes of a group with as much free are alike.
        nodes = self._by_free[best[1], best[0]]
        return self._names[(nodes & -nodes).bit_length() - 1]

    def _change(self, node: str, amount: int) -> None:
        group, free = self._group[node], self._free[node]
        self._changes.append((node, amount))
        self._by_free[group, free] ^= self._bit[node]
        self._free[node] = free + amount
        self._by_free[group, free + amount] |= self._bit[node]
        self.total += max(0, free + amount) - max(0, free)
