"""Borrowers under Kueue: a ClusterQueue's quota, its Workloads, and their gangs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.cluster.held import holder_of, undo_of
from kopt.cluster.quotas import Place, is_same, noted, value_at
from kopt.cluster.resources import KUEUE_CLUSTER_QUEUES, KUEUE_WORKLOADS, Object
from kopt.controllers.preemption.reading import amount
from kopt.controllers.preemption.views import WorkloadView
from kopt.controllers.reallocation.borrowers import Sorting, Weighing
from kopt.controllers.reallocation.live import LiveCluster
from kopt.controllers.reallocation.views import HOLDER, Borrowing, QueueView, SeenPod
from kopt.controllers.webhook.objects import at, items, text
from kopt.core.evictions import Entry
from kopt.core.lending_pools import Borrower
from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU
from kopt.policies.reallocation import Candidate


@dataclass(frozen=True)
class _Index:
    """What informers have seen at one moment: Workloads by ClusterQueue, pods by names, lines of the ledger by uid."""

    now_s: float
    by_queue: Mapping[str, Sequence[WorkloadView]]
    pods: Mapping[tuple[str, str], list[SeenPod]]
    waiting: Mapping[str, Entry]


class Kueue:
    """``stale_s``: what pods say of their checkpoints counts for so long."""

    def __init__(self, cluster: LiveCluster, stale_s: float) -> None:
        self._cluster, self._weighing = cluster, Weighing(cluster, stale_s)
        self._last: _Index | None = None

    def queue(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> QueueView:
        """A ClusterQueue as far as it uses GPUs of one resource; ``weigh`` reads what its workloads would lose."""
        document = self._cluster.queues(KUEUE_CLUSTER_QUEUES).get(borrower.queue)
        if document is None:
            return _without(borrower, Reason("NO_QUEUE", f"There is no ClusterQueue {borrower.queue}."))
        place = _place(document, borrower.flavor, gpu)
        if place is None:
            what = f"flavour {borrower.flavor} with {gpu}" if borrower.flavor else f"one flavour with {gpu}"
            return _without(borrower, Reason("FLAVOUR", f"ClusterQueue {borrower.queue} has not {what}."), document)
        if text(document, "spec", "cohort") or text(document, "spec", "cohortName"):
            why = f"ClusterQueue {borrower.queue} is in a cohort, which would borrow what is lent to it."
            return _without(borrower, Reason("COHORT", why), document)
        stands = value_at(KUEUE_CLUSTER_QUEUES, document, place)
        known = noted(undo_of(document))
        own, was_set = known.get(place, (stands, stands))
        if not is_same(was_set, stands):
            # Somebody has written another quota over ours: that is its own now.
            own = stands
        return self._with_workloads(QueueView(
            borrower, KUEUE_CLUSTER_QUEUES, document, _gpus(own), _gpus(stands),
            values={place: (own, stands)}, marked=holder_of(document) == HOLDER and (place in known or not known),
        ), self._index(now_s), place, weigh=weigh)  # fmt: skip

    def _index(self, now_s: float) -> _Index:
        """Made once for a pass over all queues, which has one time."""
        if self._last is None or self._last.now_s != now_s:
            by_queue: dict[str, list[WorkloadView]] = {}
            for view in self._cluster.workloads():
                if not view.finished:
                    by_queue.setdefault(self._cluster.cluster_queue_of(view), []).append(view)
            self._last = _Index(now_s, by_queue, _by_name(self._cluster.pods()), self._cluster.waiting())
        return self._last

    def _with_workloads(self, queue: QueueView, index: _Index, place: Place, *, weigh: bool) -> QueueView:
        found = Sorting()
        for view in index.by_queue.get(queue.borrower.queue, ()):
            uses, wants = view.uses.get((place[0], place[1]), 0), view.asks.get(place[1], 0)
            if uses:
                found.used += uses
                one = _borrowing(view, uses, _pods_of(view, index.pods))
                if weigh and view.running and not view.mirrored:
                    one = replace(one, candidate=self._candidate(queue, view, one, index.now_s))
                (found.running if view.running else found.going).append(one)
            elif view.holder == HOLDER and not view.active:
                found.held.append(_borrowing(view, wants))
            elif view.active and view.pending:
                line = index.waiting.get(view.owner_uid) or index.waiting.get(view.uid)
                found.waits(_borrowing(view, wants), line)
                found.coming = found.coming or _is_coming(view)
        return found.into(queue)

    def _candidate(self, queue: QueueView, view: WorkloadView, one: Borrowing, now_s: float) -> Candidate:
        # Pods of a Job carry its uid; of others none may be found although they run.
        idle = None if _is_job(view) else False
        return self._weighing.candidate(queue, one, now_s, mode=view.mode, holder=view.holder, priority=view.priority,
                                        idle=idle)  # fmt: skip


def _borrowing(view: WorkloadView, gpus: int, pods: Sequence[SeenPod] = ()) -> Borrowing:
    return Borrowing(KUEUE_WORKLOADS, view.document, view.name, (view.owner_uid, view.uid), gpus, None, tuple(pods),
                     view.evicted_at_s or view.reserved_s or 0.0)  # fmt: skip


def _without(borrower: Borrower, problem: Reason, document: Object | None = None) -> QueueView:
    return QueueView(borrower, KUEUE_CLUSTER_QUEUES, document, problem=problem)


def _place(document: Object, flavor: str, gpu: str) -> Place | None:
    places = [
        (text(one, "name"), gpu)
        for _, group in items(document, "spec", "resourceGroups") for _, one in items(group, "flavors")
        if any(text(it, "name") == gpu for _, it in items(one, "resources"))
    ]  # fmt: skip
    found = [place for place in places if flavor in ("", place[0])]
    return found[0] if len(found) == 1 else None


def _gpus(quantity: object) -> int:
    return amount(quantity) // WHOLE_GPU


def _by_name(pods: Iterable[SeenPod]) -> Mapping[tuple[str, str], list[SeenPod]]:
    """Pods by what they are found by: their Workload's name, their owner's uid, their own."""
    found: dict[tuple[str, str], list[SeenPod]] = {}
    for one in pods:
        view = one.view
        for name in {f"/{view.workload}" if view.workload else "", view.owner_uid, view.uid} - {""}:
            found.setdefault((view.key[0], name), []).append(one)
    return found


def _pods_of(view: WorkloadView, pods: Mapping[tuple[str, str], list[SeenPod]]) -> list[SeenPod]:
    found: dict[str, SeenPod] = {}
    for name in (f"/{view.key[1]}", view.owner_uid):
        found |= {one.view.uid: one for one in pods.get((view.key[0], name), ())}
    return list(found.values())


def _is_coming(view: WorkloadView) -> bool:
    """It is active again, and Kueue has not taken notice of it yet."""
    found = [one for _, one in items(view.document, "status", "conditions") if text(one, "type") == "Requeued"]
    return any(text(one, "status") == "False" and text(one, "reason") == "Deactivated" for one in found)


def _is_job(view: WorkloadView) -> bool:
    owners = [one for _, one in items(view.document, "metadata", "ownerReferences") if at(one, "controller") is True]
    return len(owners) == 1 and (text(owners[0], "apiVersion"), text(owners[0], "kind")) == ("batch/v1", "Job")
