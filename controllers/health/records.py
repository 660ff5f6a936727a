"""What is known of each node, from look to look: loaded from the NodeHealth objects, advanced by evidence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.node_health import MOST_OUTCOMES, HealthRecord, record_of
from kopt.controllers.health.views import ObservedNode
from kopt.core.decision import Mode
from kopt.core.hardware.health import Evidence, Outcome, code_of
from kopt.policies.health import Thresholds, add, evaluate, explain, failing_nodes, pruned, repaired

_OUTCOMES_S = 86400.0
_WRITE_S = 300.0
"""What changes little is written so often."""


@dataclass
class Records:
    """``of``: by node. ``failing``: nodes on which jobs fail, and why."""

    thresholds: Thresholds = field(default_factory=Thresholds)
    of: dict[str, HealthRecord] = field(default_factory=dict)
    failing: Mapping[str, str] = field(default_factory=dict)
    _written_s: dict[str, float] = field(default_factory=dict)
    _known: dict[str, set[tuple[str, float]]] = field(default_factory=dict)

    def load(self, documents: Mapping[str, Object]) -> None:
        """As the leader before has left them; what is known already stays."""
        for name, document in documents.items():
            if name not in self.of:
                record = record_of(document)
                self.of[name] = record
                self._known[name] = {(outcome.job, outcome.at_s) for outcome in record.outcomes}

    def keep_only(self, nodes: Mapping[str, ObservedNode]) -> None:
        """A node that was made anew under its name is found by its boot."""
        for name in self.of.keys() - nodes.keys():
            del self.of[name]
            self._known.pop(name, None)
            self._written_s.pop(name, None)

    def add_outcomes(self, outcomes: Iterable[Outcome], nodes: Mapping[str, ObservedNode], now_s: float) -> bool:
        """Keep outcomes of pods; whether there are new ones."""
        new = False
        for outcome in sorted(outcomes, key=lambda item: item.at_s):
            node = nodes.get(outcome.node)
            known = self._known.setdefault(outcome.node, set())
            # Objects carry whole seconds.
            key = outcome.job, float(int(outcome.at_s))
            if node is None or key in known or outcome.at_s < now_s - _OUTCOMES_S:
                continue
            known.add(key)
            record = self.record(node)
            if outcome.at_s > record.repaired_s:
                self.of[node.name] = replace(record, outcomes=(*record.outcomes, outcome)[-MOST_OUTCOMES:])
                new = True
        return new

    def test_jobs(self, nodes: Mapping[str, ObservedNode], now_s: float) -> None:
        """Which nodes break jobs, by pool."""
        by_pool: dict[str, list[Outcome]] = {}
        for name, node in nodes.items():
            recent = [item for item in self.record(node).outcomes if item.at_s >= now_s - _OUTCOMES_S]
            by_pool.setdefault(node.pool, []).extend(replace(item, node=name) for item in recent)
        self.failing = {name: why for outcomes in by_pool.values() for name, why in failing_nodes(outcomes).items()}

    def record(self, node: ObservedNode) -> HealthRecord:
        return self.of.setdefault(node.name, HealthRecord(node.name, boot=node.boot, gpu_count=node.gpus))

    def repair(self, node: ObservedNode, now_s: float) -> bool:
        """Count a repair that the node shows: a person's or a system's word, or another boot."""
        record = self.record(node)
        rebooted = bool(record.boot and node.boot and record.boot != node.boot)
        reported = record.repaired_s < node.repaired_s <= now_s + 60
        if rebooted or reported:
            at_s = now_s if rebooted else node.repaired_s
            entries = repaired(record.entries, at_s)
            outcomes = tuple(item for item in record.outcomes if item.at_s > at_s)
            record = replace(record, entries=entries, outcomes=outcomes, repaired_s=at_s)
        self.of[node.name] = replace(record, boot=node.boot or record.boot, gpu_count=node.gpus)
        return rebooted or reported

    def advance(
        self, node: ObservedNode, evidence: Iterable[Evidence], counters: Mapping[str, float], mode: Mode, now_s: float
    ) -> HealthRecord:
        """The record with further evidence and readings; it is in ``of`` from now on."""
        record = self.record(node)
        entries = pruned(add(record.entries, evidence), now_s)
        health = evaluate(entries, record.health.gpus, now_s, self.thresholds)
        changed = health.grade is not record.health.grade
        since_s = now_s if changed or not record.since_s else record.since_s
        result = replace(
            record,
            health=health,
            entries=entries,
            counters={**record.counters, **counters},
            reason=explain(entries, now_s) if health.grade else "",
            mode=mode,
            since_s=since_s,
        )
        self.of[node.name] = result
        return result

    def is_due(self, node: str, before: Object | None, now_s: float) -> bool:
        """Whether the object is to be written: something that matters has changed, or it is long ago."""
        record = self.of[node]
        if before is None or now_s - self._written_s.get(node, 0.0) >= _WRITE_S:
            return True
        return _essence(record_of(before)) != _essence(record)

    def wrote(self, node: str, now_s: float) -> None:
        self._written_s[node] = now_s


def _essence(record: HealthRecord) -> tuple[object, ...]:
    events = tuple(
        sorted(
            (entry.code, entry.gpu, round(entry.count), entry.lasts)
            for entry in record.entries.values()
            if code_of(entry.code).kind.value != "duration"
        )
    )
    gpus = tuple(sorted((gpu, grade) for gpu, grade in record.health.gpus.items() if grade))
    return (
        record.health.grade,
        round(record.health.score, 1),
        record.mode,
        gpus,
        events,
        int(record.repaired_s),
        record.boot,
        record.gpu_count,
        len(record.outcomes),
    )
