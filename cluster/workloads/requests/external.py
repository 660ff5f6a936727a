"""GPUs that a workload's own object does not tell, because they stand in other objects.

A TrainJob's may be in its runtime (trainer v1alpha1), where the template of its pods is; any pod's in claims of devices
(DRA, resource.k8s.io/v1), which name device classes. A claimed device counts as a whole GPU, also where its class
divides GPUs: which part it will be is known when it is allocated.
"""

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kopt.cluster.client.api import ApiError, Kube
from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.objects.fields import at, count, items, mapping, text
from kopt.cluster.workloads.kinds import BY_KEY, JOB_SETS, TRAIN_JOBS, MadeFrom, PodSet
from kopt.cluster.workloads.requests.gpus import GPU_CLASSES, GPU_DRIVERS, SHARE_CLAIM, resources_milli
from kopt.cluster.workloads.workload import Workload
from kopt.core.units import WHOLE_GPU, MilliGpu

CLUSTER_RUNTIMES = Resource(
    TRAIN_JOBS.group, TRAIN_JOBS.version, "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False
)
RUNTIMES = Resource(TRAIN_JOBS.group, TRAIN_JOBS.version, "trainingruntimes", "TrainingRuntime")
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim")
CLAIM_TEMPLATES = Resource("resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate")
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
ELSEWHERE = (CLUSTER_RUNTIMES, RUNTIMES, DEVICE_CLASSES, CLAIMS, CLAIM_TEMPLATES)
"""Every kind that may have to be read to know a workload's GPUs."""
_RUNTIME_KINDS = {resource.kind: resource for resource in (CLUSTER_RUNTIMES, RUNTIMES)}
_TRAINER_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
_GENERATED = "resource.kubernetes.io/pod-claim-name"
_DRIVERS = "|".join(map(re.escape, sorted(GPU_DRIVERS)))
# The usual form of a class's CEL selector; one that compares with != names what it does not mean.
_MEANS_GPU = re.compile(rf"""device\.driver\s*(?:==|in)\s*\[?\s*(?:["'][^"']*["']\s*,\s*)*["'](?:{_DRIVERS})["']""")
_DEPTH = 3
"""A runtime names a claim template, which names a class."""


class ObjectRef(NamedTuple):
    """Where an object is; the namespace is empty for kinds of the whole cluster."""

    resource: Resource
    namespace: str
    name: str


Find = Callable[[ObjectRef], Object | None]
"""From memory; None for what is not there, or not known."""
Read = Callable[[ObjectRef], Awaitable[Object | None]]
"""From the API server; None for what is not there, or cannot be had."""


async def completed(workload: Workload, find: Find, read: Read | None) -> Workload:
    """A workload with the GPUs that stand elsewhere; what neither gives counts as no GPUs."""
    if not stands_elsewhere(workload):
        return workload
    been: dict[ObjectRef, Object | None] = {}
    for _ in range(_DEPTH):
        missing = list(complete(workload, lambda reference: been.get(reference) or find(reference))[1] - been.keys())
        if not missing or read is None:
            break
        for reference in missing:
            been[reference] = await read(reference)
    return complete(workload, lambda reference: been.get(reference) or find(reference))[0]


def complete(workload: Workload, find: Find) -> tuple[Workload, set[ObjectRef]]:
    """The same from memory alone, and the places that ``find`` knows nothing of."""
    seeker = _Seeker(find, workload.namespace)
    return replace(workload, pod_sets=tuple(seeker.pod_sets(workload))), seeker.missing


def stands_elsewhere(workload: Workload) -> bool:
    """Whether other objects may have GPUs of this one, or what runs on them."""
    return _has_runtime(workload) or any(
        at(workload.document, *pod_set.spec, "resourceClaims")
        for pod_set in workload.pod_sets
        if pod_set.spec is not None
    )


def is_gpu_class(device_class: Object) -> bool:
    """Whether the devices of a DeviceClass are GPUs, by its name or by the driver that its selectors ask for."""
    if text(device_class, "metadata", "name") in GPU_CLASSES:
        return True
    return any(
        _MEANS_GPU.search(text(item, "cel", "expression")) for _, item in items(device_class, "spec", "selectors")
    )


def is_generated(claim: Object) -> bool:
    """Whether a claim was made from a template for one pod; what it asks for stands in the template, too."""
    return _GENERATED in mapping(claim, "metadata", "annotations")


async def read_object(kube: Kube, reference: ObjectRef) -> Object | None:
    """The object at a place; None where there is none, or it cannot be read."""
    try:
        return await kube.get(reference.resource, reference.name, reference.namespace)
    except (ApiError, ValueError):
        return None


@dataclass
class _Seeker:
    find: Find
    namespace: str
    missing: set[ObjectRef] = field(default_factory=set)

    def pod_sets(self, workload: Workload) -> Iterator[PodSet]:
        if _has_runtime(workload):
            yield from self._of_runtime(workload)
            return
        for pod_set in workload.pod_sets:
            yield self._with_claims(workload.document, pod_set)

    def _of_runtime(self, workload: Workload) -> Iterator[PodSet]:
        """The runtime's JobSet, with as many nodes in its training step as the TrainJob or the runtime wants, and what
        the TrainJob asks for them; as the TrainJob alone has it where there is none."""
        train_job = workload.document
        reference = mapping(train_job, "spec", "runtimeRef")
        resource = _RUNTIME_KINDS.get(text(reference, "kind") or CLUSTER_RUNTIMES.kind)
        runtime = self._find(resource, text(reference, "name")) if resource is not None else None
        if runtime is None:
            yield from (pod_set for pod_set in workload.pod_sets if pod_set.gpus)
            return
        inner = {"spec": at(runtime, "spec", "template", "spec")}
        policy = mapping(runtime, "spec", "mlPolicy")
        nodes = count(train_job, "spec", "trainer", "numNodes", default=count(policy, "numNodes"))
        stated = at(train_job, "spec", "trainer", "resourcesPerNode")
        for pod_set in BY_KEY[JOB_SETS.group, JOB_SETS.kind].pod_sets(inner):
            job = at(inner, *pod_set.spec[:3]) if pod_set.spec else None
            step = text(mapping(job, "template", "metadata", "labels"), _TRAINER_STEP)
            trains = step == "trainer" or (not step and text(job, "name") == "node")
            made_from = MadeFrom(at(inner, *(pod_set.spec or ())[:-1]), text(job, "name"), policy, trains)
            gpus = self._with_claims(inner, pod_set).gpus
            if trains and stated is not None:
                gpus = MilliGpu(resources_milli(stated))
            # No paths: the runtime belongs to everyone who uses it.
            yield PodSet(nodes if trains else pod_set.pods, gpus, made_from=made_from)

    def _with_claims(self, document: Object, pod_set: PodSet) -> PodSet:
        if pod_set.spec is None:
            return pod_set
        claimed = sum(self._claimed(claim) for _, claim in items(document, *pod_set.spec, "resourceClaims"))
        return replace(pod_set, gpus=MilliGpu(pod_set.gpus + claimed)) if claimed else pod_set

    def _claimed(self, claim: Any) -> int:
        """Milli-GPU of one entry of a pod's ``resourceClaims``; a share is counted by the annotation for it."""
        if text(claim, "name") == SHARE_CLAIM:
            return 0
        named, by_template = text(claim, "resourceClaimName"), text(claim, "resourceClaimTemplateName")
        if named:
            spec = mapping(self._find(CLAIMS, named), "spec")
        else:
            spec = mapping(self._find(CLAIM_TEMPLATES, by_template) if by_template else None, "spec", "spec")
        return WHOLE_GPU * sum(self._devices(request) for _, request in items(spec, "devices", "requests"))

    def _devices(self, request: Any) -> int:
        """GPUs of one request; of several that would do the most; of all that a node has, one at least."""
        options = [mapping(request, "exactly"), *(item for _, item in items(request, "firstAvailable"))]
        return max((count(option, "count") for option in options if self._requests_gpu(option)), default=0)

    def _requests_gpu(self, option: Mapping[str, Any]) -> bool:
        name = text(option, "deviceClassName")
        if not name or at(option, "adminAccess") is True:
            return False
        result = None if name in GPU_CLASSES else self._find(DEVICE_CLASSES, name)
        return name in GPU_CLASSES or (result is not None and is_gpu_class(result))

    def _find(self, resource: Resource, name: str) -> Object | None:
        if not name:
            return None
        reference = ObjectRef(resource, self.namespace if resource.namespaced else "", name)
        result = self.find(reference)
        if result is None:
            self.missing.add(reference)
        return result


def _has_runtime(workload: Workload) -> bool:
    """Whether this is a TrainJob whose runtime has to be read: for its GPUs, or for what it runs on its own."""
    per_node = at(workload.document, "spec", "trainer", "resourcesPerNode")
    return workload.kind.resource == TRAIN_JOBS and (per_node is None or workload.uses_gpus)
