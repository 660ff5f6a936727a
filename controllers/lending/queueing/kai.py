"""Borrowers under KAI: a Queue's share of GPUs, and Jobs whose pods are for it.

KAI lets a queue use GPUs up to its ``limit``, which rises and falls with what is lent; ``quota``, what it may take back
from others, does so too. A gang is a Job: it is stopped by ``suspend``, and its pods go together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kopt.cluster.client.resources import JOBS, KAI_QUEUES, Object, key_of
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.holds.quota_loan import quota_from_undo, value_at
from kopt.cluster.objects.fields import at, count, mapping, text
from kopt.cluster.objects.kai import QUEUE_LABEL
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.workloads.kueue.reading import requests_of
from kopt.controllers.lending.queueing.borrowers import Sorting, Weighing
from kopt.controllers.lending.state import LiveCluster, kai_queue
from kopt.controllers.lending.views import HOLDER, Borrowing, BorrowingQueue, ObservedPod
from kopt.core.reason import Reason
from kopt.core.scheduling.lending_pool import Borrower
from kopt.core.times import seconds_or_none

_LIMIT, _QUOTA = ("limit",), ("quota",)


class Kai:
    def __init__(self, cluster: LiveCluster, weighing: Weighing) -> None:
        self._cluster, self._weighing = cluster, weighing

    def queue(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> BorrowingQueue:
        """A Queue as far as it uses GPUs of one resource."""
        document = self._cluster.queues(KAI_QUEUES).get(borrower.queue)
        if document is None:
            problem = Reason("NO_QUEUE", f"There is no KAI Queue {borrower.queue}.")
            return BorrowingQueue(borrower, KAI_QUEUES, None, problem=problem)
        values = _values(document)
        own, stands = values[_LIMIT]
        if not isinstance(own, int | float) or not isinstance(stands, int | float) or min(own, stands) < 0:
            why = f"KAI Queue {borrower.queue} may use any number of GPUs; give it a limit (0: none of its own)."
            return BorrowingQueue(borrower, KAI_QUEUES, document, problem=Reason("NO_LIMIT", why))
        queue = BorrowingQueue(
            borrower, KAI_QUEUES, document, int(own), int(stands), values=values, marked=holder_of(document) == HOLDER
        )
        return self._with_jobs(queue, gpu, now_s, weigh=weigh)

    def _with_jobs(self, queue: BorrowingQueue, gpu: str, now_s: float, *, weigh: bool) -> BorrowingQueue:
        name = queue.borrower.queue
        jobs = {text(item, "metadata", "uid"): item for item in self._cluster.jobs() if kai_queue(item) == name}
        pods = _by_owner(
            pod for pod in self._cluster.pods() if pod.labels.get(QUEUE_LABEL) == name or pod.gpu_pod.owner_uid in jobs
        )
        evictions = self._cluster.pending_evictions()
        sorting = Sorting()
        for uid, own in pods.items():
            uses = sum(pod.amounts.get(gpu, 0) for pod in own if pod.bound)
            sorting.used += uses
            if uid in jobs and uses:
                borrowing, terminating = _borrowing(jobs[uid], uses, own), at(jobs[uid], "spec", "suspend") is True
                borrowing = self._weighing.with_bar(borrowing, _mode(jobs[uid]), runs=not terminating)
                if weigh and not terminating:
                    borrowing = replace(borrowing, candidate=self._weighing.candidate(queue, borrowing, now_s))
                (sorting.terminating if terminating else sorting.running).append(borrowing)
        for uid, job in jobs.items():
            wants = requests_of(mapping(job, "spec", "template", "spec"))[gpu] * count(job, "spec", "parallelism")
            if any(pod.bound for pod in pods.get(uid, ())):
                continue
            if at(job, "spec", "suspend") is not True:
                sorting.add_pending(
                    self._weighing.with_bar(_borrowing(job, wants), _mode(job), runs=False), evictions.get(uid)
                )
            elif holder_of(job) == HOLDER:
                sorting.held.append(_borrowing(job, wants))
        return sorting.into(queue)


def _mode(job: Object) -> str:
    candidates = [mapping(job, "metadata"), mapping(job, "spec", "template", "metadata")]
    return next((mode for its in candidates if (mode := text(its, "annotations", MODE_ANNOTATION))), "")


def _borrowing(job: Object, gpus: int, pods: Sequence[ObservedPod] = ()) -> Borrowing:
    since_s = seconds_or_none(text(job, "status", "startTime")) or 0.0
    uid = text(job, "metadata", "uid")
    return Borrowing(JOBS, job, "/".join(key_of(job)), (uid,), gpus, None, tuple(pods), since_s)


def _values(document: Object) -> dict[tuple[str, ...], tuple[object, object]]:
    """Limit and quota: the queue's own value and the one in its spec; a value that is not ours is its own now."""
    owned = quota_from_undo(undo_of(document))
    values: dict[tuple[str, ...], tuple[object, object]] = {}
    for path in (_LIMIT, _QUOTA):
        stands = value_at(KAI_QUEUES, document, path)
        own, was_set = owned.get(path, (stands, stands))
        values[path] = (own if was_set == stands else stands, stands)
    return values


def _by_owner(pods: Iterable[ObservedPod]) -> Mapping[str, list[ObservedPod]]:
    pods_by_name: dict[str, list[ObservedPod]] = {}
    for pod in pods:
        pods_by_name.setdefault(pod.gpu_pod.owner_uid or pod.gpu_pod.uid, []).append(pod)
    return pods_by_name
