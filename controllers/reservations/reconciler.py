"""One reconcile: what must not start is held, idle GPUs are held by Jobs, and what does not end in time is reclaimed.

Everything is on objects: the hold of a Workload with its notice is one write, the Jobs are told from their owner and
their start, and the account of a reservation is its status. A leader that dies leaves nothing that the next one cannot
go on from.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from kopt.cluster.client.api import AlreadyExists
from kopt.cluster.client.resources import JOBS, KAIWO_RESERVATIONS, KUEUE_WORKLOADS, Object, Resource
from kopt.cluster.holds.hold import HoldError
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import Pauses, Retrying
from kopt.controllers.reservations import patches, status
from kopt.controllers.reservations.hold_jobs import HoldSettings, changes
from kopt.controllers.reservations.observed import Observed
from kopt.controllers.reservations.reclaiming import Reclaimer
from kopt.controllers.reservations.run_times import RunTimes
from kopt.controllers.reservations.snapshot import Accepted, Pool, Reading, pools_of, read_reservations
from kopt.controllers.reservations.views import HOLDER, HoldJob, ObservedPod, ObservedWorkload, Reserved
from kopt.core.decision import Mode
from kopt.core.scheduling.queue_tree import DEFAULT_GPU_RESOURCE
from kopt.core.units import WHOLE_GPU
from kopt.policies.reservations import PoolPlan, plan_placeholders, plan_pool

_IDLE_S, _SOON_S, _SETTLE_S = 30.0, 1.0, 0.2


@dataclass(frozen=True)
class ControllerSettings:
    """``ahead_s``: idle GPUs are held for so long before a start."""

    mode: Mode = Mode.OBSERVE
    ahead_s: float = 86_400.0
    holds: HoldSettings = field(default_factory=HoldSettings)
    gpu_resource: str = DEFAULT_GPU_RESOURCE
    """What the queues of KAI and Volcano count."""
    workload_may_lower: bool | None = None
    """As ``policies.admission.mode.effective_mode`` takes it."""


class Cluster(Protocol):
    """What informers have seen, and fenced writes that show up in it at once."""

    def observed(self, now_s: float) -> Observed: ...

    async def patch(self, resource: Resource, document: Object, changes: Object) -> None: ...

    async def create_job(self, body: Object) -> None: ...

    async def delete_job(self, job: HoldJob) -> None: ...

    async def write_status(self, document: Object) -> None: ...

    async def read_pod(self, pod: ObservedPod) -> ObservedPod | None:
        """As the API server has it now; None where it is gone or has ended."""
        ...


class Reconciler(Retrying):
    """``step`` does what there is to do."""

    def __init__(
        self,
        cluster: Cluster,
        settings: ControllerSettings,
        emit_event: EmitEvent,
        run_times: RunTimes,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation or Isolation("reservations"), Pauses(changed_s=0.2, failed_s=5.0))
        self._cluster, self._settings, self._emit_event, self._clock = cluster, settings, emit_event, clock
        self._run_times, self._reclaimer = run_times, Reclaimer(cluster, emit_event)
        self.held, self.refused, self.blocked = 0, 0, 0

    async def step(self) -> float:
        """In how many seconds to run again if nothing changes before. Raises Deposed."""
        observed = self._cluster.observed(self._clock())
        reading = read_reservations(observed)
        acting = [each for each in reading.accepted if observed.reservation_mode(each.reserved) is Mode.ENFORCE]
        if observed.has_workloads and any(
            each.occurrence.start_s - self._settings.ahead_s <= observed.now_s for each in acting
        ):
            observed = await self._run_times.added(observed)
        pools = pools_of(observed, acting, self._settings.ahead_s)
        plan_of = plan_pool if observed.has_workloads else plan_placeholders
        plans = [(pool, plan_of(pool.snapshot)) for pool in pools]
        again_s, blocked, holds = [_IDLE_S], dict[str, tuple[ObservedWorkload, str]](), dict[str, int]()
        for pool, plan in plans:
            blocked |= {name: (pool.workloads[name], plan.refused[name].message) for name in plan.blocked}
            holds |= plan.holds
        self.blocked, self.held = len(blocked), sum(holds.values()) // WHOLE_GPU
        kept = set[str]()
        again_s += await self._block(observed, blocked, kept)
        # What is not kept from starting yet would be first on GPUs that come free.
        again_s += await self._hold(observed, acting, holds, may_free=kept >= set(blocked))
        again_s += await self._give_back(observed, blocked, is_reserving=bool(pools))
        stopped = dict[str, int]()
        for pool, plan in plans:
            again_s.append(await self._tried(partial(self._reclaim, observed, pool, plan, stopped)))
        again_s += await self._report(reading, {each.reserved.name for each in acting}, pools, observed, stopped)
        return max(0.05, min([*again_s, *self._due(reading.accepted, observed.now_s)]))

    async def _block(
        self, observed: Observed, blocked: Mapping[str, tuple[ObservedWorkload, str]], kept: set[str]
    ) -> list[float]:
        """``kept`` gets the names of those that are held already, and of those that are not ours to hold."""
        again_s = []
        for name, (each, why) in blocked.items():
            if each.workload.holder == HOLDER or observed.mode(each) is not Mode.ENFORCE:
                kept.add(name)
                continue
            again_s.append(await self._tried(partial(self._keep_from_start, each, why, kept), _subject(each)))
        return again_s

    async def _keep_from_start(self, each: ObservedWorkload, why: str, kept: set[str]) -> float:
        try:
            body = patches.kept_from_start(each, why, self._clock())
        except HoldError as error:
            self._emit_event(_reference(each), "ReservationNotHeld", f"{each.workload.name} cannot be held: {error}")
            kept.add(each.workload.name)
            return _IDLE_S
        await self._cluster.patch(KUEUE_WORKLOADS, each.document, body)
        self._emit_event(_reference(each), "ReservationWaits", why)
        # Kueue has to hear of it before GPUs come free: these do in the next step.
        return _SETTLE_S

    async def _hold(
        self, observed: Observed, acting: Sequence[Accepted], holds: Mapping[str, int], *, may_free: bool
    ) -> list[float]:
        """First what is too much goes, so that what may start finds its GPUs; with ``may_free`` alone."""
        again_s, bound = [], _bound(observed)
        uids = {each.reserved.uid for each in acting}
        gpus = {name: amount // WHOLE_GPU for name, amount in holds.items()}
        settings, now_s = self._settings.holds, observed.now_s
        changed = [(each, changes(each, gpus.get(each.reserved.name, 0), bound, now_s, settings)) for each in acting]
        orphans = [job for job in observed.jobs if job.owner_uid not in uids]
        for job in [*orphans, *(job for _, change in changed for job in change.delete)]:
            if not job.is_over and (may_free or job.owner_uid not in uids):
                work = partial(self._delete, job)
                again_s.append(await self._tried(work, Subject.of(JOBS, job.document)))
        for each, change in changed:
            for body in change.create:
                work = partial(self._create, body)
                again_s.append(await self._tried(work, Subject.of(KAIWO_RESERVATIONS, each.reserved.document)))
        return again_s

    async def _create(self, body: Object) -> float:
        try:
            await self._cluster.create_job(body)
        except AlreadyExists:
            # Of a replica before, or one that is still being deleted: the watch will show it.
            return _SOON_S
        return _IDLE_S

    async def _delete(self, job: HoldJob) -> float:
        await self._cluster.delete_job(job)
        return _IDLE_S

    async def _give_back(
        self, observed: Observed, blocked: Mapping[str, tuple[ObservedWorkload, str]], *, is_reserving: bool
    ) -> list[float]:
        """What may start. What was told to stop and has its quota still is not given back before Kueue has heard of
        it, unless nothing is reserved any more."""
        again_s = []
        for each in observed.workloads:
            workload = each.workload
            stays = workload.name in blocked or (is_reserving and not workload.pending)
            if workload.holder == HOLDER and not (stays and observed.mode(each) is Mode.ENFORCE):
                again_s.append(await self._tried(partial(self._return, each), _subject(each)))
        return again_s

    async def _return(self, each: ObservedWorkload) -> float:
        await self._cluster.patch(KUEUE_WORKLOADS, each.document, patches.released(each))
        self._emit_event(_reference(each), "ReservationGivesBack", f"{each.workload.name} may start.")
        return _IDLE_S

    async def _reclaim(self, observed: Observed, pool: Pool, plan: PoolPlan, stopped: dict[str, int]) -> float:
        if not plan.reclaims:
            return _IDLE_S
        return await self._reclaimer.reclaim(observed, pool, plan, stopped)

    async def _report(
        self,
        reading: Reading,
        acting: set[str],
        pools: Sequence[Pool],
        observed: Observed,
        stopped: Mapping[str, int],
    ) -> list[float]:
        by_name = {each.reserved.name: each for each in reading.accepted}
        running = {job.name: job for pool in pools for job in pool.snapshot.running}
        self.refused, again_s = len(reading.refused), []
        for reserved in observed.reservations:
            each = by_name.get(reserved.name)
            if each is not None:
                used = sum(job.gpus for job in running.values() if job.owner == each.owner) // WHOLE_GPU
                used = used if observed.now_s >= each.occurrence.start_s else 0
                acts, mode = reserved.name in acting, observed.reservation_mode(reserved)
                message = "" if acts else f"In mode {mode.value}, or in a namespace that is not ours, nothing is held."
                held, count = _held(observed, each), stopped.get(reserved.name, 0)
                standing = status.Standing(each, held, used, count, acts, message)
                ahead_s = observed.ahead_s(each.spec, self._settings.ahead_s)
                new = status.accepted(standing, ahead_s, observed.now_s)
            elif reserved.name in reading.refused:
                new = status.refused(reserved, *reading.refused[reserved.name], observed.now_s)
            else:
                new = status.expired(reserved, observed.now_s)
            if status.differs(reserved.document.get("status") or {}, new.document):
                work = partial(self._write, reserved, new)
                again_s.append(await self._tried(work, Subject.of(KAIWO_RESERVATIONS, reserved.document)))
        return again_s

    async def _write(self, reserved: Reserved, new: status.NewStatus) -> float:
        await self._cluster.write_status(reserved.document | {"status": new.document})
        word = new.document["conditions"][0]
        before = reserved.document.get("status") or {}
        if before.get("phase") != new.phase.value:
            reference = KAIWO_RESERVATIONS.reference(*reserved.key, reserved.uid)
            self._emit_event(reference, f"Reservation{new.phase.value}", word["message"])
        return _SOON_S if new.closed else _IDLE_S

    def _due(self, accepted: Sequence[Accepted], now_s: float) -> list[float]:
        """Until when something happens by time alone."""
        times = []
        for each in accepted:
            start_s, account = each.occurrence.start_s, status.current_account(each)
            times += [start_s - self._settings.ahead_s, start_s - each.spec.lead_s, start_s, each.occurrence.until_s]
            if account is not None and account.met_s is not None:
                since_s = max(start_s, account.met_s, account.last_used_s or 0.0)
                times.append(since_s + each.spec.unused_after_s)
        return [at_s - now_s + 0.05 for at_s in times if at_s > now_s - 0.05]


def _bound(observed: Observed) -> frozenset[str]:
    """Jobs of ours whose pods have nodes."""
    return frozenset(pod.gpu_pod.owner_uid for pod in observed.pods if pod.reservation and pod.node)


def _held(observed: Observed, each: Accepted) -> int:
    uids = {job.uid for job in each.jobs if not job.is_over} & _bound(observed)
    return sum(job.gpus for job in each.jobs if job.uid in uids) // WHOLE_GPU


def _subject(each: ObservedWorkload) -> Subject:
    return Subject.of(KUEUE_WORKLOADS, each.document)


def _reference(each: ObservedWorkload) -> Object:
    return KUEUE_WORKLOADS.reference(*each.key, each.workload.uid)
