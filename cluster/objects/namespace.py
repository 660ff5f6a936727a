"""What a namespace says about the workloads in it."""

from dataclasses import dataclass

from kopt.cluster.client.resources import Object

MODE_ANNOTATION = "kaiwo.ai/mode"
MANAGED_LABEL = "kaiwo.ai/managed"
SYSTEM_NAMESPACES = (
    "kube-system",
    "kube-public",
    "kube-node-lease",
    "kueue-system",
    "kai-scheduler",
    "kai-resource-reservation",
    "volcano-system",
    "gpu-operator",
    "kube-amd-gpu",
    "cert-manager",
)
KAI_RESERVATIONS = ("kai-resource-reservation", "runai-reservation")
"""KAI holds each GPU that it divides by a pod of its own here; whoever shares the GPU has it."""


@dataclass(frozen=True)
class NamespaceSettings:
    """Whether it is ours to act in, and in which mode ("": it does not say)."""

    managed: bool = False
    mode: str = ""


def read_namespace(document: Object) -> NamespaceSettings:
    metadata = document["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return NamespaceSettings(labels.get(MANAGED_LABEL) == "true", str(annotations.get(MODE_ANNOTATION, "")))
