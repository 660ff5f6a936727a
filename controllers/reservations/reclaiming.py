"""What does not end in time is asked to save, and stopped when that loses least before the start."""

from collections.abc import Sequence
from typing import Protocol

from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.client.resources import KAIWO_RESERVATIONS, KUEUE_WORKLOADS, PODS, Object, Resource
from kopt.cluster.holds.checkpoint_request import request_patch
from kopt.cluster.holds.hold import HoldError
from kopt.cluster.runtime.events import EmitEvent
from kopt.controllers.reservations import patches
from kopt.controllers.reservations.observed import Observed
from kopt.controllers.reservations.snapshot import Pool
from kopt.controllers.reservations.views import MINE, ObservedPod, ObservedWorkload
from kopt.core.workload.save_state import USUAL_S, unasked
from kopt.policies.lending import Candidate, Choice, VictimAction, choose
from kopt.policies.preemption import PreemptionSettings, PreemptionState, observe
from kopt.policies.reservations import PoolPlan

_IDLE_S, _SOON_S, _ENDS_S, _STALE_S = 5.0, 1.0, 30.0, 600.0
"""``_ENDS_S``: from the hold until pods have ended and others are bound."""


class Writer(Protocol):
    """The part of the cluster that is written here."""

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None: ...

    async def read_pod(self, pod: ObservedPod) -> ObservedPod | None: ...


class Reclaimer:
    """Keeps the intervals of checkpoints between two steps."""

    def __init__(self, cluster: Writer, emit_event: EmitEvent) -> None:
        self._cluster, self._emit_event = cluster, emit_event
        self._state, self._settings = PreemptionState(), PreemptionSettings(stale_s=_STALE_S)
        self._reported: dict[str, str] = {}

    async def reclaim(self, observed: Observed, pool: Pool, plan: PoolPlan, stopped: dict[str, int]) -> float:
        """In how many seconds to look again. ``stopped`` counts Workloads by reservation."""
        now_s, owners = observed.now_s, {claim.owner for claim in pool.snapshot.claims}
        self._state = observe(self._state, [each.gang for each in pool.candidates.values()], now_s)
        missing = max(reclaim.gpus for reclaim in plan.reclaims)
        by_s = min(reclaim.by_s for reclaim in plan.reclaims) - _ENDS_S
        claim = min(plan.reclaims, key=lambda reclaim: reclaim.by_s).claim
        first = [pool.candidates[name] for name in plan.first if name in pool.candidates]
        others = [each for each in pool.candidates.values() if each.gang.queue not in owners]
        choice = self._choice(first, others, missing, now_s, by_s)
        if choice is None:
            return _IDLE_S
        victims = [pool.workloads[name] for name in choice.victims]
        if choice.action is VictimAction.STOP:
            for each in victims:
                if await self._stop(observed, pool, each, claim, choice):
                    stopped[claim] = stopped.get(claim, 0) + 1
            return _SOON_S
        if choice.action is VictimAction.REQUEST_SAVE:
            await self._request_save(observed, pool, victims, claim, choice, by_s)
        self._report(pool, claim, choice)
        return _IDLE_S if choice.until_s is None else max(_SOON_S, min(_IDLE_S, choice.until_s - now_s))

    def _choice(
        self, first: Sequence[Candidate], others: Sequence[Candidate], missing: int, now_s: float, by_s: float
    ) -> Choice | None:
        """Those that the reservation does not fit beside; if none of them can be stopped, any."""
        result = None
        for candidates in (first, others):
            able = [each for each in candidates if each.barred is None]
            if able:
                result = choose(able, self._state, missing, now_s, by_s, self._settings)
                if result.action is not VictimAction.LEAVE:
                    return result
        return result

    async def _stop(self, observed: Observed, pool: Pool, each: ObservedWorkload, claim: str, choice: Choice) -> bool:
        pods, now_s = observed.pods_of(each), observed.now_s
        if not await self._is_still_safe(pool.candidates[each.workload.name], pods, now_s):
            return False
        why = f"Its GPUs are reserved for {claim}. {choice.reason.message}"
        try:
            body = patches.stopped(each, claim, why, now_s)
        except HoldError as error:
            text = f"{each.workload.name} cannot be stopped: {error}"
            self._emit_event(_reference(each), "ReservationNotHeld", text)
            return False
        await self._cluster.patch(KUEUE_WORKLOADS, each.document, body)
        self._emit_event(_reference(each), "ReservationReclaims", why)
        return True

    async def _is_still_safe(self, candidate: Candidate, pods: Sequence[ObservedPod], now_s: float) -> bool:
        """By what the API server has now, immediately before the stop. A workload that runs nothing loses nothing."""
        fresh = [await self._cluster.read_pod(pod) for pod in pods]
        if candidate.idle:
            return not any(pod.is_running for pod in fresh if pod is not None)
        views = [
            new.gpu_pod
            for old, new in zip(pods, fresh, strict=True)
            if new is not None and new.gpu_pod.uid == old.gpu_pod.uid
        ]
        if len(views) != len(pods):
            return False
        members = members_of(candidate.gang.gpus, views, now_s, _STALE_S)
        return all(member.status is not None and member.status.safe for member in members)

    async def _request_save(
        self,
        observed: Observed,
        pool: Pool,
        victims: Sequence[ObservedWorkload],
        claim: str,
        choice: Choice,
        by_s: float,
    ) -> None:
        now_s = observed.now_s
        for each in victims:
            pods = observed.pods_of(each)
            due = unasked([pod.saving for pod in pods], pool.candidates[each.workload.name].gang.started_at_s)
            for pod, is_due in zip(pods, due, strict=True):
                if is_due:
                    until_s = max(now_s + 1, min(by_s, now_s + USUAL_S))
                    uid = pod.gpu_pod.uid
                    body = request_patch(MINE, choice.reason.message, now_s, until_s, claim, uid=uid)
                    await self._cluster.patch(PODS, pod.document, body)

    def _report(self, pool: Pool, claim: str, choice: Choice) -> None:
        """Once for each choice."""
        summary = f"{choice.action} {choice.reason.code} {choice.victims}"
        accepted = pool.reservations.get(claim)
        if accepted is None or self._reported.get(claim) == summary:
            return
        self._reported[claim] = summary
        key, uid = accepted.reserved.key, accepted.reserved.uid
        self._emit_event(KAIWO_RESERVATIONS.reference(*key, uid), "ReservationReclaimWaits", choice.reason.message)


def _reference(each: ObservedWorkload) -> Object:
    return KUEUE_WORKLOADS.reference(*each.key, each.workload.uid)
