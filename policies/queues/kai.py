"""Queues for KAI Scheduler: a Queue for each KaiwoQueue, in each of its pools.

KAI has quotas, limits, weights, priorities and minimum run times of its own. It schedules nothing that names a
top-level queue (KAI-Scheduler#621): a KaiwoQueue without parent and children gets a queue above it with the same
bounds, so that jobs keep its name. What is not written is 0 in KAI, where it is without bound here; so all is written.
Written against KAI 0.12.
"""

from typing import Any

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import (
    ADDED_LABEL,
    CPU,
    GPU,
    MEMORY,
    UNLIMITED,
    Compiled,
    Engine,
    KaiwoQueue,
    NotExpressible,
    OtherResources,
)
from kopt.policies.queues.settings import Report, Settings, format_shares, in_words, manifest
from kopt.policies.queues.tree import QueueTree, TreeError

API_VERSION = "scheduling.run.ai/v2"
NODE_POOL_LABEL = "kai.scheduler/node-pool"
ROOT_SUFFIX = "-root"
_UNITS = {CPU: 1, MEMORY: 10**9, GPU: 1000}
"""Thousandths in what KAI counts: millicores, megabytes, GPUs."""
_NO_BOUND = -1


def compiled(tree: QueueTree, settings: Settings) -> Compiled:
    """Queues, parents before their children, pool by pool."""
    kai = _Kai(tree, settings)
    objects = [queue for pool in kai.pools for queue in kai.queues(pool)]
    names = [queue["metadata"]["name"] for queue in objects]
    duplicates = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if duplicates:
        name = duplicates[0]
        why = f"KAI would have two Queues {name}: one is made for a pool or for a root queue; rename a KaiwoQueue."
        raise TreeError([Reason("TWO_QUEUES", why)])
    for queue in tree.queues.values():
        kai.unsaid(queue)
    named = [pool for pool in kai.pools if pool != tree.default_pool]
    requires = (f"KAI: a scheduling shard for each node pool ({', '.join(named)}).",) if named else ()
    return Compiled(tuple(objects), tuple(kai.report.entries), requires)


def pool_queues(tree: QueueTree) -> dict[str, tuple[str, str]]:
    """The KaiwoQueue and the pool of each of KAI's queues that jobs name."""
    return _Kai(tree, Settings()).leaves()


class _Kai:
    def __init__(self, tree: QueueTree, settings: Settings) -> None:
        self._tree, self._settings, self.report = tree, settings, Report(tree.default_pool)
        self._pools: dict[str, list[str]] = {}
        for name in reversed(list(tree.queues)):
            below = [pool for child in tree.children(name) for pool in self._pools[child]]
            self._pools[name] = list(dict.fromkeys([*below, *(tree.pools_of(name) if tree.is_leaf(name) else ())]))
        used = [pool for name in tree.queues for pool in self._pools[name]]
        self.pools = list(dict.fromkeys(used))

    def queues(self, pool: str) -> list[dict[str, Any]]:
        result = []
        for name, queue in self._tree.queues.items():
            if pool not in self._pools[name]:
                continue
            spec = self._spec(queue, pool)
            labels = [] if pool == self._tree.default_pool else [(NODE_POOL_LABEL, pool)]
            if queue.parent:
                spec["parentQueue"] = self._name(queue.parent, pool)
            elif self._tree.is_leaf(name):
                root = f"{self._name(name, pool)}{ROOT_SUFFIX}"
                added = [*labels, (ADDED_LABEL, name)]
                result.append(manifest(API_VERSION, "Queue", root, dict(spec), labels=added))
                spec["parentQueue"] = root
            result.append(manifest(API_VERSION, "Queue", self._name(name, pool), spec, labels=labels))
        return result

    def leaves(self) -> dict[str, tuple[str, str]]:
        leaves = filter(self._tree.is_leaf, self._tree.queues)
        return {self._name(name, pool): (name, pool) for name in leaves for pool in self._pools[name]}

    def unsaid(self, queue: KaiwoQueue) -> None:
        name, report = queue.name, self.report
        for pool, shares in queue.pools.items():
            for resource, share in shares.items():
                if resource not in _UNITS:
                    what = format_shares({resource: share})
                    text = f"KAI has quota for CPU, memory and GPUs only; {what} does not count."
                    report.add(NotExpressible("RESOURCE", report.path(name, pool, resource), text))
                elif share.guarantee is not None:
                    text = f"{in_words(share.guarantee)} are lent too while idle, and taken back when wanted."
                    path = report.path(name, pool, resource, "guarantee")
                    report.add(NotExpressible("GUARANTEE_IS_LENT", path, text))
        if len(queue.pools) > 1:
            text = f"the order {', '.join(queue.pools)} does not count: in KAI a job names the queue of one pool."
            report.add(NotExpressible("POOL_ORDER", f"{name}/spec.pools", text))
        if queue.namespaces:
            text = f"jobs of every namespace may name the queue, not of {', '.join(queue.namespaces)} alone."
            report.add(NotExpressible("ANY_NAMESPACE", f"{name}/spec.namespaces", text))
        self._unsaid_of_reclaim(queue)
        report.of_another(queue, Engine.KUEUE, queue.kueue, Engine.KAI)

    def _unsaid_of_reclaim(self, queue: KaiwoQueue) -> None:
        if queue.reclaim is not None and queue.reclaim.is_delayed:
            text = "KAI takes quota back at once; only the borrowers' own minRuntime delays it."
            path = f"{queue.name}/spec.fairness.reclaimStrategy"
            self.report.add(NotExpressible("RECLAIM_AFTER_GRACE", path, text))
        if queue.grace_s is not None:
            text = f"KAI knows no grace before it reclaims; {queue.grace_s} s do not count."
            path = f"{queue.name}/spec.fairness.gracePeriod"
            self.report.add(NotExpressible("RECLAIM_AFTER_GRACE", path, text))
        if queue.other_resources is OtherResources.REFUSED and not self._tree.is_leaf(queue.name):
            text = f"{queue.name} has queues below it; say it in these."
            self.report.add(NotExpressible("OF_A_DEPARTMENT", f"{queue.name}/spec.otherResources", text))

    def _name(self, name: str, pool: str) -> str:
        """Its own where the queue is in one pool."""
        return name if len(self._pools[name]) == 1 else f"{name}-{pool}"

    def _spec(self, queue: KaiwoQueue, pool: str) -> dict[str, Any]:
        spec: dict[str, Any] = {"displayName": queue.display_name} if queue.display_name else {}
        if queue.priority is not None:
            spec["priority"] = queue.priority
        spec["resources"] = {name: self._amounts(queue, pool, name) for name in _UNITS}
        if queue.min_runtime_s is not None:
            spec["preemptMinRuntime"] = spec["reclaimMinRuntime"] = duration(queue.min_runtime_s)
        return {**spec, **queue.kai}

    def _amounts(self, queue: KaiwoQueue, pool: str, resource: str) -> dict[str, int | float]:
        name, share = queue.name, self._tree.share(queue.name, pool, resource)
        quota, limit = self._tree.quota(name, pool, resource), share.limit
        if not self._tree.bounded(name, pool, resource) and quota is None:
            refused = queue.other_resources is OtherResources.REFUSED or resource == GPU
            quota = limit = 0 if refused and self._tree.is_leaf(name) else UNLIMITED
        elif quota is None:
            quota = 0
        return {
            "quota": _counted(quota, resource),
            "limit": _counted(UNLIMITED if limit is None else limit, resource),
            "overQuotaWeight": 1 if share.weight is None else whole(share.weight, 1000),
        }


def duration(span_s: int) -> str:
    """A span as Go writes it, which is how the API server gives it back: ``1h0m0s``, ``10m0s``, ``5s``."""
    hours, minutes, rest = span_s // 3600, span_s % 3600 // 60, span_s % 60
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s" if minutes else f"{rest}s"


def whole(amount: int, unit: int) -> int | float:
    """A number for JSON: an integer wherever it is one."""
    return amount // unit if amount % unit == 0 else amount / unit


def _counted(amount: int, resource: str) -> int | float:
    return _NO_BOUND if amount == UNLIMITED else whole(amount, _UNITS[resource])
