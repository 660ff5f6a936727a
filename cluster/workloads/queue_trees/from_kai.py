"""KAI's Queues as KaiwoQueues. What a Queue does not say is 0 in KAI, and is written as 0."""

from collections.abc import Iterable, Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, mapping, text
from kopt.cluster.workloads.queue_trees.imported import Imported, NotImportable, scaled, without
from kopt.core.scheduling.queue_tree import (
    ADDED_LABEL,
    CPU,
    DEFAULT_POOL,
    GPU,
    MEMORY,
    UNLIMITED,
    KaiwoQueue,
    OtherResources,
    Share,
)

_UNITS = {CPU: 1, MEMORY: 10**9, GPU: 1000}
_NODE_POOL_LABEL = "kai.scheduler/node-pool"
_TREE = ("displayName", "parentQueue", "priority", "resources")


def from_kai(documents: Iterable[Object]) -> Imported:
    """Queues of KAI's. What cannot be a KaiwoQueue is named in ``skipped``, and never changed."""
    queues, skipped = list[KaiwoQueue](), list[str]()
    added = {}
    rows = list(documents)
    for document in rows:
        label = text(document, "metadata", "labels", ADDED_LABEL)
        if label:
            added[document["metadata"]["name"]] = label
    for document in rows:
        if document["metadata"]["name"] not in added:
            try:
                queues.append(_queue(document, added, skipped))
            except NotImportable as error:
                skipped.append(str(error))
    return Imported(tuple(queues), (), tuple(skipped))


def _queue(document: Object, added: Mapping[str, str], skipped: list[str]) -> KaiwoQueue:
    name, spec = document["metadata"]["name"], mapping(document, "spec")
    pool = text(document, "metadata", "labels", _NODE_POOL_LABEL) or DEFAULT_POOL
    parent, priority = text(spec, "parentQueue"), at(spec, "priority")
    return KaiwoQueue(
        name,
        "" if parent in added else parent,
        text(spec, "displayName"),
        priority if isinstance(priority, int) else None,
        {pool: {resource: _share(spec, resource, name, skipped) for resource in _UNITS}},
        other_resources=OtherResources.UNLIMITED,
        kai=without(spec, *_TREE),
    )


def _share(spec: Mapping[str, Any], resource: str, name: str, skipped: list[str]) -> Share:
    row = mapping(spec, "resources", resource)
    where = f"Queue {name}: resources.{resource}"
    quota, limit = (_bound(row.get(key) or 0, _UNITS[resource], f"{where}.{key}") for key in ("quota", "limit"))
    if limit != UNLIMITED and (quota == UNLIMITED or quota > limit):
        # KAI lets it use its limit and no more, whatever the quota says.
        skipped.append(f"{where}: the quota is written as the limit, which binds")
        quota = limit
    return Share(quota, limit, scaled(row.get("overQuotaWeight") or 0, 1000, f"{where}.overQuotaWeight"))


def _bound(value: Any, unit: int, where: str) -> int:
    return UNLIMITED if value == -1 else scaled(value, unit, where)
