"""In words: what an engine will do with each queue, whatever is in it."""

from dataclasses import dataclass

from kopt.core.scheduling.queue_tree import GPU, UNLIMITED, Compiled, Engine, KaiwoQueue, Reclaim, Share
from kopt.core.units import counted, format_thousandths
from kopt.policies.queues.tree import QueueTree

_UNITS = {GPU: "GPUs", "cpu": "CPUs", "memory": "of memory"}


@dataclass(frozen=True)
class Explanation:
    """Of one queue; ``unmet`` are the sentences about what the engine cannot do for it."""

    queue: str
    role: str
    quota: str
    borrowing: str
    reclaim: str
    unmet: tuple[str, ...] = ()


def explain_tree(tree: QueueTree, engine: Engine, compiled: Compiled) -> list[Explanation]:
    """One for each queue, parents before their children."""
    unmet: dict[str, list[str]] = {}
    for entry in compiled.not_expressible:
        name, _, field_name = entry.path.partition("/")
        unmet.setdefault(name, []).append(f"{field_name}: {entry.text}")
    return [
        Explanation(
            name,
            "leaf" if tree.is_leaf(name) else f"department of {', '.join(tree.children(name))}",
            _quota(tree, queue),
            _borrowing(tree, queue, engine),
            _reclaim(tree, queue, engine),
            tuple(unmet.get(name, ())),
        )
        for name, queue in tree.queues.items()
    ]


def _quota(tree: QueueTree, queue: KaiwoQueue) -> str:
    parts = []
    for pool, resource in tree.places(queue.name):
        quota = tree.quota(queue.name, pool, resource)
        where = f" in {pool}" if pool != tree.default_pool else ""
        parts.append(f"{_amount(quota or 0, resource)}{where}")
    if not parts:
        return "No quota of its own."
    together = " for its queues together" if not tree.is_leaf(queue.name) else " whenever it wants them"
    return f"{', '.join(parts)}{together}."


def _borrowing(tree: QueueTree, queue: KaiwoQueue, engine: Engine) -> str:
    if engine is Engine.KUEUE and not queue.parent:
        return "Borrows from nobody and lends to nobody: it has no parentQueue."
    lender = f"from {queue.parent}" if queue.parent else "from the cluster"
    parts = []
    for pool, resource in tree.places(queue.name):
        share, quota = tree.share(queue.name, pool, resource), tree.quota(queue.name, pool, resource) or 0
        if quota == UNLIMITED:
            continue
        parts.append(f"{_more(share, quota, resource)}{_kept(share, resource, engine)}")
    most = f"May use {'; '.join(parts)}, idle ones {lender}." if parts else f"May use what is idle {lender}."
    return f"{most} {_weighed(tree, queue, engine)}".strip()


def _more(share: Share, quota: int, resource: str) -> str:
    if share.limit in (None, UNLIMITED):
        return f"any number more than {_amount(quota, resource)}"
    if share.limit == quota:
        return f"no more than {_amount(quota, resource)}"
    return f"up to {_amount(share.limit, resource)}"


def _kept(share: Share, resource: str, engine: Engine) -> str:
    if not share.guarantee or engine is Engine.KAI:
        return ""
    return f" ({_amount(share.guarantee, resource)} are never lent)"


def _weighed(tree: QueueTree, queue: KaiwoQueue, engine: Engine) -> str:
    siblings = [tree.queues[name] for name in (tree.children(queue.parent) if queue.parent else tree.roots)]
    weights = {sibling.name: _weight(sibling) for sibling in siblings}
    total = sum(weights.values())
    if len(siblings) < 2 or not total:
        return ""
    part = 100 * weights[queue.name] / total
    first = (
        f"by priority ({queue.priority}) and then " if engine is not Engine.KUEUE and queue.priority is not None else ""
    )
    return f"Shares it with {counted(len(siblings) - 1, 'other')} {first}by weight: {part:.0f} % if all want it."


def _weight(queue: KaiwoQueue) -> int:
    weights = [share.weight for shares in queue.pools.values() for share in shares.values() if share.weight is not None]
    return weights[0] if weights else 1000


def _reclaim(tree: QueueTree, queue: KaiwoQueue, engine: Engine) -> str:
    if not tree.is_leaf(queue.name):
        return "As its queues say."
    lasts = (
        f" Its own jobs run at least {queue.min_runtime_s} s first."
        if queue.min_runtime_s and engine is Engine.KAI
        else ""
    )
    if engine is Engine.KUEUE:
        own = str(
            (queue.kueue.get("preemption") or {}).get(
                "reclaimWithinCohort", "Never" if queue.kueue.get("preemption") else "Any"
            )
        )
        policy = own if queue.reclaim is None else "Never" if queue.reclaim.is_delayed else "Any"
        how = {
            "Any": "Takes its quota back at once: Kueue evicts borrowers, the lowest priority first.",
            "LowerPriority": "Takes its quota back at once from borrowers of a lower priority.",
            "Never": "Waits until borrowers end, or until `kopt controller queues` evicts them after the grace.",
        }
        if queue.reclaim is Reclaim.BALANCED:
            how["Never"] = "Waits until borrowers end, or until `kopt controller queues` evicts some to balance shares."
        return how.get(policy, policy) if queue.parent else "Has nothing to take back."
    how_kai = "Takes its quota back at once: KAI evicts borrowers, of the queue that is furthest above its share first."
    how_volcano = "Takes its quota back at once: Volcano evicts borrowers of reclaimable queues."
    return (how_kai if engine is Engine.KAI else how_volcano) + lasts


def _amount(amount: int, resource: str) -> str:
    unit = _UNITS.get(resource, resource)
    return f"any number of {unit}" if amount == UNLIMITED else f"{format_thousandths(amount)} {unit}"
