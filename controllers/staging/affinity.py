"""How pods are kept to the nodes that have a copy of their data."""

import copy
from collections.abc import Sequence

from kopt.cluster.client.resources import Object

_HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def affinity_to(hostnames: Sequence[str], pod: Object, *, only_adds: bool = False) -> Object:
    """The ``affinity`` of a pod's spec that keeps it on these hosts, beside its own.

    Hosts that were written earlier, and have no copy any more, are replaced; with ``only_adds`` terms are only added
    to, as a pod that waits behind a gate allows nothing else.
    """
    affinity: Object = copy.deepcopy(pod.get("affinity") or {})
    required = affinity.setdefault("nodeAffinity", {}).setdefault(_REQUIRED, {})
    terms = required.get("nodeSelectorTerms") or [{}]
    for term in terms:
        before = list(term.get("matchExpressions") or ())
        own = [] if only_adds else [item for item in before if item.get("key") == _HOSTNAME]
        wanted = {"key": _HOSTNAME, "operator": "In", "values": _in_both(hostnames, own)}
        term["matchExpressions"] = [item for item in before if item not in own] + [wanted]
    required["nodeSelectorTerms"] = terms
    return affinity


def _in_both(wanted: Sequence[str], own: Sequence[Object]) -> list[str]:
    result = set(wanted)
    for item in own:
        if item.get("operator") == "In":
            result &= set(item.get("values") or ())
        elif item.get("operator") == "NotIn":
            result -= set(item.get("values") or ())
    return sorted(result) or sorted(wanted)
