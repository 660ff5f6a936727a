"""Pods with GPUs that a node is emptied of before its device plugin starts anew, and those that nobody may move."""

from collections.abc import Iterable, Sequence

from kopt.cluster.checkpoints.status import STATE
from kopt.cluster.client.api import ApiError, Kube, NotFound
from kopt.cluster.client.resources import Object, key_of
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.runtime.eviction import evict_pod
from kopt.core.workload.checkpoint import JobState

_MAY_BE_EVICTED = "cluster-autoscaler.kubernetes.io/safe-to-evict"


def unevictable(pods: Iterable[Object]) -> list[str]:
    """Those that a drain would not move, each with why: as ``kubectl drain`` holds it without force."""
    result = []
    for pod in pods:
        annotations, kind = mapping(pod, "metadata", "annotations"), _controller_kind(pod)
        name = "/".join(key_of(pod))
        if "deletionTimestamp" in pod["metadata"]:
            continue
        if text(annotations, _MAY_BE_EVICTED) == "false":
            result.append(f"{name} (its annotation safe-to-evict forbids it)")
        elif kind in ("", "Node"):
            result.append(f"{name} (nothing would create it anew)")
        elif kind == "DaemonSet":
            result.append(f"{name} (its DaemonSet would start it here again)")
    return result


async def evict_pods(kube: Kube, pods: Sequence[Object], *, dry_run: bool = False) -> list[str]:
    """Every pod that does not end yet; what kept one from being evicted. Raises ApiError but where a disruption budget
    forbids it. A pod that writes a checkpoint is left until it has."""
    kept = []
    for pod in pods:
        if "deletionTimestamp" in pod["metadata"]:
            continue
        name = "/".join(key_of(pod))
        if text(pod, "metadata", "annotations", STATE) == JobState.CKPT_WRITING.value:
            kept.append(f"{name} writes a checkpoint")
            continue
        try:
            await evict_pod(kube, key_of(pod), pod["metadata"]["uid"], dry_run=dry_run)
        except NotFound:
            continue
        except ApiError as error:
            if error.status != 429:
                raise
            kept.append(f"{name}: {error.message}")
    return kept


def _controller_kind(pod: Object) -> str:
    references = [item for _, item in items(pod, "metadata", "ownerReferences") if at(item, "controller") is True]
    return text(references[0], "kind") if references else ""
