"""What a conservative queue of Kueue's waits for, and who has borrowed, as ``policies.queues.reclaim`` needs it."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, Object
from kopt.cluster.objects.eviction import notice_of
from kopt.cluster.objects.fields import count, items, mapping, text
from kopt.cluster.workloads.kueue.objects import ClusterQueue, GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.queues import read_cluster_queue
from kopt.cluster.workloads.kueue.reading import amount, local_queue_target, read_kueue_workload
from kopt.cluster.workloads.queue_trees.live import LiveQueues, read_live
from kopt.controllers.queues.borrowers import (
    HOLDER,
    Borrower,
    LiveQuotas,
    QuotaRoom,
    borrower_of,
    gpus_of,
    is_ours_to_evict,
    pods_by_workload,
)
from kopt.core.scheduling.queue_tree import GPU, Engine, Reclaim
from kopt.core.times import seconds_or_none
from kopt.policies.queues import QueueTree
from kopt.policies.queues.balance import SharedRun, Shares, wants_share
from kopt.policies.queues.reclaim import (
    DEFAULT_GRACE_S,
    PACE,
    OwnerState,
    Pace,
    ReclaimDecision,
    balancing_reclaim,
    delayed_reclaim,
    in_order,
)
from kopt.policies.queues.shares import divisions
from kopt.policies.shares import share_rows

_MOST_LOOKED_AT = 100
"""Workloads of one queue for which others might go and that are looked at in one pass, the oldest ones."""


@dataclass(frozen=True)
class Step:
    """What is decided for one workload that waits."""

    owner: str
    waits: KueueWorkload
    decision: ReclaimDecision


@dataclass(frozen=True)
class Attempts:
    """How often borrowers were evicted for a workload since it waits, and when they were the last time."""

    number: int = 1
    last_s: float = 0.0


_NO_ATTEMPTS: Mapping[str, Attempts] = MappingProxyType({})


@dataclass(frozen=True)
class Reclaiming:
    """By conservative queue, what is reported of it; what is decided for its workloads, and the borrowers that these
    decisions name. ``pending``: all workloads that wait, in any queue."""

    decisions: Mapping[str, ReclaimDecision] = field(default_factory=dict)
    steps: Sequence[Step] = ()
    borrowers: Mapping[str, Borrower] = field(default_factory=dict)
    pending: Collection[str] = ()


async def reclaims_due(
    kube: Kube,
    tree: QueueTree,
    documents: Mapping[str, Object],
    now_s: float,
    pace: Pace = PACE,
    attempts: Mapping[str, Attempts] = _NO_ATTEMPTS,
) -> Reclaiming:
    """``documents`` are the KaiwoQueues, in whose status the last reclaim stands; ``attempts`` those that are known
    beside the ones that held borrowers tell of.

    All workloads whose grace is over are served together, so that a queue does not have its quota back one workload
    after the other, each with the time that victims take to end; and one that nobody can make room for does not hold up
    the others.
    """
    owners = [
        name
        for name, queue in tree.queues.items()
        if queue.reclaim is not None and queue.reclaim.is_delayed and tree.is_leaf(name) and queue.parent
    ]
    if not owners:
        return Reclaiming()
    live = await read_live(kube, Engine.KUEUE)
    pending = any(_pending(live, name) for name in owners)
    workloads = [read_kueue_workload(item) for item in (await kube.list(KUEUE_WORKLOADS)).items] if pending else []
    snapshot = _Snapshot(live, tree, workloads, documents, _attempts(workloads, attempts), now_s, pace)
    decided = await snapshot.decided(owners, {})
    if any(step.decision.claimed for step in decided.steps):
        # Who goes hangs on the pods, which are many; whether anybody does, does not.
        decided = await snapshot.decided(owners, pods_by_workload((await kube.list(PODS)).items, workloads))
    return decided


@dataclass(frozen=True)
class _Snapshot:
    """What was read in one pass."""

    live: LiveQueues
    tree: QueueTree
    workloads: list[KueueWorkload]
    documents: Mapping[str, Object]
    attempts: Mapping[str, Attempts]
    now_s: float
    pace: Pace

    async def decided(self, owners: Sequence[str], pods: Mapping[str, list[GpuPod]]) -> Reclaiming:
        live, tree, now_s, pace = self.live, self.tree, self.now_s, self.pace
        waits = {name: _queued(live, name, self.workloads, now_s) for name in owners}
        admitted = [each for each in self.workloads if each.reserved_s is not None and not each.finished]
        quotas, shared = LiveQuotas(live, admitted), Counter[str]()
        decisions, steps, borrowers = dict[str, ReclaimDecision](), list[Step](), dict[str, Borrower]()
        balanced = [name for name in owners if tree.queues[name].reclaim is Reclaim.BALANCED]
        by_age = {name for name in balanced if name in quotas.queues and not _shares_fairly(quotas.queues[name])}
        balanced = [name for name in balanced if name not in by_age]
        ideal = ideal_gpus(tree, live, self.workloads) if any(waits[name] for name in balanced) else {}
        use = quotas.gpus()
        shared.update({name: ideal.get(name, 0) - use.get(name, 0) for name in balanced})
        able = _borrowed(live, tree, admitted, pods, now_s, pace) if any(waits.values()) else []
        # Whoever lacks most of its share is first.
        for name in sorted(owners, key=lambda name: -shared[name]):
            plain = _owner(tree, name, self.documents, is_full=bool(waits[name]), by_age=name in by_age)
            own = [each for each in able if _may_go_for(tree, name, each)] if waits[name] else []
            queue = _Queue(plain, own, quotas, self.attempts, ideal if name in balanced else None, now_s, pace)
            of_queue = await queue.steps(waits[name])
            steps += of_queue
            borrowers |= {each.run.name: each for each in own}
            nothing = delayed_reclaim(plain, (), _NO_ROOM, now_s, pace)
            decision = in_order([step.decision for step in of_queue] or [nothing])
            again_s = min(decision.again_s, pace.review_s) if name in balanced and waits[name] else decision.again_s
            decisions[name] = replace(decision, again_s=again_s)
        pending = {each.name for each in self.workloads if each.reserved_s is None and not each.finished}
        return Reclaiming(decisions, steps, borrowers, pending)


def _shares_fairly(queue: ClusterQueue) -> bool:
    """Whether Kueue gives what is freed to the queue that has least for its weight."""
    return queue.fair and not queue.by_usage


@dataclass(frozen=True)
class _Queue:
    """What one queue is decided by. ``ideal``: of all leaves, where it is balanced."""

    plain: OwnerState
    borrowed: Sequence[Borrower]
    quotas: LiveQuotas
    attempts: Mapping[str, Attempts]
    ideal: Mapping[str, int] | None
    now_s: float
    pace: Pace

    async def steps(self, waits: Sequence[KueueWorkload]) -> list[Step]:
        """For each workload that fits the queue's own quota, or its share, beside what it uses and what is decided for
        older ones, up to the first whose grace is not over; where the queue is strict, up to the first that is not
        served, as Kueue admits none of those behind it."""
        result, looks, failed = list[Step](), 0, dict[str, ReclaimDecision | None]()
        is_strict = bool(waits) and self.quotas.queues[self.plain.name].strict
        gone = [each.run.name for each in self.borrowed if each.run.terminating]
        for workload in waits:
            decision = None
            alike = _wish(workload)
            if alike in failed:
                decision = failed[alike]
            elif self._fits_own(workload) or self._wants_share(workload, gone):
                looks += 1
                # The process has a Lease to renew, too.
                await asyncio.sleep(0)
                decision = self._decision(workload, gone)
                if decision is None or decision.reason.code in ("NO_VICTIMS", "IN_MIN_RUNTIME"):
                    # What is given and taken for others in between leaves less for those that are alike.
                    failed[alike] = decision
            if decision is not None:
                result.append(Step(self.plain.name, workload, decision))
            is_served, in_grace = decision is not None and decision.is_served, _is_in_grace(decision)
            if in_grace or (is_strict and not is_served) or looks == _MOST_LOOKED_AT:
                break
        return result

    def _fits_own(self, workload: KueueWorkload) -> bool:
        free = self.quotas.free_of_own(self.plain.name)
        return all(value <= free.get(name, 0) for name, value in workload.requests.items() if name != "pods")

    def _wants_share(self, workload: KueueWorkload, gone: Sequence[str]) -> bool:
        if self.ideal is None:
            return False
        return wants_share(Shares(self.quotas.gpus(gone), self.ideal), self.plain.name, _wanted(workload))

    def _decision(self, workload: KueueWorkload, gone: Sequence[str]) -> ReclaimDecision | None:
        """Gives the workload its quota where that is decided; None for one for which nothing is to be done."""
        owner = replace(self.plain, waits_since_s=waits_since_s(workload))
        borrowed = [each for each in self.borrowed if each.run.name in self.quotas.admitted]
        runs = [each.run for each in borrowed]
        room = QuotaRoom(self.quotas, owner.name, workload)
        attempts = self.attempts.get(workload.name)
        if attempts is not None:
            # Others got what was freed, if it would have been enough without them.
            sufficed = not room.fits(gone) and room.fits([*gone, *self.quotas.newer(attempts.last_s)])
            owner = replace(owner, attempted_s=attempts.last_s, attempts=attempts.number, sufficed=sufficed)
        decision = None if self.ideal is None else self._balanced(owner, workload, borrowed, room)
        if decision is None:
            if not self._fits_own(workload):
                return None
            decision = delayed_reclaim(owner, runs, room, self.now_s, self.pace)
        if decision.is_served:
            terminating = [run.name for run in runs if run.terminating] if not room.fits(decision.claimed) else []
            self.quotas.decide(owner.name, workload, [*terminating, *decision.claimed])
        return decision

    def _balanced(
        self, owner: OwnerState, workload: KueueWorkload, borrowed: Sequence[Borrower], room: QuotaRoom
    ) -> ReclaimDecision | None:
        use = self.quotas.gpus([each.run.name for each in borrowed if each.run.terminating])
        runs = [SharedRun(each.run, each.workload.cluster_queue, gpus_of(each.workload.uses)) for each in borrowed]
        shares = Shares(use, self.ideal or {})
        return balancing_reclaim(owner, _wanted(workload), runs, shares, room, self.now_s, self.pace)


def _wanted(workload: KueueWorkload) -> int:
    return gpus_of({("", name): amount for name, amount in workload.requests.items()})


def _wish(workload: KueueWorkload) -> str:
    """The same for workloads that ask for the same, on the same nodes."""
    return repr([(sorted(pods.requests.items()), *_where(pods.spec)) for pods in workload.pod_sets])


def _where(spec: Mapping[str, object]) -> list[object]:
    """What of a pod decides where it may run: its environment does not."""
    resources = [mapping(container, "resources") for _, container in items(spec, "containers")]
    return [resources, *(spec.get(name) for name in ("initContainers", "nodeSelector", "affinity", "tolerations"))]


def _is_in_grace(decision: ReclaimDecision | None) -> bool:
    return decision is not None and decision.reason.code == "IN_GRACE"


class _Nowhere:
    def fits(self, evicted: Collection[str]) -> bool:
        return False

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        return False

    def shortfall(self, name: str, evicted: Collection[str]) -> float:
        return 0.0


_NO_ROOM = _Nowhere()


def _owner(tree: QueueTree, name: str, documents: Mapping[str, Object], *, is_full: bool, by_age: bool) -> OwnerState:
    last = seconds_or_none(text(documents.get(name, {}), "status", "lastReclaimTime"))
    return OwnerState(name, _grace_s(tree, name), reclaimed_s=last, is_full=is_full, by_age=by_age)


def _grace_s(tree: QueueTree, name: str) -> int:
    queue = tree.queues[name]
    if queue.grace_s is not None:
        return queue.grace_s
    return 0 if queue.reclaim is Reclaim.BALANCED else DEFAULT_GRACE_S


def ideal_gpus(tree: QueueTree, live: LiveQueues, workloads: Sequence[KueueWorkload]) -> Mapping[str, int]:
    """By leaf, thousandths of a GPU: of what runs and waits, those among it that we hold, by ``policies.shares``."""
    demands: dict[str, Counter[str]] = defaultdict(Counter)
    for workload in workloads:
        name = workload.cluster_queue
        if workload.reserved_s is None:
            local = live.objects.get(("LocalQueue", workload.key[0], workload.queue))
            name = "" if local is None else local_queue_target(local)
        if workload.finished or name not in tree.queues or not (workload.active or workload.holder == HOLDER):
            continue
        asked = {("", resource): value for resource, value in workload.requests.items()}
        demands[name][GPU] += gpus_of(asked if workload.reserved_s is None else workload.uses)
    result = dict[str, int]()
    for division in divisions(tree, demands):
        rows = share_rows(division.queues, {}, division.capacity)
        result |= {row.queue.name: row.ideal.get(GPU, 0) for row in rows}
    return result


def _attempts(workloads: Sequence[KueueWorkload], known: Mapping[str, Attempts]) -> Mapping[str, Attempts]:
    """By workload. What is held for it tells when the last attempt began, also after another process died."""
    held = dict[str, float]()
    for workload in workloads:
        notice = notice_of(workload.document) if workload.holder == HOLDER else None
        if notice is not None:
            held[notice.for_whom] = min(held.get(notice.for_whom, notice.at_s), notice.at_s)
    return {name: Attempts(1, last_s) for name, last_s in held.items()} | dict(known)


def _pending(live: LiveQueues, name: str) -> bool:
    queue = live.objects.get(("ClusterQueue", "", name))
    return queue is not None and count(queue, "status", "pendingWorkloads", default=0) > 0


def _queued(live: LiveQueues, name: str, workloads: list[KueueWorkload], now_s: float) -> list[KueueWorkload]:
    """What Kueue may admit in a queue, the oldest first, and in a strict one in Kueue's order; nothing where the queue
    takes nothing now."""
    document = live.objects.get(("ClusterQueue", "", name))
    queue = None if document is None else read_cluster_queue(document)
    if queue is None or not queue.active:
        return []
    pending = [workload for workload in workloads if _is_pending_in(live, workload, name, now_s)]
    is_strict = queue.strict
    return sorted(pending, key=lambda it: (-it.priority if is_strict else 0, waits_since_s(it), it.name))


def waits_since_s(workload: KueueWorkload) -> float:
    """Since when a pending workload waits: since it was created, or evicted."""
    return max(workload.created_s, workload.evicted_at_s or 0.0)


def _is_pending_in(live: LiveQueues, workload: KueueWorkload, name: str, now_s: float) -> bool:
    local = live.objects.get(("LocalQueue", workload.key[0], workload.queue))
    is_there = local is not None and local_queue_target(local) == name
    backs_off = (seconds_or_none(text(workload.document, "status", "requeueState", "requeueAt")) or 0.0) > now_s
    return is_there and not backs_off and workload.reserved_s is None and workload.active and not workload.finished


def _borrowed(
    live: LiveQueues,
    tree: QueueTree,
    admitted: list[KueueWorkload],
    pods: Mapping[str, list[GpuPod]],
    now_s: float,
    pace: Pace,
) -> list[Borrower]:
    """Workloads that may be evicted, of queues that use more than their quota."""
    queues = {name for name in tree.queues if _borrows(live.objects.get(("ClusterQueue", "", name)))}
    return [
        borrower_of(
            workload,
            pods.get(workload.uid, ()),
            tree.queues[workload.cluster_queue].min_runtime_s or 0,
            now_s - pace.pause_s,
            now_s,
        )
        for workload in admitted
        if workload.cluster_queue in queues and is_ours_to_evict(workload)
    ]


def _may_go_for(tree: QueueTree, owner: str, borrower: Borrower) -> bool:
    """Of another queue below the same root."""
    other = borrower.workload.cluster_queue
    return other != owner and tree.lineage(other)[-1] == tree.lineage(owner)[-1]


def _borrows(document: Object | None) -> bool:
    return any(
        amount(mapping(row).get("borrowed")) > 0
        for _, flavor in items(document, "status", "flavorsReservation")
        for _, row in items(flavor, "resources")
    )
