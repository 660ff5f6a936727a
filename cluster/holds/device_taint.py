"""What we write where a GPU at fault is allocated by claims: a DeviceTaintRule for each device that is part of it.

The scheduler applies the taint of a rule as if the driver had published it, so claims go to the node's other GPUs. A
rule has a label of ours, by which the next leader, or `kopt off`, takes it away. It names one device and can be
deleted, never changed. Rules of others are left alone.
"""

import hashlib
from dataclasses import dataclass

from kopt.cluster.client.resources import COMPONENT_LABEL, PART_OF, PART_OF_LABEL, Object
from kopt.cluster.holds.node_taint import MARK_LABEL, TAINT_KEY
from kopt.cluster.objects.fields import items, mapping, text
from kopt.core.times import seconds

NODE_ANNOTATION = "kaiwo.ai/node"
GPU_ANNOTATION = "kaiwo.ai/gpu"
_COMPONENT = "health"


@dataclass(frozen=True, order=True)
class DeviceName:
    """A device, as claims are allocated it."""

    driver: str
    pool: str
    device: str


@dataclass(frozen=True)
class TaintedDevice:
    """A rule of ours. ``gpu``: the index of the GPU, on ``node``, that the device was part of when it was written.

    ``is_answered``: kube-controller-manager has seen it, so the feature gate DRADeviceTaintRules is on there.
    """

    name: DeviceName
    node: str
    gpu: str
    is_answered: bool
    created_s: float
    document: Object


def rule_of(device: DeviceName, node: str, gpu: str, code: str) -> Object:
    """The rule for one device. Two leaders would choose the same name; ``code`` says what speaks against it."""
    digest = hashlib.sha256("/".join((device.driver, device.pool, device.device)).encode()).hexdigest()
    labels = {MARK_LABEL: "true", PART_OF_LABEL: PART_OF, COMPONENT_LABEL: _COMPONENT}
    return {
        "metadata": {
            "name": f"kopt-health-{digest[:32]}",
            "labels": labels,
            "annotations": {NODE_ANNOTATION: node, GPU_ANNOTATION: gpu},
        },
        "spec": {
            "deviceSelector": {"driver": device.driver, "pool": device.pool, "device": device.device},
            "taint": {"key": TAINT_KEY, "value": code[:63], "effect": "NoSchedule"},
        },
    }


def read_rule(document: Object) -> TaintedDevice:
    """Of a DeviceTaintRule with our label; what cannot be read is empty."""
    selector, metadata = mapping(document, "spec", "deviceSelector"), mapping(document, "metadata")
    annotations = mapping(metadata, "annotations")
    return TaintedDevice(
        DeviceName(text(selector, "driver"), text(selector, "pool"), text(selector, "device")),
        text(annotations, NODE_ANNOTATION),
        text(annotations, GPU_ANNOTATION),
        any(True for _ in items(document, "status", "conditions")),
        _time_s(text(metadata, "creationTimestamp")),
        {"metadata": metadata},
    )


def _time_s(written: str) -> float:
    try:
        return seconds(written)
    except (ValueError, OverflowError):
        return 0.0
