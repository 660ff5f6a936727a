"""A stream of requests for partitions of nodes with AMD's GPUs: how many get one in time, and how much is used.

Poisson arrivals, exponential stays. A request is for a number of dies (XCDs) of one GPU, and has a partition of the
mode with as many; where nodes are not divided it takes a whole GPU. One that has waited for longer than its patience is
gone. Nodes are divided as ``policies.partitions`` plans it: a node that changes is closed for ``outage_s``, and what is
evicted comes back as a new request with its work since the last checkpoint lost.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.amd_modes import WHOLE_MODE, amd_mode, modes_of
from kopt.policies.partitions.configurations import NodeOption
from kopt.policies.partitions.drain import DrainSettings, RunningPod, best_drain
from kopt.policies.partitions.modes import mode_geometry, mode_option
from kopt.policies.partitions.plan import PartitionPool, PlanNode, plan_partitions

Way = Literal["whole", "static", "idle", "drain"]
"""``whole``: nothing is divided. ``static``: nodes are divided once, by the mean of the mix. ``idle``: idle nodes
change as what waits needs it; ``drain``: others as well, where that is worth it."""
GPUS = 8
_MODES = modes_of(find_gpu("MI300X"))
_GEOMETRY = mode_geometry(_MODES.model)
_OPTIONS = [mode_option(_MODES, GPUS, each.mode.name, [(each.mode, None)], "30.20") for each in _MODES.validated]
_BY_NAME = {option.name: option for option in _OPTIONS}
DIES: Mapping[str, int] = {profile.name: profile.compute_slices for profile in _GEOMETRY.profiles}
_REPLAN_S = 300.0


@dataclass(frozen=True)
class ModeStream:
    """``mixes``: shares of requests by mode, one after the other over the run. ``load``: dies that are asked for at a
    time over all there are. ``checkpoint_s``: what an eviction loses at most of a request's work."""

    nodes: int
    mixes: Sequence[Mapping[str, float]]
    load: float
    requests: int = 2000
    stay_s: float = 4 * 3600.0
    patience_s: float = 3600.0
    outage_s: float = 600.0
    interval_s: float = 4 * 3600.0
    least_ratio: float = 2.0
    checkpoint_s: float = 1800.0

    def draw(self, seed: int) -> list[tuple[float, str, float]]:
        """(arrival, mode, stay), in seconds."""
        random, result, now_s = np.random.default_rng(seed), [], 0.0
        each = self.requests // len(self.mixes)
        for mix in self.mixes:
            names, shares = list(mix), np.array(list(mix.values()), float)
            shares /= shares.sum()
            mean = float(shares @ np.array([DIES[name] for name in names]))
            rate = self.load * self.nodes * GPUS * _GEOMETRY.compute_slices / mean / self.stay_s
            for name in random.choice(names, size=each, p=shares):
                now_s += random.exponential(1 / rate)
                result.append((now_s, str(name), float(random.exponential(self.stay_s))))
        return result


@dataclass(frozen=True)
class ModeRun:
    """Shares of requests that got a partition in time and of die time in use; what evictions lost, of that; changes."""

    way: Way
    accepted: float
    used: float
    lost: float
    changes: int
    evictions: int


@dataclass
class _Request:
    mode: str
    stay_s: float
    since_s: float
    again: bool = False


@dataclass
class _Node:
    option: NodeOption
    pods: dict[int, tuple[_Request, float]] = field(default_factory=dict)
    """Until when each runs."""
    changed_s: float = float("-inf")
    opens_s: float = 0.0
    wanted: NodeOption | None = None

    @property
    def mode(self) -> str:
        return self.option.name


def replay_modes(stream: ModeStream, way: Way, seed: int) -> ModeRun:
    """One way over one draw of the stream."""
    return _Replay(stream, way).run(stream.draw(seed))


class _Replay:
    def __init__(self, stream: ModeStream, way: Way) -> None:
        self._stream, self._way = stream, way
        self._nodes = [_Node(option) for option in _first(stream, way)]
        self._queue: list[_Request] = []
        self._numbers = 0
        self._used_s = self._lost_s = 0.0
        self._accepted = self._changes = self._evictions = 0

    def run(self, arrivals: Sequence[tuple[float, str, float]]) -> ModeRun:
        end_s, replan_s = arrivals[-1][0], _REPLAN_S
        events = [(at_s, number) for number, (at_s, _, _) in enumerate(arrivals)]
        heapq.heapify(events)
        while events:
            at_s, number = events[0]
            if self._way in ("idle", "drain") and replan_s <= at_s:
                self._advance(replan_s)
                self._replan(replan_s)
                replan_s += _REPLAN_S
                continue
            heapq.heappop(events)
            self._advance(at_s)
            _, mode, stay_s = arrivals[number]
            self._queue.append(_Request(mode, stay_s, at_s))
            self._schedule(at_s)
        total_s = end_s * len(self._nodes) * GPUS * _GEOMETRY.compute_slices
        return ModeRun(
            self._way,
            self._accepted / len(arrivals),
            self._used_s / total_s,
            self._lost_s / total_s,
            self._changes,
            self._evictions,
        )

    def _advance(self, now_s: float) -> None:
        """Whatever ends or opens until now, in its order."""
        while True:
            ends = [(until_s, node, number) for node in self._nodes for number, (_, until_s) in node.pods.items()]
            opens = [node for node in self._nodes if node.wanted is not None and node.opens_s <= now_s]
            first = min(ends, key=lambda end: end[0], default=None)
            if opens and (first is None or min(node.opens_s for node in opens) <= first[0]):
                node = min(opens, key=lambda each: each.opens_s)
                assert node.wanted is not None, "only nodes that change open"
                node.option, node.wanted = node.wanted, None
                self._schedule(node.opens_s)
            elif first is not None and first[0] <= now_s:
                del first[1].pods[first[2]]
                self._schedule(first[0])
            else:
                return

    def _schedule(self, now_s: float) -> None:
        """Each on the fullest node that has room, so that others become idle."""
        queued = []
        for request in self._queue:
            if not request.again and now_s - request.since_s > self._stream.patience_s:
                continue
            node = self._room(request.mode, now_s)
            if node is None:
                queued.append(request)
                continue
            self._numbers += 1
            node.pods[self._numbers] = (request, now_s + request.stay_s)
            self._used_s += request.stay_s * DIES[request.mode]
            self._accepted += not request.again
        self._queue = queued

    def _room(self, mode: str, now_s: float) -> _Node | None:
        wanted = WHOLE_MODE.name if self._way == "whole" else mode
        able = [
            node
            for node in self._nodes
            if node.wanted is None and node.mode == wanted and len(node.pods) < node.option.instances[wanted]
        ]
        return max(able, key=lambda node: len(node.pods), default=None)

    def _replan(self, now_s: float) -> None:
        stream = self._stream
        self._schedule(now_s)
        pending = Counter(request.mode for request in self._queue)
        members = [
            PlanNode(
                str(at),
                node.option.instances if node.wanted is None else node.wanted.instances,
                {node.mode: len(node.pods)} if node.wanted is None else {},
                not node.pods and node.wanted is None and now_s - node.changed_s >= stream.interval_s / 4,
            )
            for at, node in enumerate(self._nodes)
        ]
        pool = PartitionPool(_GEOMETRY, members, _OPTIONS, pending, {})
        changes = plan_partitions(pool).changes
        for name, option in changes.items():
            self._change(self._nodes[int(name)], option, now_s)
        if self._way != "drain" or changes or any(node.wanted is not None for node in self._nodes):
            return
        running = {
            str(at): [self._pod(node, number, now_s) for number in node.pods]
            for at, node in enumerate(self._nodes)
            if node.pods and now_s - node.changed_s >= stream.interval_s / 4
        }
        limits = DrainSettings(stream.interval_s, stream.outage_s, stream.least_ratio)
        drain, _ = best_drain(pool, running, limits)
        if drain is not None and drain.evicts:
            self._evict(self._nodes[int(drain.node)], now_s)
            self._change(self._nodes[int(drain.node)], drain.option, now_s)

    def _pod(self, node: _Node, number: int, now_s: float) -> RunningPod:
        """Nobody knows when a request ends: neither does the policy."""
        request, until_s = node.pods[number]
        age_s = request.stay_s - (until_s - now_s)
        gpus = DIES[request.mode] / _GEOMETRY.compute_slices
        return RunningPod(str(number), gpus, gpus * min(age_s, self._stream.checkpoint_s))

    def _evict(self, node: _Node, now_s: float) -> None:
        for request, until_s in node.pods.values():
            remaining_s = until_s - now_s
            lost_s = min(request.stay_s - remaining_s, self._stream.checkpoint_s)
            self._used_s -= remaining_s * DIES[request.mode]
            self._lost_s += lost_s * DIES[request.mode]
            self._used_s -= lost_s * DIES[request.mode]
            self._queue.append(_Request(request.mode, remaining_s + lost_s, now_s, again=True))
            self._evictions += 1
        node.pods.clear()

    def _change(self, node: _Node, option: NodeOption, now_s: float) -> None:
        node.wanted, node.opens_s, node.changed_s = option, now_s + self._stream.outage_s, now_s
        self._changes += 1


def _first(stream: ModeStream, way: Way) -> list[NodeOption]:
    """How nodes are divided at first."""
    if way != "static":
        return [_BY_NAME[WHOLE_MODE.name]] * stream.nodes
    mean: dict[str, float] = dict.fromkeys(DIES, 0.0)
    for mix in stream.mixes:
        total = sum(mix.values())
        for name, share in mix.items():
            mean[name] += share / total * DIES[name]
    exact = {name: stream.nodes * weight / sum(mean.values()) for name, weight in mean.items()}
    counts = {name: int(value) for name, value in exact.items()}
    for name in sorted(exact, key=lambda each: counts[each] - exact[each])[: stream.nodes - sum(counts.values())]:
        counts[name] += 1
    return [_BY_NAME[amd_mode(name).name] for name, count in counts.items() for _ in range(count)]
