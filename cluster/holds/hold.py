"""How a workload is held back, marked so that anybody can give it back: our controllers and ``kopt off``.

A hold is one write that changes the object and marks it, so that no crash leaves a change without its mark:

* label ``kaiwo.ai/held``: who holds it (``profiling``, ``staging``, ``lending``), found with one list per kind;
* annotation ``kaiwo.ai/held-undo``: JSON, the values that releasing restores, by name: ``suspend`` and ``active`` (the
  field as it was), ``gates`` (names of scheduling gates to take away, each beginning with ``kaiwo.ai/``), ``queue``
  (the Kueue queue that it was in), ``asked`` (a Job's own request, see ``cluster.holds.original_request``),
  ``stopPolicy`` (what a LocalQueue had, see ``cluster.holds.queue_stop``), ``priority`` with ``raised`` (a Kueue
  Workload's own priority and the one that stands there instead), ``quota`` (what a queue owns, see
  ``cluster.holds.quota_loan``), ``migConfig`` with ``set`` (the configuration that a node's GPUs were cut by and the
  one that stands there instead, see ``cluster.holds.node_layout``), ``sharing`` (the configuration of a node's device
  plugin, see ``cluster.holds.node_sharing``). Other names are left alone.
  Without the annotation, or where it is no JSON object, everything that a hold of this kind can have changed is undone.
  What is a JSON object is honoured whatever else stands in it (ADR 31).

An object has one holder at a time. What its queueing system decides is left to that: nothing with a queue label is
resumed, as resuming it here would let it pass the queue by. What waits in a queue is *parked*: its label names a queue
that does not exist, until it is released; Kueue keeps it suspended, admits nothing for it, and keeps its Workload with
its age. What a queue lets run already is held by its Workload.

    await kube.patch(JOBS, name, hold(JOBS, job, "profiling"), namespace)
    await kube.patch(JOBS, name, release(JOBS, job), namespace)

Pods are gated as they are created; ``hold_metadata`` gives what to write into them beside the gate.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kopt.cluster.client.resources import (
    CRON_JOBS,
    JOBS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    NODES,
    PODS,
    VOLCANO_JOBS,
    VOLCANO_QUEUES,
    Object,
    Resource,
)
from kopt.cluster.holds.node_layout import own_layout
from kopt.cluster.holds.node_sharing import own_sharing
from kopt.cluster.holds.original_request import with_request
from kopt.cluster.holds.queue_stop import FIELD, HOLD, is_stopped, opened
from kopt.cluster.holds.quota_loan import restored
from kopt.cluster.objects.annotations import AnnotationError
from kopt.cluster.objects.fields import mapping
from kopt.core.untrusted import UnreadableError, salvage

HELD_LABEL = "kaiwo.ai/held"
UNDO_ANNOTATION = "kaiwo.ai/held-undo"
GATE_PREFIX = "kaiwo.ai/"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
MIRRORED_LABEL = "kueue.x-k8s.io/multikueue-origin"
"""On what MultiKueue keeps like the object of another cluster: what is changed here it deletes, with all that runs."""
PARKED = "kaiwo-held"
"""The queue that does not exist. Taking the label away instead would let Kueue write that of a default queue."""
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_OWN_SPEC, _RUN_POLICY = ("spec",), ("spec", "runPolicy")


@dataclass(frozen=True)
class Holdable:
    """Where a kind is stopped: ``field`` inside the mapping at ``path``, with the value that lets it run.

    ``queued``: Kueue decides about objects of this kind that have its label.
    """

    field: str
    runs: bool
    path: tuple[str, ...] = _OWN_SPEC
    queued: bool = True


_SUSPENDED = Holdable("suspend", False)
HOLDABLE: Mapping[Resource, Holdable] = MappingProxyType(
    {
        JOBS: _SUSPENDED,
        KUEUE_WORKLOADS: Holdable("active", True, queued=False),
        CRON_JOBS: Holdable("suspend", False, queued=False),
        Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet"): _SUSPENDED,
        Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob"): _SUSPENDED,
        Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob"): Holdable("suspend", False, _RUN_POLICY),
        Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob"): Holdable("suspend", False, _RUN_POLICY),
        Resource("ray.io", "v1", "rayjobs", "RayJob"): _SUSPENDED,
        Resource("ray.io", "v1", "rayclusters", "RayCluster"): _SUSPENDED,
    }
)
"""Kinds that are stopped by a field; pods are held by scheduling gates. Jobs come before their Workloads, so that they
have their own request back when their queue lets them run."""
QUEUES = (KUEUE_CLUSTER_QUEUES, KAI_QUEUES, VOLCANO_QUEUES)
"""Kinds that may have more than they own; they are given back last, so that nothing that is released is refused."""
HELD_KINDS = (*HOLDABLE, VOLCANO_JOBS, PODS, NODES, KUEUE_LOCAL_QUEUES, *QUEUES)
"""Every kind that may carry the mark."""


class HoldError(ValueError):
    """An object that cannot be held; the message says why."""


def undo_of(document: Object) -> Mapping[str, Any]:
    """What ``release`` would go by; empty where nothing is noted."""
    return _undo(document) or {}


def check_undo(document: Object) -> None:
    """Raises AnnotationError where what the holder has changed is unknown."""
    text = (document["metadata"].get("annotations") or {}).get(UNDO_ANNOTATION)
    try:
        if text is not None:
            salvage(text)
    except UnreadableError as error:
        remedy = "Its release undoes everything that a hold can have changed. Correct it, or remove it to accept that."
        raise AnnotationError(UNDO_ANNOTATION, error, remedy) from None


def holder_of(document: Object) -> str:
    """The holder of an object; empty for none."""
    return str((document["metadata"].get("labels") or {}).get(HELD_LABEL, ""))


def queue_of(document: Object) -> str:
    """The Kueue queue that an object is for, also while it is parked; empty for none."""
    label = str((document["metadata"].get("labels") or {}).get(QUEUE_LABEL, ""))
    if label != PARKED:
        return label
    queue = (_undo(document) or {}).get("queue")
    return queue if isinstance(queue, str) and _NAME.fullmatch(queue) else ""


def is_parked(document: Object) -> bool:
    """Whether it waits in no queue although it is for one."""
    return (document["metadata"].get("labels") or {}).get(QUEUE_LABEL) == PARKED


def is_mirrored(document: Object) -> bool:
    """Whether another cluster decides about it (MultiKueue)."""
    return MIRRORED_LABEL in mapping(document, "metadata", "labels")


def parked(by: str, queue: str, original: Mapping[str, Any] | None = None, then: Sequence[str] = ()) -> Object:
    """The ``metadata`` of a hold that keeps an object out of its queue; ``then`` wait for their turn."""
    metadata = hold_metadata(by, _noted({"queue": queue}, original, then))
    metadata["labels"][QUEUE_LABEL] = PARKED
    return metadata


def hold_metadata(by: str, undo: Mapping[str, Any]) -> Object:
    """The ``metadata`` of a hold: label and annotation."""
    text = json.dumps(dict(undo), sort_keys=True, separators=(",", ":"))
    return {"labels": {HELD_LABEL: by}, "annotations": {UNDO_ANNOTATION: text}}


def hold(resource: Resource, document: Object, by: str, original: Mapping[str, Any] | None = None) -> Object:
    """The merge patch that stops an object and marks it. It fails with Conflict if the object has changed since.

    ``original`` is the request that a Job gets back when it is released, see ``cluster.holds.original_request``.
    Raises HoldError for kinds that have no field for it, what a queue lets run, what another holder has, what another
    cluster decides about (MultiKueue), and what does not run anyway: that its owner has stopped it must not be undone
    by us.
    """
    kind = HOLDABLE.get(resource)
    if kind is None:
        raise HoldError(f"a {resource.kind} cannot be held by a field of its own")
    about, other = f"{resource.kind} {document['metadata']['name']}", holder_of(document)
    if is_mirrored(document):
        raise HoldError(f"{about} is another cluster's (MultiKueue): a change here would have it deleted")
    if other not in ("", by):
        raise HoldError(f"{about} is held by {other} already")
    if kind.queued and (queue := queue_of(document)):
        if _value(kind, document) == kind.runs:
            raise HoldError(f"{about} has been admitted by its queue: hold its Workload")
        metadata = parked(by, queue, original, next_holders(document))
        return {"metadata": metadata | _version(document)}
    if _value(kind, document) != kind.runs and not other:
        raise HoldError(f"{about} has been stopped by others already")
    metadata = hold_metadata(by, _noted({kind.field: kind.runs}, original, next_holders(document)))
    return _with(kind, not kind.runs) | {"metadata": metadata | _version(document)}


def hold_queue(queue: Object, by: str) -> Object:
    """The merge patch by which a LocalQueue admits nothing more. It fails with Conflict if the queue has changed since.

    Raises HoldError where another holder has it, or its owner has stopped it already.
    """
    about = f"LocalQueue {queue['metadata']['name']}"
    if (other := holder_of(queue)) not in ("", by):
        raise HoldError(f"{about} is held by {other} already")
    if is_stopped(queue):
        raise HoldError(f"{about} has been stopped by others already")
    before = mapping(queue, "spec").get(FIELD)
    return {"spec": {FIELD: HOLD}, "metadata": hold_metadata(by, {FIELD: before}) | _version(queue)}


def release(resource: Resource, document: Object) -> Object:
    """The merge patch that gives a held object back and takes the marks away; it fails with Conflict as ``hold``'s.

    One that gives a Job its own request back fails with Invalid while a pod of it is left.
    """
    labels: Object = {HELD_LABEL: None}
    undo, kind = _undo(document), HOLDABLE.get(resource)
    if is_parked(document):
        labels[QUEUE_LABEL] = queue_of(document) or None
    if resource == KUEUE_LOCAL_QUEUES:
        changes = opened(document, undo)
    elif resource == NODES:
        changes = own_layout(document, undo) or own_sharing(document, undo)
        labels |= changes.pop("metadata", {}).get("labels", {})
    elif resource in QUEUES:
        changes = restored(resource, document, undo)
    else:
        changes = _ungated(document, undo) if kind is None else _resumed(kind, document, undo)
    if undo is not None and "raised" in undo:
        changes = _lowered(document, undo)
    original = undo.get("asked") if undo is not None and resource == JOBS else None
    if isinstance(original, dict):
        changes = {"spec": with_request(document, original) | changes.get("spec", {})}
    return changes | {"metadata": {"labels": labels, "annotations": {UNDO_ANNOTATION: None}} | _version(document)}


def next_holders(document: Object) -> tuple[str, ...]:
    """Who wants to hold an object after its holder, in this order."""
    then = (_undo(document) or {}).get("then")
    return tuple([name for name in then if isinstance(name, str) and name]) if isinstance(then, list) else ()


def turn(document: Object, by: str) -> Object:
    """The annotations of an object of which ``by`` is the holder after those that are.

    Raises HoldError where it has no holder, ``by`` is the holder, or what the holder has changed is unknown.
    """
    undo = _undo(document)
    if holder_of(document) == by:
        raise HoldError(f"{document['metadata'].get('name')} is held by {by} already")
    if not holder_of(document) or undo is None:
        raise HoldError(f"{document['metadata'].get('name')} has no holder to wait for")
    then = list(dict.fromkeys([*next_holders(document), by]))
    annotations: Object = hold_metadata(holder_of(document), {**undo, "then": then})["annotations"]
    return annotations


def wait_turn(document: Object, by: str) -> Object:
    """The merge patch that makes ``by`` hold an object when its holder lets go; it fails with Conflict as ``hold``'s.

    Raises HoldError as ``turn`` does.
    """
    return {"metadata": {"annotations": turn(document, by)} | _version(document)}


def pass_on(resource: Resource, document: Object) -> Object:
    """``release``, or where another holder is next, the merge patch that makes it the holder; a Job's own
    request is given back either way."""
    undo, queued = _undo(document), next_holders(document)
    if undo is None or not queued:
        return release(resource, document)
    remaining = {key: value for key, value in undo.items() if key not in ("asked", "then")}
    original = undo.get("asked") if resource == JOBS else None
    spec = {"spec": with_request(document, original)} if isinstance(original, dict) else {}
    after = remaining | ({"then": list(queued[1:])} if queued[1:] else {})
    return spec | {"metadata": hold_metadata(queued[0], after) | _version(document)}


def _resumed(kind: Holdable, document: Object, undo: Mapping[str, Any] | None) -> Object:
    if kind.queued and queue_of(document):
        # Kueue refuses to change the queue of what it was about to start when we parked it.
        return _with(kind, not kind.runs) if is_parked(document) and _value(kind, document) == kind.runs else {}
    ours = undo is None or undo.get(kind.field) is kind.runs or is_parked(document)
    return _with(kind, kind.runs) if ours and _value(kind, document) != kind.runs else {}


def _ungated(document: Object, undo: Mapping[str, Any] | None) -> Object:
    gates = (document.get("spec") or {}).get("schedulingGates") or []
    named = None if undo is None else undo.get("gates")
    ours = [gate["name"] for gate in gates if gate["name"].startswith(GATE_PREFIX)]
    removed = [our for our in ours if our in named] if isinstance(named, list) else ours if undo is None else []
    remaining = [gate for gate in gates if gate["name"] not in removed]
    return {"spec": {"schedulingGates": remaining}} if removed else {}


def _lowered(document: Object, undo: Mapping[str, Any]) -> Object:
    """A value that was written by others since stays."""
    own = undo.get("priority")
    ours = (document.get("spec") or {}).get("priority") == undo["raised"]
    return {"spec": {"priority": own}} if ours and (own is None or isinstance(own, int)) else {}


def _noted(undo: Object, original: Mapping[str, Any] | None, then: Sequence[str]) -> Object:
    """Who waits for their turn goes on waiting."""
    result = undo if original is None else undo | {"asked": dict(original)}
    return result | {"then": list(then)} if then else result


def _undo(document: Object) -> Mapping[str, Any] | None:
    """What the annotation says; None where there is none that can be read."""
    text = (document["metadata"].get("annotations") or {}).get(UNDO_ANNOTATION)
    if text is None:
        return None
    try:
        return salvage(text)
    except UnreadableError:
        return None


def _value(kind: Holdable, document: Object) -> Any:
    path: Any = document
    for step in kind.path:
        path = path.get(step) if isinstance(path, dict) else None
    value = path.get(kind.field) if isinstance(path, dict) else None
    return kind.runs if value is None else value


def _with(kind: Holdable, value: bool) -> Object:
    changes: Object = {kind.field: value}
    for step in reversed(kind.path):
        changes = {step: changes}
    return changes


def _version(document: Object) -> Object:
    return {"resourceVersion": document["metadata"]["resourceVersion"]}
