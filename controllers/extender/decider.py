"""Which node a pod gets: the choice, its reservation, and the pods that wait because no node was feasible."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from kopt.cluster.client.resources import Key
from kopt.cluster.runtime.switches import OPEN, Gate
from kopt.cluster.workloads.placement.pod_state import PodState
from kopt.controllers.extender.books.gangs import Gangs, Near
from kopt.controllers.extender.books.replicas import Replicas
from kopt.controllers.extender.decision_log import DecisionLog, PodDecision, of_degraded, of_weights
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.node_list import NodeNames
from kopt.controllers.extender.protocol import BindCall
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.core.decision import Mode
from kopt.core.scheduling.placement import ANY_POOL, Ask
from kopt.policies.admission.mode import effective_mode, is_reached
from kopt.policies.placement.feasible import SENTENCES
from kopt.policies.placement.fleet import Fleet, Holding, Placement, Stage
from kopt.policies.placement.state import PlacementError

_MOST_KINDS = 20
_PLAN_S = 10.0
"""A place that was planned for a pod and that the scheduler has not asked for is free again after this long."""


@dataclass(frozen=True, slots=True)
class _Refused:
    key: Key
    ask: Ask


@dataclass(frozen=True, slots=True)
class _Planned:
    placement: Placement
    together: int
    near: Near | None = None


class Decider:
    """Decisions over one fleet. Nothing here waits."""

    def __init__(
        self,
        fleet: Fleet,
        settings: ExtenderSettings,
        metrics: ExtenderMetrics,
        announce: Callable[[PodDecision], None],
        clock: Callable[[], float],
        gate: Gate = OPEN,
    ) -> None:
        self._gate = gate
        self.fleet, self.log, self.gangs, self.replicas = fleet, DecisionLog(), Gangs(fleet), Replicas(fleet)
        self.modes: dict[str, str] = {}
        """What the annotations of namespaces say, by name."""
        self.unplaced: dict[str, _Refused] = {}
        self.pending: dict[str, PodState] = {}
        """Pods without a node, as they came."""
        self._planned: dict[str, _Planned] = {}
        self.freed = asyncio.Event()
        """Set when something was given back that a refused pod may be waiting for."""
        self._settings, self._metrics, self._announce, self._clock = settings, metrics, announce, clock

    def chooses_for(self, pod: PodState) -> bool:
        """Is there a GPU pool to choose from? One that no node has ever offered is not evaluated here."""
        pool = pod.ask.pool
        return pool == ANY_POOL or pool in self.fleet.pools

    def acts_on(self, pod: PodState) -> bool:
        """Whether decisions about a pod are more than a record."""
        settings = self._settings
        mode = effective_mode(pod.mode, self.modes.get(pod.key[0]), settings.mode, settings.workload_may_lower)
        mode = self._gate.mode("placement", pod.owner, mode)
        return mode is Mode.ENFORCE and is_reached(settings.rollout_percent, pod.owner)

    def decide(self, pod: PodState, names: NodeNames) -> tuple[Placement, bool]:
        """Choose and, where we act, reserve: one step, with no await in it."""
        acts = self.acts_on(pod)
        planned = acts and ((self._settings.joint and pod.spread is None) or pod.uid in self._planned)
        if planned and (placement := self._by_plan(pod, names)) is not None:
            return placement, True
        self.release(pod.uid)
        near = self.gangs.near(pod, names)
        placement = self.fleet.choose(pod.ask, names, near, self.replicas.nodes(pod))
        if acts and placement.choice.node is not None:
            self.fleet.reserve(pod.uid, pod.key, pod.ask, placement, self._clock() + self._settings.reserve_s)
            self.unplaced.pop(pod.uid, None)
        self.record(pod, placement, acts, near=near)
        if acts and near is not None and placement.choice.node is not None:
            self._plan_gang(pod, names)
        return placement, acts

    def _plan_gang(self, first: PodState, names: NodeNames) -> None:
        """Reserve places for the pods of a gang that wait behind its first one, near it."""
        until_s = self._clock() + min(_PLAN_S, self._settings.reserve_s)
        for pod in self.gangs.unplaced(first):
            near = self.gangs.near(pod, names)
            placement = self.fleet.choose(pod.ask, names, near)
            if placement.choice.node is None:
                return
            self.fleet.reserve(pod.uid, pod.key, pod.ask, placement, until_s)
            self._planned[pod.uid] = _Planned(placement, 1, near)

    def _by_plan(self, pod: PodState, names: NodeNames) -> Placement | None:
        """What was planned for a pod together with others, if its node is among those that are open to it."""
        if pod.uid not in self._planned:
            self.release(pod.uid)
            self._plan(pod, names)
        planned = self._planned.pop(pod.uid, None)
        held = self.fleet.holdings.get(pod.uid)
        if planned is None or held is None or held.stage is not Stage.RESERVED or not names.has(held.node):
            return None
        self.fleet.extend(pod.uid, self._clock() + self._settings.reserve_s)
        self.unplaced.pop(pod.uid, None)
        self.record(pod, planned.placement, True, planned.together, planned.near)
        return planned.placement

    def _plan(self, first: PodState, names: NodeNames) -> None:
        """Reserve places for a pod and those that wait behind it and may go where it may."""
        behind = (
            pod
            for pod in self.pending.values()
            if pod.kin == first.kin != 0
            and pod.uid != first.uid
            and pod.spread is None
            and pod.uid not in self.fleet.holdings
            and pod.uid not in self.unplaced
            and pod.ask.pool == first.ask.pool
            and self.acts_on(pod)
        )
        pods = [first, *itertools.islice(behind, self._settings.joint - 1)]
        result = (
            self.fleet.plan([pod.ask for pod in pods], names) if len({pod.ask.request for pod in pods}) > 1 else None
        )
        if result is None:
            return
        pool, packing = result
        until_s = self._clock() + min(_PLAN_S, self._settings.reserve_s)
        for index in packing.order:
            if (placed := packing.placements[index]) is not None:
                pod = pods[index]
                placement = self.fleet.choose_row(pool, pod.ask, placed[0])
                self.fleet.reserve(pod.uid, pod.key, pod.ask, placement, until_s)
                self._planned[pod.uid] = _Planned(placement, len(pods))

    def record(
        self, pod: PodState, placement: Placement, acts: bool, together: int = 1, near: Near | None = None
    ) -> None:
        """Remember a decision, for ``/explain``; that there is no node is logged at once."""
        mode = Mode.ENFORCE if acts else Mode.OBSERVE
        outcome = "observed" if not acts else "offered" if placement.choice.node is not None else "refused"
        more = of_degraded(placement.choice, self.fleet.complaints.text) if placement.choice.impaired else ()
        if near is not None and pod.membership is not None and (node := placement.choice.node) is not None:
            more = (near.reason(pod.membership.gang, node, self.fleet.domains(node)), *more)
        if self.fleet.selection is not None and placement.choice.node is not None:
            more = (*more, of_weights(placement.choice, self.fleet.selection, self.fleet.history))
        decision = PodDecision(pod.key, pod.uid, time.time(), mode, placement, outcome, together=together, more=more)
        self.log.record(decision)
        if outcome == "refused":
            self._announce(decision)

    def refused(self, pod: PodState, placement: Placement) -> None:
        """A pod that no node can take waits until something is given back."""
        for code, count in placement.choice.rejected.items():
            self._metrics.refused.labels(code.name).inc(count)
        self.unplaced[pod.uid] = _Refused(pod.key, pod.ask)

    def hold_for(self, call: BindCall, pod: PodState | None) -> Holding | None:
        """The reservation on the node that the scheduler names; made now if there is none there.

        Raises PlacementError when the node has no room for the pod.
        """
        held = self.fleet.holdings.get(call.uid)
        if held is not None and held.node == call.node:
            self.fleet.extend(call.uid, self._clock() + self._settings.reserve_s)
            return held
        if pod is None or not self.chooses_for(pod) or not (held is not None or self.acts_on(pod)):
            return None
        self.release(call.uid)
        placement, _ = self.decide(pod, NodeNames.of([call.node]))
        if placement.choice.node is None:
            raise PlacementError(
                f"node {call.node} has no room left: {SENTENCES[next(iter(placement.choice.rejected))]}"
            )
        return self.fleet.holdings.get(call.uid)

    def release(self, uid: str) -> None:
        """Give back what a pod holds."""
        self._planned.pop(uid, None)
        if self.fleet.release(uid) is not None and self.unplaced:
            self.freed.set()

    def expire(self, is_binding: Callable[[str], bool]) -> list[Holding]:
        """Release expired reservations; returns the assumed ones, which have to be looked up."""
        assumed = []
        for holding in self.fleet.expired(self._clock()):
            if holding.stage is Stage.RESERVED and not is_binding(holding.uid):
                self.release(holding.uid)
                self._metrics.expired.labels("released").inc()
            else:
                self.fleet.extend(holding.uid, self._clock() + self._settings.assume_s)
                assumed.append(holding)
        return assumed

    def could_go_now(self, most: int) -> list[Key]:
        """Refused pods, the longest waiting first, for which there is room now."""
        result: list[Key] = []
        fits: dict[object, bool] = {}
        for uid, refused in list(self.unplaced.items()):
            # Most of a queue asks for the same few things; looking at each pod could take seconds.
            alike = (refused.ask.pool, refused.ask.request, refused.ask.share_bytes)
            if alike not in fits and len(fits) < _MOST_KINDS:
                fits[alike] = self.fleet.choose(refused.ask, None).choice.node is not None
            if fits.get(alike):
                result.append(refused.key)
                del self.unplaced[uid]
                if len(result) == most:
                    break
        return result
