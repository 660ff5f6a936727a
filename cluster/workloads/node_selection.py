"""On which nodes a pod may run, by node selector, required node affinity and taints, as kube-scheduler reads them.

What is not understood excludes the node.
"""

from collections.abc import Collection, Mapping, Sequence

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text, texts

GPU_PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
"""Labels of nodes that name their GPUs."""
_REQUIRED = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_REPELS = ("NoSchedule", "NoExecute")
_PASSING = ("node.kubernetes.io/",)
"""Taints that come and go with a node's condition."""


def why_closed(node: Object) -> str | None:
    """Why a node takes no pods, whatever they tolerate; None where it does."""
    if at(node, "spec", "unschedulable"):
        return "its node is cordoned"
    ready = (item for _, item in items(node, "status", "conditions") if text(item, "type") == "Ready")
    return "its node is not ready" if any(text(item, "status") != "True" for item in ready) else None


def runs_on(pod: Object, labels: Mapping[str, str], taints: Sequence[Object]) -> bool:
    """Whether a pod of this spec may run on a node with these labels and taints."""
    if not mapping(pod, "nodeSelector").items() <= labels.items():
        return False
    terms = [term for _, term in items(pod, *_REQUIRED)]
    if terms and not any(_matches(term, labels) for term in terms):
        return False
    tolerations = [item for _, item in items(pod, "tolerations")]
    return all(_is_tolerated(taint, tolerations) for taint in taints)


def matches_labels(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector selects what has these labels; an empty one selects all, what is none nothing."""
    if not isinstance(selector, dict):
        return False
    expressions = [item for _, item in items(selector, "matchExpressions")]
    return mapping(selector, "matchLabels").items() <= labels.items() and all(
        _holds(expression, labels) for expression in expressions
    )


def is_tolerated(taint: Object, tolerations: Sequence[Object]) -> bool:
    """Whether pods with these tolerations may be sent to a node with a taint; those of node conditions count, too."""
    return text(taint, "effect") not in _REPELS or any(_tolerates(toleration, taint) for toleration in tolerations)


def wanted_labels(pod: Object, names: Collection[str]) -> set[str]:
    """The values of any of these labels that a pod's nodes must have, by selector or affinity."""
    result = {str(value) for name, value in mapping(pod, "nodeSelector").items() if name in names}
    for _, term in items(pod, *_REQUIRED):
        for _, item in items(term, "matchExpressions"):
            if text(item, "key") in names and text(item, "operator") == "In":
                result |= set(texts(item, "values"))
    return result


def _matches(term: Object, labels: Mapping[str, str]) -> bool:
    expressions = [item for _, item in items(term, "matchExpressions")]
    return (
        bool(expressions)
        and "matchFields" not in term
        and all(_holds(expression, labels) for expression in expressions)
    )


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    operator, values = text(expression, "operator"), texts(expression, "values")
    value = labels.get(text(expression, "key"))
    match operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            return _compares(operator, value, values)
        case _:
            return False


def _compares(operator: str, value: str | None, values: Sequence[str]) -> bool:
    try:
        number, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return number > bound if operator == "Gt" else number < bound


def _is_tolerated(taint: Object, tolerations: Sequence[Object]) -> bool:
    key, effect = text(taint, "key"), text(taint, "effect")
    if effect not in _REPELS or key.startswith(_PASSING):
        return True
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Object, taint: Object) -> bool:
    same_key = text(toleration, "key") == text(taint, "key")
    if text(toleration, "effect") not in ("", text(taint, "effect")):
        return False
    if text(toleration, "operator") == "Exists":
        return same_key or not text(toleration, "key")
    return same_key and text(toleration, "value") == text(taint, "value")
