"""Nodes and pods without GPUs, reduced to what decides whether a workload fits beside them.

A reduced object is equal to the one before it where nothing of that has changed: a node's heartbeats change nothing.
"""

from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.node_standing import NODE_ANNOTATIONS, OF_GPUS

_OF_CONTAINERS = ("containers", "initContainers")


class OtherPod(dict[str, Any]):
    """A pod without GPUs that is on a node: it holds CPU and memory there, and may be what others keep away from."""


def reduced_node(node: Object) -> Object:
    """Its labels, taints, what it offers, whether it is ready, and what is said of its GPUs."""
    metadata, spec = mapping(node, "metadata"), mapping(node, "spec")
    ready = [
        {"type": "Ready", "status": text(item, "status")}
        for _, item in items(node, "status", "conditions")
        if text(item, "type") == "Ready"
    ]
    of_gpus = [
        {name: text(item, name) for name in ("type", "status", "reason", "message")}
        for _, item in items(node, "status", "conditions")
        if OF_GPUS.search(text(item, "type"))
    ]
    return {
        "metadata": {
            "name": text(metadata, "name"),
            "labels": dict(mapping(metadata, "labels")),
            "annotations": {name: note for name in NODE_ANNOTATIONS if (note := text(metadata, "annotations", name))},
        },
        "spec": {name: spec[name] for name in ("taints", "unschedulable") if name in spec},
        "status": {
            **{name: dict(mapping(node, "status", name)) for name in ("capacity", "allocatable")},
            "conditions": ready + of_gpus,
        },
    }


def reduced_pod(pod: Object) -> OtherPod | None:
    """None for one that is on no node."""
    metadata, spec = mapping(pod, "metadata"), mapping(pod, "spec")
    if not text(spec, "nodeName"):
        return None
    kept = {
        name: metadata[name]
        for name in ("name", "namespace", "uid", "labels", "ownerReferences", "deletionTimestamp")
        if name in metadata
    }
    containers = {
        name: [
            {key: at(item, key) for key in ("name", "resources", "restartPolicy") if at(item, key) is not None}
            for _, item in items(spec, name)
        ]
        for name in _OF_CONTAINERS
    }
    others = {name: spec[name] for name in ("nodeName", "overhead", "resources", "priority") if name in spec}
    return OtherPod(metadata=kept, spec={**containers, **others}, status={"phase": text(pod, "status", "phase")})
