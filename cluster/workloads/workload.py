"""What the policies want to know about a workload, read from its object."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, controller_of, count, mapping, text
from kopt.cluster.workloads.frameworks import written_queue
from kopt.cluster.workloads.kinds import BY_KEY, KAIWO_JOBS, KAIWO_SERVICES, PodSet, WorkloadKind
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.requests.gpus import memory_of
from kopt.cluster.workloads.workload_class import classified
from kopt.core.scheduling.classify import Classified
from kopt.core.scheduling.submission import DEFAULT_SCHEDULER, Framework, Submission, WorkloadShape
from kopt.core.switches import Owner
from kopt.core.units import Bytes, MilliGpu

OPT_OUT_ANNOTATION = "kaiwo.ai/opt-out"


@dataclass(frozen=True)
class NamespaceDefaults:
    """A namespace's annotations that matter here."""

    queue: str = ""
    mode: str = ""


@dataclass(frozen=True)
class Workload:
    """One object of a known kind. ``controller`` is (group, kind) of what owns it, empty strings for nothing."""

    kind: WorkloadKind
    document: Object
    pod_sets: tuple[PodSet, ...]
    namespace: str
    name: str
    controller: tuple[str, str]

    @property
    def gpus(self) -> MilliGpu:
        """The sum over all pods at full size."""
        return MilliGpu(sum(pod_set.gpus * pod_set.pods for pod_set in self.pod_sets))

    @property
    def owner(self) -> Owner:
        """Whose it is, for percentages."""
        return owner_of(self.document, self.kind.resource.plural, self.namespace, self.name)

    @property
    def pods(self) -> int:
        return sum(pod_set.pods for pod_set in self.pod_sets)

    @property
    def uses_gpus(self) -> bool:
        """Whether any of its pods asks for a GPU, even if it is scaled to none."""
        return any(pod_set.gpus for pod_set in self.pod_sets)

    @property
    def annotations(self) -> Mapping[str, Any]:
        return mapping(self.document, "metadata", "annotations")

    @property
    def opts_out(self) -> bool:
        return self.annotations.get(OPT_OUT_ANNOTATION) == "true"

    @property
    def ends(self) -> bool:
        """Whether it is being deleted."""
        return at(self.document, "metadata", "deletionTimestamp") is not None

    @property
    def runs(self) -> bool:
        """Whether pods of it are ready, as Kueue asks before it lets a queue label be changed."""
        status = mapping(self.document, "status")
        ready = count(status, "readyReplicas", default=0) + count(status, "readyWorkerReplicas", default=0)
        suspendable = self.kind.resource.kind == "RayCluster"
        return ready > 0 or (suspendable and at(self.document, "spec", "suspend") is not True)

    @property
    def classified(self) -> Classified:
        """Its class, by what it states, its kind and its owner's, and its templates."""
        pods = [
            (
                {} if pod_set.metadata is None else mapping(self.document, *pod_set.metadata),
                {} if pod_set.spec is None else mapping(self.document, *pod_set.spec),
            )
            for pod_set in self.pod_sets
        ]
        kinds = [self.kind.key, *([self.controller] if self.controller[1] else [])]
        return classified(self.document, kinds, pods)

    @property
    def memory_bytes(self) -> Bytes:
        """GPU memory asked for by annotation on the object or on one of its templates; 0 for none."""
        paths = [("metadata",), *(pod_set.metadata for pod_set in self.pod_sets if pod_set.metadata is not None)]
        return next(
            (result for path in paths if (result := memory_of(mapping(self.document, *path, "annotations")))),
            Bytes(0),
        )


def read_workload(document: Object, group: str, kind: str, namespace: str, name: str) -> Workload | None:
    """The workload in an object; None for a kind that is not in the table."""
    workload_kind = BY_KEY.get((group, kind))
    if workload_kind is None:
        return None
    return Workload(
        workload_kind, document, tuple(workload_kind.pod_sets(document)), namespace, name, controller_of(document)
    )


def submission_of(
    workload: Workload, framework: Framework, namespace: NamespaceDefaults, groups: tuple[str, ...]
) -> Submission:
    """The input of K1's rules."""
    first = next((pod_set.spec for pod_set in workload.pod_sets if pod_set.spec is not None), None)
    spec = mapping(workload.document, *first) if first is not None else {}
    return Submission(
        kind=workload.kind.resource.kind,
        namespace=workload.namespace,
        name=workload.name,
        gpus=workload.gpus,
        queue=written_queue(framework, workload.kind, workload.document, workload.pod_sets),
        namespace_queue=namespace.queue,
        priority_class=_priority_class(workload) or text(spec, "priorityClassName"),
        groups=groups,
    )


def shape_of(workload: Workload) -> WorkloadShape:
    """The input of K2's rules."""
    specs = [at(workload.document, *pod_set.spec) for pod_set in workload.pod_sets if pod_set.spec is not None]
    named = (text(spec, "schedulerName") for spec in specs)
    class_ = workload.classified
    return WorkloadShape(
        kind=workload.kind.resource.kind,
        role=class_.workload_class,
        placement=class_.traits.placement,
        pods=workload.pods,
        gpus=workload.gpus,
        scheduler=next((name for name in named if name not in ("", DEFAULT_SCHEDULER)), ""),
        settable=bool(specs),
        spreads=any(at(spec, "topologySpreadConstraints") for spec in specs),
    )


def _priority_class(workload: Workload) -> str:
    """Kueue's own class label, or the field of kinds that have one outside the template."""
    labels = mapping(workload.document, "metadata", "labels")
    return (
        text(labels, "kueue.x-k8s.io/priority-class")
        or text(workload.document, "spec", "runPolicy", "schedulingPolicy", "priorityClass")
        or text(workload.document, "spec", "priorityClassName")
        or (
            text(workload.document, "spec", "priorityClass")
            if workload.kind.resource in (KAIWO_JOBS, KAIWO_SERVICES)
            else ""
        )
    )
