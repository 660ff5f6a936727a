"""Jobs whose number of workers may change while they run, and within which bounds: only those that say so.

- Indexed Jobs with as many parallel pods as completions: both change together (KEP-3715, Kubernetes 1.27 and later).
  They say by an annotation of ours that their program goes on with another number of pods (torchrun with a range of
  nodes does, by its rendezvous).
- PyTorchJobs with an ``elasticPolicy`` of the training operator, whose workers torchrun's rendezvous counts.

Kueue v0.15 (``pkg/workloadslicing``, ``pkg/controller/jobs/job``) stops a Job whose parallelism changes, unless its
gate ElasticJobsViaWorkloadSlices is on (alpha, off by default) and the Job has ``kueue.x-k8s.io/elastic-job: "true"``:
then it admits what is added by a second Workload, which has that annotation, too. It knows no elastic PyTorchJobs.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import JOBS, Object, Resource, key_of
from kopt.cluster.objects.fields import at, controller_of, mapping, text
from kopt.cluster.workloads.frameworks import QUEUE_REFERENCES
from kopt.cluster.workloads.kinds import PYTORCH_JOBS
from kopt.cluster.workloads.workload import Workload
from kopt.core.scheduling.submission import Framework
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.rightsizing import Batch

ELASTIC_WIDTH, ELASTIC_BATCH = "kaiwo.ai/elastic-width", "kaiwo.ai/elastic-batch"
"""On a job: ``2-8``, the fewest and the most workers; ``fixed`` or ``per-worker``, what becomes of its batch."""
KUEUE_ELASTIC = "kueue.x-k8s.io/elastic-job"
MOST_WORKERS = 10_000
ELASTIC_KINDS = (JOBS, PYTORCH_JOBS)
_FIELDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    JOBS.group: (("spec", "parallelism"), ("spec", "completions")),
    PYTORCH_JOBS.group: (("spec", "pytorchReplicaSpecs", "Worker", "replicas"),),
}
_INDEXES = "batch.kubernetes.io/job-completion-index", "training.kubeflow.org/replica-index"
_INDEX = re.compile(r"[0-9]{1,6}")
_BOUNDS = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
_QUEUE = QUEUE_REFERENCES[Framework.KUEUE].key


class NotElasticError(ValueError):
    """The width of a job may not be changed; the message says why, and what would let it."""


class BoundsError(ValueError):
    """A job says nonsense of its width or batch; the message says what to correct."""


@dataclass(frozen=True)
class JobWidth:
    """A job by its object, and where in it the number of its workers stands."""

    resource: Resource
    namespace: str
    name: str
    uid: str

    @property
    def fields(self) -> tuple[tuple[str, ...], ...]:
        return _FIELDS[self.resource.group]

    def width_of(self, document: Object) -> int | None:
        """Of its object as it is now; None where the fields differ, or are no numbers."""
        numbers = {each if _is_number(each := at(document, *path)) else None for path in self.fields}
        return numbers.pop() if len(numbers) == 1 else None


@dataclass(frozen=True)
class ElasticJob(JobWidth):
    """``width`` workers of ``gpus`` GPUs each; ``least`` to ``most`` it may have."""

    width: int
    least: int
    most: int
    gpus: int
    batch: Batch | None
    in_kueue: bool = False


def elastic_of(resource: Resource, workload: Workload) -> ElasticJob:
    """Raises NotElasticError and BoundsError."""
    document, annotations = workload.document, workload.annotations
    if (resource.group, resource.kind) not in {(each.group, each.kind) for each in ELASTIC_KINDS}:
        raise NotElasticError(f"Of a {resource.kind} the number of workers cannot change while it runs.")
    if kind := controller_of(document)[1]:
        raise NotElasticError(f"A {kind} made it, and would set its width back: nothing is changed of it.")
    is_job = resource.group == JOBS.group
    width = _of_job(document) if is_job else _of_pytorch_job(document)
    least, most = _annotated(annotations) if is_job else _policy(document)
    if len(workload.pod_sets) != 1 or workload.pod_sets[0].gpus % WHOLE_GPU or not workload.pod_sets[0].gpus:
        raise NotElasticError("Its workers have no whole GPUs.")
    job = ElasticJob(
        resource,
        workload.namespace,
        workload.name,
        text(document, "metadata", "uid"),
        width,
        least,
        most,
        workload.pod_sets[0].gpus // WHOLE_GPU,
        _batch(annotations),
        _QUEUE in mapping(document, "metadata", "labels"),
    )
    if job.in_kueue:
        require_slices(job, annotations)
    return job


def require_slices(job: ElasticJob, annotations: Mapping[str, Any]) -> None:
    """Of a job that Kueue manages. Raises NotElasticError where it would stop the job."""
    if job.resource.group != JOBS.group or annotations.get(KUEUE_ELASTIC) != "true":
        text_ = "Kueue would stop it: of its queues, only Jobs with kueue.x-k8s.io/elastic-job may change their width."
        raise NotElasticError(text_)


def width_of_object(resource: Resource, document: Object) -> JobWidth:
    """Of a job of one of ``ELASTIC_KINDS``, whatever it says of its bounds by now."""
    namespace, name = key_of(document)
    return JobWidth(resource, namespace, name, text(document, "metadata", "uid"))


def worker_index(pod: Object) -> int:
    """Of a worker in its job: rank 0 is where it is lowest, and a narrower job loses the highest. A pod without one has
    ``MOST_WORKERS``."""
    written = next((each for name in _INDEXES if (each := text(pod, "metadata", "labels", name))), "")
    return int(written) if _INDEX.fullmatch(written) else MOST_WORKERS


def of_job(job: ElasticJob, workloads: Iterable[Object]) -> list[Object]:
    """The Workloads that Kueue has of it: also of one in no queue, with ``manageJobsWithoutQueueName``."""
    return [
        each
        for each in workloads
        if any(text(owner, "uid") == job.uid for owner in at(each, "metadata", "ownerReferences") or ())
    ]


def admits_slices(job: ElasticJob, workloads: Iterable[Object]) -> bool:
    """Whether Kueue's gate is on, as it marks the Workload of an elastic Job only then."""
    return any(
        text(mapping(each, "metadata", "annotations"), KUEUE_ELASTIC) == "true" for each in of_job(job, workloads)
    )


def _of_job(document: Object) -> int:
    parallelism, completions = (at(document, *path) for path in _FIELDS[JOBS.group])
    if text(document, "spec", "completionMode") != "Indexed" or not _is_number(parallelism):
        raise NotElasticError("It is no Indexed Job, and of others Kubernetes cannot change the number of completions.")
    if parallelism != completions:
        raise NotElasticError("Its parallelism and completions differ, and only together may they change.")
    if at(document, "spec", "suspend") is True:
        raise NotElasticError("It is suspended.")
    return int(parallelism)


def _of_pytorch_job(document: Object) -> int:
    roles = mapping(document, "spec", "pytorchReplicaSpecs")
    replicas = at(roles, "Worker", "replicas")
    if set(roles) != {"Worker"} or not _is_number(replicas):
        raise NotElasticError("Elastic PyTorchJobs have workers alone; this one has other roles, or no number of them.")
    return int(replicas)


def _annotated(annotations: Mapping[str, Any]) -> tuple[int, int]:
    written = annotations.get(ELASTIC_WIDTH)
    if written is None:
        raise NotElasticError(f'It does not say that it may have another width: {ELASTIC_WIDTH}: "2-8" would.')
    match = _BOUNDS.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        raise BoundsError(f'{ELASTIC_WIDTH} is {str(written)[:40]!r}; write the fewest and the most workers, as "2-8".')
    return _checked(int(match[1]), int(match[2]), ELASTIC_WIDTH)


def _policy(document: Object) -> tuple[int, int]:
    policy = at(document, "spec", "elasticPolicy")
    if not isinstance(policy, dict):
        raise NotElasticError("It has no elasticPolicy with minReplicas and maxReplicas.")
    if policy.get("metrics"):
        # hpa.go of the training operator.
        text_ = "Its elasticPolicy has metrics: the training operator's HorizontalPodAutoscaler sets its width."
        raise NotElasticError(text_)
    least, most = policy.get("minReplicas"), policy.get("maxReplicas")
    if not (isinstance(least, int) and isinstance(most, int) and _is_number(least) and _is_number(most)):
        raise BoundsError("minReplicas and maxReplicas of its elasticPolicy have to be whole numbers.")
    return _checked(least, most, "elasticPolicy")


def _checked(least: int, most: int, where: str) -> tuple[int, int]:
    if not 1 <= least <= most <= MOST_WORKERS:
        raise BoundsError(f"{where} says {least} to {most} workers; the fewest are 1 or more, and not above the most.")
    return least, most


def _batch(annotations: Mapping[str, Any]) -> Batch | None:
    written = annotations.get(ELASTIC_BATCH)
    if written is None:
        return None
    if written not in tuple(Batch):
        raise BoundsError(f"{ELASTIC_BATCH} is {str(written)[:40]!r}; write {' or '.join(Batch)}.")
    return Batch(written)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
