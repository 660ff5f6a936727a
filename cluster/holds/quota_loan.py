"""What queues may use of a resource, as it stands in their specs, and lending on top of it.

What a queue owns is kept in the marks of ``cluster.holds.hold`` on the queue itself, with what stands there instead:
``{"quota": [{"at": [...], "own": ..., "set": ...}]}``. Where another value was written since, that is what the
queue owns.
"""

import copy
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kopt.cluster.client.resources import KAI_QUEUES, KUEUE_CLUSTER_QUEUES, VOLCANO_QUEUES, Object, Resource
from kopt.core.units import UnitError, parse_bytes

QuotaPath = tuple[str, ...]
"""Inside a queue's spec: (flavour, resource) of Kueue for the nominal quota, with LENDING_LIMIT as third for what of it
leaves the queue; (field,) of KAI's GPUs; (resource,) of Volcano."""
LENDING_LIMIT = "lendingLimit"
_QUANTITY = re.compile(r"\d+(\.\d+)?([A-Za-z]{0,2}|[eE]\d+)")
QUOTA = "quota"
"""The name in ``kaiwo.ai/held-undo``."""


def value_at(resource: Resource, document: Object, path: QuotaPath) -> Any:
    """What stands there; None for nothing."""
    spec = document.get("spec") or {}
    if resource == KUEUE_CLUSTER_QUEUES:
        result = _quotas(spec).get(path[:2])
        if result is None or path[2:] == (LENDING_LIMIT,):
            return None if result is None else result.get(LENDING_LIMIT)
        return str(result.get("nominalQuota", "0"))
    return _parent(resource, spec).get(path[-1])


def with_values(resource: Resource, document: Object, values: Mapping[QuotaPath, Any]) -> Object:
    """The ``spec`` of a merge patch that writes them; places that are gone are left out."""
    if resource == KUEUE_CLUSTER_QUEUES:
        groups = copy.deepcopy((document.get("spec") or {}).get("resourceGroups") or [])
        for path, result in _quotas({"resourceGroups": groups}).items():
            if path in values:
                result["nominalQuota"] = values[path]
            if (limit := (*path, LENDING_LIMIT)) in values:
                result[LENDING_LIMIT] = values[limit]
                if values[limit] is None:
                    del result[LENDING_LIMIT]
        return {"resourceGroups": groups}
    changes = {path[-1]: value for path, value in values.items()}
    return {"resources": {"gpu": changes}} if resource == KAI_QUEUES else {"capability": changes}


def restored(resource: Resource, document: Object, undo: Mapping[str, Any] | None) -> Object:
    """The changes that give a queue back what it owns; none where its marks say nothing."""
    values = {
        path: own
        for path, (own, stands) in quota_from_undo(undo).items()
        if is_same(value_at(resource, document, path), stands)
        # What people have made of the marks must not be what the server refuses for ever.
        and (resource == KAI_QUEUES or _QUANTITY.fullmatch(str(own)) or (own is None and LENDING_LIMIT in path))
    }
    return {"spec": with_values(resource, document, values)} if values else {}


def is_same(item: Any, other: Any) -> bool:
    """Whether two quantities are one amount: of what was written as 1000, servers make 1k."""
    try:
        return bool(parse_bytes(str(item)) == parse_bytes(str(other)))
    except UnitError:
        return bool(item == other)


def quota_from_undo(undo: Mapping[str, Any] | None) -> Mapping[QuotaPath, tuple[Any, Any]]:
    """What its marks say: by place what the queue owns and what was written instead."""
    rows = (undo or {}).get(QUOTA)
    result = {}
    for row in rows if isinstance(rows, list) else ():
        path = row.get("at") if isinstance(row, dict) else None
        if isinstance(path, list) and path and all(isinstance(step, str) for step in path):
            result[tuple(path)] = (row.get("own"), row.get("set"))
    return MappingProxyType(result)


def quota_undo(values: Mapping[QuotaPath, tuple[Any, Any]]) -> Object:
    """The other way round, for the marks."""
    return {QUOTA: [{"at": list(path), "own": own, "set": stands} for path, (own, stands) in values.items()]}


def _quotas(spec: Mapping[str, Any]) -> dict[QuotaPath, Object]:
    return {
        (flavor["name"], resource["name"]): resource
        for group in spec.get("resourceGroups") or ()
        for flavor in group.get("flavors") or ()
        for resource in flavor.get("resources") or ()
    }


def _parent(resource: Resource, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    if resource == VOLCANO_QUEUES:
        return spec.get("capability") or {}
    return (spec.get("resources") or {}).get("gpu") or {}
