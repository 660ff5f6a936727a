"""Which gang a pod belongs to, by the labels and annotations of the controllers that make gangs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.workloads.requests.pods import NO_WISH, WORKLOAD_LABEL, Wish
from kopt.core.scheduling.placement import Ask

_MOST_PODS = 10_000
_BY_LABEL = (
    ("leaderworkerset.sigs.k8s.io/group-key", "leaderworkerset.sigs.k8s.io/size"),
    ("kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"),
    ("jobset.sigs.k8s.io/jobset-name", ""),
    ("training.kubeflow.org/job-name", ""),
    ("scheduling.x-k8s.io/pod-group", ""),
    (WORKLOAD_LABEL, ""),
)
"""The label that pods of one gang share, and the annotation that says how many there are."""
_BY_ANNOTATION = ("scheduling.k8s.io/group-name", "pod-group-name")
"""Volcano's and KAI's."""
_JOB, _INDEX = "batch.kubernetes.io/job-name", "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True, slots=True)
class Membership:
    """``gang`` is equal for the pods of one; ``pods`` is how many it says it has, 0 where it does not."""

    gang: tuple[str, str]
    pods: int = 0


def membership_of(
    namespace: str, labels: Mapping[str, Any], annotations: Mapping[str, Any], ask: Ask, wish: Wish = NO_WISH
) -> Membership | None:
    """None for a pod by itself, and for one that does not ask for whole GPUs of one kind. ``wish`` is that of its
    GPUWorkload.

    Pods of an indexed Job are a gang where each has several GPUs: single ones are as often independent tasks.
    """
    if len(ask.units) != 1:
        return None
    for label, count in _BY_LABEL:
        if (name := _text(labels.get(label))) and (label != WORKLOAD_LABEL or wish.together):
            pods = wish.gpus // ask.request.gpus.count if label == WORKLOAD_LABEL else _count(annotations.get(count))
            return Membership((namespace, f"{label}={name}"), min(pods, _MOST_PODS))
    for annotation in _BY_ANNOTATION:
        if name := _text(annotations.get(annotation)):
            return Membership((namespace, f"{annotation}={name}"))
    if ask.request.gpus.count > 1 and _INDEX in annotations and (name := _text(labels.get(_JOB))):
        return Membership((namespace, f"{_JOB}={name}"))
    return None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    text = _text(value)[:6]
    return int(text) if text.isascii() and text.isdigit() else 0
