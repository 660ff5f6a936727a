"""Answers of ``kopt why`` and ``kopt queue`` from objects that watches keep: for thousands of jobs at once."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kopt.cluster.client.resources import (
    JOBS,
    KAI_POD_GROUPS,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    PODS,
    Key,
    Object,
    Resource,
    key_of,
)
from kopt.cluster.holds.hold import holder_of, queue_of
from kopt.cluster.objects.fields import items, mapping, slim, text
from kopt.cluster.workloads.gpu_requests import gpus_of
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.controllers.overview.collect import VOLCANO_POD_GROUPS, collected
from kopt.controllers.overview.job import Thing
from kopt.controllers.overview.queues import is_kueues, queued_of
from kopt.controllers.overview.reading import Lines, Reading
from kopt.controllers.overview.why import why
from kopt.core.scheduling.eviction import Entry, System
from kopt.core.scheduling.overview import Overview, StagedState
from kopt.core.scheduling.queued import Explanation, Queued

Documents = Mapping[Resource, Sequence[Object]]


def kept_pod(pod: Object) -> Object | None:
    """A pod with GPUs, or of a workload in a queue; None for others."""
    gpus = gpus_of(mapping(pod, "spec"), mapping(pod, "metadata", "annotations"))
    return slim(pod) if gpus or is_kueues(pod) else None


def kept_job(job: Object) -> Object | None:
    """A Job with GPUs, in a queue, or held; None for others."""
    template = mapping(job, "spec", "template")
    gpus = gpus_of(mapping(template, "spec"), mapping(template, "metadata", "annotations"))
    return slim(job) if gpus or queue_of(job) or holder_of(job) else None


def kept_workload(workload: Object) -> Object | None:
    """A Workload of Kueue's with GPUs that has not ended; None for others."""
    return slim(workload) if queued_of(workload, {}) is not None else None


_JOB_LABEL = "batch.kubernetes.io/controller-uid"
KEPT = {
    PODS: kept_pod,
    JOBS: kept_job,
    KUEUE_WORKLOADS: kept_workload,
    KUEUE_LOCAL_QUEUES: slim,
    KUEUE_CLUSTER_QUEUES: slim,
    KAI_POD_GROUPS: slim,
    VOLCANO_POD_GROUPS: slim,
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
    them makes this raise. ``queued`` are all lines, as ``kopt queue`` lists them."""

    def __init__(self, documents: Documents, overview: Overview, *, has_kueue: bool) -> None:
        self.overview = overview
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
        held = {text(job, "metadata", "uid"): job for job in self.of(JOBS) if holder_of(job)}
        self.lines = _KeptLines(self.of(KUEUE_WORKLOADS), self.of(KUEUE_LOCAL_QUEUES), overview.pools, has_kueue, held)
        self.queued = tuple(self.lines.everything(self.of(PODS), overview.now_s))
        self.lines.ordered.extend(queued for queued in self.queued if queued.system is System.KUEUE)
        self._explanations: dict[str, Explanation | None] = {}

    def of(self, resource: Resource, namespace: str = "") -> list[Object]:
        if namespace:
            return self.by_namespace.get((resource, namespace), [])
        return list(self.by_key.get(resource, {}).values())

    def explain(self, wanted: Sequence[Queued]) -> Mapping[str, Explanation]:
        """By uid; what is not there any more is left out. Not to be called in an event loop."""
        return asyncio.run(self._explained(wanted))

    async def _explained(self, wanted: Sequence[Queued]) -> Mapping[str, Explanation]:
        for queued in wanted:
            if queued.uid not in self._explanations:
                target = self._target(queued)
                self._explanations[queued.uid] = await self._explanation(target) if target else None
        explanations = ((queued.uid, self._explanations[queued.uid]) for queued in wanted)
        return {uid: explanation for uid, explanation in explanations if explanation is not None}

    def _target(self, queued: Queued) -> Thing | None:
        """The job, else what stands in the queue."""
        job = self._at(JOBS, (queued.namespace, queued.name), queued.owner_uid)
        if job is not None:
            return Thing(JOBS, job)
        if queued.system is System.KUEUE:
            workload = self._at(KUEUE_WORKLOADS, (queued.namespace, queued.workload), queued.uid)
            return None if workload is None else Thing(KUEUE_WORKLOADS, workload)
        pod = self._pods.get(queued.uid)
        return None if pod is None else Thing(PODS, pod)

    def _at(self, resource: Resource, key: Key, uid: str) -> Object | None:
        document = self.by_key.get(resource, {}).get(key)
        return document if document is not None and text(document, "metadata", "uid") == uid else None

    async def _explanation(self, target: Thing) -> Explanation:
        reading = _KeptReading(self)
        answer = why(await collected(reading, target, self.overview.now_s))
        sentences = tuple(finding.message for finding in answer.findings if finding.code != "UNREAD")
        return Explanation(answer.summary, sentences, answer.next, tuple(reading.unread))


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
