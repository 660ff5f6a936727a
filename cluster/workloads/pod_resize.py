"""Resizing a running pod in place, by its subresource ``resize`` (Kubernetes 1.33 and later, stable since 1.35)."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.requests.pods import quantity
from kopt.core.workload.rightsizing import Bounds, ContainerResources, Lever, Resize

SUBRESOURCE = "resize"
_PENDING, _IN_PROGRESS = "PodResizePending", "PodResizeInProgress"
_LISTS = ("containers", "initContainers")


class ResizeState(StrEnum):
    """What the kubelet has made of a pod's wanted resources. ``REFUSED``: infeasible on its node, deferred until
    others leave, or failed."""

    ACTUATED = "actuated"
    PENDING = "pending"
    REFUSED = "refused"


def resources_of(pod: Object) -> list[ContainerResources]:
    """What the spec of a pod wants for each container. Raises ValueError for amounts that no API server lets through,
    and for resources of the pod as a whole, which a container's are bounded by."""
    if mapping(pod, "spec", "resources"):
        raise ValueError("the pod has resources of its own (spec.resources)")
    return [
        _resources(container, resizable=name == "containers")
        for name in _LISTS
        for _, container in items(pod, "spec", name)
    ]


def _resources(container: Any, *, resizable: bool) -> ContainerResources:
    restarts = {
        text(rule, "resourceName")
        for _, rule in items(container, "resizePolicy")
        if text(rule, "restartPolicy") == "RestartContainer"
    }
    return ContainerResources(
        text(container, "name"),
        bounds_of(mapping(container, "resources"), Lever.CPU),
        bounds_of(mapping(container, "resources"), Lever.MEMORY),
        frozenset(lever for lever in Lever if lever.value in restarts),
        resizable,
    )


def bounds_of(resources: Mapping[str, Any], lever: Lever) -> Bounds:
    """Of one resource in a container's ``resources``."""
    request, limit = (at(resources, part, lever.value) for part in ("requests", "limits"))
    is_cpu = lever is Lever.CPU
    return Bounds(
        None if request is None else quantity(request, is_cpu), None if limit is None else quantity(limit, is_cpu)
    )


def resize_patch(resize: Resize) -> Object:
    """A strategic merge patch for the subresource."""
    resources = {
        part: {resize.lever.value: resize.lever.text(amount)}
        for part, amount in (("requests", resize.after.request), ("limits", resize.after.limit))
        if amount is not None
    }
    return {"spec": {"containers": [{"name": resize.container, "resources": resources}]}}


def resize_state(pod: Object, resize: Resize) -> tuple[ResizeState, str]:
    """Whether a change is in effect, by the pod's status, and what the kubelet says of it.

    The kubelet reports the resources that a container really has in ``status.containerStatuses[].resources``.
    """
    for _, condition in items(pod, "status", "conditions"):
        kind, reason, message = text(condition, "type"), text(condition, "reason"), text(condition, "message")
        is_refused = kind == _PENDING or (kind == _IN_PROGRESS and reason == "Error")
        if is_refused and reason in ("Deferred", "Infeasible", "Error"):
            return ResizeState.REFUSED, f"{reason}: {message}"
        if kind in (_PENDING, _IN_PROGRESS):
            return ResizeState.PENDING, message
    status = _status(pod, resize.container)
    actual = mapping(status, "resources")
    try:
        is_actual = bool(actual) and bounds_of(actual, resize.lever) == resize.after
    except ValueError:
        is_actual = False
    return (ResizeState.ACTUATED if is_actual else ResizeState.PENDING), ""


def state_of_all(pods: Iterable[Object], resize: Resize) -> tuple[ResizeState, str]:
    """Of the pods of a workload: refused where one of them is, and by which; actuated where all are."""
    pending = ""
    result = ResizeState.ACTUATED
    for pod in pods:
        state, message = resize_state(pod, resize)
        if state is ResizeState.REFUSED:
            return state, f"{pod['metadata']['name']}: {message}"
        if state is ResizeState.PENDING:
            result, pending = state, message or pending
    return result, pending


def restarts_of(pod: Object) -> int:
    """Of all its containers since the pod began."""
    return sum(int(at(status, "restartCount") or 0) for _, status in items(pod, "status", "containerStatuses"))


def _status(pod: Object, container: str) -> Any:
    statuses = (status for _, status in items(pod, "status", "containerStatuses"))
    return next((status for status in statuses if text(status, "name") == container), None)
