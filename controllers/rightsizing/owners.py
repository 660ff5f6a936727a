"""What the objects above a pod say of it: whether they opt out, and in which mode. Read when a change is at stake."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kopt.cluster.client.api import Forbidden, Kube, NotFound
from kopt.cluster.client.resources import REPLICA_SETS, Object, Resource
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.fields import mapping, text
from kopt.cluster.objects.namespace import MODE_ANNOTATION
from kopt.cluster.objects.resize_history import RESIZING, widths_of
from kopt.cluster.workloads.kinds import BY_KEY
from kopt.cluster.workloads.tracked_pod import controller_ref
from kopt.cluster.workloads.workload import OPT_OUT_ANNOTATION
from kopt.controllers.rightsizing.views import ObservedPod
from kopt.core.reason import Reason
from kopt.core.scheduling.eviction import WorkloadRef
from kopt.core.workload.rightsizing import WidthRecord

_HIGHEST = 5
"""A pod, its Job, its JobSet, its TrainJob, its KaiwoJob."""


@dataclass(frozen=True)
class Above:
    """``uids`` are of all of them. ``mode`` is the nearest one's, empty where none says one; ``why_not`` forbids a
    change. ``widths``: changes of the width of one of them."""

    uids: frozenset[str]
    mode: str = ""
    why_not: Reason | None = None
    widths: Sequence[WidthRecord] = ()


async def read_above(kube: Kube, pods: Sequence[ObservedPod]) -> Above:
    """Of kinds that are known; of others nothing can be said, as the webhook cannot either. Raises ApiError."""
    first, uids = pods[0], {pod.uid for pod in pods}
    mode, opts_out = first.mode, any(pod.opts_out for pod in pods)
    reference, namespace = first.controller, text(first.document, "metadata", "namespace")
    widths: list[WidthRecord] = []
    for _ in range(_HIGHEST):
        resource = None if reference is None else _resource(reference)
        if reference is None or resource is None:
            break
        uids.add(reference.uid)
        try:
            owner: Object = await kube.get(resource, reference.name, namespace)
        except NotFound:
            break
        except Forbidden:
            text_ = f"{resource.plural} may not be read, so that nothing says whether {reference.name} opts out."
            return Above(frozenset(uids), mode, Reason("OWNER_UNREADABLE", text_))
        annotations = mapping(owner, "metadata", "annotations")
        mode = mode or text(annotations, MODE_ANNOTATION)
        opts_out = opts_out or annotations.get(OPT_OUT_ANNOTATION) == "true"
        if RESIZING in mapping(owner, "metadata", "labels"):
            text_ = f"The width of {reference.name} is being changed."
            return Above(frozenset(uids), mode, Reason("CHANGE_IS_OPEN", text_))
        try:
            widths += widths_of(owner)
        except AnnotationError as error:
            return Above(frozenset(uids), mode, Reason("HISTORY_UNREADABLE", str(error)))
        reference = controller_ref(mapping(owner, "metadata"))
    why_not = Reason("OPTED_OUT", "It opts out of what kopt changes.") if opts_out else None
    return Above(frozenset(uids), mode, why_not, widths)


def _resource(reference: WorkloadRef) -> Resource | None:
    """Of the version that the reference names."""
    group, _, version = reference.api_version.rpartition("/")
    if (group, reference.kind) == (REPLICA_SETS.group, REPLICA_SETS.kind):
        return REPLICA_SETS
    kind = BY_KEY.get((group, reference.kind))
    return None if kind is None else replace(kind.resource, version=version)
