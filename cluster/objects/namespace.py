"""What a namespace says about the workloads in it."""

from dataclasses import dataclass

from kopt.cluster.client.resources import Object

MODE_ANNOTATION = "kaiwo.ai/mode"
MANAGED_LABEL = "kaiwo.ai/managed"


@dataclass(frozen=True)
class NamespaceView:
    """Whether it is ours to act in, and in which mode ("": it does not say)."""

    managed: bool = False
    mode: str = ""


def namespace_view(document: Object) -> NamespaceView:
    metadata = document["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return NamespaceView(labels.get(MANAGED_LABEL) == "true", str(annotations.get(MODE_ANNOTATION, "")))
