"""What the controllers in the cluster say."""

from dataclasses import replace

from kopt.core.cost.budgets import Budget
from kopt.core.scheduling.eviction import Entry
from kopt.core.scheduling.overview import Overview
from kopt.dashboard.data.access import BUDGETS, POOLS, SWITCHES, Holds, Right, pods_in, pods_of
from kopt.dashboard.data.feed import Connections, Feed, Fixed


def _open(connections: Connections) -> Fixed[Overview]:
    cluster = connections.cluster
    return Fixed((lambda: Overview(now_s=connections.clock())) if cluster is None else cluster.overview)


def _restrict(overview: Overview, holds: Holds) -> Overview:
    return replace(
        overview,
        pools=overview.pools if holds(POOLS) else (),
        switches=overview.switches if holds(SWITCHES) else None,
        ledger=tuple(
            _without_strangers(entry, holds) for entry in overview.ledger if holds(pods_in(entry.eviction.namespace))
        ),
        staged=tuple(each for each in overview.staged if holds(pods_in(each.namespace))),
        budgets=tuple(each for each in overview.budgets if holds(_right_for(each.budget))),
    )


def _without_strangers(entry: Entry, holds: Holds) -> Entry:
    """An eviction without the workload that it was for, where its reader may not see that one."""
    if not entry.eviction.for_whom or holds(pods_of(entry.eviction.for_whom)):
        return entry
    return replace(entry, eviction=replace(entry.eviction, for_whom=""))


def _right_for(budget: Budget) -> Right:
    """A namespace's budget is for those who see what is charged to it."""
    return pods_in(budget.namespace) if budget.namespace else BUDGETS


OVERVIEW: Feed[Overview] = Feed("overview", lambda: Overview(now_s=0.0), _open, _restrict)
