"""What is kept of each pod: what it wants and has, how far it is, and what was changed of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.objects.resize_history import RESIZING, sealed_change
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.requests.gpus import gpus_of
from kopt.cluster.workloads.tracked_pod import controller_ref
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION
from kopt.core.scheduling.eviction import WorkloadRef
from kopt.core.switches import Owner
from kopt.core.workload.rightsizing import ResizeRecord

_METADATA = ("name", "namespace", "uid", "resourceVersion", "ownerReferences")
_CONTAINER = ("name", "resources", "resizePolicy")
_STATUS = ("name", "restartCount", "resources")
_CONDITIONS = ("PodResizePending", "PodResizeInProgress")


@dataclass(frozen=True)
class ObservedPod:
    """A pod with GPUs whose containers have started. ``document`` is the part of it that is read here."""

    document: Object
    whose: Owner
    controller: WorkloadRef | None
    open: ResizeRecord | None
    """The change that a controller of ours left open on it."""

    @property
    def uid(self) -> str:
        return text(self.document, "metadata", "uid")

    @property
    def annotations(self) -> Mapping[str, Any]:
        return mapping(self.document, "metadata", "annotations")

    @property
    def is_marked(self) -> bool:
        """Whether a change is open, whoever made it."""
        return RESIZING in mapping(self.document, "metadata", "labels")

    @property
    def opts_out(self) -> bool:
        return self.annotations.get(OPT_OUT_ANNOTATION) == "true"

    @property
    def mode(self) -> str:
        return text(self.annotations, MODE_ANNOTATION)


def read_pod(pod: Object) -> ObservedPod | None:
    """None for pods that do not run, and for those without GPUs."""
    metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
    runs = text(pod, "status", "phase") == "Running" and "deletionTimestamp" not in metadata
    if not runs or not (gpus_of(spec, mapping(metadata, "annotations")) or at(spec, "resourceClaims")):
        return None
    return ObservedPod(_reduced(pod), owner_of(pod, PODS.plural), controller_ref(metadata), sealed_change(pod))


def reference_of(pods: Sequence[ObservedPod]) -> Object:
    """The object that controls the first of the pods, else the pod, as events hold it."""
    first = pods[0]
    namespace = text(first.document, "metadata", "namespace")
    if first.controller is None:
        return PODS.reference(namespace, text(first.document, "metadata", "name"), first.uid)
    ref = first.controller
    return {"apiVersion": ref.api_version, "kind": ref.kind, "namespace": namespace, "name": ref.name, "uid": ref.uid}


def _reduced(pod: Object) -> Object:
    metadata, spec, status = (mapping(pod, part) for part in ("metadata", "spec", "status"))
    result: Object = {
        "metadata": {
            **_only(metadata, _METADATA),
            "annotations": _ours(metadata, "annotations"),
            "labels": _ours(metadata, "labels"),
        },
        "spec": {
            "containers": [_only(item, _CONTAINER) for _, item in items(spec, "containers")],
            "initContainers": [_only(item, _CONTAINER) for _, item in items(spec, "initContainers")],
        },
        "status": {
            "phase": text(status, "phase"),
            "conditions": [item for _, item in items(status, "conditions") if text(item, "type") in _CONDITIONS],
            "containerStatuses": [_only(item, _STATUS) for _, item in items(status, "containerStatuses")],
        },
    }
    if of_pod := at(spec, "resources"):
        result["spec"]["resources"] = of_pod
    return result


def _only(item: Any, names: Sequence[str]) -> Object:
    return {name: item[name] for name in names if name in item} if isinstance(item, Mapping) else {}


def _ours(metadata: Mapping[str, Any], part: str) -> dict[str, Any]:
    return {name: value for name, value in mapping(metadata, part).items() if name.startswith("kaiwo.ai/")}
