"""What is kept of a pod."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from kopt.cluster.client.resources import PODS, Key, Object
from kopt.cluster.objects.annotations import INDICES_ANNOTATION
from kopt.cluster.objects.fields import controller_of
from kopt.cluster.objects.namespace import MODE_ANNOTATION, read_namespace
from kopt.cluster.runtime.tracing import TRACEPARENT_ANNOTATION
from kopt.cluster.workloads.owners import owner_of
from kopt.cluster.workloads.placement.gang_membership import Membership, membership_of
from kopt.cluster.workloads.requests.pods import NO_WISH, WORKLOAD_LABEL, Wish, ask_of
from kopt.cluster.workloads.workload_class import class_of_pod
from kopt.core.scheduling.placement import Ask
from kopt.core.scheduling.workload_class import ClassPlacement
from kopt.core.switches import Owner
from kopt.core.times import seconds_or_none

_DECIDE_NODES = ("schedulerName", "priority", "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints")
_NO_OWNER = Owner("", "", "")
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class PodState:
    """One pod. ``gpus`` are the indexes that its annotation names, None without one."""

    uid: str
    key: Key
    node: str
    finished: bool
    ask: Ask
    gpus: tuple[int, ...] | None
    workload: str
    mode: str
    traceparent: str
    generation: int = 0
    """Of its spec; 0 where the API server does not count."""
    kin: int = 0
    """Equal for pods that the same nodes are open to, of one scheduler and priority; 0 for one that may not go yet."""
    membership: Membership | None = None
    owner: Owner = _NO_OWNER
    """Of what percentages count."""
    spread: Owner | None = None
    """Whose replicas should be on different nodes, by the class of the pod; None where pods are packed."""
    started_s: float | None = None
    """When its kubelet took it, in whole seconds of the node's clock; None before."""


def pod_state_of(document: Object, old: PodState | None, wishes: Mapping[Key, Wish]) -> PodState:
    """What to keep of a pod; ``old``, the very object, where that says it all.

    Raises KeyError, TypeError or ValueError for a document that is no pod.
    """
    metadata, spec = document["metadata"], document.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    labels = metadata.get("labels") or {}
    key = (metadata.get("namespace", ""), metadata["name"])
    workload = str(labels.get(WORKLOAD_LABEL, ""))
    wish = wishes.get((key[0], workload), NO_WISH) if workload else NO_WISH
    status = document.get("status") or {}
    phase = status.get("phase", "")
    generation = metadata.get("generation") or 0
    # Most versions of a pod differ in its status. What it asks for is read again only where it may have changed.
    same = old is not None and old.generation == generation > 0 and bool(old.ask.units) and not workload
    ask = old.ask if old is not None and same else ask_of(document, wish)
    pod = PodState(
        metadata["uid"],
        key,
        spec.get("nodeName") or "",
        phase in _FINISHED,
        ask,
        _indices(annotations.get(INDICES_ANNOTATION)),
        workload,
        str(annotations.get(MODE_ANNOTATION, "")),
        str(annotations.get(TRACEPARENT_ANNOTATION, "")),
        generation,
        _kin(spec) if not spec.get("nodeName") else 0,
        membership_of(key[0], labels, annotations, ask, wish),
        old.owner if old is not None else owner_of(document, PODS.plural),
        old.spread if old is not None else _spread(document, ask),
        seconds_or_none(status.get("startTime")),
    )
    return old if old is not None and old == pod else pod


def _spread(document: Object, ask: Ask) -> Owner | None:
    if not ask.uses_gpus or not controller_of(document)[1]:
        return None
    spreads = class_of_pod(document).traits.placement is ClassPlacement.SPREAD
    return owner_of(document, PODS.plural) if spreads else None


def mode_of_namespace(document: Object) -> str:
    """The mode in a namespace's annotation; empty without one."""
    return read_namespace(document).mode


def _kin(spec: Mapping[str, Any]) -> int:
    if spec.get("schedulingGates"):
        return 0
    return hash(orjson.dumps([spec.get(name) for name in _DECIDE_NODES])) or 1


def _indices(text: object) -> tuple[int, ...] | None:
    """GPU indexes of an annotation; None where there is none or it cannot be one."""
    if not isinstance(text, str) or len(text) > 1000:
        return None
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 6 for part in parts):
        return None
    return tuple(map(int, parts))
