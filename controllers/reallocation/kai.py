"""Borrowers under KAI: a Queue's share of GPUs, and Jobs whose pods are for it.

KAI lets a queue use GPUs up to its ``limit``, which rises and falls with what is lent; ``quota``, what it may take back
from others, does so too. A gang is a Job: it is stopped by ``suspend``, and its pods go together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kopt.cluster.held import holder_of, undo_of
from kopt.cluster.namespaces import MODE_ANNOTATION
from kopt.cluster.quotas import noted, value_at
from kopt.cluster.resources import JOBS, KAI_QUEUES, Object, key_of
from kopt.controllers.preemption.kai.views import QUEUE_LABEL
from kopt.controllers.preemption.reading import requests_of, seconds
from kopt.controllers.reallocation.borrowers import Sorting, Weighing
from kopt.controllers.reallocation.live import LiveCluster, kai_queue
from kopt.controllers.reallocation.views import HOLDER, Borrowing, QueueView, SeenPod
from kopt.controllers.webhook.objects import at, count, mapping, text
from kopt.core.lending_pools import Borrower
from kopt.core.reason import Reason
from kopt.policies.reallocation import Candidate

_LIMIT, _QUOTA = ("limit",), ("quota",)


class Kai:
    """``stale_s``: what pods say of their checkpoints counts for so long."""

    def __init__(self, cluster: LiveCluster, stale_s: float) -> None:
        self._cluster, self._weighing = cluster, Weighing(cluster, stale_s)

    def queue(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> QueueView:
        """A Queue as far as it uses GPUs of one resource."""
        document = self._cluster.queues(KAI_QUEUES).get(borrower.queue)
        if document is None:
            problem = Reason("NO_QUEUE", f"There is no KAI Queue {borrower.queue}.")
            return QueueView(borrower, KAI_QUEUES, None, problem=problem)
        values = _values(document)
        own, stands = values[_LIMIT]
        if not isinstance(own, int | float) or not isinstance(stands, int | float) or min(own, stands) < 0:
            why = f"KAI Queue {borrower.queue} may use any number of GPUs; give it a limit (0: none of its own)."
            return QueueView(borrower, KAI_QUEUES, document, problem=Reason("NO_LIMIT", why))
        view = QueueView(borrower, KAI_QUEUES, document, int(own), int(stands), values=values,
                         marked=holder_of(document) == HOLDER)  # fmt: skip
        return self._with_jobs(view, gpu, now_s, weigh=weigh)

    def _with_jobs(self, queue: QueueView, gpu: str, now_s: float, *, weigh: bool) -> QueueView:
        name = queue.borrower.queue
        jobs = {text(one, "metadata", "uid"): one for one in self._cluster.jobs() if kai_queue(one) == name}
        pods = _by_owner(one for one in self._cluster.pods() if one.labels.get(QUEUE_LABEL) == name
                         or one.view.owner_uid in jobs)  # fmt: skip
        waiting = self._cluster.waiting()
        found = Sorting()
        for uid, own in pods.items():
            uses = sum(one.amounts.get(gpu, 0) for one in own if one.bound)
            found.used += uses
            if uid in jobs and uses:
                one, going = _borrowing(jobs[uid], uses, own), at(jobs[uid], "spec", "suspend") is True
                if weigh and not going:
                    one = replace(one, candidate=self._candidate(queue, jobs[uid], one, now_s))
                (found.going if going else found.running).append(one)
        for uid, job in jobs.items():
            wants = requests_of(mapping(job, "spec", "template", "spec"))[gpu] * count(job, "spec", "parallelism")
            if any(one.bound for one in pods.get(uid, ())):
                continue
            if at(job, "spec", "suspend") is not True:
                found.waits(_borrowing(job, wants), waiting.get(uid))
            elif holder_of(job) == HOLDER:
                found.held.append(_borrowing(job, wants))
        return found.into(queue)

    def _candidate(self, queue: QueueView, job: Object, one: Borrowing, now_s: float) -> Candidate:
        said = [mapping(job, "metadata"), mapping(job, "spec", "template", "metadata")]
        mode = next((mode for its in said if (mode := text(its, "annotations", MODE_ANNOTATION))), "")
        return self._weighing.candidate(queue, one, now_s, mode=mode, holder=holder_of(job))


def _borrowing(job: Object, gpus: int, pods: Sequence[SeenPod] = ()) -> Borrowing:
    since_s = seconds(text(job, "status", "startTime")) or 0.0
    uid = text(job, "metadata", "uid")
    return Borrowing(JOBS, job, "/".join(key_of(job)), (uid,), gpus, None, tuple(pods), since_s)


def _values(document: Object) -> dict[tuple[str, ...], tuple[object, object]]:
    """Limit and quota: what is its own, and what stands there; another value than ours is its own now."""
    known = noted(undo_of(document))
    found: dict[tuple[str, ...], tuple[object, object]] = {}
    for place in (_LIMIT, _QUOTA):
        stands = value_at(KAI_QUEUES, document, place)
        own, was_set = known.get(place, (stands, stands))
        found[place] = (own if was_set == stands else stands, stands)
    return found


def _by_owner(pods: Iterable[SeenPod]) -> Mapping[str, list[SeenPod]]:
    found: dict[str, list[SeenPod]] = {}
    for one in pods:
        found.setdefault(one.view.owner_uid or one.view.uid, []).append(one)
    return found
