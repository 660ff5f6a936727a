"""A small cluster whose true history is known, and a meter that sees it badly: late, twice, or not at all."""

from dataclasses import dataclass, field, replace

from kopt.core.cost.metering import Capacity, Demand, MeteredNode, MeteredPod, Offer, Rule, Segment
from kopt.policies.cost import Changes, Meter, Observation, advance, steady

H100 = Offer("H100-SXM5-80GB", "lambda")
OPEN = 1 << 60


@dataclass
class Stored:
    """What is in the database: keys replace."""

    segments: dict[tuple[str, str, int], Segment] = field(default_factory=dict)
    capacities: dict[tuple[str, int], Capacity] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    metered_ms: int | None = None

    def store(self, changes: Changes, metered_ms: int) -> None:
        for segment in changes.segments:
            self.segments[segment.node_uid, segment.subject, segment.start_ms] = segment
        for capacity in changes.capacities:
            self.capacities[capacity.node_uid, capacity.start_ms] = capacity
        self.ended |= set(changes.ended)
        self.metered_ms = metered_ms

    def usage(self, until_ms: int, subject: str = "") -> dict[str, int]:
        """Milli-GPU·ms by node, of one subject or of all."""
        result: dict[str, int] = {}
        for segment in self.segments.values():
            if subject in ("", segment.subject):
                end_ms = min(until_ms, segment.end_ms if segment.end_ms is not None else OPEN)
                used = segment.milli * max(0, end_ms - segment.start_ms)
                result[segment.node_uid] = result.get(segment.node_uid, 0) + used
        return result

    def capacity(self, until_ms: int) -> dict[str, int]:
        result: dict[str, int] = {}
        for item in self.capacities.values():
            end_ms = min(until_ms, item.end_ms if item.end_ms is not None else OPEN)
            result[item.node_uid] = result.get(item.node_uid, 0) + item.milli * max(0, end_ms - item.start_ms)
        return result

    def meters(self, nodes: dict[str, MeteredNode], pods: dict[str, MeteredPod]) -> dict[str, Meter]:
        """As a new leader reads them: what is open, and what it knows of its pods."""
        result: dict[str, Meter] = {}
        for capacity in self.capacities.values():
            if capacity.end_ms is not None:
                continue
            known = nodes.get(capacity.node_uid)
            node = MeteredNode(capacity.node_uid, capacity.node, capacity.milli // 1000, capacity.offer)
            node = node if known is None else replace(node, closed=known.closed, created_ms=known.created_ms)
            held = {
                segment.subject: (segment.start_ms, segment.milli)
                for segment in self.segments.values()
                if segment.node_uid == node.uid and segment.end_ms is None
            }
            boundaries = [start_ms for start_ms, _ in held.values()]
            boundaries += [s.end_ms for s in self.segments.values() if s.node_uid == node.uid and s.end_ms is not None]
            on_it = {
                uid: pods.get(uid, MeteredPod(uid, node.name, Demand(1), held[uid][0]))
                for uid in held
                if not uid.startswith("idle:")
            }
            result[node.uid] = Meter(node, max([capacity.start_ms, *boundaries]), capacity.start_ms, on_it, held)
        return result


@dataclass
class Cluster:
    """``now_ms`` is the true time; the meter's clock may be wrong by ``wrong_ms``."""

    nodes: dict[str, MeteredNode] = field(default_factory=dict)
    pods: dict[str, MeteredPod] = field(default_factory=dict)
    now_ms: int = 1_000_000
    wrong_ms: int = 0
    stored: Stored = field(default_factory=Stored)
    meters: dict[str, Meter] | None = None
    departed: dict[str, int] = field(default_factory=dict)
    clock_ms: float = 0.0
    ticked_ms: int = 0
    rule: Rule = Rule.MAX

    def passes(self, ms: int) -> None:
        self.now_ms += ms

    def crashes(self) -> None:
        self.meters, self.departed = None, {}

    def look(self, gap_ms: int = 180_000, mix: dict[tuple[int, int], float] | None = None) -> None:
        """One step of the meter; the first one of a process reads what is stored."""
        metered_ms = self.stored.metered_ms
        unobserved = False
        if self.meters is None:
            self.clock_ms = max(float(self.now_ms + self.wrong_ms), float(metered_ms or 0))
            self.meters = self.stored.meters(self.nodes, self.pods)
            unobserved = metered_ms is not None and self.clock_ms - metered_ms > gap_ms
        else:
            self.clock_ms = steady(self.clock_ms, self.now_ms + self.wrong_ms, self.now_ms - self.ticked_ms)
        self.ticked_ms = self.now_ms
        now_ms = int(self.clock_ms)
        observation = Observation(
            now_ms,
            self.nodes,
            list(self.pods.values()),
            self.departed,
            metered_ms,
            unobserved,
            frozenset(self.stored.ended),
        )
        meters, changes = advance(self.meters, observation, self.rule, mix or {(1, 1000): 1.0})
        self.meters = dict(meters)
        self.stored.store(changes, now_ms)
        self.departed = {}
