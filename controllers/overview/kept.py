"""Answers of ``kopt why`` and ``kopt queue`` from objects that watches keep: for thousands of jobs at once."""

import asyncio
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kopt.cluster.client.resources import (
    JOBS,
    KAI_POD_GROUPS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    VOLCANO_POD_GROUPS,
    VOLCANO_QUEUES,
    Key,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.holds.hold import holder_of, queue_of
from kopt.cluster.objects.fields import items, mapping, slim, text
from kopt.cluster.workloads.kinds import BY_KEY, JOB_SETS, RAY_CLUSTERS, RAY_JOBS, WorkloadKind
from kopt.cluster.workloads.requests.external import CLAIMS
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.controllers.overview.collect import collected
from kopt.controllers.overview.diagnosis.books import ClusterBooks
from kopt.controllers.overview.diagnosis.documents import ClusterDocuments
from kopt.controllers.overview.diagnosis.questions import Predictions
from kopt.controllers.overview.diagnosis.reading import SETTLED
from kopt.controllers.overview.diagnosis.run_time_lookup import RunTimeLookup
from kopt.controllers.overview.job import Thing
from kopt.controllers.overview.job_answer import JobAnswer, Named
from kopt.controllers.overview.queues import is_kueues, queued_of
from kopt.controllers.overview.reading import Lines, Reading
from kopt.controllers.overview.reduced import OtherPod, reduced_node, reduced_pod
from kopt.controllers.overview.why import why
from kopt.core.scheduling.diagnosis import StartEstimate
from kopt.core.scheduling.eviction import Entry, System
from kopt.core.scheduling.overview import Overview, StagedState
from kopt.core.scheduling.queued import Explanation, Queued

Documents = Mapping[Resource, Sequence[Object]]


def kept_pod(pod: Object) -> Object | None:
    """A pod with GPUs, or of a workload in a queue; of others, on nodes, what they hold there."""
    gpus = gpus_of(mapping(pod, "spec"), mapping(pod, "metadata", "annotations"))
    return slim(pod) if gpus or is_kueues(pod) else reduced_pod(pod)


def kept_job(job: Object) -> Object | None:
    """A Job with GPUs, in a queue, or held; None for others."""
    template = mapping(job, "spec", "template")
    gpus = gpus_of(mapping(template, "spec"), mapping(template, "metadata", "annotations"))
    return slim(job) if gpus or queue_of(job) or holder_of(job) else None


def kept_workload(workload: Object) -> Object | None:
    """A Workload of Kueue's with GPUs that has not ended; None for others."""
    return slim(workload) if queued_of(workload, {}) is not None else None


def _kept_owner(kind: WorkloadKind) -> Callable[[Object], Object | None]:
    """Of a kind that makes Jobs or pods: objects with GPUs, in a queue, or held."""

    def keep(document: Object) -> Object | None:
        requests_gpus = any(pod_set.gpus for pod_set in kind.pod_sets(document))
        return slim(document) if requests_gpus or queue_of(document) or holder_of(document) else None

    return keep


_OWNERS = (JOB_SETS, RAY_JOBS, RAY_CLUSTERS)
"""Kinds that own Workloads of Kueue's, or Jobs and pods."""
_JOB_LABEL = "batch.kubernetes.io/controller-uid"
KEPT = {
    PODS: kept_pod,
    JOBS: kept_job,
    **{resource: _kept_owner(BY_KEY[resource.group, resource.kind]) for resource in _OWNERS},
    KUEUE_WORKLOADS: kept_workload,
    KUEUE_LOCAL_QUEUES: slim,
    KUEUE_CLUSTER_QUEUES: slim,
    KAI_POD_GROUPS: slim,
    VOLCANO_POD_GROUPS: slim,
    NODES: reduced_node,
    KUEUE_COHORTS: slim,
    KUEUE_FLAVORS: slim,
    KAI_QUEUES: slim,
    VOLCANO_QUEUES: slim,
}
"""The kinds that are kept, and what of them."""


@dataclass(frozen=True)
class _KeptLines(Lines):
    """Lines that are put in order once, and Workloads that are matching without a look at all others."""

    ordered: list[Queued] = field(default_factory=list)

    @cached_property
    def _by_uid(self) -> Mapping[str, Sequence[Object]]:
        result: dict[str, list[Object]] = {}
        for workload in self.workloads:
            owners = (text(ref, "uid") for _, ref in items(workload, "metadata", "ownerReferences"))
            for uid in {text(workload, "metadata", "uid"), *owners}:
                result.setdefault(uid, []).append(workload)
        return result

    @cached_property
    def _by_key(self) -> Mapping[Key, Object]:
        return {key_of(workload): workload for workload in self.workloads}

    def workloads_of(self, uids: Collection[str], names: Collection[Key]) -> list[Object]:
        matching = [workload for uid in uids for workload in self._by_uid.get(uid, ())]
        matching += [self._by_key[name] for name in names if name in self._by_key]
        return list({key_of(workload): workload for workload in matching}.values())

    def queued(self, pods: Iterable[Object] = (), more: Iterable[Queued] = (), now_s: float = 0.0) -> list[Queued]:
        return self.ordered or super().queued(pods, more, now_s)


class Kept:
    """The objects of a cluster at a moment. ``documents``: of the kinds of ``KEPT``, as these reduce them; nothing in
    them makes this raise. ``queued`` are all lines, as ``kopt queue`` lists them. ``unread`` are kinds that may not be
    read; ``predictions`` knows run times, without them no start is predicted."""

    def __init__(
        self,
        documents: Documents,
        overview: Overview,
        *,
        has_kueue: bool,
        unread: Sequence[str] = (),
        predictions: Predictions | None = None,
    ) -> None:
        self.overview, self._unread = overview, tuple(unread)
        pods = documents.get(PODS, ())
        self._others = [pod for pod in pods if isinstance(pod, OtherPod)]
        documents = {**documents, PODS: [pod for pod in pods if not isinstance(pod, OtherPod)]}
        self.by_key = {
            resource: {key_of(document): document for document in several} for resource, several in documents.items()
        }
        self.by_namespace: dict[tuple[Resource, str], list[Object]] = {}
        for resource, several in self.by_key.items():
            for (namespace, _), document in several.items():
                self.by_namespace.setdefault((resource, namespace), []).append(document)
        self.pods_of_job: dict[tuple[str, str], list[Object]] = {}
        for pod in self.of(PODS):
            job = text(pod, "metadata", "labels", _JOB_LABEL)
            self.pods_of_job.setdefault((text(pod, "metadata", "namespace"), job), []).append(pod)
        self._pods = {text(pod, "metadata", "uid"): pod for pod in self.of(PODS)}
        owners = (owner for resource in (JOBS, *_OWNERS) for owner in self.of(resource))
        held = {text(owner, "metadata", "uid"): owner for owner in owners if holder_of(owner)}
        self.lines = _KeptLines(self.of(KUEUE_WORKLOADS), self.of(KUEUE_LOCAL_QUEUES), overview.pools, has_kueue, held)
        self.queued = tuple(self.lines.everything(self.of(PODS), overview.now_s))
        self.lines.ordered.extend(queued for queued in self.queued if queued.system is System.KUEUE)
        self._explanations: dict[str, Explanation | None] = {}
        self._lookup = RunTimeLookup(predictions)
        self._lock = threading.Lock()

    @cached_property
    def books(self) -> ClusterBooks:
        """What nodes have, and who holds what of it."""
        return ClusterBooks(
            ClusterDocuments(
                nodes=self.of(NODES),
                pods=[*self.of(PODS), *self._others],
                workloads=self.of(KUEUE_WORKLOADS),
                local_queues=self.of(KUEUE_LOCAL_QUEUES),
                cluster_queues=self.of(KUEUE_CLUSTER_QUEUES),
                cohorts=self.of(KUEUE_COHORTS),
                flavors=self.of(KUEUE_FLAVORS),
                kai_queues=self.of(KAI_QUEUES),
                kai_groups=self.of(KAI_POD_GROUPS),
                volcano_queues=self.of(VOLCANO_QUEUES),
                volcano_groups=self.of(VOLCANO_POD_GROUPS),
                unread=(*self._unread, *self._unwatched),
            )
        )

    @property
    def _unwatched(self) -> tuple[str, ...]:
        """Claims are not watched: of one that a pod names nobody here can say that it does not exist."""
        named = any(True for pod in self.of(PODS) for _ in items(pod, "spec", "resourceClaims"))
        return (CLAIMS.plural,) if named else ()

    def of(self, resource: Resource, namespace: str = "") -> list[Object]:
        if namespace:
            return self.by_namespace.get((resource, namespace), [])
        return list(self.by_key.get(resource, {}).values())

    def explain(self, wanted: Sequence[Queued]) -> Mapping[str, Explanation]:
        """By uid; what is not there any more is left out. Blocks, and asks for run times the first time: not to be
        called in an event loop."""
        with self._lock:
            return asyncio.run(self._explained(wanted))

    async def _explained(self, wanted: Sequence[Queued]) -> Mapping[str, Explanation]:
        answers: dict[str, tuple[JobAnswer, tuple[str, ...]]] = {}
        for queued in wanted:
            if queued.uid not in self._explanations and queued.uid not in answers:
                target = self._target(queued)
                if target is None:
                    self._explanations[queued.uid] = None
                else:
                    answers[queued.uid] = await self._answer(target)
        diagnoses = (answer.diagnosis for answer, _ in answers.values())
        starts = await self._lookup.calibrated(diagnoses, self.overview.now_s)
        for uid, (answer, unread) in answers.items():
            self._explanations[uid] = _explanation(answer, unread, starts)
        explanations = ((queued.uid, self._explanations[queued.uid]) for queued in wanted)
        return {uid: explanation for uid, explanation in explanations if explanation is not None}

    def _target(self, queued: Queued) -> Thing | None:
        """The job, else what stands in the queue."""
        for resource in (JOBS, *_OWNERS):
            job = self._at(resource, (queued.namespace, queued.name), queued.owner_uid)
            if job is not None:
                return Thing(resource, job)
        if queued.system is System.KUEUE:
            workload = self._at(KUEUE_WORKLOADS, (queued.namespace, queued.workload), queued.uid)
            return None if workload is None else Thing(KUEUE_WORKLOADS, workload)
        pod = self._pods.get(queued.uid)
        return None if pod is None else Thing(PODS, pod)

    def _at(self, resource: Resource, key: Key, uid: str) -> Object | None:
        document = self.by_key.get(resource, {}).get(key)
        return document if document is not None and text(document, "metadata", "uid") == uid else None

    async def _answer(self, target: Thing) -> tuple[JobAnswer, tuple[str, ...]]:
        """And the kinds that could have said more."""
        reading = _KeptReading(self)
        job = await collected(reading, target, self.overview.now_s)
        answer = why(job)
        is_settled = answer.now in SETTLED
        diagnosis = None if is_settled else await self._lookup.diagnosed(job, self.books, answer.findings)
        findings = tuple(finding for finding in answer.findings if finding.code != "UNREAD")
        job_answer = JobAnswer(
            Named.of(job.root),
            Named.of(job.target),
            answer.now,
            answer.summary,
            findings,
            answer.next,
            diagnosis,
            tuple(reading.unread),
            job.now_s,
        )
        return job_answer, tuple(reading.unread)


def _explanation(answer: JobAnswer, unread: tuple[str, ...], starts: Mapping[str, StartEstimate]) -> Explanation:
    diagnosis = answer.diagnosis
    if diagnosis is not None and diagnosis.uid in starts:
        diagnosis = replace(diagnosis, start=starts[diagnosis.uid])
        answer = replace(answer, diagnosis=diagnosis)
    sentences = tuple(finding.message for finding in answer.findings)
    return Explanation(answer.summary, sentences, answer.next, unread, diagnosis, answer.to_dict())


class _KeptReading(Reading):
    """Finds in what is kept. Kinds of owners that are not are unread; events are not kept and not missed."""

    def __init__(self, kept: Kept) -> None:
        super().__init__()
        self._kept = kept

    async def kinds(self) -> list[Resource]:
        return [kind.resource for kind in BY_KEY.values()]

    async def listed(
        self, resource: Resource, namespace: str = "", *, selector: str = "", fields: str = "", narrow: str = ""
    ) -> list[Object]:
        if resource == PODS and selector.startswith(f"{_JOB_LABEL}="):
            return self._kept.pods_of_job.get((namespace, selector.partition("=")[2]), [])
        return self._kept.of(resource, namespace)

    async def read(self, resource: Resource, name: str, namespace: str = "") -> Object | None:
        if resource not in KEPT:
            self.unread[resource.plural] = None
        return self._kept.by_key.get(resource, {}).get((namespace, name))

    async def lines(self, narrow: str = "") -> Lines:
        return self._kept.lines

    async def evictions(self, narrow: str = "") -> tuple[Entry, ...]:
        return tuple(entry for entry in self._kept.overview.ledger if narrow in ("", entry.eviction.namespace))

    async def staged(self, names: Sequence[str], namespace: str) -> tuple[StagedState, ...]:
        return tuple(
            staged for staged in self._kept.overview.staged if staged.namespace == namespace and staged.name in names
        )
