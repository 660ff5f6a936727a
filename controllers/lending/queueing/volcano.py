"""Borrowers under Volcano: what a Queue's ``capability`` allows, and Volcano's own Jobs, stopped by Commands.

Written by the contract of volcano.sh/apis; no Volcano runs in the tests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kopt.cluster.client.resources import VOLCANO_JOBS, VOLCANO_QUEUES, Object, key_of
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.holds.quota_loan import is_same, quota_from_undo, value_at
from kopt.cluster.objects.fields import count, items, mapping, text
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.objects.volcano import ABORT, ABORTED, ENDED, RESUME, STEP, STOPPING, phase_of
from kopt.cluster.workloads.kueue.reading import amount, requests_of
from kopt.controllers.lending.queueing.borrowers import Sorting, Weighing
from kopt.controllers.lending.state import LiveCluster, volcano_queue
from kopt.controllers.lending.views import HOLDER, Borrowing, BorrowingQueue, ObservedPod
from kopt.core.reason import Reason
from kopt.core.scheduling.lending_pool import Borrower
from kopt.core.times import seconds_or_none
from kopt.core.units import WHOLE_GPU


class Volcano:
    def __init__(self, cluster: LiveCluster, weighing: Weighing) -> None:
        self._cluster, self._weighing = cluster, weighing

    def queue(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> BorrowingQueue:
        """A Queue as far as it uses GPUs of one resource."""
        document = self._cluster.queues(VOLCANO_QUEUES).get(borrower.queue)
        if document is None:
            problem = Reason("NO_QUEUE", f"There is no Volcano Queue {borrower.queue}.")
            return BorrowingQueue(borrower, VOLCANO_QUEUES, None, problem=problem)
        stands = value_at(VOLCANO_QUEUES, document, (gpu,))
        if stands is None:
            why = f"Volcano Queue {borrower.queue} may use any number of {gpu}; give it a capability (0: none its own)."
            return BorrowingQueue(borrower, VOLCANO_QUEUES, document, problem=Reason("NO_LIMIT", why))
        owned = quota_from_undo(undo_of(document))
        own, was_set = owned.get((gpu,), (stands, stands))
        own = own if is_same(was_set, stands) else stands
        borrowing_queue = BorrowingQueue(
            borrower,
            VOLCANO_QUEUES,
            document,
            amount(own) // WHOLE_GPU,
            amount(stands) // WHOLE_GPU,
            values={(gpu,): (own, stands)},
            marked=holder_of(document) == HOLDER and ((gpu,) in owned or not owned),
        )
        return self._with_jobs(borrowing_queue, gpu, now_s, weigh=weigh)

    def _with_jobs(self, queue: BorrowingQueue, gpu: str, now_s: float, *, weigh: bool) -> BorrowingQueue:
        pods: dict[str, list[ObservedPod]] = {}
        for pod in self._cluster.pods():
            pods.setdefault(pod.gpu_pod.owner_uid, []).append(pod)
        sorting = Sorting()
        for job in self._cluster.volcano_jobs():
            if volcano_queue(job) != queue.borrower.queue or phase_of(job) in ENDED:
                continue
            own = pods.get(text(job, "metadata", "uid"), [])
            uses, wants = sum(item.amounts.get(gpu, 0) for item in own if item.bound), _requests(job, gpu)
            step = undo_of(job).get(STEP) if holder_of(job) == HOLDER else ""
            borrowing = _borrowing(job, uses or wants, own if uses and not step else ())
            sorting.used += uses
            if (action := _due(step, phase_of(job))) is not None:
                sorting.due.append((action, borrowing))
            if step == RESUME:
                sorting.returning += [] if uses else [borrowing]
            elif step and uses:
                sorting.terminating.append(borrowing)
            elif step and phase_of(job) == ABORTED:
                sorting.held.append(borrowing)
            elif uses and not step and phase_of(job) not in STOPPING:
                borrowing = self._weighing.with_bar(borrowing, _mode(job), holder_of(job), runs=True)
                candidate = self._weighing.candidate(queue, borrowing, now_s) if weigh else None
                sorting.running.append(replace(borrowing, candidate=candidate))
            elif not step and phase_of(job) not in STOPPING:
                sorting.add_pending(self._weighing.with_bar(borrowing, _mode(job), runs=False), None)
        return sorting.into(queue)


def _mode(job: Object) -> str:
    return text(job, "metadata", "annotations", MODE_ANNOTATION)


def _borrowing(job: Object, gpus: int, pods: Sequence[ObservedPod]) -> Borrowing:
    since_s = seconds_or_none(text(job, "status", "state", "lastTransitionTime")) or 0.0
    uid = text(job, "metadata", "uid")
    return Borrowing(VOLCANO_JOBS, job, "/".join(key_of(job)), (uid,), gpus, None, tuple(pods), since_s)


def _due(step: object, phase: str) -> str | None:
    """What is still to be written for a marked Job: a Command, or, once it goes on, that it is held no longer ("")."""
    if step == ABORT:
        return None if phase in STOPPING else ABORT
    if step == RESUME:
        return RESUME if phase in STOPPING else ""
    return None


def _requests(job: Object, gpu: str) -> int:
    tasks: list[Mapping[str, object]] = [mapping(item) for _, item in items(job, "spec", "tasks")]
    return sum(requests_of(mapping(task, "template", "spec"))[gpu] * count(task, "replicas") for task in tasks)
