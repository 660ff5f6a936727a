"""The queues of a cluster as they are, of all engines, and who uses them."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kopt.cluster.client.api import Kube, NotFound
from kopt.cluster.client.resources import (
    KAI_POD_GROUPS,
    KAI_QUEUES,
    KUEUE_CLUSTER_QUEUES,
    KUEUE_COHORTS,
    KUEUE_FLAVORS,
    KUEUE_LOCAL_QUEUES,
    VOLCANO_QUEUES,
    Object,
    Resource,
)
from kopt.cluster.objects.fields import count, items, text
from kopt.core.scheduling.queue_tree import MANAGED_LABEL, Engine
from kopt.core.units import counted

_KUEUE = "v1beta2"
KINDS: Mapping[Engine, tuple[Resource, ...]] = {
    Engine.KUEUE: tuple(
        replace(kind, version=_KUEUE)
        for kind in (KUEUE_FLAVORS, KUEUE_COHORTS, KUEUE_CLUSTER_QUEUES, KUEUE_LOCAL_QUEUES)
    ),
    Engine.KAI: (KAI_QUEUES,),
    Engine.VOLCANO: (VOLCANO_QUEUES,),
}
"""What a tree becomes, in the order in which objects are applied; they are deleted in the opposite one."""
ObjectKey = tuple[str, str, str]
"""(kind, namespace, name)."""


@dataclass(frozen=True)
class LiveQueues:
    """The objects of one engine, and the queues of KAI in which pod groups are."""

    engine: Engine
    objects: Mapping[ObjectKey, Object]
    busy: frozenset[str] = frozenset()

    def get(self, document: Object) -> Object | None:
        return self.objects.get(key_of_document(document))

    def names(self, kind: str) -> list[str]:
        return [name for of_kind, _, name in self.objects if of_kind == kind]

    def ours(self) -> list[Object]:
        """What carries our label, in the order in which it can be deleted: users before what they use."""
        ours = [item for item in self.objects.values() if MANAGED_LABEL in (item["metadata"].get("labels") or {})]
        order = [kind.kind for kind in KINDS[self.engine]]
        return sorted(ours, key=lambda item: (-order.index(item["kind"]), -self._depth(item)))

    def _depth(self, document: Object) -> int:
        depth, visited = 0, set[str]()
        kind, name = document["kind"], _parent(document)
        while name and name not in visited and (kind, "", name) in self.objects:
            visited.add(name)
            depth, name = depth + 1, _parent(self.objects[kind, "", name])
        return depth

    def use_of(self, document: Object, without: Iterable[ObjectKey] = ()) -> str:
        """Who uses an object, in words; empty if nobody does. ``without`` are deleted first."""
        kind, name = document["kind"], document["metadata"]["name"]
        ignored = set(without)
        if kind in ("ClusterQueue", "LocalQueue"):
            workloads = sum(
                count(document, "status", f"{stage}Workloads", default=0) for stage in ("pending", "reserving")
            )
            return f"{counted(workloads, 'workload')} in it" if workloads else ""
        if kind in ("Cohort", "ResourceFlavor"):
            # A cohort needs no object: to queues that are not ours it makes no difference that we had one.
            others = self.objects.values() if kind == "ResourceFlavor" else self.ours()
            keys = {key_of_document(item): item for item in others}
            users = [key for key, item in keys.items() if key not in ignored and _uses(item, kind, name)]
            return f"{users[0][0]} {users[0][2]} names it" if users else ""
        below = [
            key[2]
            for key, item in self.objects.items()
            if key not in ignored and key[2] != name and _parent(item) == name
        ]
        if below:
            return f"queue {below[0]} is below it"
        stages = ("pending", "running", "inqueue", "unknown")
        jobs = sum(count(document, "status", stage, default=0) for stage in stages)
        return "jobs are in it" if jobs or name in self.busy else ""


async def read_live(kube: Kube, engine: Engine) -> LiveQueues:
    """Raises NotFound where the engine, or a version of it that we know, is not installed."""
    listings = await asyncio.gather(*(kube.list(kind) for kind in KINDS[engine]))
    objects = {}
    for kind, listing in zip(KINDS[engine], listings, strict=True):
        for item in listing.items:
            # Lists leave them out of their items.
            document = {"apiVersion": kind.api_version, "kind": kind.kind, **item}
            objects[key_of_document(document)] = document
    busy = await _busy(kube) if engine is Engine.KAI else frozenset[str]()
    return LiveQueues(engine, objects, busy)


def resource_of(document: Object) -> Resource:
    """The kind of an object that a tree becomes."""
    return next(
        kind
        for kinds in KINDS.values()
        for kind in kinds
        if (kind.kind, kind.group) == (document["kind"], document["apiVersion"].partition("/")[0])
    )


def key_of_document(document: Object) -> ObjectKey:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


async def _busy(kube: Kube) -> frozenset[str]:
    """Queues of KAI with pod groups; one that has ended may still be there, and is counted."""
    try:
        groups = (await kube.list(KAI_POD_GROUPS)).items
    except NotFound:
        return frozenset()
    return frozenset(text(group, "spec", "queue") for group in groups)


def _parent(document: Object) -> str:
    return (
        text(document, "spec", "parentQueue")
        or text(document, "spec", "parent")
        or text(document, "spec", "parentName")
    )


def _uses(document: Object, kind: str, name: str) -> bool:
    if kind == "Cohort":
        return name in (text(document, "spec", "cohortName"), text(document, "spec", "parentName"))
    return any(
        text(flavor, "name") == name
        for _, group in items(document, "spec", "resourceGroups")
        for _, flavor in items(group, "flavors")
    )
