"""Pods and queues of KAI's, as far as they matter here."""

import re
from dataclasses import dataclass, replace

from kopt.cluster.client.resources import PODS, Object
from kopt.cluster.holds.hold import GATE_PREFIX, HELD_LABEL, UNDO_ANNOTATION, hold_metadata, holder_of, release
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.objects.kai import QUEUE_LABEL
from kopt.cluster.workloads.kueue.objects import DECISION_ANNOTATION, HOLDER
from kopt.controllers.preemption.kube_scheduler.views import KUEUE, PlainPod, plain_pod
from kopt.controllers.preemption.patches import advised, stamp

GATE = f"{GATE_PREFIX}preemption"
SCHEDULER = "kai-scheduler"
LEAST_NOT_PREEMPTED = 100
"""KAI preempts no pod of this priority or more."""
NO_BATCH = ("ReplicaSet", "StatefulSet", "DaemonSet", "Node")
_UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)(h|ms|m|us|µs|ns|s)")
_OTHER_RULES = ("priorityClassName", "kai.scheduler/preemptibility")
"""Labels by which KAI uses another priority than the pod's, or decides on preemption regardless of it."""


@dataclass(frozen=True)
class KaiQueue:
    """Milli-GPUs: its quota and its limit; None is any number.

    ``least_run_s``: no pod is preempted before; None where the parent queue's value applies.
    """

    quota: int | None
    limit: int | None
    parent: str = ""
    least_run_s: float | None = None


def kai_pod(pod: Object) -> PlainPod | None:
    """``open`` pods wait for KAI; ``refused``: they are held by us. None for pods that have ended."""
    result = plain_pod(pod)
    if result is None:
        return None
    labels, spec = mapping(pod["metadata"], "labels"), mapping(pod, "spec")
    queue = text(labels, QUEUE_LABEL) if text(spec, "schedulerName") == SCHEDULER else ""
    plain_rules = not any(name in labels for name in _OTHER_RULES) and bool(text(spec, "priorityClassName"))
    ours = bool(queue) and not any(name in labels for name in KUEUE)
    gates = tuple(text(item, "name") for _, item in items(spec, "schedulingGates"))
    return replace(
        result,
        queue=queue,
        gates=gates,
        open=ours and not result.node,
        refused=bool(queue) and not result.node and GATE in gates and holder_of(pod) == HOLDER,
        simple=result.simple and plain_rules,
        batch=ours
        and plain_rules
        and result.priority < LEAST_NOT_PREEMPTED
        and bool(result.owner)
        and text(result.owner, "kind") not in NO_BATCH,
    )


def kai_queue(queue: Object) -> KaiQueue:
    gpu = mapping(queue, "spec", "resources", "gpu")
    least_run = text(queue, "spec", "preemptMinRuntime")
    return KaiQueue(
        _amount(at(gpu, "quota")),
        _amount(at(gpu, "limit")),
        text(queue, "spec", "parentQueue"),
        _seconds(least_run) if least_run else None,
    )


def gated(pod: Object) -> list[Object]:
    """The JSON patch that holds a pod as it is created."""
    metadata, made = mapping(pod, "metadata"), hold_metadata(HOLDER, {"gates": [GATE]})
    operations: list[Object] = []
    for section, name in (("labels", HELD_LABEL), ("annotations", UNDO_ANNOTATION)):
        value = made[section][name]
        has_section = bool(mapping(metadata, section))
        path = f"/metadata/{section}"
        operations += [
            {"op": "add", "path": f"{path}/{name.replace('/', '~1')}", "value": value}
            if has_section
            else {"op": "add", "path": path, "value": {name: value}}
        ]
    return [*operations, {"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]


def ungated(pod: PlainPod) -> Object:
    """The patch that releases a held pod to KAI."""
    document = {
        "metadata": {
            "name": pod.key[1],
            "namespace": pod.key[0],
            "resourceVersion": pod.gpu_pod.version,
            "labels": {HELD_LABEL: HOLDER},
            "annotations": dict(pod.gpu_pod.annotations),
        },
        "spec": {"schedulingGates": [{"name": gate} for gate in pod.gates]},
    }
    return release(PODS, document)


def lasting(pod: PlainPod, until_s: float) -> Object:
    """The patch with the time until which the room made for a pod is reserved for it."""
    decision = mapping_of(pod.gpu_pod.annotations, DECISION_ANNOTATION)
    return advised(pod.gpu_pod.uid, {**decision, "until": stamp(until_s)})


def _seconds(duration: str) -> float:
    """As Go writes it: 1h30m0s."""
    return sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(duration))


def _amount(result: object) -> int | None:
    """KAI's numbers are GPUs; a negative one is no limit, and none at all is none."""
    if not isinstance(result, int | float):
        return 0
    return None if result < 0 else int(result * 1000)
