"""From what is there now to intervals: each node has a timeline that only grows.

``advance`` compares what is recorded as open with what is observed, so that events that come twice, in another order or
never change nothing but the time at which a change is noticed. What is known of a time, such as when a pod was
bound, is used where the timeline has not passed it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kopt.core.cost.metering import Capacity, MeteredNode, MeteredPod, Milliseconds, Rule, Segment
from kopt.policies.cost.shares import Mix, shares

SLEW = 0.01
"""By so much the clock of the meter is faster or slower than it should be while it differs from the wall's."""
_AT_ONCE_MS = 500


@dataclass(frozen=True)
class Meter:
    """What is known of a node at ``at_ms``, and what has been open since when: milli-GPU by subject."""

    node: MeteredNode
    at_ms: Milliseconds
    since_ms: Milliseconds
    pods: Mapping[str, MeteredPod] = field(default_factory=dict)
    open: Mapping[str, tuple[Milliseconds, int]] = field(default_factory=dict)
    observed: bool = True
    mix: Mix = field(default_factory=dict)
    """By which its shares were divided last."""


@dataclass(frozen=True)
class Observation:
    """The cluster at ``now_ms``. ``departed``: when objects that are gone were last there, by uid, where somebody
    watched. ``metered_ms``: until when everything had been observed before; None at the very first.

    ``unobserved``: nobody watched from then until now.
    """

    now_ms: Milliseconds
    nodes: Mapping[str, MeteredNode]
    pods: Iterable[MeteredPod]
    departed: Mapping[str, Milliseconds] = field(default_factory=dict)
    metered_ms: Milliseconds | None = None
    unobserved: bool = False
    recorded: frozenset[str] = frozenset()
    """Pods of which the end has been recorded: that they are still listed with it is no news."""


@dataclass(frozen=True)
class Changes:
    """What is to be stored: those that ended, and those that are open now. A key that is opened again replaces."""

    segments: tuple[Segment, ...] = ()
    capacities: tuple[Capacity, ...] = ()
    pods: tuple[MeteredPod, ...] = ()
    """Those that are new to a timeline, or whose attributes changed."""
    ended: tuple[str, ...] = ()


def steady(previous_ms: float, wall_ms: float, elapsed_ms: float) -> float:
    """The meter's time after ``elapsed_ms`` of a monotonic clock: it never goes back, and where it differs from the
    wall's it approaches it slowly. A clock that is wrong for ten minutes costs six seconds."""
    ideal = previous_ms + elapsed_ms
    if abs(wall_ms - ideal) <= _AT_ONCE_MS:
        return max(previous_ms, wall_ms)
    bend = min(elapsed_ms * SLEW, abs(wall_ms - ideal))
    return ideal + (bend if wall_ms > ideal else -bend)


def advance(
    meters: Mapping[str, Meter], observation: Observation, rule: Rule, mix: Mix
) -> tuple[Mapping[str, Meter], Changes]:
    """The timelines up to ``now_ms``, by uid of the node, and what changed in them."""
    by_node: dict[str, list[MeteredPod]] = {}
    for pod in observation.pods:
        by_node.setdefault(pod.node, []).append(pod)
    result: dict[str, Meter] = {}
    recorder = _Recorder()
    for uid in meters.keys() | observation.nodes.keys():
        pods = by_node.get(observation.nodes[uid].name, []) if uid in observation.nodes else []
        meter = _Timeline(meters.get(uid), observation, rule, mix, recorder).run(uid, pods)
        if meter is not None:
            result[uid] = meter
    return result, recorder.changes()


class _Recorder:
    def __init__(self) -> None:
        self.segments: dict[tuple[str, str, int], Segment] = {}
        self.capacities: dict[tuple[str, int], Capacity] = {}
        self.pods: dict[str, MeteredPod] = {}
        self.ended: dict[str, None] = {}

    def segment(self, segment: Segment) -> None:
        self.segments[segment.node_uid, segment.subject, segment.start_ms] = segment

    def capacity(self, capacity: Capacity) -> None:
        self.capacities[capacity.node_uid, capacity.start_ms] = capacity

    def changes(self) -> Changes:
        return Changes(
            tuple(self.segments.values()), tuple(self.capacities.values()), tuple(self.pods.values()), tuple(self.ended)
        )


class _Timeline:
    """One node in one pass: its changes in the order of their times."""

    def __init__(
        self, meter: Meter | None, observation: Observation, rule: Rule, mix: Mix, recorder: _Recorder
    ) -> None:
        self._meter, self._observation, self._rule, self._mix, self._recorder = meter, observation, rule, mix, recorder

    def run(self, uid: str, pods: Iterable[MeteredPod]) -> Meter | None:
        observation, node = self._observation, self._observation.nodes.get(uid)
        if self._meter is None:
            assert node is not None
            # Metering begins with the meter: what a node cost before its first is not known.
            earliest_ms = observation.now_ms if observation.metered_ms is None else observation.metered_ms
            self._begin(node, min(max(node.created_ms, earliest_ms), observation.now_ms))
        assert self._meter is not None
        if node is not None and self._is_as_it_was(node, pods):
            return replace(self._meter, at_ms=max(self._meter.at_ms, observation.now_ms))
        end_ms = observation.now_ms if node is not None else observation.departed.get(uid, self._last_metered_ms)
        for at_ms, _, change in sorted(self._events(pods, end_ms), key=lambda event: event[:2]):
            self._apply(min(at_ms, end_ms), change)
        if node is None:
            self._end(end_ms)
            return None
        if node != self._meter.node:
            self._recut(node, end_ms)
        self._apply(end_ms, self._meter)
        return self._meter

    def _is_as_it_was(self, node: MeteredNode, pods: Iterable[MeteredPod]) -> bool:
        """Most nodes at most times: nothing has to be divided anew."""
        meter = self._meter
        assert meter is not None
        if self._observation.unobserved or not meter.observed or not meter.open or node != meter.node:
            return False
        listed = {pod.uid: pod for pod in pods if pod.uid not in self._observation.recorded or pod.ended_ms is None}
        return listed == meter.pods and self._mix == meter.mix

    @property
    def _last_metered_ms(self) -> Milliseconds:
        return self._observation.now_ms if self._observation.metered_ms is None else self._observation.metered_ms

    def _events(self, pods: Iterable[MeteredPod], end_ms: Milliseconds) -> "list[tuple[Milliseconds, int, _Change]]":
        assert self._meter is not None
        listed = {pod.uid: pod for pod in pods}
        events: list[tuple[Milliseconds, int, _Change]] = []
        for uid in self._meter.pods.keys() - listed.keys():
            events.append((self._observation.departed.get(uid, min(self._last_metered_ms, end_ms)), 0, _Ends(uid)))
        for uid, pod in listed.items():
            if uid in self._meter.pods:
                events += [(end_ms, 1, _Starts(pod))] if pod.ended_ms is None else [(pod.ended_ms, 0, _Ends(uid))]
            elif pod.ended_ms is None:
                events.append((pod.started_ms, 1, _Starts(pod)))
            elif uid not in self._observation.recorded and pod.ended_ms > self._meter.at_ms:
                # Ends come before starts of their time, and this start has to come before its end.
                events += [(min(pod.started_ms, pod.ended_ms), -1, _Starts(pod)), (pod.ended_ms, 0, _Ends(uid))]
        if self._observation.unobserved and self._observation.metered_ms is not None:
            events += [(self._observation.metered_ms, -2, False), (end_ms, 2, True)]
        return events

    def _begin(self, node: MeteredNode, at_ms: Milliseconds) -> None:
        self._meter = Meter(node, at_ms, at_ms)
        self._record_capacity(self._meter, None)
        self._apply(at_ms, self._meter)

    def _end(self, at_ms: Milliseconds) -> None:
        assert self._meter is not None
        at_ms = max(at_ms, self._meter.at_ms)
        self._write(self._meter, {}, at_ms)
        self._record_capacity(self._meter, at_ms)
        for uid in self._meter.pods:
            self._recorder.ended[uid] = None

    def _recut(self, node: MeteredNode, at_ms: Milliseconds) -> None:
        """Other GPUs, another price or another use: what is open ends, also where its share stays the same."""
        assert self._meter is not None
        at_ms = max(at_ms, self._meter.at_ms)
        if (node.gpus, node.offer) != (self._meter.node.gpus, self._meter.node.offer):
            self._write(self._meter, {}, at_ms)
            self._record_capacity(self._meter, at_ms)
            self._meter = replace(self._meter, node=node, at_ms=at_ms, since_ms=at_ms, open={})
            self._record_capacity(self._meter, None)
        else:
            self._meter = replace(self._meter, node=node)

    def _apply(self, at_ms: Milliseconds, change: "_Change | Meter") -> None:
        assert self._meter is not None
        meter = self._meter
        at_ms = max(at_ms, meter.at_ms)
        pods, observed = dict(meter.pods), meter.observed
        if isinstance(change, bool):
            observed = change
        elif isinstance(change, _Ends):
            pods.pop(change.uid, None)
            self._recorder.ended[change.uid] = None
        elif isinstance(change, _Starts):
            self._record(pods.get(change.pod.uid), change.pod)
            pods[change.pod.uid] = change.pod
        wanted = shares(meter.node, pods.values(), self._rule, self._mix, observed=observed)
        still_open = self._write(meter, wanted, at_ms)
        self._meter = replace(meter, at_ms=at_ms, pods=pods, open=still_open, observed=observed, mix=self._mix)

    def _record(self, before: MeteredPod | None, pod: MeteredPod) -> None:
        if before is None or before.attributes != pod.attributes:
            self._recorder.pods[pod.uid] = pod

    def _write(
        self, meter: Meter, wanted: Mapping[str, int], at_ms: Milliseconds
    ) -> dict[str, tuple[Milliseconds, int]]:
        result = {}
        for subject in meter.open.keys() | wanted.keys():
            since_ms, milli = meter.open.get(subject, (at_ms, 0))
            if wanted.get(subject, 0) == milli:
                result[subject] = (since_ms, milli)
                continue
            if milli:
                # One of no length is stored too: it takes the open one of its key away.
                self._segment(meter, subject, since_ms, at_ms, milli)
            if subject in wanted:
                result[subject] = (at_ms, wanted[subject])
                self._segment(meter, subject, at_ms, None, wanted[subject])
        return result

    def _segment(
        self, meter: Meter, subject: str, start_ms: Milliseconds, end_ms: Milliseconds | None, milli: int
    ) -> None:
        self._recorder.segment(Segment(meter.node.uid, subject, start_ms, end_ms, milli, meter.node.offer))

    def _record_capacity(self, meter: Meter, end_ms: Milliseconds | None) -> None:
        node = meter.node
        self._recorder.capacity(Capacity(node.uid, node.name, meter.since_ms, end_ms, node.capacity_milli, node.offer))


@dataclass(frozen=True)
class _Starts:
    pod: MeteredPod


@dataclass(frozen=True)
class _Ends:
    uid: str


_Change = _Starts | _Ends | bool
