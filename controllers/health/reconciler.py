"""One look: evidence is weighed, the objects say what is known, and in mode enforce nodes and GPUs carry what follows.

A NodeHealth is written before anything is done to its node. What is done carries a mark on the Node, or is a
DeviceTaintRule with a label of ours, by which the next leader, or `kopt off`, takes back exactly that.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.client.resources import DEVICE_TAINT_RULES, NODES, Object
from kopt.cluster.holds.node_taint import (
    given_back,
    is_tainted,
    mark,
    our_condition,
    with_condition,
    with_taint,
    without_condition,
    without_taint,
)
from kopt.cluster.objects.custom.node_bandwidth import owned_by
from kopt.cluster.objects.custom.node_health import HealthRecord, status_of
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.controllers.health import device_taints
from kopt.controllers.health.device_taints import DeviceTaints, enforced_gpus, worst
from kopt.controllers.health.devices import DevicesByGpu
from kopt.controllers.health.records import Records
from kopt.controllers.health.sources import (
    Query,
    by_node_name,
    health_query,
    job_evidence,
    links_evidence,
    others_evidence,
)
from kopt.controllers.health.views import ObservedLinks, ObservedNode, others_have_condition
from kopt.core.decision import Mode
from kopt.core.hardware.health import NODE, Evidence, Grade, Outcome
from kopt.core.switches import Owner
from kopt.core.times import stamp
from kopt.formats.gpu_metrics.health import HealthReadings, node_of, read_health
from kopt.policies.health import Candidate, Thresholds, kept_free

_LOG = logging.getLogger(__name__)
_TEST_JOBS_S = 60.0
_LONGEST_ELAPSED = 4.0
"""Looks: nobody says what was in a longer pause."""


@dataclass(frozen=True)
class HealthSettings:
    """``most_share``: of a pool's nodes that may be kept free, by us or for others' reasons. ``look_s``: how often
    exporters are asked."""

    mode: Mode = Mode.OBSERVE
    most_share: float = 0.1
    interval_s: float = 15.0
    thresholds: Thresholds = field(default_factory=Thresholds)


class Cluster(device_taints.Cluster, Protocol):
    """What informers have seen, and fenced writes that show up in it at once."""

    def nodes(self) -> Mapping[str, ObservedNode]: ...

    def healths(self) -> Mapping[str, Object]: ...

    def links(self, node: str) -> ObservedLinks | None: ...

    def outcomes(self) -> list[Outcome]: ...

    async def write_node(self, node: ObservedNode, changes: Object) -> None: ...

    async def write_condition(self, node: ObservedNode, changes: Object) -> None: ...

    async def create_health(self, body: Object) -> None: ...

    async def write_health(self, document: Object, status: Object) -> None: ...


class Reconciler(Retrying):
    """``step`` does what there is to do. Without ``query`` nothing is measured; all other sources count."""

    def __init__(
        self,
        cluster: Cluster,
        settings: HealthSettings,
        emit_event: EmitEvent,
        mode_of: Callable[[Owner], Mode],
        query: Query | None = None,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation or Isolation("health"), Pauses(changed_s=0.5, failed_s=5.0))
        self._cluster, self._settings, self._emit_event, self._mode_of = cluster, settings, emit_event, mode_of
        self._query, self._clock = query, clock
        self.records = Records(settings.thresholds)
        self._measured_s, self._tested_s, self._untested = 0.0, 0.0, False
        self.closed: frozenset[str] = frozenset()
        """Nodes that a taint keeps free."""
        self.device_taints = DeviceTaints(cluster, settings.most_share)
        self._why_node: Mapping[str, str] = {}
        """Condemned nodes of which single GPUs cannot be kept free, and why."""
        self._capped: frozenset[tuple[str, str]] = frozenset()
        self.measured = False
        """Whether the last query was answered."""

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before. Raises Deposed."""
        now_s, nodes = self._clock(), self._cluster.nodes()
        self.records.load({name: item for name, item in self._cluster.healths().items() if name in nodes})
        self.records.keep_only(nodes)
        readings = await self._measure(now_s)
        self._test_jobs(nodes, now_s)
        named = by_node_name({*readings.evidence, *readings.counters}, nodes)
        evidence: dict[str, list[Evidence]] = {}
        counters: dict[str, dict[str, float]] = {}
        for reading, name in named.items():
            evidence.setdefault(name, []).extend(readings.evidence.get(reading, ()))
            counters.setdefault(name, {}).update(readings.counters.get(reading, {}))
        devices = self._cluster.devices()
        again_s = [self._settings.interval_s]
        for name, node in nodes.items():
            self._advance(node, evidence.get(name, []), counters.get(name, {}), devices.get(name, {}), now_s)
        self._choose(nodes, now_s)
        for node in nodes.values():
            subject = Subject(NODES.api_version, NODES.kind, "", node.name, node.uid)
            again_s.append(await self._tried(partial(self._write, node, now_s), subject))
        for rule in self.device_taints.without_node(nodes):
            subject = Subject.of(DEVICE_TAINT_RULES, rule.document)
            await self._tried(partial(self._cluster.delete_rule, rule), subject)
        return min(again_s)

    async def _measure(self, now_s: float) -> HealthReadings:
        """What exporters say, where it is time to ask; nothing where they do not answer."""
        if self._query is None or now_s - self._measured_s < self._settings.interval_s:
            return HealthReadings()
        try:
            answer = await self._query(health_query())
        except PrometheusError as error:
            self.errors += 1
            self.measured = False
            _LOG.warning("nothing is measured for now: %s", error)
            return HealthReadings()
        elapsed_s = min(now_s - self._measured_s, _LONGEST_ELAPSED * self._settings.interval_s)
        self._measured_s, self.measured = now_s, True
        series = [(own.get("__name__", ""), own, value) for own, value in answer]
        names = by_node_name({node_of(own) for own, _ in answer}, self._cluster.nodes())
        before = {reading: self.records.of[name].counters for reading, name in names.items() if name in self.records.of}
        return read_health(series, before, now_s, elapsed_s)

    def _test_jobs(self, nodes: Mapping[str, ObservedNode], now_s: float) -> None:
        """With each look at most: of thousands of nodes some job ends at any time."""
        self._untested |= self.records.add_outcomes(self._cluster.outcomes(), nodes, now_s)
        if now_s - self._tested_s >= (self._settings.interval_s if self._untested else _TEST_JOBS_S):
            self.records.test_jobs(nodes, now_s)
            self._tested_s, self._untested = now_s, False

    def _advance(
        self,
        node: ObservedNode,
        evidence: list[Evidence],
        counters: Mapping[str, float],
        devices: DevicesByGpu,
        now_s: float,
    ) -> None:
        before = self.records.record(node)
        was = before.health.grade
        if self.records.repair(node, now_s):
            self._about(node, "HealthRepaired", "It was repaired: what was seen before weighs little from now on.")
        record = self.records.record(node)
        of_links, falls = links_evidence(self._cluster.links(node.name), record.entries, record.counters, now_s)
        evidence = [
            *evidence,
            *of_links,
            *others_evidence(node, devices, record.entries, now_s),
            *job_evidence(self.records.failing.get(node.name), record.entries, now_s),
        ]
        mode = self._mode_of(Owner("nodes", "", node.name))
        record = self.records.advance(node, evidence, {**counters, **falls}, mode, now_s)
        if record.health.grade is not was:
            self._announce(node, was, record)

    def _announce(self, node: ObservedNode, was: Grade, record: HealthRecord) -> None:
        grade = record.health.grade
        if grade > was:
            self._about(node, f"Gpus{grade.text}", f"Its GPUs are {grade.text.lower()}: {record.reason}.")
        else:
            text_now = "healthy again" if grade is Grade.HEALTHY else "only suspect now"
            self._about(node, "HealthRecovered", f"Its GPUs are {text_now}.")

    def _choose(self, nodes: Mapping[str, ObservedNode], now_s: float) -> None:
        """Which GPUs and nodes are kept free: the worst, and never more than the share of their pool."""
        records = self.records.of
        self.device_taints.choose(nodes, records)
        condemned = {name for name in nodes if enforced_gpus(records[name])}
        self._why_node = {
            name: why for name in condemned if (why := self.device_taints.why_not(nodes[name], records[name], now_s))
        }
        self.closed = kept_free(
            (
                Candidate(
                    name,
                    node.pool,
                    name in self._why_node,
                    is_tainted(node.document),
                    node.unavailable,
                    max(records[name].health.loads.values(), default=0.0),
                )
                for name, node in nodes.items()
            ),
            self._settings.most_share,
        )
        withheld = {(name, NODE) for name in self._why_node.keys() - self.closed if not nodes[name].unavailable}
        capped = frozenset(withheld | self.device_taints.capped)
        for name, gpu in sorted(capped - self._capped):
            what, whose = ("It", "nodes") if gpu == NODE else (f"GPU {gpu}", "GPUs")
            share = f"{self._settings.most_share:.0%} of its pool's {whose}"
            self._about(nodes[name], "HealthTaintWithheld", f"{what} stays open: at most {share} may be kept free.")
        self._capped = capped

    async def _write(self, node: ObservedNode, now_s: float) -> float:
        record = self.records.of[node.name]
        document = self._cluster.healths().get(node.name)
        if self.records.is_due(node.name, document, now_s):
            status = status_of(record)
            if document is None:
                await self._cluster.create_health({"metadata": owned_by(node.name, node.uid), "status": status})
            elif document.get("status") != status:
                await self._cluster.write_health(document, status)
            self.records.wrote(node.name, now_s)
        return await self._act(node, record, now_s)

    async def _act(self, node: ObservedNode, record: HealthRecord, now_s: float) -> float:
        """What the node has to carry. One write for each look: the next one starts from its answer."""
        await self._taint_devices(node, record)
        enforced = bool(enforced_gpus(record))
        tainted, wanted = is_tainted(node.document), node.name in self.closed
        has_condition = bool(our_condition(node.document))
        if enforced and (not node.marked or tainted != wanted):
            changes: Object = {"metadata": mark()}
            if wanted:
                changes["spec"] = with_taint(node.document, worst(record))
                why = f"; the whole node, as {self._why_node[node.name]}" if node.by_claims else ""
                self._about(node, "NodeKeptFree", f"No new pods without a toleration: {record.reason}{why}.")
            else:
                changes |= without_taint(node.document)
            await self._cluster.write_node(node, changes)
            return 0.0
        if enforced and not others_have_condition(node) and self._is_stale(node, record):
            grade = record.health.grade.text
            changes = with_condition(node.document, grade, record.reason, stamp(now_s))
            await self._cluster.write_condition(node, changes)
            return self._settings.interval_s
        if not enforced and has_condition:
            gone = without_condition(node.document)
            assert gone is not None
            await self._cluster.write_condition(node, gone)
            return 0.0
        if not enforced and node.marked:
            await self._cluster.write_node(node, given_back(node.document))
            self._about(node, "NodeGivenBack", "Nothing keeps new pods away any more.")
        return self._settings.interval_s

    async def _taint_devices(self, node: ObservedNode, record: HealthRecord) -> None:
        closed, opened = await self.device_taints.write(node, record)
        if closed:
            self._about(node, "GpusKeptFree", f"No new claims of GPU {', '.join(closed)}: {record.reason}.")
        if opened:
            self._about(node, "GpusGivenBack", f"Claims get GPU {', '.join(opened)} again.")

    @staticmethod
    def _is_stale(node: ObservedNode, record: HealthRecord) -> bool:
        return text(our_condition(node.document), "message") != record.reason[:1024]

    def _about(self, node: ObservedNode, reason: str, sentence: str) -> None:
        self._emit_event(NODES.reference("", node.name, node.uid), reason, sentence)
