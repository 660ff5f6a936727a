"""Pods that are alike get the answer that the first of them got: thousands come from one template.

Reading and judging a pod is most of what a review costs this process. What is asked here is only whether all that the
answer rests on is the same; what a pod has for itself (name, uid, books of its fields, a generated name of the volume
with its token) decides nothing.
"""

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import orjson

from kopt.cluster.resources import Object
from kopt.cluster.staged_data import ASKING
from kopt.controllers.webhook.judging import View
from kopt.controllers.webhook.mutating import is_traced
from kopt.controllers.webhook.objects import mapping
from kopt.controllers.webhook.policy import ConformancePolicy
from kopt.controllers.webhook.review import Review

A = TypeVar("A")
_MOST = 512
_LARGEST_BYTES = 16 << 10
_OWN = frozenset({"name", "generateName", "uid", "creationTimestamp", "managedFields"})


class Repeats(Generic[A]):
    """Answers by what they rest on, the newest ``_MOST``."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._policy: ConformancePolicy | None = None
        self._known: dict[Hashable, A] = {}

    def key(self, review: Review, traceparent: str) -> Hashable | None:
        """What the answer to a pod's creation rests on; None where that is more: its name, its uid, or whether somebody
        lives who would let go what waits for its data."""
        policy = self._view.policy
        if policy is not self._policy:
            self._known.clear()
            self._policy = policy
        if review.kind != "Pod" or review.group or review.operation != "CREATE":
            return None
        if not ASKING.isdisjoint(mapping(review.object, "metadata", "annotations")):
            return None
        if policy.rollout.picks_by_name or is_traced(review, policy, traceparent):
            return None
        template = _template(review.object)
        if template is None:
            return None
        return (template, review.namespace, self._view.namespace(review.namespace), review.groups, self._view.moment())

    def find(self, key: Hashable) -> A | None:
        return self._known.get(key)

    def keep(self, key: Hashable, answer: A) -> None:
        while len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = answer


def _template(pod: Object) -> bytes | None:
    """Everything of a pod but its own; None for one that is too large to be kept, or no JSON that can be written."""
    metadata = {key: value for key, value in mapping(pod, "metadata").items() if key not in _OWN}
    spec = dict(mapping(pod, "spec"))
    spec.pop("volumes", None)
    for part in ("containers", "initContainers"):
        if isinstance(found := spec.get(part), list):
            spec[part] = [_unmounted(one) for one in found]
    try:
        written = orjson.dumps((metadata, spec))
    except TypeError:
        return None
    return written if len(written) <= _LARGEST_BYTES else None


def _unmounted(container: Any) -> Any:
    if not isinstance(container, dict):
        return container
    return {key: value for key, value in container.items() if key != "volumeMounts"}
