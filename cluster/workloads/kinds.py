"""The kinds of workloads, in one table: where their pod templates lie, how many pods they make, who reads the label.

Sources: the kinds' own API types (batch/v1, apps/v1, jobset.x-k8s.io/v1alpha2, leaderworkerset.x-k8s.io/v1,
kubeflow.org/v1 and v2beta1, trainer.kubeflow.org/v1alpha1, ray.io/v1, serving.kserve.io/v1beta1,
kaiwo.silogen.ai/v1alpha1, batch.volcano.sh/v1alpha1).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.cluster.client.resources import CRON_JOBS, DEPLOYMENTS, JOBS, PODS, STATEFUL_SETS, Object, Resource
from kopt.cluster.objects.fields import Path, at, count, items, mapping
from kopt.cluster.workloads.requests.gpus import gpus_of, resources_milli
from kopt.core.units import WHOLE_GPU, MilliGpu


@dataclass(frozen=True)
class MadeFrom:
    """The template of pods that stands in another object (a TrainJob's runtime).

    ``name`` is that of the step, ``trains`` whether it is the one that trains, ``policy`` what the runtime says about
    starting it; ``template`` is None where it cannot be read.
    """

    template: Object | None
    name: str = ""
    policy: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = True


@dataclass(frozen=True)
class PodSet:
    """``pods`` equal pods. ``metadata`` and ``spec`` are where their template has these, None where it has no template
    to write to; ``gpus`` are milli-GPU of one pod."""

    pods: int
    gpus: MilliGpu
    metadata: Path | None = None
    spec: Path | None = None
    made_from: MadeFrom | None = None


PodSets = Callable[[Object], Iterator[PodSet]]


@dataclass(frozen=True)
class WorkloadKind:
    """One kind. ``owner`` is where the object lies whose labels the queue reads: the object itself, unless the queue
    looks at what this one makes. ``mutable``: templates can change after creation."""

    resource: Resource
    pod_sets: PodSets
    owner: Path = ()
    mutable: bool = False
    also_versions: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[str, str]:
        return self.resource.group, self.resource.kind


def template(document: Object, path: Path, pods: int) -> PodSet:
    """The pods of a pod template (``metadata`` beside ``spec``)."""
    spec, metadata = (*path, "spec"), (*path, "metadata")
    return PodSet(pods, gpus_of(at(document, *spec), mapping(document, *metadata, "annotations")), metadata, spec)


def _pod(document: Object) -> Iterator[PodSet]:
    yield template(document, (), 1)


def _replicated(document: Object, path: Path = ()) -> Iterator[PodSet]:
    yield template(document, (*path, "spec", "template"), count(document, *path, "spec", "replicas"))


def _job(document: Object, path: Path = ()) -> Iterator[PodSet]:
    parallel = count(document, *path, "spec", "parallelism")
    yield template(
        document,
        (*path, "spec", "template"),
        min(parallel, count(document, *path, "spec", "completions", default=parallel)),
    )


def _cron_job(document: Object) -> Iterator[PodSet]:
    yield from _job(document, ("spec", "jobTemplate"))


def _job_set(document: Object) -> Iterator[PodSet]:
    for index, item in items(document, "spec", "replicatedJobs"):
        path = ("spec", "replicatedJobs", index, "template")
        for pods in _job(document, path):
            yield PodSet(pods.pods * count(item, "replicas"), pods.gpus, pods.metadata, pods.spec)


def _leader_worker_set(document: Object) -> Iterator[PodSet]:
    groups, size = count(document, "spec", "replicas"), count(document, "spec", "leaderWorkerTemplate", "size")
    base = ("spec", "leaderWorkerTemplate")
    leads = isinstance(at(document, *base, "leaderTemplate"), dict)
    if leads:
        yield template(document, (*base, "leaderTemplate"), groups)
    yield template(document, (*base, "workerTemplate"), groups * (max(size - 1, 0) if leads else size))


def _replica_specs(*path: str) -> PodSets:
    def pod_sets(document: Object) -> Iterator[PodSet]:
        for role, item in items(document, *path):
            yield template(document, (*path, role, "template"), count(item, "replicas"))

    return pod_sets


def _ray(*path: str) -> PodSets:
    def pod_sets(document: Object) -> Iterator[PodSet]:
        if isinstance(at(document, *path, "headGroupSpec"), dict):
            yield template(document, (*path, "headGroupSpec", "template"), 1)
        for index, group in items(document, *path, "workerGroupSpecs"):
            pods = count(group, "replicas", default=count(group, "minReplicas", default=0)) * count(group, "numOfHosts")
            yield template(document, (*path, "workerGroupSpecs", index, "template"), pods)

    return pod_sets


def _train_job(document: Object) -> Iterator[PodSet]:
    """Its pods come from a runtime; the object itself tells their number and what each asks for, where it overrides."""
    trainer = mapping(document, "spec", "trainer")
    yield PodSet(count(trainer, "numNodes"), MilliGpu(resources_milli(trainer.get("resourcesPerNode"))))


def _inference_service(document: Object) -> Iterator[PodSet]:
    """Each component is a pod spec with labels and annotations of its own, and a model block beside its containers."""
    for component in ("predictor", "transformer", "explainer"):
        path = ("spec", component)
        if not isinstance(at(document, *path), dict):
            continue
        annotations = mapping(document, *path, "annotations")
        gpus = gpus_of(at(document, *path), annotations)
        servers = [item for key, item in items(document, *path) if key not in ("containers", "initContainers")]
        gpus = MilliGpu(
            gpus + sum(resources_milli(server.get("resources")) for server in servers if isinstance(server, dict))
        )
        pods = max(1, count(document, *path, "minReplicas"))
        yield PodSet(pods, gpus, path, path)
        workers = (*path, "workerSpec")
        if isinstance(at(document, *workers), dict):
            size = count(document, *workers, "pipelineParallelSize", default=2) - 1
            yield PodSet(pods * max(1, size), gpus_of(at(document, *workers), annotations), None, workers)


def _kaiwo(document: Object) -> Iterator[PodSet]:
    """Counts by its own fields, which override the templates beneath; templates where these are given."""
    spec = mapping(document, "spec")
    replicas, each = count(spec, "replicas"), count(spec, "gpusPerReplica", default=0)
    total = replicas * each or count(spec, "gpus", default=0)
    beneath = [*_job(document, ("spec", "job"))] if isinstance(spec.get("job"), dict) else []
    if isinstance(spec.get("deployment"), dict):
        beneath += _replicated(document, ("spec", "deployment"))
    if isinstance(spec.get("rayJob"), dict):
        beneath += _ray("spec", "rayJob", "spec", "rayClusterSpec")(document)
    if isinstance(spec.get("rayService"), dict):
        beneath += _ray("spec", "rayService", "spec", "rayClusterConfig")(document)
    if not total or not beneath:
        yield from beneath or [PodSet(replicas, MilliGpu(total * WHOLE_GPU // max(replicas, 1)))]
        return
    pods = sum(pod_set.pods for pod_set in beneath) or 1
    for pod_set in beneath:
        yield PodSet(pod_set.pods, MilliGpu(-(-total * WHOLE_GPU // pods)), pod_set.metadata, pod_set.spec)


def _volcano_job(document: Object) -> Iterator[PodSet]:
    for index, task in items(document, "spec", "tasks"):
        yield template(document, ("spec", "tasks", index, "template"), count(task, "replicas"))


JOB_SETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
MPI_JOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
PYTORCH_JOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
TRAIN_JOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
RAY_JOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAY_CLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
RAY_SERVICES = Resource("ray.io", "v1", "rayservices", "RayService")
INFERENCE_SERVICES = Resource("serving.kserve.io", "v1beta1", "inferenceservices", "InferenceService")
KAIWO_JOBS = Resource("kaiwo.silogen.ai", "v1alpha1", "kaiwojobs", "KaiwoJob")
KAIWO_SERVICES = Resource("kaiwo.silogen.ai", "v1alpha1", "kaiwoservices", "KaiwoService")
VOLCANO_JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")

WORKLOAD_KINDS: tuple[WorkloadKind, ...] = (
    WorkloadKind(PODS, _pod),
    WorkloadKind(DEPLOYMENTS, _replicated, mutable=True),
    WorkloadKind(STATEFUL_SETS, _replicated, mutable=True),
    WorkloadKind(JOBS, _job),
    # The queue sees the Jobs that a CronJob creates.
    WorkloadKind(CRON_JOBS, _cron_job, owner=("spec", "jobTemplate"), mutable=True),
    WorkloadKind(JOB_SETS, _job_set),
    WorkloadKind(LEADER_WORKER_SETS, _leader_worker_set, mutable=True),
    WorkloadKind(MPI_JOBS, _replica_specs("spec", "mpiReplicaSpecs"), also_versions=("v1",)),
    WorkloadKind(PYTORCH_JOBS, _replica_specs("spec", "pytorchReplicaSpecs")),
    WorkloadKind(TRAIN_JOBS, _train_job),
    WorkloadKind(RAY_JOBS, _ray("spec", "rayClusterSpec")),
    WorkloadKind(RAY_CLUSTERS, _ray("spec"), mutable=True),
    WorkloadKind(RAY_SERVICES, _ray("spec", "rayClusterConfig"), mutable=True),
    WorkloadKind(INFERENCE_SERVICES, _inference_service, mutable=True),
    WorkloadKind(KAIWO_JOBS, _kaiwo),
    WorkloadKind(KAIWO_SERVICES, _kaiwo, mutable=True),
    WorkloadKind(VOLCANO_JOBS, _volcano_job),
)

BY_KEY: Mapping[tuple[str, str], WorkloadKind] = {kind.key: kind for kind in WORKLOAD_KINDS}
OTHER_OWNERS = {("apps", "DaemonSet"), ("", "Node")}
"""Part of the nodes themselves: what they make is never labelled."""


REPLICA_SET = ("apps", "ReplicaSet")
OF_DEPLOYMENT = "pod-template-hash"
"""The label of pods whose ReplicaSet a Deployment has made."""


def is_handled(owner: tuple[str, str], labels: Mapping[str, Any]) -> bool:
    """Whether an object controlled by ``owner`` (group, kind) is conformant through it; ``labels`` are the object's.

    ReplicaSets are not evaluated, so the pods of one without a Deployment are evaluated themselves.
    """
    if owner == REPLICA_SET:
        return OF_DEPLOYMENT in labels
    return owner in BY_KEY or owner in OTHER_OWNERS
