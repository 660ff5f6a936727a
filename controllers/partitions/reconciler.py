"""One pass: a plan for each MIGStrategy, one step of each node that is being cut, and the status that says so.

Everything is on objects: each step of a node is one write with its mark. A leader that dies leaves nothing that the
next one cannot go on from.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kopt.cluster.client.resources import MIG_STRATEGIES, NODES, Object
from kopt.cluster.holds.hold import release
from kopt.cluster.holds.node_layout import IN_PROGRESS, LayoutPhase
from kopt.cluster.objects.dcm_profiles import PROFILE_LABEL
from kopt.cluster.objects.mig_configurations import CONFIGURATION_LABEL
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.controllers.partitions.dcm import DeviceConfigManager
from kopt.controllers.partitions.executors import Executor, Step, released
from kopt.controllers.partitions.pools import Managers, read_partitions
from kopt.controllers.partitions.reports import NodeReport, Observed, StrategyReport
from kopt.controllers.partitions.status import status_of
from kopt.controllers.partitions.views import ObservedNode, ObservedStrategy
from kopt.core.decision import Mode
from kopt.policies.partitions.configurations import NodeOption

_IDLE_S, _SOON_S = 30.0, 1.0
_BUSY = (LayoutPhase.CUTTING, LayoutPhase.VERIFYING, LayoutPhase.RESTORING)
"""AMD's manager is at the node: what was begun is ended before it is given back."""


@dataclass(frozen=True)
class ControllerSettings:
    """``most_at_once``: nodes that are being cut at a time, of all strategies."""

    mode: Mode = Mode.OBSERVE
    most_at_once: int = 4
    managers: Managers = field(default_factory=Managers)


class Cluster(Protocol):
    """What informers have seen, and fenced writes that show up in it at once."""

    def observed(self, now_s: float) -> Observed: ...

    def mode(self, strategy: ObservedStrategy) -> Mode: ...

    async def is_idle(self, node: ObservedNode) -> bool:
        """Whether no pod with GPUs is on it, as the API server has it now."""
        ...

    async def evict_pods(self, node: ObservedNode, *, dry_run: bool = False) -> None:
        """Every pod with GPUs on it. Raises ApiError where a budget or a fence forbids one."""
        ...

    async def patch_node(self, node: ObservedNode, changes: Object) -> None: ...

    async def write_status(self, document: Object) -> None: ...


class Reconciler(Retrying):
    """``step`` does what there is to do."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ControllerSettings,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation or Isolation("partitions"), Pauses(changed_s=0.2, failed_s=5.0))
        self._cluster, self._settings, self._emit_event, self._clock = cluster, settings, emit_event, clock
        self.cutting, self.pending, self.planned, self.undone = 0, 0, 0, 0

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before. Raises Deposed."""
        observed = self._cluster.observed(self._clock())
        reports = read_partitions(observed, self._settings.managers)
        again_s, ours = [_IDLE_S], set[str]()
        self._count(observed.nodes, reports)
        for report in reports:
            acts = self._cluster.mode(report.strategy) is Mode.ENFORCE
            for each in report.nodes:
                if acts and each.executor is not None:
                    ours.add(each.node.name)
                    work = partial(self._proceed, each, observed.now_s)
                    again_s.append(await self._tried(work, Subject.of(NODES, each.node.document)))
            again_s.append(await self._tried(partial(self._report, report, acts, observed.now_s), _subject(report)))
        for node in observed.nodes:
            if node.layout is not None and node.name not in ours:
                again_s.append(
                    await self._tried(partial(self._give_back, node, observed.now_s), Subject.of(NODES, node.document))
                )
        return max(0.05, min(again_s))

    def _count(self, nodes: Sequence[ObservedNode], reports: Sequence[StrategyReport]) -> None:
        self.cutting = sum(node.layout is not None and node.layout.phase in IN_PROGRESS for node in nodes)
        self.pending = sum(sum(report.pending.values()) for report in reports)
        self.planned = sum(each.reason in ("ToCut", "ToDrain") for report in reports for each in report.nodes)
        self.undone = sum(len(report.undone) for report in reports)

    async def _proceed(self, each: NodeReport, now_s: float) -> float:
        node, executor = each.node, each.executor
        assert executor is not None, "only nodes that are ours proceed"
        if node.layout is not None and node.layout.phase in IN_PROGRESS:
            is_idle = await self._cluster.is_idle(node) if node.layout.phase is LayoutPhase.CORDONED else True
            step = executor.proceed(node, each.wanted, is_idle, now_s)
            if step is None and node.layout.is_drained and not is_idle:
                await self._cluster.evict_pods(node)
        elif each.wanted is not None and executor.cuts and self.cutting < self._settings.most_at_once:
            step = await self._begun(each, executor, each.wanted, now_s)
            self.cutting += 1
        else:
            return _SOON_S if each.wanted is not None and executor.cuts else _IDLE_S
        if step is not None:
            await self._write(node, step)
        return _SOON_S

    async def _begun(self, each: NodeReport, executor: Executor, wanted: NodeOption, now_s: float) -> Step:
        if not isinstance(executor, DeviceConfigManager):
            return executor.start(each.node, wanted, now_s)
        assert each.order is not None, "nodes of AMD's manager are planned with their way back"
        if each.order.evicts:
            # What forbids one eviction is known before the first pod has gone.
            await self._cluster.evict_pods(each.node, dry_run=True)
        return executor.start_order(each.node, wanted, each.order, now_s)

    async def _give_back(self, node: ObservedNode, now_s: float) -> float:
        """Once nothing runs on it, where its label changes by that: mig-manager would cut it. What AMD's manager has
        begun comes to its end before."""
        if node.layout is not None and node.layout.label == PROFILE_LABEL and node.layout.phase in _BUSY:
            step = self._settings.managers.dcm.proceed(node, None, True, now_s)
            if step is not None:
                await self._write(node, step)
            return _SOON_S
        changes = release(NODES, node.document)
        if CONFIGURATION_LABEL in changes["metadata"]["labels"] and not await self._cluster.is_idle(node):
            return _SOON_S * 5
        await self._write(node, released(node, f"{node.name} is as it was before."))
        return _SOON_S

    async def _write(self, node: ObservedNode, step: Step) -> None:
        await self._cluster.patch_node(node, step.changes)
        uid = str(node.document["metadata"].get("uid", ""))
        self._emit_event(NODES.reference("", node.name, uid), step.reason, step.sentence)

    async def _report(self, report: StrategyReport, acts: bool, now_s: float) -> float:
        document = report.strategy.document
        status = status_of(report, acts, now_s)
        if status != document.get("status"):
            await self._cluster.write_status(document | {"status": status})
        return _IDLE_S


def _subject(report: StrategyReport) -> Subject:
    return Subject.of(MIG_STRATEGIES, report.strategy.document)
