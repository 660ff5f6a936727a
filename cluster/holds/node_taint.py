"""What we write on a Node of which the GPUs are at fault: a taint, a condition, and the mark by which it is taken back.

The mark, a label, is written before the condition and with the taint, and goes after both: whatever dies in between
leaves nothing of ours without it. It is not that of ``cluster.holds.hold``, of which there is one for each object: GPUs
of a node that is held for something else may fail, too. Taints and conditions of others are never changed.
"""

from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import items, mapping, text

TAINT_KEY = MARK_LABEL = "kaiwo.ai/gpu-unhealthy"
CONDITION = "GPUHealthy"
_OURS = "KoptHealth"
"""What reasons of our condition begin with: another system's condition of the same type is left alone."""
_LONGEST = 1024


def is_tainted(node: Object) -> bool:
    """Whether our taint is on it."""
    return any(text(taint, "key") == TAINT_KEY for _, taint in items(node, "spec", "taints"))


def is_marked(node: Object) -> bool:
    """Whether anything of ours may be on it."""
    return bool(text(node, "metadata", "labels", MARK_LABEL))


def mark() -> Object:
    """The ``metadata`` of a merge patch that marks a node."""
    return {"labels": {MARK_LABEL: "true"}}


def given_back(node: Object) -> Object:
    """The merge patch that takes our taint and the mark away, once the condition is gone."""
    return {"metadata": {"labels": {MARK_LABEL: None}}} | without_taint(node)


def with_taint(node: Object, value: str) -> Object:
    """The ``spec`` of a merge patch that adds our taint."""
    others = [taint for _, taint in items(node, "spec", "taints") if text(taint, "key") != TAINT_KEY]
    return {"taints": [*others, {"key": TAINT_KEY, "value": value, "effect": "NoSchedule"}]}


def without_taint(node: Object) -> Object:
    """The part of a merge patch that takes our taint away; empty where there is none."""
    if not is_tainted(node):
        return {}
    others = [taint for _, taint in items(node, "spec", "taints") if text(taint, "key") != TAINT_KEY]
    return {"spec": {"taints": others or None}}


def our_condition(node: Object) -> Mapping[str, Any]:
    """Our condition; empty where there is none, or only another system's."""
    return next(
        (
            item
            for _, item in items(node, "status", "conditions")
            if text(item, "type") == CONDITION and text(item, "reason").startswith(_OURS)
        ),
        {},
    )


def has_others_condition(node: Object) -> bool:
    """Whether another system writes the condition."""
    kinds = [item for _, item in items(node, "status", "conditions") if text(item, "type") == CONDITION]
    return bool(kinds) and not our_condition(node)


def with_condition(node: Object, grade: str, message: str, at: str) -> Object:
    """A merge patch of the status with the condition; it fails with Conflict if the node has changed since."""
    now = {
        "type": CONDITION,
        "status": "False",
        "reason": f"{_OURS}{grade}",
        "message": message[:_LONGEST],
        "lastHeartbeatTime": at,
        "lastTransitionTime": text(our_condition(node), "lastTransitionTime") or at,
    }
    return _conditions(node, [now])


def without_condition(node: Object) -> Object | None:
    """A merge patch of the status without our condition; None where there is none."""
    return _conditions(node, []) if our_condition(node) else None


def _conditions(node: Object, ours: list[Object]) -> Object:
    mine = our_condition(node)
    others = [item for _, item in items(node, "status", "conditions") if item is not mine]
    metadata = mapping(node, "metadata")
    return {
        "metadata": {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "status": {"conditions": [*others, *ours]},
    }
