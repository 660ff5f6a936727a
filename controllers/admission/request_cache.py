"""Pods that are alike get the answer that the first of them got: thousands come from one template.

Reading and judging a pod is most of what a review costs this process. What is asked here is only whether all that the
answer rests on is the same; what a pod has for itself (name, uid, books of its fields, a generated name of the volume
with its token) decides nothing.
"""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import orjson

from kopt.cluster.admission.review import Review
from kopt.cluster.client.resources import Object
from kopt.cluster.objects.custom.staged_data import ASKING
from kopt.cluster.objects.fields import mapping
from kopt.controllers.admission.evaluation import ClusterState
from kopt.controllers.admission.mutating import is_traced
from kopt.controllers.admission.policy import ConformancePolicy
from kopt.policies.admission.hardware import HARDWARE_KEY, MEMORY_KEY

A = TypeVar("A")
_MOST = 512
_NODES = frozenset({HARDWARE_KEY, MEMORY_KEY})
_LARGEST_BYTES = 16 << 10
_OWN = frozenset({"name", "generateName", "uid", "creationTimestamp", "managedFields"})


class Repeats(Generic[A]):
    """Answers by what they rest on, the newest ``_MOST``."""

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._policy: ConformancePolicy | None = None
        self._entries: dict[Hashable, A] = {}

    def key(self, review: Review, traceparent: str) -> Hashable | None:
        """What the answer to a pod's creation rests on; None where that is more: its name, its uid, what nodes have, or
        whether somebody lives who would let go what waits for its data."""
        policy = self._cluster.policy
        if policy is not self._policy:
            self._entries.clear()
            self._policy = policy
        if review.kind != "Pod" or review.group or review.operation != "CREATE":
            return None
        if any(not _NODES.isdisjoint(mapping(review.object, "metadata", part)) for part in ("annotations", "labels")):
            return None
        if not ASKING.isdisjoint(mapping(review.object, "metadata", "annotations")):
            return None
        if policy.rollout.picks_by_name or is_traced(review, policy, traceparent):
            return None
        template = _template(review.object)
        if template is None:
            return None
        return (
            template,
            review.namespace,
            self._cluster.namespace(review.namespace),
            review.groups,
            self._cluster.version(),
        )

    def find(self, key: Hashable) -> A | None:
        return self._entries.get(key)

    def keep(self, key: Hashable, answer: A) -> None:
        while len(self._entries) >= _MOST:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = answer


def _template(pod: Object) -> bytes | None:
    """Everything of a pod but its own; None for one that is too large to be kept, or no JSON that can be written."""
    metadata = {key: value for key, value in mapping(pod, "metadata").items() if key not in _OWN}
    spec = dict(mapping(pod, "spec"))
    spec.pop("volumes", None)
    for part in ("containers", "initContainers"):
        if isinstance(result := spec.get(part), list):
            spec[part] = [_unmounted(item) for item in result]
    try:
        written = orjson.dumps((metadata, spec))
    except TypeError:
        return None
    return written if len(written) <= _LARGEST_BYTES else None


def _unmounted(container: Any) -> Any:
    if not isinstance(container, dict):
        return container
    return {key: value for key, value in container.items() if key != "volumeMounts"}
