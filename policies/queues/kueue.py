"""Queues for Kueue: a Cohort for each department, a ClusterQueue for each leaf, a LocalQueue in each namespace.

Kueue counts a cohort's quota on top of its queues', and limits as what is borrowed; both are converted. Written against
Kueue 0.15 (v1beta2), whose webhook refuses limits of what has no parent. ``borrowWithinCohort`` is not written: it
contradicts fair sharing.
"""

from collections.abc import Mapping
from typing import Any

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import (
    CPU,
    GPU,
    MEMORY,
    UNLIMITED,
    Compiled,
    Engine,
    KaiwoQueue,
    NotExpressible,
    OtherResources,
    Share,
)
from kopt.core.units import format_thousandths
from kopt.policies.queues.settings import DISPLAY_NAME_ANNOTATION, Report, Settings, in_words, manifest, weight_of
from kopt.policies.queues.tree import QueueTree, TreeError

API_VERSION = "kueue.x-k8s.io/v1beta2"
UNBOUNDED = {CPU: 10**6 * 1000, MEMORY: (1 << 50) * 1000}
"""Kueue has no unlimited quota: this is more than any cluster has, and sums of it stay within 64 bits."""
_SILENT = Share()
_UNBOUNDED_COUNT = 10**6 * 1000
FAIR_SHARING = (
    "Kueue: `fairSharing: {preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]}` in its "
    "Configuration (with `enable: true` in v1beta1), read when it starts; without it weights do not count."
)
"""What weights need (kueue v0.15.0, apis/config: v1beta2 has no `enable`)."""
_ONLY = ("fairSharing", "resourceGroups", "cohort", "cohortName")
"""Fields of a ClusterQueue that follow from the tree alone."""


def compiled(tree: QueueTree, settings: Settings) -> Compiled:
    """Flavors, cohorts, ClusterQueues, LocalQueues."""
    problems = [problem for queue in tree.queues.values() for problem in _contradictions(queue)]
    problems += tree.above_parents()
    if problems:
        raise TreeError(problems)
    kueue = _Kueue(tree, settings, Report(tree.default_pool))
    objects = kueue.flavors()
    departments = [name for name in tree.queues if not tree.is_leaf(name) and name not in tree.implied]
    objects += [kueue.cohort(name) for name in departments]
    leaf_names = [name for name in tree.queues if tree.is_leaf(name)]
    objects += [kueue.cluster_queue(name) for name in leaf_names]
    objects += [local for name in leaf_names for local in kueue.local_queues(name)]
    weighed = any(weight_of(tree, name)[0] is not None for name in tree.queues)
    return Compiled(tuple(objects), tuple(kueue.report.entries), (FAIR_SHARING,) if weighed else ())


class _Kueue:
    def __init__(self, tree: QueueTree, settings: Settings, report: Report) -> None:
        self._tree, self._settings, self.report = tree, settings, report

    def flavors(self) -> list[dict[str, Any]]:
        """One for each declared pool; and the default one where no pool is declared and queues use it."""
        result = []
        for pool in self._tree.pools.values():
            spec: dict[str, Any] = {"nodeLabels": dict(pool.node_labels)} if pool.node_labels else {}
            if pool.taints:
                spec["nodeTaints"] = [dict(taint) for taint in pool.taints]
            if pool.tolerations:
                spec["tolerations"] = [dict(toleration) for toleration in pool.tolerations]
            if pool.topology:
                spec["topologyName"] = pool.topology
            result.append(manifest(API_VERSION, "ResourceFlavor", pool.name, spec))
        default = self._tree.default_pool
        if default not in self._tree.pools and any(default in self._pools(queue) for queue in self._leaf_queues()):
            result.append(manifest(API_VERSION, "ResourceFlavor", default, {}))
        return result

    def cohort(self, name: str) -> dict[str, Any]:
        queue = self._tree.queues[name]
        spec: dict[str, Any] = {"parentName": queue.parent} if queue.parent else {}
        groups = self._groups(name, {pool: list(shares) for pool, shares in queue.pools.items()})
        if groups:
            spec["resourceGroups"] = groups
        self._weight(name, spec)
        self._unsaid(queue, department=True)
        return manifest(API_VERSION, "Cohort", name, spec, annotations=_display_name(queue))

    def cluster_queue(self, name: str) -> dict[str, Any]:
        queue = self._tree.queues[name]
        spec: dict[str, Any] = {"cohortName": queue.parent} if queue.parent else {}
        spec["namespaceSelector"] = _selector(queue)
        spec["resourceGroups"] = self._groups(name, self._resources_by_pool(name))
        spec["preemption"] = self._preemption(queue)
        self._weight(name, spec)
        self._unsaid(queue)
        own = {key: value for key, value in queue.kueue.items() if key != "preemption"}
        return manifest(API_VERSION, "ClusterQueue", name, {**spec, **own}, annotations=_display_name(queue))

    def local_queues(self, name: str) -> list[dict[str, Any]]:
        return [
            manifest(API_VERSION, "LocalQueue", name, {"clusterQueue": name}, namespace=namespace)
            for namespace in self._tree.queues[name].namespaces
        ]

    def _leaf_queues(self) -> list[KaiwoQueue]:
        return [queue for name, queue in self._tree.queues.items() if self._tree.is_leaf(name)]

    def _pools(self, queue: KaiwoQueue) -> list[str]:
        return self._tree.pools_of(queue.name)

    def _resources_by_pool(self, name: str) -> dict[str, list[str]]:
        """What a leaf's quota covers, by pool: a workload that requests anything else is not admitted by Kueue."""
        queue = self._tree.queues[name]
        if queue.other_resources is OtherResources.REFUSED and queue.pools:
            return {pool: list(shares) for pool, shares in queue.pools.items()}
        resources_by_pool = {pool: self._tree.resources_of(name, pool) for pool in self._tree.pools_of(name)}
        if queue.other_resources is OtherResources.REFUSED:
            return resources_by_pool
        named = {resource for resources in resources_by_pool.values() for resource in resources}
        with_gpus = [pool for pool, resources in resources_by_pool.items() if GPU in resources] or list(
            resources_by_pool
        )
        for pool in with_gpus:
            resources_by_pool[pool] += [resource for resource in (CPU, MEMORY) if resource not in named]
        return resources_by_pool

    def _groups(self, name: str, pools: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        """Pools that share a resource are flavours of one group, and have all of its resources."""
        result = []
        for members in _joined(pools):
            resources = list(dict.fromkeys(resource for pool in members for resource in pools[pool]))
            if not resources:
                continue
            names = {pool: self._settings.pool(self._tree, pool) for pool in members}
            full = list(dict.fromkeys(names[pool].resource(item) for item in resources for pool in members))
            flavors = []
            for pool in members:
                own = {names[pool].resource(item): item for item in resources}
                flavors.append(
                    {
                        "name": pool,
                        "resources": [
                            self._amounts(name, pool, own[item], item) if item in own else _nothing(item)
                            for item in full
                        ],
                    }
                )
            result.append({"coveredResources": full, "flavors": flavors})
        return result

    def _amounts(self, name: str, pool: str, resource: str, full: str) -> dict[str, str]:
        tree = self._tree
        share, parent = tree.share(name, pool, resource), tree.queues[name].parent
        quota = tree.quota(name, pool, resource)
        free = share == _SILENT and resource in UNBOUNDED and tree.is_leaf(name)
        free = free and not tree.bounded(name, pool, resource)
        if free or quota == UNLIMITED:
            return self._unbounded(name, pool, resource, full, share)
        quota = quota or 0
        below = 0 if tree.is_leaf(name) else tree.below(name, pool, resource) or 0
        result = {"name": full, "nominalQuota": format_thousandths(quota - max(0, below))}
        if parent:
            if share.limit not in (None, UNLIMITED):
                result["borrowingLimit"] = format_thousandths(share.limit - quota)
            if share.guarantee is not None:
                result["lendingLimit"] = format_thousandths(quota - share.guarantee)
        else:
            self._rootless(name, pool, resource, share, quota)
        return result

    def _unbounded(self, name: str, pool: str, resource: str, full: str, share: Share) -> dict[str, str]:
        capacity = self._tree.capacity(pool, resource)
        most = UNBOUNDED.get(resource, _UNBOUNDED_COUNT) if capacity is None else capacity
        result = {"name": full, "nominalQuota": format_thousandths(most)}
        if self._tree.queues[name].parent:
            # What is no quota of anybody's must not be borrowed as if it were.
            result["lendingLimit"] = "0"
        if share.quota == UNLIMITED:
            text = f"Kueue has no unlimited quota: {format_thousandths(most)} is written, and none of it is lent."
            path = self.report.path(name, pool, resource, "quota")
            self.report.add(NotExpressible("UNLIMITED_QUOTA", path, text))
        for field_name, value in (("limit", share.limit), ("guarantee", share.guarantee)):
            if value is not None:
                text = f"{in_words(value)} does not count where the quota has no bound."
                path = self.report.path(name, pool, resource, field_name)
                self.report.add(NotExpressible("NO_BOUND", path, text))
        return result

    def _rootless(self, name: str, pool: str, resource: str, share: Share, quota: int) -> None:
        for field_name, value in (("limit", share.limit), ("guarantee", share.guarantee)):
            if value is not None:
                text = (
                    f"{in_words(value)} does not count: in Kueue {name} borrows from nobody and lends to nobody, as it "
                    f"has no parentQueue; it has its quota of {in_words(quota)}."
                )
                path = self.report.path(name, pool, resource, field_name)
                self.report.add(NotExpressible("NO_PARENT", path, text))

    def _preemption(self, queue: KaiwoQueue) -> dict[str, Any]:
        own = queue.kueue.get("preemption") or {}
        if queue.reclaim is None and own:
            return dict(own)
        reclaim = "Never" if queue.reclaim is not None and queue.reclaim.is_delayed else "Any"
        return {"withinClusterQueue": "LowerPriority", **own, "reclaimWithinCohort": reclaim}

    def _weight(self, name: str, spec: dict[str, Any]) -> None:
        weight, others = weight_of(self._tree, name)
        if weight is None:
            return
        spec["fairSharing"] = {"weight": format_thousandths(weight)}
        for pool, resource in others:
            other = self._tree.share(name, pool, resource).weight or 0
            text = (
                f"a queue has one weight in Kueue, {in_words(weight)}; {in_words(other)} for {resource} does not count."
            )
            path = self.report.path(name, pool, resource, "overQuotaWeight")
            self.report.add(NotExpressible("ONE_WEIGHT", path, text))

    def _unsaid(self, queue: KaiwoQueue, department: bool = False) -> None:
        name, report = queue.name, self.report
        if queue.priority is not None:
            text = f"{queue.priority} does not count: Kueue orders queues by use above quota."
            report.add(NotExpressible("QUEUE_PRIORITY", f"{name}/spec.priority", text))
        if queue.min_runtime_s is not None:
            kept = " from aggressive queues" if self._settings.delays_reclaim else ""
            text = f"Kueue evicts however short a workload has run; {queue.min_runtime_s} s are not kept{kept}."
            report.add(NotExpressible("MIN_RUNTIME", f"{name}/spec.fairness.minRuntime", text))
        delayed = queue.reclaim is not None and queue.reclaim.is_delayed
        delays = self._settings.delays_reclaim and delayed and queue.parent
        if delayed and not department and not delays:
            text = (
                "Kueue takes quota back at once or never: Never is written, and borrowers go when they end, unless "
                "`kopt controller queues` evicts them after the grace."
            )
            report.add(NotExpressible("RECLAIM_AFTER_GRACE", f"{name}/spec.fairness.reclaimStrategy", text))
        if queue.grace_s is not None and not (delays and not department):
            text = f"Kueue knows no grace before it reclaims; {queue.grace_s} s do not count."
            report.add(NotExpressible("RECLAIM_AFTER_GRACE", f"{name}/spec.fairness.gracePeriod", text))
        report.of_another(queue, Engine.KAI, queue.kai, Engine.KUEUE)
        if department:
            _of_department(queue, report)


def _of_department(queue: KaiwoQueue, report: Report) -> None:
    """Fields that count in leaves only."""
    unsupported = {
        "fairness.reclaimStrategy": queue.reclaim and queue.reclaim.value,
        "namespaces": ", ".join(queue.namespaces),
        "kueue": ", ".join(queue.kueue),
        "otherResources": "" if queue.other_resources is OtherResources.UNLIMITED else queue.other_resources.value,
    }
    for field_name, value in unsupported.items():
        if value:
            text = f"{value}: {queue.name} has queues below it, and no workloads of its own; say it in these."
            report.add(NotExpressible("OF_A_DEPARTMENT", f"{queue.name}/spec.{field_name}", text))


def _contradictions(queue: KaiwoQueue) -> list[Reason]:
    own = queue.kueue.get("preemption") or {}
    result = []
    for key in (key for key in _ONLY if key in queue.kueue):
        why = f"{queue.name}: spec.kueue.{key} follows from the tree; remove it, and say it in spec."
        result.append(Reason("FOLLOWS_FROM_TREE", why))
    if queue.reclaim is not None and "reclaimWithinCohort" in own:
        why = (
            f"{queue.name}: spec.fairness.reclaimStrategy and spec.kueue.preemption.reclaimWithinCohort say two "
            "things; remove one."
        )
        result.append(Reason("TWO_ANSWERS", why))
    borrows = (own.get("borrowWithinCohort") or {}).get("policy", "Never") != "Never"
    if borrows and any(share.weight is not None for shares in queue.pools.values() for share in shares.values()):
        why = (
            f"{queue.name}: spec.kueue.preemption.borrowWithinCohort does not go together with fair sharing, which "
            "overQuotaWeight needs; remove one."
        )
        result.append(Reason("BORROWS_AND_SHARES", why))
    return result


def _joined(pools: Mapping[str, list[str]]) -> list[list[str]]:
    """Pools that share a resource, directly or through others, in their order."""
    result: list[tuple[list[str], set[str]]] = []
    for pool, resources in pools.items():
        together = [group for group in result if group[1] & set(resources)]
        if not together:
            result.append(([pool], set(resources)))
            continue
        first, *others = together
        for other in others:
            first[0].extend(other[0])
            first[1].update(other[1])
            result.remove(other)
        first[0].append(pool)
        first[1].update(resources)
    return [sorted(members, key=list(pools).index) for members, _ in result]


def _nothing(name: str) -> dict[str, str]:
    return {"name": name, "nominalQuota": "0"}


def _selector(queue: KaiwoQueue) -> dict[str, Any]:
    if not queue.namespaces:
        return {}
    names = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(queue.namespaces)}
    return {"matchExpressions": [names]}


def _display_name(queue: KaiwoQueue) -> dict[str, str]:
    return {DISPLAY_NAME_ANNOTATION: queue.display_name} if queue.display_name else {}
