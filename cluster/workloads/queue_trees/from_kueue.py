"""ClusterQueues, Cohorts and ResourceFlavors as KaiwoQueues and KaiwoPools, and Kaiwo's own KaiwoQueueConfig.

What they compile to is what they were read from: a cohort's quota counts on top of its queues' there, and here it holds
them. LocalQueues stay as they are, as their names are what jobs name. Fields that only Kueue has go to ``spec.kueue``.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text, texts
from kopt.cluster.workloads.queue_trees.imported import Imported, NotImportable, amount, without
from kopt.core.scheduling.queue_tree import (
    DEFAULT_GPU_RESOURCE,
    GPU,
    KaiwoPool,
    KaiwoQueue,
    OtherResources,
    Reclaim,
    Share,
)

_NOBODY = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "DoesNotExist"}]}
"""The selector of no namespace, as a ClusterQueue without one has it."""
_FUNGIBILITY = {"Borrow": "MayStopSearch", "Preempt": "MayStopSearch"}
"""Words of v1beta1 in those of v1beta2."""
_TREE = ("resourceGroups", "cohort", "cohortName", "fairSharing", "preemption", "namespaceSelector", "admissionChecks")
_Quotas = dict[str, dict[str, dict[str, int]]]
"""By flavour and resource: nominalQuota, and borrowingLimit and lendingLimit where they are."""


def from_kueue(documents: Iterable[Object]) -> Imported:
    """Objects of any version of the API. What cannot be a KaiwoQueue is named in ``skipped``, and never changed."""
    by_kind: dict[str, dict[str, Object]] = {}
    namespaces: dict[str, tuple[str, ...]] = {}
    for document in documents:
        if document.get("kind") == "KaiwoQueueConfig":
            for inner, spaces in _of_config(document):
                by_kind.setdefault(inner["kind"], {})[inner["metadata"]["name"]] = inner
                namespaces[inner["metadata"]["name"]] = spaces
        else:
            by_kind.setdefault(str(document.get("kind")), {})[document["metadata"]["name"]] = document
    return _Importer(by_kind, namespaces).run()


class _Importer:
    def __init__(self, by_kind: Mapping[str, Mapping[str, Object]], namespaces: Mapping[str, tuple[str, ...]]) -> None:
        self._flavors = by_kind.get("ResourceFlavor", {})
        self._cohorts = by_kind.get("Cohort", {})
        self._cluster_queues = by_kind.get("ClusterQueue", {})
        self._namespaces = namespaces
        self._gpu = _gpu_resource(self._cluster_queues.values())
        self._skipped = [f"{kind} {name}" for kind in by_kind for name in by_kind[kind] if kind not in _IMPORTED]
        self._read: dict[str, _Quotas] = {}

    def run(self) -> Imported:
        leaf_queues = [queue for name in self._cluster_queues if (queue := self._tried(self._leaf, name)) is not None]
        by_parent: dict[str, list[str]] = {}
        for queue in leaf_queues:
            by_parent.setdefault(queue.parent, []).append(queue.name)
        for name, document in self._cohorts.items():
            by_parent.setdefault(_parent(document), []).append(name)
        quotas = {queue.name: _quotas_of(queue) for queue in leaf_queues}
        departments = []
        for name in self._bottom_up(by_parent):
            cohort = self._tried(lambda name: self._department(name, by_parent, quotas), name)
            if cohort is not None:
                departments.append(cohort)
        pools = [self._pool(name) for name in self._flavors]
        return Imported((*reversed(departments), *leaf_queues), tuple(pools), tuple(self._skipped))

    def _tried(self, read: Any, name: str) -> KaiwoQueue | None:
        try:
            queue: KaiwoQueue = read(name)
        except NotImportable as error:
            self._skipped.append(str(error))
            return None
        return queue

    def _bottom_up(self, by_parent: Mapping[str, Sequence[str]]) -> list[str]:
        """Cohorts, those below first; one that is its own ancestor is left out."""
        order, result = [name for name, item in self._cohorts.items() if not self._rises(item)], list[str]()
        for name in order:
            result.append(name)
            order += [child for child in by_parent.get(name, ()) if child in self._cohorts and child not in order]
        self._skipped += [f"Cohort {name}: it is its own ancestor" for name in self._cohorts if name not in result]
        return result[::-1]

    def _rises(self, document: Object) -> bool:
        return _parent(document) in self._cohorts

    def _leaf(self, name: str) -> KaiwoQueue:
        document = self._cluster_queues[name]
        if name in self._cohorts:
            raise NotImportable(f"ClusterQueue {name}: a Cohort has this name too, and KaiwoQueues have one each")
        spec, read = mapping(document, "spec"), self._quotas(document)
        if self._flavors and (missing := [flavor for flavor in read if flavor not in self._flavors]):
            raise NotImportable(f"ClusterQueue {name}: there is no ResourceFlavor {missing[0]}")
        weight = _weight(document)
        pools = {
            flavor: {self._name(item): _leaf_share(values, weight) for item, values in resources.items()}
            for flavor, resources in read.items()
        }
        if weight is not None and not any(pools.values()):
            raise NotImportable(f"ClusterQueue {name}: it has a weight and no quota that it could be for")
        reclaim, extra = _extra(spec)
        borrows = text(extra, "preemption", "borrowWithinCohort", "policy")
        if weight is not None and borrows not in ("", "Never"):
            why = "it has both a weight and borrowWithinCohort, which contradict each other; remove one"
            raise NotImportable(f"ClusterQueue {name}: {why}")
        return KaiwoQueue(
            name,
            _parent(document),
            pools=pools,
            namespaces=self._namespaces.get(name, ()),
            reclaim=reclaim,
            other_resources=OtherResources.REFUSED,
            kueue=extra,
        )

    def _department(self, name: str, by_parent: Mapping[str, Sequence[str]], quotas: dict[str, Any]) -> KaiwoQueue:
        document = self._cohorts[name]
        children = [child for child in by_parent.get(name, ()) if child in quotas]
        if not children:
            raise NotImportable(f"Cohort {name}: no queue is below it")
        weight, pools = _weight(document), dict[str, dict[str, Share]]()
        below = dict[tuple[str, str], int]()
        for child in children:
            for location, quota in quotas[child].items():
                below[location] = below.get(location, 0) + quota
        for flavor, resources in self._quotas(document).items():
            for item, values in resources.items():
                total = values["nominalQuota"] + below.get((flavor, self._name(item)), 0)
                share = _department_share(values, total, weight)
                pools.setdefault(flavor, {})[self._name(item)] = share
        if weight is not None and not pools:
            raise NotImportable(f"Cohort {name}: it has a weight and no quota that it could be for")
        queue = KaiwoQueue(name, _parent(document), pools=pools)
        quotas[name] = below | _quotas_of(queue)
        return queue

    def _quotas(self, document: Object) -> _Quotas:
        result: _Quotas = {}
        for _, group in items(document, "spec", "resourceGroups"):
            for _, flavor in items(group, "flavors"):
                rows = result.setdefault(text(flavor, "name"), {})
                for _, row in items(flavor, "resources"):
                    where = f"{document['kind']} {document['metadata']['name']}: {text(row, 'name')}"
                    if at(row, "nominalQuota") is None:
                        raise NotImportable(f"{where} has no nominalQuota")
                    rows[text(row, "name")] = {
                        key: amount(at(row, key), where)
                        for key in ("nominalQuota", "borrowingLimit", "lendingLimit")
                        if at(row, key) is not None
                    }
        return result

    def _name(self, resource: str) -> str:
        return GPU if resource == self._gpu else resource

    def _pool(self, name: str) -> KaiwoPool:
        spec = mapping(self._flavors[name], "spec")
        return KaiwoPool(
            name,
            {str(key): str(value) for key, value in mapping(spec, "nodeLabels").items()},
            gpu_resource=self._gpu or DEFAULT_GPU_RESOURCE,
            taints=tuple(row for _, row in items(spec, "nodeTaints")),
            tolerations=tuple(row for _, row in items(spec, "tolerations")),
            topology=text(spec, "topologyName"),
        )


_IMPORTED = ("ResourceFlavor", "Cohort", "ClusterQueue")


def _of_config(document: Object) -> Iterable[tuple[Object, tuple[str, ...]]]:
    """The objects that Kaiwo itself makes of its KaiwoQueueConfig, each with the namespaces of its LocalQueues."""
    for _, row in items(document, "spec", "clusterQueues"):
        name = {"name": text(row, "name")}
        yield {"kind": "ClusterQueue", "metadata": name, "spec": dict(mapping(row, "spec"))}, texts(row, "namespaces")
    for _, row in items(document, "spec", "resourceFlavors"):
        spec = without(row, "name", "taints")
        if at(row, "taints"):
            spec["nodeTaints"] = row["taints"]
        yield {"kind": "ResourceFlavor", "metadata": {"name": text(row, "name")}, "spec": spec}, ()
    for kind, key in (("WorkloadPriorityClass", "workloadPriorityClasses"), ("Topology", "topologies")):
        for _, row in items(document, "spec", key):
            yield {"kind": kind, "metadata": {"name": text(row, "metadata", "name")}, "spec": {}}, ()


def _parent(document: Object) -> str:
    spec = mapping(document, "spec")
    return next((name for key in ("cohortName", "cohort", "parentName", "parent") if (name := text(spec, key))), "")


def _weight(document: Object) -> int | None:
    weight = at(document, "spec", "fairSharing", "weight")
    where = f"{document['kind']} {document['metadata']['name']}: fairSharing.weight"
    return None if weight is None else amount(weight, where)


def _leaf_share(values: Mapping[str, int], weight: int | None) -> Share:
    quota = values["nominalQuota"]
    borrowed, lent = values.get("borrowingLimit"), values.get("lendingLimit")
    limit = None if borrowed is None else quota + borrowed
    return Share(quota, limit, weight, None if lent is None else quota - lent)


def _department_share(values: Mapping[str, int], quota: int, weight: int | None) -> Share:
    borrowed, lent = values.get("borrowingLimit"), values.get("lendingLimit")
    limit = None if borrowed is None else quota + borrowed
    return Share(quota, limit, weight, None if lent is None else max(0, quota - lent))


def _quotas_of(queue: KaiwoQueue) -> dict[tuple[str, str], int]:
    rows = ((pool, name, share.quota) for pool, shares in queue.pools.items() for name, share in shares.items())
    return {(pool, name): quota for pool, name, quota in rows if quota is not None}


def _extra(spec: Mapping[str, Any]) -> tuple[Reclaim | None, dict[str, Any]]:
    """How it reclaims, and what only Kueue knows."""
    extra = {key: value for key, value in spec.items() if key not in _TREE and value is not None}
    if extra.get("stopPolicy") == "None":
        del extra["stopPolicy"]
    if isinstance(extra.get("flavorFungibility"), dict):
        extra["flavorFungibility"] = {
            key: _FUNGIBILITY.get(value, value) for key, value in extra["flavorFungibility"].items()
        }
    if checks := texts(spec, "admissionChecks"):
        extra["admissionChecksStrategy"] = {"admissionChecks": [{"name": name} for name in checks]}
    selector = spec.get("namespaceSelector", _NOBODY)
    if selector != {}:
        extra["namespaceSelector"] = _NOBODY if selector is None else selector
    preemption = {"withinClusterQueue": "Never", "reclaimWithinCohort": "Never", **mapping(spec, "preemption")}
    if preemption["reclaimWithinCohort"] == "Any":
        return Reclaim.AGGRESSIVE, {**extra, "preemption": without(preemption, "reclaimWithinCohort")}
    return None, {**extra, "preemption": preemption}


def _gpu_resource(cluster_queues: Iterable[Object]) -> str:
    """The one resource that counts GPUs in all of them; empty where there are several, which keep their full names."""
    names = {
        text(row, "name")
        for document in cluster_queues
        for _, group in items(document, "spec", "resourceGroups")
        for _, flavor in items(group, "flavors")
        for _, row in items(flavor, "resources")
        if text(row, "name").endswith("/gpu")
    }
    return names.pop() if len(names) == 1 else ""
