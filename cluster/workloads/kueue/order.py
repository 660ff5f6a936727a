"""The order of a queue on Kueue's Workloads: a number in ``spec.priority``, and beside it what that was before.

Both are one write, so that no crash leaves a number without the note of what stood there, and one write gives it back:

* label ``kaiwo.ai/queue-order``: that a Workload is ordered; one list finds them all.
* annotation ``kaiwo.ai/queue-order``: JSON, a ``core.scheduling.queue_order.OrderMark``.

A priority that others write afterwards is theirs: it counts as the Workload's own, and stays when the note goes. One
that the preemption controller has raised for a while (``cluster.holds.hold``) is given back before.
"""

import json
from typing import Any, TypeGuard

from kopt.cluster.client.api import Kube
from kopt.cluster.client.resources import Object, Resource
from kopt.cluster.holds.hold import is_mirrored
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.fields import at, mapping, text
from kopt.core.scheduling.queue_order import OrderMark

ORDER_KEY = "kaiwo.ai/queue-order"
"""Of the label and of the annotation."""
WRITTEN = "written"


def order_mark_of(document: Object) -> OrderMark | None:
    """What we noted; None without the label, and for a note that cannot be read, which stays as it is."""
    metadata = mapping(document, "metadata")
    if ORDER_KEY not in mapping(metadata, "labels"):
        return None
    note = mapping_of(mapping(metadata, "annotations"), ORDER_KEY)
    priority, written, times = at(note, "priority"), at(note, "written"), at(note, "times")
    if not _is_number(written) or not (priority is None or _is_number(priority)):
        return None
    name, formula = text(note, "class"), text(note, "formula")
    return OrderMark(priority, written, name, formula, times if _is_number(times) else 1)


def priority_class_of(document: Object) -> str:
    """``kind/name`` of the class that a Workload names, in either version of Kueue's API; empty without one."""
    kind, name = text(document, "spec", "priorityClassRef", "kind"), text(document, "spec", "priorityClassRef", "name")
    kind = kind or text(document, "spec", "priorityClassSource").rpartition("/")[2]
    name = name or text(document, "spec", "priorityClassName")
    return f"{kind.lower()}/{name}" if name else ""


def own_priority(mark: OrderMark | None, priority: Any) -> int | None:
    """What a Workload's priority is without the order, where ``priority`` stands in its spec."""
    now = priority if _is_number(priority) else None
    return mark.priority if mark is not None and now == mark.written else now


def ordered(mark: OrderMark) -> Object:
    """The merge patch that writes a Workload's number, with the note."""
    note = {
        "priority": mark.priority,
        "written": mark.written,
        "class": mark.class_name,
        "formula": mark.formula,
        "times": mark.times,
    }
    text = json.dumps(note, separators=(",", ":"))
    metadata = {"labels": {ORDER_KEY: WRITTEN}, "annotations": {ORDER_KEY: text}}
    return {"metadata": metadata, "spec": {"priority": mark.written}}


def unordered(document: Object) -> Object:
    """The merge patch that gives a Workload its own priority back; one that others wrote since stays."""
    mark = order_mark_of(document)
    metadata = {"labels": {ORDER_KEY: None}, "annotations": {ORDER_KEY: None}}
    if mark is None or at(document, "spec", "priority") != mark.written:
        return {"metadata": metadata}
    return {"metadata": metadata, "spec": {"priority": mark.priority}}


async def give_back(kube: Kube, resource: Resource, document: Object) -> None:
    """``unordered``, under the condition that the Workload is as it was read. Raises ApiError."""
    metadata, changes = document["metadata"], unordered(document)
    condition = {"resourceVersion": metadata["resourceVersion"]}
    body = changes | {"metadata": changes["metadata"] | condition}
    await kube.patch(resource, metadata["name"], body, metadata["namespace"])


def is_dispatched(document: Object) -> bool:
    """MultiKueue has it in two clusters, or is about to: the specs of the two must not differ."""
    return (
        is_mirrored(document)
        or bool(text(document, "status", "clusterName"))
        or bool(at(document, "status", "nominatedClusterNames"))
    )


def _is_number(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
