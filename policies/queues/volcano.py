"""Queues for Volcano: a Queue for each KaiwoQueue, with ``deserved``, ``capability`` and ``guarantee``.

A Volcano queue counts resources over all nodes, by name: quotas of pools that share a resource are summed. By the
contract of volcano.sh/apis 1.13; the queues need Volcano's plugin ``capacity`` with hierarchy enabled.
"""

from typing import Any

from kopt.core.scheduling.queue_tree import (
    UNLIMITED,
    Compiled,
    Engine,
    KaiwoQueue,
    NotExpressible,
    OtherResources,
)
from kopt.core.units import format_thousandths
from kopt.policies.queues.settings import (
    DISPLAY_NAME_ANNOTATION,
    Report,
    Settings,
    format_shares,
    manifest,
    weight_of,
)
from kopt.policies.queues.tree import QueueTree, TreeError

API_VERSION = "scheduling.volcano.sh/v1beta1"
ROOT = "root"
"""The queue above all, which Volcano itself creates."""
_HIGHEST_WEIGHT = 65535
_CAPACITY = "Volcano: the plugin `capacity` with `enabledHierarchy: true`, in place of `proportion`."


def compiled(tree: QueueTree, settings: Settings) -> Compiled:
    """Queues, parents before their children."""
    if problems := tree.above_parents():
        raise TreeError(problems)
    volcano = _Volcano(tree, settings)
    objects = [volcano.queue(queue) for queue in tree.queues.values()]
    for queue in tree.queues.values():
        volcano.unsaid(queue)
    return Compiled(tuple(objects), tuple(volcano.report.entries), (_CAPACITY,))


class _Volcano:
    def __init__(self, tree: QueueTree, settings: Settings) -> None:
        self._tree, self._settings, self.report = tree, settings, Report(tree.default_pool)

    def queue(self, queue: KaiwoQueue) -> dict[str, Any]:
        spec: dict[str, Any] = {"parent": queue.parent or ROOT, "reclaimable": True}
        if queue.priority is not None:
            spec["priority"] = queue.priority
        weight = self._weight(queue)
        if weight is not None:
            spec["weight"] = weight
        totals = self._totals(queue)
        for field_name in ("deserved", "capability"):
            if totals[field_name]:
                spec[field_name] = totals[field_name]
        if totals["guarantee"]:
            spec["guarantee"] = {"resource": totals["guarantee"]}
        if any(pool != self._tree.default_pool for pool in queue.pools):
            spec["affinity"] = {"nodeGroupAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [*queue.pools]}}
        named = {DISPLAY_NAME_ANNOTATION: queue.display_name} if queue.display_name else {}
        return manifest(API_VERSION, "Queue", queue.name, spec, annotations=named)

    def unsaid(self, queue: KaiwoQueue) -> None:
        name, add = queue.name, self.report.add
        if len(queue.pools) > 1:
            listed = "; ".join(f"{pool}: {format_shares(shares)}" for pool, shares in queue.pools.items())
            text = f"a Volcano queue has one quota for all of its pools and tries them in no order: {listed} is summed."
            add(NotExpressible("POOLS_SUMMED", f"{name}/spec.pools", text))
        if queue.namespaces:
            text = f"jobs of every namespace may name the queue, not of {', '.join(queue.namespaces)} alone."
            add(NotExpressible("ANY_NAMESPACE", f"{name}/spec.namespaces", text))
        if queue.min_runtime_s is not None:
            text = f"Volcano evicts however short a job has run; {queue.min_runtime_s} s are not kept."
            add(NotExpressible("MIN_RUNTIME", f"{name}/spec.fairness.minRuntime", text))
        if queue.reclaim is not None and queue.reclaim.is_delayed:
            text = "Volcano takes quota back at once, by rules of its own."
            add(NotExpressible("RECLAIM_AFTER_GRACE", f"{name}/spec.fairness.reclaimStrategy", text))
        if queue.grace_s is not None:
            text = f"Volcano knows no grace before it reclaims; {queue.grace_s} s do not count."
            add(NotExpressible("RECLAIM_AFTER_GRACE", f"{name}/spec.fairness.gracePeriod", text))
        if queue.other_resources is OtherResources.REFUSED:
            text = "resources that the queue says nothing about are without bound in Volcano."
            add(NotExpressible("OTHER_RESOURCES", f"{name}/spec.otherResources", text))
        self.report.of_another(queue, Engine.KUEUE, queue.kueue, Engine.VOLCANO)
        self.report.of_another(queue, Engine.KAI, queue.kai, Engine.VOLCANO)

    def _weight(self, queue: KaiwoQueue) -> int | None:
        weight, others = weight_of(self._tree, queue.name)
        if weight is None:
            return None
        for pool, resource in others:
            other = self._tree.share(queue.name, pool, resource).weight or 0
            self._refuse_weight(
                queue, pool, resource, f"a queue has one weight; {format_thousandths(other)} does not count."
            )
        if weight % 1000 or not 1000 <= weight <= _HIGHEST_WEIGHT * 1000:
            pool, resource = next(iter(self._weighed(queue)))
            most = (
                f"weights are whole numbers from 1 to {_HIGHEST_WEIGHT}; {format_thousandths(weight)} is none of them."
            )
            self._refuse_weight(queue, pool, resource, most)
            return None
        return weight // 1000

    def _weighed(self, queue: KaiwoQueue) -> list[tuple[str, str]]:
        return [
            (pool, name)
            for pool, shares in queue.pools.items()
            for name, share in shares.items()
            if share.weight is not None
        ]

    def _refuse_weight(self, queue: KaiwoQueue, pool: str, resource: str, text: str) -> None:
        path = self.report.path(queue.name, pool, resource, "overQuotaWeight")
        self.report.add(NotExpressible("ONE_WEIGHT", path, text))

    def _totals(self, queue: KaiwoQueue) -> dict[str, dict[str, str]]:
        """``deserved``, ``capability`` and ``guarantee`` by full resource name, over the pools."""
        sums: dict[str, dict[str, int]] = {"deserved": {}, "capability": {}, "guarantee": {}}
        free = set()
        for pool, resource in self._tree.places(queue.name):
            full = self._settings.pool(self._tree, pool).resource(resource)
            share, quota = self._tree.share(queue.name, pool, resource), self._tree.quota(queue.name, pool, resource)
            values = {"deserved": quota, "capability": share.limit, "guarantee": share.guarantee}
            for field_name, value in values.items():
                if value == UNLIMITED or (value is None and field_name == "capability"):
                    free.add((field_name, full))
                elif value is not None:
                    sums[field_name][full] = sums[field_name].get(full, 0) + value
            if share.quota == UNLIMITED:
                text = "unlimited: Volcano has no such quota; nothing is written, and the queue has what is idle."
                path = self.report.path(queue.name, pool, resource, "quota")
                self.report.add(NotExpressible("UNLIMITED_QUOTA", path, text))
        return {
            field_name: {
                full: format_thousandths(value) for full, value in amounts.items() if (field_name, full) not in free
            }
            for field_name, amounts in sums.items()
        }
