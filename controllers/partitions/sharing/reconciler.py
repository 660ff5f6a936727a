"""One pass: what each node with the plugin's label should do, an event that says so, and steps of those that change."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from kopt.cluster.checkpoints.draining import unevictable
from kopt.cluster.client.errors import ApiError
from kopt.cluster.client.prometheus import PrometheusError
from kopt.cluster.client.resources import NODES, Object
from kopt.cluster.holds.node_sharing import CHANGING, MOST_GPUS, PROPOSAL, SHARING, SharingHold, SharingPhase
from kopt.cluster.objects.fields import text
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.controllers.partitions.executors import Step
from kopt.controllers.partitions.sharing.reading import Measure, Measured, PluginNode
from kopt.controllers.partitions.sharing.steps import (
    StepSettings,
    given_back,
    lost_mps,
    outrun,
    proceed,
    start,
)
from kopt.core.decision import Mode
from kopt.core.sharing.modes import SharingMode
from kopt.core.sharing.pressure import Pressure
from kopt.core.times import seconds_or_none
from kopt.formats.sharing_terms import ReplicaSetting
from kopt.policies.fractions.configured import MPS_AWAY, Rung, RungChange, configured_rungs, next_rung, without_mps
from kopt.policies.fractions.ladder import LadderSettings, LadderState

_LOG = logging.getLogger(__name__)
_SOON_S, _IDLE_S = 1.0, 30.0
_LONGEST_NOTE = 300
_ON_AMD = "AMD's GPUs have time-slicing alone, which nothing sets or limits; smaller devices are partitions"


@dataclass(frozen=True)
class SharingSettings:
    """``drains``: nodes with pods may be emptied; else a node changes once nothing runs on it. ``ask_s``: how often
    Prometheus is asked, for ``window_s``, in which the longest calm has to lie. ``mps_lost_s``: how long the daemon of
    MPS may be away, as when it starts anew. ``most_at_once``: nodes that change at a time."""

    mode: Mode = Mode.OBSERVE
    drains: bool = False
    ask_s: float = 60.0
    window_s: float = 18_000.0
    mps_lost_s: float = 120.0
    most_at_once: int = 1
    steps: StepSettings = field(default_factory=StepSettings)
    ladder: LadderSettings = field(default_factory=lambda: LadderSettings(most_calm_s=3600.0))


class Cluster(Protocol):
    """The state of now, and fenced writes."""

    async def offered(self) -> Mapping[str, ReplicaSetting]:
        """The configurations of the device plugin. Raises ApiError."""
        ...

    async def nodes(self, offered: Mapping[str, ReplicaSetting]) -> Sequence[PluginNode]:
        """Those with the plugin's label, or our mark. Raises ApiError."""
        ...

    def mode(self, node: PluginNode, mode: Mode) -> Mode: ...

    async def has_gpu_pods(self, node: PluginNode) -> bool:
        """Whether pods with GPUs are on it as of now, of which an informer may not know yet. Raises ApiError."""
        ...

    async def patch_node(self, node: PluginNode, changes: Object) -> None: ...

    async def evict(self, node: PluginNode, *, dry_run: bool = False) -> Sequence[str]:
        """Every pod with GPUs; what keeps one from it. Raises ApiError, as where a fence forbids it."""
        ...


class Reconciler(Retrying):
    """``step`` does what there is to do."""

    def __init__(
        self,
        cluster: Cluster,
        settings: SharingSettings,
        measure: Measure | None,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation or Isolation("partitions"), Pauses(changed_s=0.2, failed_s=5.0))
        self._cluster, self._settings, self._measure = cluster, settings, measure
        self._emit_event, self._clock = emit_event, clock
        self._measured, self._measured_s = Measured(), -1e12
        self._lost_since_s: dict[str, float] = {}
        self._keeps_latency: dict[str, bool] = {}
        """By node, as its last pods were."""
        self._announced: dict[str, tuple[str, str, str]] = {}
        self.measured = 0
        self.changing, self.proposed, self.without_mps = 0, 0, 0

    async def step(self) -> float:
        """In how many seconds to run again. Raises Deposed, ApiError."""
        now_s = self._clock()
        await self._ask(now_s)
        offered = await self._cluster.offered()
        nodes = sorted(await self._cluster.nodes(offered), key=lambda node: node.name)
        self.changing = sum(node.hold is not None and node.hold.phase in CHANGING for node in nodes)
        self.proposed, self.without_mps = 0, 0
        again_s = [_IDLE_S]
        for node in nodes:
            work = partial(self._handle, node, offered, now_s)
            again_s.append(await self._tried(work, Subject.of(NODES, node.document)))
        names = {node.name for node in nodes}
        self._announced = {name: entry for name, entry in self._announced.items() if name in names}
        self._lost_since_s = {name: since_s for name, since_s in self._lost_since_s.items() if name in names}
        return max(0.05, min(again_s))

    async def _ask(self, now_s: float) -> None:
        if self._measure is None or now_s - self._measured_s < self._settings.ask_s:
            return
        try:
            self._measured = await self._measure(now_s, self._settings.window_s)
            self.measured = 1
        except PrometheusError as error:
            # What is not measured moves nothing; that MPS is away is seen without it.
            self._measured, self.measured = Measured(), 0
            _LOG.warning("the pressure on GPUs is not known: %s", error)
        self._measured_s = now_s

    async def _handle(self, node: PluginNode, offered: Mapping[str, ReplicaSetting], now_s: float) -> float:
        hold, mode = node.hold, self._cluster.mode(node, self._settings.mode)
        acts = mode is Mode.ENFORCE
        if node.holder not in ("", SHARING):
            return _IDLE_S
        if node.holder == SHARING and (hold is None or node.state.label != hold.label):
            await self._write(node, given_back(node, "others have changed its label, or our mark on it"))
            return _SOON_S
        if hold is not None and not acts:
            return await self._give_back(node, hold, now_s)
        if hold is not None and hold.phase in CHANGING:
            return await self._proceed(node, hold, offered, now_s)
        change = self._wanted(node, offered, now_s)
        if change is None:
            self._announced.pop(node.name, None)
            if node.proposal:
                await self._cluster.patch_node(node, _annotated(None))
                return _SOON_S
            if hold is not None and self._is_settled(hold, now_s):
                await self._write(node, given_back(node, "it has held as its operators chose"))
            return _IDLE_S
        self.proposed += 1
        why_not = "only proposed" if not acts else await self._obstacle(node)
        if why_not:
            await self._propose(node, change, why_not, mode)
            return _IDLE_S
        own = node.state.label or "" if hold is None else hold.own
        self.changing += 1
        await self._write(node, start(node, own, change, now_s))
        return _SOON_S

    async def _proceed(
        self, node: PluginNode, hold: SharingHold, offered: Mapping[str, ReplicaSetting], now_s: float
    ) -> float:
        wanted, before = _rung(hold.wanted, offered), _rung(hold.before, offered)
        step = proceed(node, hold, wanted, before, self._settings.steps, now_s)
        if step is not None:
            await self._write(node, step)
        elif hold.phase is SharingPhase.CORDONED and node.pods and self._settings.drains and not unevictable(node.pods):
            await self._cluster.evict(node)
        elif hold.phase is SharingPhase.CORDONED and node.pods:
            # One that was bound while the node was being cordoned is not ours to end.
            await self._write(node, outrun(node, hold, now_s))
        return _SOON_S

    async def _give_back(self, node: PluginNode, hold: SharingHold, now_s: float) -> float:
        """Once nothing runs on it, where its label changes by that: pods lose their GPUs as the plugin starts anew. A
        node that waits to be empty takes pods again at once."""
        if hold.label != hold.own and (node.pods or await self._cluster.has_gpu_pods(node)):
            if hold.phase is SharingPhase.CORDONED:
                await self._write(node, outrun(node, hold, now_s))
            return _IDLE_S
        await self._write(node, given_back(node, "its switch is off, or nothing is to be changed"))
        return _SOON_S

    def _is_settled(self, hold: SharingHold, now_s: float) -> bool:
        """Back at its own configuration for as long as another calm would last."""
        return hold.label == hold.own and now_s - hold.since_s >= max(hold.wait_s, self._settings.ladder.calm_s)

    def _wanted(self, node: PluginNode, offered: Mapping[str, ReplicaSetting], now_s: float) -> RungChange | None:
        hold = node.hold
        own = _rung(node.state.label or "" if hold is None else hold.own, offered)
        now = _rung(node.state.label or "", offered)
        if own is None or now is None or node.has_partitions or not node.is_ready:
            return None
        is_lost = lost_mps(node, now)
        # Without MPS nothing is offered: then turns are better than that also for what has a latency to keep.
        takes_turns = is_lost or now.setting.mode is SharingMode.TIME_SLICING
        rungs = configured_rungs(own, offered, keeps_latency=not takes_turns and self._latency_of(node))
        at = next((at for at, each in enumerate(rungs) if each.name == now.name), None)
        if at is None:
            return None
        if hold is not None and hold.phase is SharingPhase.FAILED and now_s - hold.since_s < hold.wait_s:
            return None
        moved_s = None if hold is None or hold.phase is SharingPhase.FAILED else hold.since_s
        wait_s, raised_s = (0.0, None) if hold is None else (hold.wait_s, hold.raised_s)
        state = LadderState(at, wait_s=wait_s, raised_s=raised_s, moved_s=moved_s)
        if is_lost:
            return self._fallen_back(node, rungs, now, state, now_s)
        self._lost_since_s.pop(node.name, None)
        return next_rung(rungs, state, self._history(node), now_s, self._settings.ladder)

    def _latency_of(self, node: PluginNode) -> bool:
        """As its pods are; of those that an empty node had before nothing may be known, and then they may have had."""
        if node.pods:
            self._keeps_latency[node.name] = node.keeps_latency
        return self._keeps_latency.get(node.name, True)

    def _fallen_back(
        self, node: PluginNode, rungs: Sequence[Rung], now: Rung, state: LadderState, now_s: float
    ) -> RungChange | None:
        self.without_mps += 1
        lost_s = now_s - self._lost_since_s.setdefault(node.name, now_s)
        rung = without_mps(rungs, now)
        if lost_s < self._settings.mps_lost_s or rung is None:
            return None
        # MPS is tried again after the longest calm.
        after = replace(state, rung=rungs.index(rung), wait_s=self._settings.ladder.most_calm_s, moved_s=now_s)
        return RungChange(rung, MPS_AWAY, after)

    def _history(self, node: PluginNode) -> list[tuple[float, Pressure]]:
        """Of the node since the youngest of its pods started, with the worst slow-down of them at each time: what pods
        before them did to each other is no reason to end these."""
        starts = (seconds_or_none(text(pod, "status", "startTime")) for pod in node.pods)
        since_s = max((start for start in starts if start is not None), default=0.0)
        pressures = {at_s: each for at_s, each in self._measured.pressures.get(node.name, ()) if at_s >= since_s}
        for pod in node.pods:
            key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
            for at_s, value in self._measured.slowdowns.get(key, ()):
                if at_s < since_s:
                    continue
                before = pressures.get(at_s, Pressure())
                pressures[at_s] = replace(before, slowdown=max(value, before.slowdown or 0.0))
        return sorted(pressures.items())

    async def _obstacle(self, node: PluginNode) -> str:
        """What keeps the node from being changed now; empty for nothing."""
        if node.is_amd:
            return _ON_AMD
        if node.state.is_cordoned:
            return "others have cordoned it"
        if not 1 <= node.gpus <= MOST_GPUS:
            return "how many GPUs it has is not known: it needs the label nvidia.com/gpu.count"
        if self.changing >= self._settings.most_at_once:
            return "another node is being changed"
        if not node.pods:
            return ""
        if not self._settings.drains:
            return f"{len(node.pods)} pods with GPUs run on it, and are not drained"
        if kept := unevictable(node.pods):
            return f"it cannot be drained: {', '.join(kept[:3])}"
        try:
            kept = list(await self._cluster.evict(node, dry_run=True))
        except ApiError as error:
            return f"it may not be drained: {error}"
        return f"it cannot be drained now: {', '.join(kept[:3])}" if kept else ""

    async def _propose(self, node: PluginNode, change: RungChange, why_not: str, mode: Mode) -> None:
        """As an event and, but in mode observe, an annotation; both once while they say the same."""
        why_not = _ON_AMD if node.is_amd else why_not
        kind = why_not.partition(":")[0]
        entry = (change.rung.name, change.reason.code, kind.lstrip("0123456789 "))
        if self._announced.get(node.name) == entry:
            return
        self._announced[node.name] = entry
        wanted = f"It would be shared as {change.rung.name} instead of {node.state.label}"
        note = f"{change.reason.message} {wanted}: {why_not}."
        self._emit_event(_reference(node), "SharingProposed", note)
        if mode is not Mode.OBSERVE:
            await self._cluster.patch_node(node, _annotated(note[:_LONGEST_NOTE]))

    async def _write(self, node: PluginNode, step: Step) -> None:
        await self._cluster.patch_node(node, step.changes)
        self._emit_event(_reference(node), step.reason, step.sentence)


def _rung(name: str, offered: Mapping[str, ReplicaSetting]) -> Rung | None:
    setting = offered.get(name)
    return None if setting is None else Rung(name, setting)


def _annotated(note: str | None) -> Object:
    return {"metadata": {"annotations": {PROPOSAL: note}}}


def _reference(node: PluginNode) -> Object:
    return NODES.reference("", node.name, str(node.document["metadata"].get("uid", "")))
