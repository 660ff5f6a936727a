"""Which node pools a workload may use, in the order that its owner prefers (K12): the names are checked here.

What users wrote stays: a pool that their own node selector excludes is left out, and where that leaves none the
workload would never start, so it is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.scheduling.queue_tree import KaiwoPool
from kopt.core.scheduling.submission import Framework
from kopt.policies.queues.tree import nearest

POOLS_ANNOTATION = "kaiwo.ai/node-pools"
"""Names of pools, separated by commas, the preferred one first; on a workload or its pod template."""
MOST_POOLS = 16
_MOST_LISTED = 5


@dataclass(frozen=True)
class PoolChoice:
    """``pools`` in the order of preference; empty where nothing is written. ``remarks`` are for the user; with
    ``refused`` the last of ``reasons`` says why the workload is refused."""

    pools: tuple[KaiwoPool, ...] = ()
    reasons: tuple[Reason, ...] = ()
    refused: bool = False

    @property
    def remarks(self) -> tuple[Reason, ...]:
        return tuple(reason for reason in self.reasons if reason.code != "POOLS")


def choose_pools(
    written: str,
    existing: Mapping[str, KaiwoPool] | None,
    selectors: Sequence[Mapping[str, str]],
    framework: Framework,
) -> PoolChoice:
    """The pools in an annotation. ``existing`` is None where it is not known which pools there are; ``selectors`` are
    the node selectors of the workload's templates, none for kinds without a template to write to."""
    names = list(dict.fromkeys(filter(None, (name.strip() for name in written.split(",")))))
    if not names or len(names) > MOST_POOLS:
        text = f"{POOLS_ANNOTATION} names {len(names)} pools; name 1 to {MOST_POOLS}, separated by commas."
        return _refused(Reason("POOLS_COUNT", text, {"pools": len(names)}))
    if existing is None:
        return PoolChoice(reasons=(Reason("POOLS_NOT_KNOWN", "Which node pools there are is not known yet."),))
    unknown = [name for name in names if name not in existing]
    if unknown:
        return _refused(_unknown(unknown, existing))
    if not selectors:
        text = "This kind has no pod template; select its nodes where its pods are described."
        return PoolChoice(reasons=(Reason("POOLS_NO_FIELD", text),))
    pools = [existing[name] for name in names]
    open_pools = tuple(pool for pool in pools if not any(_excludes(selector, pool) for selector in selectors))
    excluded = [pool.name for pool in pools if pool not in open_pools]
    if not open_pools:
        text = f"Its own node selector excludes the nodes of {_listed(excluded)}; correct one of the two."
        return _refused(Reason("POOLS_EXCLUDED", text))
    reasons = [_selection(open_pools)]
    if excluded:
        text = f"Its own node selector excludes the nodes of {_listed(excluded)}."
        reasons.append(Reason("POOLS_EXCLUDED", text))
    return PoolChoice(open_pools, (*reasons, *_limits(open_pools, framework)))


def preference_weights(pools: Sequence[KaiwoPool]) -> list[tuple[KaiwoPool, int]]:
    """Weights of a preferred node affinity, 1 to 100, evenly apart, as kube-scheduler adds them to other scores. The
    last pool has none, which sets the others as far apart from it as they can be; nor has one without labels."""
    steps = len(pools) - 1
    return [(pool, round(100 * (steps - rank) / steps)) for rank, pool in enumerate(pools[:-1]) if pool.node_labels]


def _selection(pools: Sequence[KaiwoPool]) -> Reason:
    text = f"It may use the node pool{'s'[: len(pools) > 1]} {_listed([pool.name for pool in pools])}"
    return Reason("POOLS", text + (", in this order." if len(pools) > 1 else "."), {"pools": len(pools)})


def _limits(pools: Sequence[KaiwoPool], framework: Framework) -> list[Reason]:
    """What cannot be said to the scheduler or the queueing system."""
    result = []
    bare = [pool.name for pool in pools if not pool.node_labels]
    if bare:
        text = f"Nothing tells the nodes of {_listed(bare)} apart, as it has no nodeLabels; any node will do."
        result.append(Reason("POOLS_ANY_NODE", text))
    if len(pools) > 1 and framework is Framework.KUEUE:
        text = "Kueue tries these pools in the order of its ClusterQueue, not in this one."
        result.append(Reason("POOLS_ORDER_OF_QUEUE", text))
    if len(pools) > 1 and framework is Framework.KAI:
        text = "A job names one node pool of KAI's; with several it is for the nodes of the shard that has no pool."
        result.append(Reason("POOLS_ONE_FOR_KAI", text))
    return result


def _excludes(selector: Mapping[str, str], pool: KaiwoPool) -> bool:
    return any(selector.get(key, value) != value for key, value in pool.node_labels.items())


def _unknown(names: Sequence[str], existing: Mapping[str, KaiwoPool]) -> Reason:
    first = names[0]
    hint = nearest(first, existing)
    there = f"there are {_listed(sorted(existing))}" if existing else "there are none"
    text = f"There is no node pool {_listed(names)} ({POOLS_ANNOTATION}){hint or f'; {there}.'}"
    return Reason("POOL_UNKNOWN", text, {"pool": first})


def _refused(reason: Reason) -> PoolChoice:
    return PoolChoice((), (reason,), refused=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more
