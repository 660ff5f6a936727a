"""What queues may use of a resource, as it stands in their specs, and lending on top of it.

What a queue owns is kept in the marks of ``cluster.held`` on the queue itself, with what stands there instead:
``{"quota": [{"at": [...], "own": ..., "set": ...}]}``. Where somebody else has written meanwhile, that is what the
queue owns.
"""

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kopt.cluster.resources import KAI_QUEUES, KUEUE_CLUSTER_QUEUES, VOLCANO_QUEUES, Object, Resource
from kopt.core.units import UnitError, parse_bytes

Place = tuple[str, ...]
"""Inside a queue's spec: (flavour, resource) of Kueue, (field,) of KAI's GPUs, (resource,) of Volcano."""
_QUANTITY = re.compile(r"\d+(\.\d+)?([A-Za-z]{0,2}|[eE]\d+)")
QUOTA = "quota"
"""The name in ``kaiwo.ai/held-undo``."""


def value_at(resource: Resource, document: Object, place: Place) -> Any:
    """What stands there; None for nothing."""
    spec = document.get("spec") or {}
    if resource == KUEUE_CLUSTER_QUEUES:
        found = _quotas(spec).get(place)
        return None if found is None else str(found.get("nominalQuota", "0"))
    return _parent(resource, spec).get(place[-1])


def with_values(resource: Resource, document: Object, values: Mapping[Place, Any]) -> Object:
    """The ``spec`` of a merge patch that writes them; places that are gone are left out."""
    if resource == KUEUE_CLUSTER_QUEUES:
        groups = copy.deepcopy((document.get("spec") or {}).get("resourceGroups") or [])
        for place, found in _quotas({"resourceGroups": groups}).items():
            if place in values:
                found["nominalQuota"] = values[place]
        return {"resourceGroups": groups}
    changes = {place[-1]: value for place, value in values.items()}
    return {"resources": {"gpu": changes}} if resource == KAI_QUEUES else {"capability": changes}


def restored(resource: Resource, document: Object, undo: Mapping[str, Any] | None) -> Object:
    """The changes that give a queue back what it owns; none where its marks say nothing."""
    values = {place: own for place, (own, stands) in noted(undo).items()
              if is_same(value_at(resource, document, place), stands)
              # What people have made of the marks must not be what the server refuses for ever.
              and (resource == KAI_QUEUES or _QUANTITY.fullmatch(str(own)))}  # fmt: skip
    return {"spec": with_values(resource, document, values)} if values else {}


def is_same(one: Any, other: Any) -> bool:
    """Whether two quantities are one amount: of what was written as 1000, servers make 1k."""
    try:
        return bool(parse_bytes(str(one)) == parse_bytes(str(other)))
    except UnitError:
        return bool(one == other)


def noted(undo: Mapping[str, Any] | None) -> Mapping[Place, tuple[Any, Any]]:
    """What its marks say: by place what the queue owns and what was written instead."""
    rows = (undo or {}).get(QUOTA)
    found = {}
    for one in rows if isinstance(rows, list) else ():
        place = one.get("at") if isinstance(one, dict) else None
        if isinstance(place, list) and place and all(isinstance(step, str) for step in place):
            found[tuple(place)] = (one.get("own"), one.get("set"))
    return MappingProxyType(found)


def note(values: Mapping[Place, tuple[Any, Any]]) -> Object:
    """The other way round, for the marks."""
    return {QUOTA: [{"at": list(place), "own": own, "set": stands} for place, (own, stands) in values.items()]}


def _quotas(spec: Mapping[str, Any]) -> dict[Place, Object]:
    return {
        (flavor["name"], one["name"]): one
        for group in spec.get("resourceGroups") or () for flavor in group.get("flavors") or ()
        for one in flavor.get("resources") or ()
    }  # fmt: skip


def _parent(resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    if resource == VOLCANO_QUEUES:
        return spec.get("capability") or {}
    return (spec.get("resources") or {}).get("gpu") or {}
