"""Who borrows below a conservative queue's root, how their checkpoints stand, and what their quota would make room for,
as ``policies.queues.victims`` needs it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kopt.cluster.checkpoints.save_requests import Saving
from kopt.cluster.checkpoints.status import members_of
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items
from kopt.cluster.workloads.kueue.objects import ClusterQueue, GpuPod, KueueWorkload
from kopt.cluster.workloads.kueue.queues import admitted_of, demand_of, read_cluster_queue, read_cohort, read_flavor
from kopt.cluster.workloads.kueue.reading import read_gpu_pod
from kopt.cluster.workloads.queue_trees.live import LiveQueues
from kopt.cluster.workloads.requests.gpus import devices_in, gpus_in
from kopt.core.decision import Mode as ActMode
from kopt.core.scheduling.quota import Admitted, FlavorResource
from kopt.core.units import MilliGpu
from kopt.core.workload.checkpoint import JobState
from kopt.core.workload.save_state import USUAL_S, SaveState
from kopt.policies.preemption import PreemptionSettings, RunningGang
from kopt.policies.preemption.evidence import outlook
from kopt.policies.queues.victims import BorrowedRun, Gone, Safety
from kopt.policies.quota import Assignment, Mode, QuotaTree, assign

HOLDER = "reclaim"
"""The value of kaiwo.ai/held on Workloads that were evicted for a conservative queue."""
_STALE_S = 75.0
_LONGEST_WRITE_S = 900.0
"""A write that is not over by then has not been followed."""


class LiveQuotas:
    """The queues of a cluster as Kueue counts them, and who has quota of theirs; changed by what is decided, so that
    nothing is given or taken twice."""

    def __init__(self, live: LiveQueues, admitted: Sequence[KueueWorkload]) -> None:
        of_kind: dict[str, list[Object]] = defaultdict(list)
        for (kind, *_), document in live.objects.items():
            of_kind[kind].append(document)
        self.queues = {queue.name: queue for queue in map(read_cluster_queue, of_kind["ClusterQueue"])}
        nodes = [*map(read_cohort, of_kind["Cohort"]), *(queue.node for queue in self.queues.values())]
        self.flavors = {flavor.name: flavor for flavor in map(read_flavor, of_kind["ResourceFlavor"])}
        self.admitted = {workload.name: admitted_of(workload) for workload in admitted}
        self._tree, self._gone = QuotaTree.of(nodes, self.admitted.values()), set[str]()
        self._followed: tuple[Gone | None, int] = None, 0
        self._gpus, self._of_queue = Counter[str](), defaultdict[str, set[str]](set)
        for item in self.admitted.values():
            self._of_queue[item.queue].add(item.name)
            self._gpus[item.queue] += gpus_of(item.uses)

    def free_of_own(self, name: str) -> Mapping[str, int]:
        """By resource, the most that a queue's own quota has left in one flavour."""
        tree, free = self.without(()), Counter[str]()
        for at_flavor, quota in self.queues[name].quotas.items():
            free[at_flavor[1]] = max(free[at_flavor[1]], quota.nominal - tree.used(name, at_flavor))
        return free

    def gpus(self, gone: Collection[str] = ()) -> Mapping[str, int]:
        """What each queue uses, in thousandths of a GPU."""
        result = Counter(self._gpus)
        for item in (self.admitted[name] for name in gone if name in self.admitted):
            result[item.queue] -= gpus_of(item.uses)
        return result

    def newer(self, since_s: float) -> list[str]:
        """Who was admitted since then; Kubernetes' times are whole seconds."""
        return [name for name, item in self.admitted.items() if item.reserved_s >= int(since_s)]

    def remaining(self) -> list[Admitted]:
        """Who is in the tree now."""
        return [item for name, item in self.admitted.items() if name not in self._gone]

    def remaining_of(self, queue: str) -> list[Admitted]:
        return [self.admitted[name] for name in self._of_queue.get(queue, ()) if name not in self._gone]

    def without(self, evicted: Collection[str]) -> QuotaTree:
        """One tree that is changed: those are many of whom it is asked in turn."""
        followed, seen = self._followed
        now = evicted if isinstance(evicted, Gone) else set(evicted)
        changed = (
            now.changes[seen:] if isinstance(now, Gone) and now is followed else self._gone.symmetric_difference(now)
        )
        for name in changed:
            item = self.admitted.get(name)
            if item is None or (name in now) == (name in self._gone):
                continue
            if name in now:
                self._gone.add(name)
                self._tree.add(item.queue, item.uses, -1)
            else:
                self._gone.remove(name)
                self._tree.add(item.queue, item.uses)
        self._followed = (now, len(now.changes)) if isinstance(now, Gone) else (None, 0)
        return self._tree

    @contextmanager
    def lacking(self, name: str) -> Iterator[QuotaTree]:
        """The tree as it was last asked for, without one more."""
        item = None if name in self._gone else self.admitted.get(name)
        if item is not None:
            self._tree.add(item.queue, item.uses, -1)
        try:
            yield self._tree
        finally:
            if item is not None:
                self._tree.add(item.queue, item.uses)

    def decide(self, owner: str, waits: KueueWorkload, gone: Collection[str]) -> None:
        """``waits`` has its quota from now on, and those who are ``gone`` have none."""
        room = QuotaRoom(self, owner, waits)
        uses = room.assignment(gone).requests
        for name in set(gone) & self.admitted.keys():
            item = self.admitted.pop(name)
            self._of_queue[item.queue].discard(name)
            self._gpus[item.queue] -= gpus_of(item.uses)
        # Those who are gone are not in the tree any more.
        self._gone, self._followed = set(), (None, 0)
        self.admitted[waits.name] = Admitted(waits.name, owner, waits.priority, waits.created_s, 0.0, uses)
        self._of_queue[owner].add(waits.name)
        self._tree.add(owner, uses)
        self._gpus[owner] += gpus_of(uses)


class QuotaRoom:
    """Kueue's arithmetic (``policies.quota``) with a workload that waits in ``owner``, and others gone."""

    def __init__(self, quotas: LiveQuotas, owner: str, waits: KueueWorkload) -> None:
        self._owner: ClusterQueue = quotas.queues[owner]
        self._demand = demand_of(waits, self._owner, quotas.flavors)
        self._wanted = {resource for pods in self._demand.pod_sets for resource in pods.requests}
        self._quotas = quotas

    def fits(self, evicted: Collection[str]) -> bool:
        return self.assignment(evicted).mode is Mode.FIT

    def assignment(self, evicted: Collection[str]) -> Assignment:
        tree = self._quotas.without(evicted)
        return assign(self._demand, self._owner.rules, tree, self._preemptible())

    def _preemptible(self) -> list[Admitted]:
        """Whom Kueue itself could evict, as far as that changes whether it fits: where it stops at a flavour in which
        it would have to, before the next one that is free. With ``Never`` these are of the own queue, or nobody."""
        rules = self._owner.rules
        if rules.next_to_preempt or all(len(group.flavors) < 2 for group in rules.groups):
            return []
        if rules.reclaim != "Never":
            return self._quotas.remaining()
        return [] if rules.within == "Never" else self._quotas.remaining_of(self._owner.name)

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        return bool(self._lent(name, self._quotas.without(evicted)))

    def shortfall(self, name: str, evicted: Collection[str]) -> float:
        lent = self._lent(name, self._quotas.without(evicted))
        lacks = [0.0]
        with self._quotas.lacking(name) as tree:
            for at_flavor in lent:
                for key in self._between(name, tree):
                    quota = tree.subtree(key, at_flavor)
                    lacks.append((quota - tree.used(key, at_flavor)) / quota if quota else 0.0)
        return max(lacks)

    def _lent(self, name: str, tree: QuotaTree) -> list[FlavorResource]:
        """What a workload uses of what its queue, and those above it that the owner is not in, have from others."""
        workload, between = self._quotas.admitted.get(name), self._between(name, tree)
        if workload is None or not between:
            return []
        return [
            at_flavor
            for at_flavor in workload.uses
            if at_flavor[1] in self._wanted and all(tree.exceeds(key, at_flavor) for key in between)
        ]

    def _between(self, name: str, tree: QuotaTree) -> list[str]:
        """The queue of a workload, and those above it that the owner is not in."""
        workload, shared = self._quotas.admitted.get(name), tree.lineage(self._owner.name)
        return [] if workload is None else [key for key in tree.lineage(workload.queue) if key not in shared]


@dataclass(frozen=True)
class Borrower:
    """A workload that may be evicted, with its pods and what they were asked."""

    workload: KueueWorkload
    run: BorrowedRun
    saving: Saving


def borrower_of(
    workload: KueueWorkload, pods: Sequence[GpuPod], min_runtime_s: int, since_s: float, now_s: float
) -> Borrower:
    """Save requests that ended before ``since_s`` do not count."""
    saving = Saving.of(pods, now_s, max(since_s, workload.reserved_s or 0.0))
    safety, lost_s = _safety(workload, pods, saving, now_s)
    run = BorrowedRun(
        workload.name,
        workload.reserved_s or 0.0,
        min_runtime_s,
        safety,
        lost_s,
        saving.state,
        was_evicted=any(True for _ in items(workload.document, "status", "schedulingStats", "evictions")),
        terminating=workload.terminating or workload.holder == HOLDER,
    )
    return Borrower(workload, run, saving)


def gpus_of(uses: Mapping[FlavorResource, int]) -> int:
    """Thousandths of a GPU, of all kinds."""
    return sum(devices_in(resource, amount) for (_, resource), amount in uses.items())


def is_ours_to_evict(workload: KueueWorkload) -> bool:
    """Not what others hold, what another cluster decides about, and what may only be observed."""
    return (
        workload.holder in ("", HOLDER)
        and not workload.mirrored
        and workload.mode not in (ActMode.OBSERVE.value, ActMode.ANNOTATE.value)
    )


def pods_by_workload(documents: Iterable[Object], workloads: Sequence[KueueWorkload]) -> Mapping[str, list[GpuPod]]:
    """By the Workload's uid. A pod names its Workload, or its owner is also the Workload's."""
    by_name = {workload.key: workload.uid for workload in workloads}
    by_owner = {workload.owner_uid: workload.uid for workload in workloads if workload.owner_uid}
    result: dict[str, list[GpuPod]] = defaultdict(list)
    for document in documents:
        pod = read_gpu_pod(document)
        if pod is None or at(document, "metadata", "deletionTimestamp"):
            continue
        uid = by_name.get((pod.key[0], pod.workload)) if pod.workload else None
        if uid := uid or by_owner.get(pod.owner_uid):
            result[uid].append(pod)
    return result


def _safety(workload: KueueWorkload, pods: Sequence[GpuPod], saving: Saving, now_s: float) -> tuple[Safety, float]:
    """How its checkpoint stands, and the seconds of work that it would lose."""
    ran_s = max(0.0, now_s - (workload.reserved_s or now_s))
    gpus = sum(gpus_in(resource, amount) for (_, resource), amount in workload.uses.items())
    if not gpus or not pods:
        # Without pods there is nothing to lose.
        return (Safety.SAFE, 0.0) if not pods else (Safety.UNSAFE, ran_s)
    members = members_of(gpus, pods, now_s, _STALE_S)
    statuses = [(member.status, now_s - member.observed_at_s) for member in members]
    writes = any(
        status is not None and status.state is JobState.CKPT_WRITING and age_s <= _LONGEST_WRITE_S
        for status, age_s in statuses
    )
    if writes or saving.state in (SaveState.ASKED, SaveState.ASKABLE):
        return Safety.SAVES, 0.0
    gang = RunningGang(
        workload.name, workload.cluster_queue, workload.priority, members, workload.reserved_s or 0.0, saves_s=USUAL_S
    )
    cost = outlook(gang, None, now_s, PreemptionSettings(stale_s=_STALE_S)).cost_at(now_s)
    return (Safety.UNSAFE, ran_s) if cost is None else (Safety.SAFE, cost / MilliGpu(gpus))
