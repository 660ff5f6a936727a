"""One reconcile: deadlocks are reported, one gang of each is released, and what was released is given back.

A release is one write on the gang's owner: the hold, and with it the notice that says for which other gang and when.
Whatever a leader that dies leaves behind is thus on the object, and the next one goes on from there.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kopt.cluster.client.resources import PODS, Object, Resource
from kopt.cluster.holds.hold import HoldError, hold, pass_on
from kopt.cluster.objects.eviction import EVICTING_ANNOTATION, notice_text
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.controllers.gangs.snapshot import Observed, Owned, gangs_of, snapshot_of
from kopt.controllers.gangs.views import DEADLOCK_ANNOTATION, HOLDER, ObservedPod
from kopt.core.decision import Mode
from kopt.core.scheduling.eviction import Cause, Notice
from kopt.policies.gangs import (
    GangSettings,
    GangSnapshot,
    Release,
    Surplus,
    half_placed,
    placement,
    releases,
    with_freed,
)
from kopt.policies.gangs.half import due_in_s

_IDLE_S, _SETTLE_S = 30.0, 1.0
MINE = "kopt-gangs"


@dataclass(frozen=True)
class ControllerSettings:
    """``back_s``: a gang that was released is held for so long at most."""

    mode: Mode = Mode.OBSERVE
    gangs: GangSettings = field(default_factory=GangSettings)
    back_s: float = 600.0
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""


class Cluster(Protocol):
    """What informers have seen, and fenced writes that show up in it at once."""

    def observed(self, now_s: float) -> Observed: ...

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None: ...

    async def promise(self, pod: ObservedPod, node: str) -> None:
        """Keep room on a node for a pod that waits: kube-scheduler gives it to none of the same or a lower priority."""
        ...

    async def evict(self, pod: ObservedPod) -> None: ...


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
        super().__init__(isolation or Isolation("gangs"), Pauses(changed_s=0.5, failed_s=5.0))
        self._cluster, self._settings, self._emit_event, self._clock = cluster, settings, emit_event, clock
        self._reported: set[tuple[str, ...]] = set()
        self._shrunk_s: dict[str, float] = {}
        """When pods beyond a gang's minimum were evicted: not again for ``back_s``, as their replacements may be first
        in spite of the promise; a whole gang is then released, which cannot lose its room to itself."""
        self.half, self.deadlocked = 0, 0

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before. Raises Deposed."""
        again_s = [_IDLE_S]
        observed = self._cluster.observed(self._clock())
        owned = gangs_of(observed)
        for gang in [each for each in owned if each.owner.holder == HOLDER]:
            again_s.append(await self._tried(partial(self._give_back, gang, owned, observed), _subject(gang)))
        observed = self._cluster.observed(self._clock())
        owned = gangs_of(observed)
        every = snapshot_of(observed, owned)
        self.half = len(half_placed(every, self._settings.gangs))
        decisions = releases(every, self._settings.gangs)
        self.deadlocked = sum(len(decision.deadlock) for decision in decisions)
        by_name = {gang.name: gang for gang in owned}
        since_s = observed.now_s - self._settings.back_s
        self._shrunk_s = {name: at_s for name, at_s in self._shrunk_s.items() if at_s > since_s}
        kept_whole = frozenset(self._shrunk_s)
        may_act = snapshot_of(observed, owned, in_mode=Mode.ENFORCE, kept_whole=kept_whole) if self.half else every
        enforced = releases(may_act, self._settings.gangs) if self.half else []
        acted = {name for decision in enforced for name in decision.deadlock}
        for decision in enforced:
            again_s.append(await self._release(decision, by_name, may_act))
        for decision in decisions:
            if not acted & set(decision.deadlock):
                again_s.append(await self._report(decision, by_name, observed))
        await self._clear(owned, {name for decision in decisions for name in decision.deadlock}, observed)
        # Times of pods are whole seconds.
        due_s = due_in_s(every, self._settings.gangs)
        return min([*again_s, *([] if due_s is None else [due_s + 0.05])])

    async def _release(self, decision: Release, by_name: Mapping[str, Owned], snapshot: GangSnapshot) -> float:
        again_s = [_SETTLE_S]
        beneficiary = by_name[decision.beneficiary.name]
        for gang in decision.gangs:
            owned = by_name[gang.name]
            again_s.append(await self._tried(partial(self._hold, owned, beneficiary, decision), _subject(owned)))
        for surplus in decision.surplus:
            owned = by_name[surplus.name]
            work = partial(self._shrink, owned, surplus, beneficiary, decision, snapshot)
            again_s.append(await self._tried(work, _subject(owned)))
        return min(again_s)

    async def _shrink(
        self, owned: Owned, surplus: Surplus, beneficiary: Owned, decision: Release, snapshot: GangSnapshot
    ) -> float:
        """Evicts pods beyond the minimum. Their replacements must not be first to see the room, so that it is promised
        before; pods that are terminating count as free, so that a leader that dies in between leaves the rest."""
        names = {pod.name for pod in surplus.pods}
        if len(names) > owned.owner.remaining_evictions:
            text = f"{owned.name} would end for good if {len(names)} of its pods were evicted (backoffLimit)."
            self._shrunk_s[owned.name] = self._clock()
            self._emit_event(owned.reference, "GangNotReleased", text)
            return _SETTLE_S
        freed = [pod for each in decision.gangs for pod in each.bound]
        freed += [pod for each in decision.surplus for pod in each.pods]
        nodes = placement(decision.beneficiary, with_freed(snapshot.free, freed), decision.beneficiary.missing)
        for pod in beneficiary.pods:
            if pod.key[1] in nodes:
                await self._cluster.promise(pod, nodes[pod.key[1]])
        notice = Notice(MINE, Cause.PREEMPTED, beneficiary.name, self._clock(), decision.reason.message)
        for pod in owned.pods:
            if pod.key[1] in names and not pod.terminating:
                uid = str(pod.document["metadata"].get("uid", ""))
                annotations = {EVICTING_ANNOTATION: notice_text(notice, uid)}
                await self._cluster.patch(PODS, pod.document, {"metadata": {"annotations": annotations}})
                await self._cluster.evict(pod)
        self._shrunk_s[owned.name] = self._clock()
        self._emit_event(owned.reference, "GangShrunk", decision.reason.message)
        return _SETTLE_S

    async def _hold(self, owned: Owned, beneficiary: Owned, decision: Release) -> float:
        notice = Notice(MINE, Cause.PREEMPTED, beneficiary.name, self._clock(), decision.reason.message)
        try:
            changes = hold(owned.resource, owned.owner.document, HOLDER)
        except HoldError as error:
            self._emit_event(owned.reference, "GangNotReleased", f"{owned.name} cannot be released: {error}")
            return _IDLE_S
        metadata = changes["metadata"]
        text = notice_text(notice, owned.owner.uid)
        metadata["annotations"] = metadata["annotations"] | {EVICTING_ANNOTATION: text, DEADLOCK_ANNOTATION: None}
        await self._cluster.patch(owned.resource, owned.owner.document, changes)
        self._emit_event(owned.reference, "GangReleased", decision.reason.message)
        started = f"{owned.name} gives up its nodes for it: {decision.reason.message}"
        self._emit_event(beneficiary.reference, "GangGoesFirst", started)
        return _SETTLE_S

    async def _give_back(self, gang: Owned, owned: Sequence[Owned], observed: Observed) -> float:
        """Once the other has started or is gone, after the longest time, or where it may not be held any more."""
        notice = gang.owner.notice
        other = next((each for each in owned if notice is not None and each.name == notice.for_whom), None)
        remaining_s = 0.0 if notice is None else notice.at_s + self._settings.back_s - observed.now_s
        may_hold = observed.mode(gang.owner) is Mode.ENFORCE
        if may_hold and other is not None and not other.has_started and other.owner.runs and remaining_s > 0:
            return min(remaining_s, _IDLE_S)
        changes = pass_on(gang.resource, gang.owner.document)
        metadata = changes["metadata"]
        metadata["annotations"] = metadata["annotations"] | {EVICTING_ANNOTATION: None}
        await self._cluster.patch(gang.resource, gang.owner.document, changes)
        why = "the other gang is gone" if other is None else f"{other.name} has started"
        if not may_hold:
            why = f"its mode is {observed.mode(gang.owner).value}, or the feature gangs is switched off for it"
        elif other is not None and not other.has_started:
            why = f"{other.name} has not started within {self._settings.back_s:.0f} s"
        self._emit_event(gang.reference, "GangGivenBack", f"{gang.name} may run again: {why}.")
        return _SETTLE_S

    async def _report(self, decision: Release, by_name: Mapping[str, Owned], observed: Observed) -> float:
        """Each deadlock once by an event, and on the owners of gangs in mode annotate or more."""
        again_s = [_IDLE_S]
        is_new = decision.deadlock not in self._reported
        self._reported.add(decision.deadlock)
        text = json.dumps(
            {
                "deadlock": list(decision.deadlock),
                "release": [gang.name for gang in decision.gangs],
                "surplus": {each.name: [pod.name for pod in each.pods] for each in decision.surplus},
                "for": decision.beneficiary.name,
            }
        )
        for name in decision.deadlock:
            owned = by_name[name]
            if is_new:
                self._emit_event(owned.reference, "GangDeadlock", decision.reason.message)
            if observed.mode(owned.owner) is not Mode.OBSERVE and owned.owner.reported != text:
                changes = {"metadata": {"annotations": {DEADLOCK_ANNOTATION: text}}}
                again_s.append(await self._tried(partial(self._patch, owned, changes), _subject(owned)))
        return min(again_s)

    async def _clear(self, owned: Sequence[Owned], deadlocked: set[str], observed: Observed) -> None:
        """Reports of deadlocks that are over, or on gangs that are only observed now."""
        self._reported = {names for names in self._reported if set(names) <= deadlocked}
        for gang in owned:
            is_observed = observed.mode(gang.owner) is Mode.OBSERVE
            if gang.owner.reported and (is_observed or gang.name not in deadlocked):
                changes = {"metadata": {"annotations": {DEADLOCK_ANNOTATION: None}}}
                await self._tried(partial(self._patch, gang, changes), _subject(gang))

    async def _patch(self, owned: Owned, changes: Object) -> float:
        await self._cluster.patch(owned.resource, owned.owner.document, changes)
        return _SETTLE_S


def _subject(owned: Owned) -> Subject:
    return Subject.of(owned.resource, owned.owner.document)
