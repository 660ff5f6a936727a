"""One reconcile of plain pods, from their annotations: nothing that matters is only in memory.

Victims get a notice (``kaiwo.ai/evicting`` on every pod), the room is promised to the preemptor's pods, and after a
last check the gang is evicted as a whole. A gang with a notice is evicted by the next reconcile, also by another
leader. The notice is withdrawn from a gang that began to write meanwhile, or whose preemptor no longer waits, unless
one of its pods is terminating already.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kopt.cluster.client.api import ApiError
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation
from kopt.cluster.runtime.retry import SOON_S, is_change
from kopt.cluster.workloads.kueue.objects import MINE, Evicting
from kopt.controllers.preemption.base_reconciler import BaseReconciler
from kopt.controllers.preemption.kube_scheduler.eviction_notices import (
    evicted_for,
    grounds_of,
    is_safe,
    may_still_go,
    notice_of,
    reference,
    saving_of,
    subject,
)
from kopt.controllers.preemption.kube_scheduler.history import INFORMER_LAG_S, learned
from kopt.controllers.preemption.kube_scheduler.ports import PlainCluster, PlainWriter
from kopt.controllers.preemption.kube_scheduler.snapshot import (
    ClusterSnapshot,
    Gang,
    gang_of,
    placed,
    refusal,
    snapshot_for,
)
from kopt.controllers.preemption.kube_scheduler.valid_notices import standing, with_expired_notices
from kopt.controllers.preemption.kube_scheduler.views import PlainPod
from kopt.controllers.preemption.patches import (
    advised,
    decision_document,
    eviction_notice,
    no_eviction_notice,
    save_request,
)
from kopt.controllers.preemption.ports import ControllerSettings
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.workload.checkpoint_request import SaveRequest
from kopt.policies.preemption import PreemptionAction, PreemptionDecision, PreemptionSettings, PreemptionState, decide

_LOG = logging.getLogger(__name__)
_IDLE_S = 30.0
_GROWS_S = 1.0
"""A gang counts as complete when no pod has been added for this long."""


class PlainPreemption(BaseReconciler):
    """``step`` does what there is to do and returns in how many seconds to run again if nothing changes before."""

    def __init__(
        self,
        cluster: PlainCluster,
        writer: PlainWriter,
        settings: ControllerSettings,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation)
        self._cluster, self._writer, self._settings, self._emit_event, self._clock = (
            cluster,
            writer,
            settings,
            emit_event,
            clock,
        )
        self._state = PreemptionState()
        self._reported: dict[str, str] = {}
        self._stays: dict[str, float] = {}
        self._later: dict[str, float] = {}
        self._preempted_at_s = float("-inf")
        self._notices: dict[str, Evicting] = {}
        """Notices by this leader, by uid: a pod cannot avoid its eviction by removing its notice."""

    async def _step(self) -> float:
        now_s = self._clock()
        observed = self._cluster.snapshot(now_s)
        uids = {plain_pod.gpu_pod.uid for plain_pod in observed.pods}
        self._notices = {uid: evicting for uid, evicting in self._notices.items() if uid in uids}
        snapshot = standing(observed, self._notices)
        preemptors = {gang.name: gang for gang in snapshot.preemptors()}
        self._forget(preemptors, now_s)
        self._state = learned(self._state, snapshot, preemptors)
        again_s, under_way = [_IDLE_S], True

        async def go_on() -> float:
            nonlocal under_way
            for pod in with_expired_notices(observed, snapshot):
                await self._untell(pod)
            if any([await self._notify_rest(gang, snapshot) for gang in preemptors.values()]):
                return 0.0
            under_way = await self._finish(preemptors, snapshot) or self._is_under_way(snapshot)
            return _IDLE_S

        again_s.append(await self._tried(go_on))
        for gang in preemptors.values():
            if reason := self._refusal(gang, snapshot):
                again_s.append(await self._tried(partial(self._no_victims, gang, reason), subject(gang.pods[0])))
            # One preemptor at a time: what is freed for it does not count for the next.
            elif not under_way and self._later.get(gang.name, now_s) <= now_s:
                errors_before, broken_off = self.errors, self.broken_off
                again_s.append(await self._tried(partial(self._handle, gang, snapshot), subject(gang.pods[0])))
                under_way = self.broken_off > broken_off or self._clock() < self._preempted_at_s + SOON_S
                if self.errors > errors_before:
                    # Others come first before it is retried.
                    self._later[gang.name] = now_s + _IDLE_S
        return min(again_s)

    async def _finish(self, preemptors: dict[str, Gang], snapshot: ClusterSnapshot) -> bool:
        """Finish what was begun: evict or keep gangs with a notice, and complete preemptors. Whether there were any."""
        terminating: dict[str, list[Gang]] = defaultdict(list)
        stays = set()
        for gang in snapshot.gangs():
            if whom := evicted_for(gang):
                proceeds = await self._go_on(gang, self._is_awaited(preemptors.get(whom), snapshot), snapshot)
                if proceeds is not None:
                    terminating[whom].append(gang)
                if not proceeds:
                    stays.add(whom)
        made = [
            item
            for name, gangs in terminating.items()
            if name not in stays
            if (item := preemptors.get(name)) and placed(item, snapshot, gangs)
        ]
        if not terminating:
            made = [item for item in preemptors.values() if self._was_made(item, snapshot)][:1]
        for item in made:
            await self._room_is_made(preemptors.pop(item.name))
        return bool(terminating or made)

    @property
    def _policy(self) -> PreemptionSettings:
        """kube-scheduler does not preempt for these pods, so there is no native choice to leave it to."""
        return replace(self._settings.policy, stands_aside=False)

    def _refusal(self, preemptor: Gang, snapshot: ClusterSnapshot) -> Reason | None:
        """Why no victims are selected for it; None if they can be."""
        if self._mode(preemptor) is not Mode.ENFORCE:
            return Reason("MODE", f"The mode for {preemptor.name} is not enforce.")
        return refusal(preemptor)

    def _is_under_way(self, snapshot: ClusterSnapshot) -> bool:
        """Whether room was made for a preemptor that does not run yet."""
        return False

    def _was_made(self, preemptor: Gang, snapshot: ClusterSnapshot) -> bool:
        """Whether an earlier leader made room for it without completing it."""
        return False

    async def _promise(self, pod: PlainPod, node: str) -> None:
        await self._writer.promise(pod, node)

    async def _room_is_made(self, preemptor: Gang) -> None:
        """Called when all of its victims are terminating."""

    async def _no_victims(self, preemptor: Gang, reason: Reason) -> float:
        """Called when no victims are selected for it."""
        return _IDLE_S

    def _is_awaited(self, preemptor: Gang | None, snapshot: ClusterSnapshot) -> bool:
        """Whether the preemptor still waits, in mode enforce, and does not fit yet."""
        return (
            preemptor is not None and self._mode(preemptor) is Mode.ENFORCE and placed(preemptor, snapshot, ()) is None
        )

    def _forget(self, preemptors: Collection[str], now_s: float) -> None:
        """Forget reports on preemptors that no longer wait, and expired pauses."""
        self._reported = {name: code for name, code in self._reported.items() if name in preemptors}
        self._stays = {name: until_s for name, until_s in self._stays.items() if until_s >= now_s}
        self._later = {name: until_s for name, until_s in self._later.items() if until_s >= now_s}

    async def _notify_rest(self, preemptor: Gang, snapshot: ClusterSnapshot) -> bool:
        """If a leader died after notifying only some of the victims, notify the others if that is still safe."""
        decision = preemptor.pods[0].decision
        if decision is None or not INFORMER_LAG_S <= snapshot.now_s - decision.at_s < self._policy.settle_s:
            return False
        running = [
            item
            for item in snapshot.gangs()
            if item.name in decision.victims
            and snapshot.may_preempt(item, preemptor)
            and gang_of(item, snapshot).started_at_s <= decision.at_s
        ]
        rest = [item for item in running if not evicted_for(item)]
        if not rest or len(rest) == len(decision.victims):
            return False
        if not all(is_safe(gang, snapshot) for gang in rest):
            return False
        for gang in rest:
            for pod in gang.pods:
                await self._inform(pod, preemptor.name, snapshot.now_s, "As the others.", notice_of(gang))
        return True

    async def _handle(self, preemptor: Gang, snapshot: ClusterSnapshot) -> float:
        if (grows_s := preemptor.complete_s + _GROWS_S - snapshot.now_s) > 0:
            return grows_s
        if saving := [gang for gang in snapshot.gangs() if saving_of(gang, preemptor, snapshot).is_for(preemptor.name)]:
            await self._request_saves(preemptor, saving, snapshot)
            return SOON_S
        policy_snapshot = snapshot_for(preemptor, snapshot, self._settings.budget_s)
        policy_snapshot = replace(
            policy_snapshot,
            gangs=tuple(gang for gang in policy_snapshot.gangs if self._stays.get(gang.name, 0.0) < snapshot.now_s),
        )
        decision, state = await asyncio.to_thread(decide, policy_snapshot, self._state, self._policy)
        self._emit(preemptor, decision)
        victims = [
            gang for gang in snapshot.gangs() if gang.name in decision.victims and snapshot.may_preempt(gang, preemptor)
        ]
        await self._request_saves(
            preemptor, [gang for gang in snapshot.gangs() if gang.name in decision.save_requests], snapshot
        )
        if decision.action is PreemptionAction.PREEMPT:
            where = placed(preemptor, snapshot, victims)
            if where is None:
                text = (
                    f"{', '.join(decision.victims)} would free GPUs, but {preemptor.name} lacks other resources there."
                )
                reason = Reason("OTHER_RESOURCES", text)
                self._once(preemptor, reason)
                await self._no_victims(preemptor, reason)
            elif await self._preempt(preemptor, victims, decision, where, snapshot):
                self._state, self._preempted_at_s = state, self._clock()
                return 0.0
        elif decision.action in (PreemptionAction.LEAVE, PreemptionAction.FITS):
            await self._no_victims(preemptor, decision.reasons[0])
        until_s = decision.until_s or snapshot.now_s + _IDLE_S
        return max(SOON_S, until_s - snapshot.now_s)

    async def _preempt(
        self,
        preemptor: Gang,
        victims: Sequence[Gang],
        decision: PreemptionDecision,
        where: Mapping[tuple[str, str], str],
        snapshot: ClusterSnapshot,
    ) -> bool:
        """Write notices and promises; the next reconcile evicts. False if an eviction would be refused."""
        for gang in victims:
            if why := await self._refused(gang):
                self._stays[gang.name] = snapshot.now_s + self._settings.policy.hold_s
                self._once(preemptor, Reason("REFUSED", f"{gang.name} cannot be evicted: {why}"))
                return False
        document = decision_document(decision, snapshot.now_s, 0.0, {grounds_of(item)["model"] for item in victims})
        for pod in preemptor.pods:
            await self._writer.patch(pod, advised(pod.gpu_pod.uid, document))
            await self._promise(pod, where[pod.key])
        for gang in victims:
            why = f"{gang.name} makes room for {preemptor.name}. {decision.reasons[0].message}"
            for pod in gang.pods:
                await self._inform(pod, preemptor.name, snapshot.now_s, why, notice_of(gang))
            self._emit_event(reference(gang.pods[0]), "Preempting", why)
        self._emit_event(reference(preemptor.pods[0]), "PreemptionChosen", decision.reasons[0].message)
        return True

    async def _refused(self, gang: Gang) -> str:
        """Why a gang cannot be evicted, or would not restart; empty if it can be evicted."""
        if not await self._writer.outlives(gang):
            return "its Job would have failed too often to start again (backoffLimit, podFailurePolicy)"
        try:
            await asyncio.gather(*(self._writer.evict(pod, dry_run=True) for pod in gang.pods))
        except ApiError as error:
            if is_change(error):
                raise
            return str(error)
        return ""

    async def _go_on(self, gang: Gang, awaited: bool, snapshot: ClusterSnapshot) -> bool | None:
        """Evict the rest of a gang with a notice, or keep it. True if all of it is evicted, None if that is refused."""
        notice = next(pod.evicting for pod in gang.pods if pod.evicting)
        # The notice does not apply to replacements of deleted pods.
        meant = [pod for pod in gang.pods if pod.evicting or (pod.started_s or snapshot.now_s) <= notice.at_s]
        remaining = [plain_pod for plain_pod in meant if not plain_pod.terminating]
        broken = len(remaining) < notice.pods
        safe = is_safe(gang, snapshot)
        if broken or (awaited and safe and all(plain_pod.evicting for plain_pod in remaining)):
            return await self._evict(gang, remaining, snapshot, whole=not broken)
        for plain_pod in remaining:
            if awaited and safe and not plain_pod.evicting:
                # A leader died while writing the notices.
                more = {**grounds_of(gang), "pods": notice.pods}
                await self._inform(plain_pod, notice.preemptor, notice.at_s, "As the others.", more)
            elif plain_pod.evicting and not (awaited and safe):
                await self._untell(plain_pod)
        return False

    async def _inform(self, pod: PlainPod, preemptor: str, at_s: float, why: str, more: Mapping[str, object]) -> None:
        await self._writer.patch(pod, eviction_notice(pod.gpu_pod.uid, preemptor, at_s, why, more))
        pods = more.get("pods")
        self._notices[pod.gpu_pod.uid] = Evicting(at_s, preemptor, pods if isinstance(pods, int) else 0)

    async def _untell(self, pod: PlainPod) -> None:
        self._notices.pop(pod.gpu_pod.uid, None)
        await self._writer.patch(pod, no_eviction_notice())

    async def _may_go(self, remaining: Sequence[PlainPod], snapshot: ClusterSnapshot, *, whole: bool) -> bool:
        """The last check, against the API server: informers may be behind."""
        fresh = await asyncio.gather(*(self._writer.read_pod(plain_pod) for plain_pod in remaining))
        by_uid = {plain_pod.gpu_pod.uid: plain_pod for plain_pod in fresh if plain_pod is not None}
        if any(
            plain_pod.gpu_pod.uid not in by_uid or by_uid[plain_pod.gpu_pod.uid].terminating for plain_pod in remaining
        ):
            return False
        now = replace(snapshot, now_s=self._clock())
        remaining_gang = Gang(tuple(by_uid.values()))
        return is_safe(remaining_gang, now) if whole else may_still_go(remaining_gang, now)

    async def _evict(
        self, gang: Gang, remaining: Sequence[PlainPod], snapshot: ClusterSnapshot, *, whole: bool
    ) -> bool | None:
        try:
            if remaining and not await self._may_go(remaining, snapshot, whole=whole):
                return False
            for plain_pod in remaining[:1]:
                await self._writer.evict(plain_pod)
            whole = False
            await asyncio.gather(*(self._writer.evict(plain_pod) for plain_pod in remaining[1:]))
        except ApiError as error:
            if is_change(error):
                raise
            _LOG.warning("%s cannot be evicted: %s", gang.name, error)
            self._stays[gang.name] = snapshot.now_s + self._settings.policy.hold_s
            for plain_pod in remaining if whole else ():
                await self._untell(plain_pod)
            return None
        return True

    async def _request_saves(self, preemptor: Gang, gangs: Sequence[Gang], snapshot: ClusterSnapshot) -> None:
        for gang in gangs:
            saving = saving_of(gang, preemptor, snapshot)
            why = f"{gang.name} is to make room for {preemptor.name}."
            ends_s = preemptor.created_s + self._settings.budget_s
            wanted = saving.request or SaveRequest.of(MINE, why, self._clock(), ends_s, preemptor.name)
            uids = {item.uid for item in saving.unasked_pods}
            for pod in [plain_pod for plain_pod in gang.pods if plain_pod.gpu_pod.uid in uids]:
                await self._writer.patch(pod, save_request(pod.gpu_pod.uid, wanted))
            if uids:
                self._emit_event(reference(gang.pods[0]), "SaveRequested", why)

    def _mode(self, preemptor: Gang) -> Mode:
        mode = self._cluster.mode(preemptor.pods[0])
        return Mode(mode) if mode in tuple(Mode) else self._settings.mode

    def _emit(self, preemptor: Gang, decision: PreemptionDecision) -> None:
        if decision.action in (PreemptionAction.WAIT, PreemptionAction.LEAVE):
            self._once(preemptor, decision.reasons[0])

    def _once(self, preemptor: Gang, reason: Reason) -> None:
        if self._reported.get(preemptor.name) != reason.code:
            self._reported[preemptor.name] = reason.code
            self._emit_event(reference(preemptor.pods[0]), "PreemptionWaits", reason.message)
