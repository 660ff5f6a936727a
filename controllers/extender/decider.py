"""Which node a pod gets: the choice, its reservation, and who waits because there was none."""

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from kopt.cluster.resources import Key
from kopt.controllers.extender.asks import ANY_POOL, Ask
from kopt.controllers.extender.decisions import DecisionLog, PodDecision, of_degraded
from kopt.controllers.extender.fleet import Fleet, Holding, Placement, Stage
from kopt.controllers.extender.gangs import Gangs, Near
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.names import NodeNames
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.controllers.extender.views import PodView
from kopt.controllers.extender.wire import BindCall
from kopt.core.decision import Mode
from kopt.policies.placement.feasible import SENTENCES
from kopt.policies.placement.state import PlacementError
from kopt.policies.reach import is_reached, nearest_mode

_MOST_KINDS = 20
_PLAN_S = 10.0
"""A place that was planned for a pod and that the scheduler has not asked for is free again after this long."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    key: Key
    ask: Ask


@dataclass(frozen=True, slots=True)
class _Planned:
    placement: Placement
    together: int
    near: Near | None = None


class Decider:
    """Decisions over one fleet. Nothing here waits."""

    def __init__(self, fleet: Fleet, settings: ExtenderSettings, metrics: ExtenderMetrics,
                 announce: Callable[[PodDecision], None], clock: Callable[[], float]) -> None:  # fmt: skip
        self.fleet, self.log, self.gangs = fleet, DecisionLog(), Gangs(fleet)
        self.modes: dict[str, str] = {}
        """What the annotations of namespaces say, by name."""
        self.waiting: dict[str, _Waiting] = {}
        self.pending: dict[str, PodView] = {}
        """Pods without a node, as they came."""
        self._planned: dict[str, _Planned] = {}
        self.freed = asyncio.Event()
        """Set when something was given back that a refused pod may be waiting for."""
        self._settings, self._metrics, self._announce, self._clock = settings, metrics, announce, clock

    def chooses_for(self, view: PodView) -> bool:
        """Is there a GPU pool to choose from? One that no node has ever offered is not ours to judge."""
        pool = view.ask.pool
        return pool == ANY_POOL or pool in self.fleet.pools

    def acts_on(self, view: PodView) -> bool:
        """Whether decisions about a pod are more than a record."""
        settings = self._settings
        mode = nearest_mode(view.mode, self.modes.get(view.key[0]), settings.mode,
                            workload_may_lower=settings.workload_may_lower)  # fmt: skip
        return mode is Mode.ENFORCE and is_reached(settings.rollout_percent, (view.uid,))

    def decide(self, view: PodView, names: NodeNames) -> tuple[Placement, bool]:
        """Choose and, where we act, reserve: one step, with no await in it."""
        acts = self.acts_on(view)
        planned = acts and (self._settings.joint or view.uid in self._planned)
        if planned and (placement := self._by_plan(view, names)) is not None:
            return placement, True
        self.release(view.uid)
        near = self.gangs.near(view, names)
        placement = self.fleet.choose(view.ask, names, near)
        if acts and placement.choice.node is not None:
            self.fleet.reserve(view.uid, view.key, view.ask, placement, self._clock() + self._settings.reserve_s)
            self.waiting.pop(view.uid, None)
        self.note(view, placement, acts, near=near)
        if acts and near is not None and placement.choice.node is not None:
            self._plan_gang(view, names)
        return placement, acts

    def _plan_gang(self, first: PodView, names: NodeNames) -> None:
        """Reserve places for the pods of a gang that wait behind its first one, near it."""
        until_s = self._clock() + min(_PLAN_S, self._settings.reserve_s)
        for view in self.gangs.waiting(first):
            near = self.gangs.near(view, names)
            placement = self.fleet.choose(view.ask, names, near)
            if placement.choice.node is None:
                return
            self.fleet.reserve(view.uid, view.key, view.ask, placement, until_s)
            self._planned[view.uid] = _Planned(placement, 1, near)

    def _by_plan(self, view: PodView, names: NodeNames) -> Placement | None:
        """What was planned for a pod together with others, if its node is among those that are open to it."""
        if view.uid not in self._planned:
            self.release(view.uid)
            self._plan(view, names)
        planned = self._planned.pop(view.uid, None)
        held = self.fleet.holdings.get(view.uid)
        if planned is None or held is None or held.stage is not Stage.RESERVED or not names.has(held.node):
            return None
        self.fleet.extend(view.uid, self._clock() + self._settings.reserve_s)
        self.waiting.pop(view.uid, None)
        self.note(view, planned.placement, True, planned.together, planned.near)
        return planned.placement

    def _plan(self, first: PodView, names: NodeNames) -> None:
        """Reserve places for a pod and those that wait behind it and may go where it may."""
        behind = (
            one for one in self.pending.values()
            if one.kin == first.kin != 0 and one.uid != first.uid and one.uid not in self.fleet.holdings
            and one.uid not in self.waiting and one.ask.pool == first.ask.pool and self.acts_on(one)
        )  # fmt: skip
        views = [first, *itertools.islice(behind, self._settings.joint - 1)]
        found = (
            self.fleet.plan([one.ask for one in views], names) if len({one.ask.request for one in views}) > 1 else None
        )
        if found is None:
            return
        pool, packing = found
        until_s = self._clock() + min(_PLAN_S, self._settings.reserve_s)
        for place in packing.order:
            if (taken := packing.places[place]) is not None:
                view = views[place]
                placement = self.fleet.choose_row(pool, view.ask, taken[0])
                self.fleet.reserve(view.uid, view.key, view.ask, placement, until_s)
                self._planned[view.uid] = _Planned(placement, len(views))

    def note(
        self, view: PodView, placement: Placement, acts: bool, together: int = 1, near: Near | None = None
    ) -> None:
        """Remember a decision, for ``/explain``; that there is no node is said at once."""
        mode = Mode.ENFORCE if acts else Mode.OBSERVE
        outcome = "observed" if not acts else "offered" if placement.choice.node is not None else "refused"
        more = of_degraded(placement.choice, self.fleet.complaints.text) if placement.choice.impaired else ()
        if near is not None and view.membership is not None and (node := placement.choice.node) is not None:
            more = (near.told(view.membership.gang, node, self.fleet.domains(node)), *more)
        decision = PodDecision(view.key, view.uid, time.time(), mode, placement, outcome, together=together, more=more)
        self.log.note(decision)
        if outcome == "refused":
            self._announce(decision)

    def refused(self, view: PodView, placement: Placement) -> None:
        """A pod that no node can take waits until something is given back."""
        for code, count in placement.choice.rejected.items():
            self._metrics.refused.labels(code.name).inc(count)
        self.waiting[view.uid] = _Waiting(view.key, view.ask)

    def hold_for(self, call: BindCall, view: PodView | None) -> Holding | None:
        """The reservation on the node that the scheduler names; made now if there is none there.

        Raises PlacementError when the node has no room for the pod.
        """
        held = self.fleet.holdings.get(call.uid)
        if held is not None and held.node == call.node:
            self.fleet.extend(call.uid, self._clock() + self._settings.reserve_s)
            return held
        if view is None or not self.chooses_for(view) or not (held is not None or self.acts_on(view)):
            return None
        self.release(call.uid)
        placement, _ = self.decide(view, NodeNames.of([call.node]))
        if placement.choice.node is None:
            raise PlacementError(
                f"node {call.node} has no room left: {SENTENCES[next(iter(placement.choice.rejected))]}"
            )
        return self.fleet.holdings.get(call.uid)

    def release(self, uid: str) -> None:
        """Give back what a pod holds."""
        self._planned.pop(uid, None)
        if self.fleet.release(uid) is not None and self.waiting:
            self.freed.set()

    def expire(self, is_binding: Callable[[str], bool]) -> list[Holding]:
        """Give back reservations that expired; returns the assumed ones, which somebody has to look up."""
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
        found: list[Key] = []
        fits: dict[object, bool] = {}
        for uid, one in list(self.waiting.items()):
            # Most of a queue asks for the same few things; looking at each pod could take seconds.
            alike = (one.ask.pool, one.ask.request, one.ask.share_bytes)
            if alike not in fits and len(fits) < _MOST_KINDS:
                fits[alike] = self.fleet.choose(one.ask, None).choice.node is not None
            if fits.get(alike):
                found.append(one.key)
                del self.waiting[uid]
                if len(found) == most:
                    break
        return found
