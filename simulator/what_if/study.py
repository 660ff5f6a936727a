"""Jobs that really ran, replayed through a cluster as it is and as it would be."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kopt.simulator.what_if.answer import WhatIf
from kopt.simulator.what_if.check import check, select_order
from kopt.simulator.what_if.figures import Replayed, figures_of
from kopt.simulator.what_if.jobs import History, PastJob, Record, WhatIfError
from kopt.simulator.what_if.outcome import DAY_S, Days, Floats
from kopt.simulator.what_if.replay import Order, Pool, replay

_WARM_UP = 0.1
"""Of the time, in which the cluster fills: what ran when the record began is not in it."""
Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Cluster:
    """``moves``: jobs of a pool that run in another one. ``prices``: of a GPU-hour, by pool."""

    pools: Mapping[str, Pool]
    moves: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)


def changed(
    cluster: Cluster,
    *,
    add: Mapping[str, int] | None = None,
    remove: Mapping[str, int] | None = None,
    moves: Mapping[str, str] | None = None,
    quotas: Mapping[str, int] | None = None,
) -> Cluster:
    """With more or fewer GPUs by pool, whatever the case of its name, and other quotas. Raises WhatIfError."""
    pools = {name: replace(pool, quotas={**pool.quotas, **(quotas or {})}) for name, pool in cluster.pools.items()}
    signed = [*((each, 1) for each in (add or {}).items()), *((each, -1) for each in (remove or {}).items())]
    for (written, number), sign in signed:
        name = _pool_of(written, cluster)
        left = pools[name].gpus + sign * number
        if left < 0:
            raise WhatIfError(f"{name} has {pools[name].gpus:,} GPUs, so {number:,} cannot go")
        pools[name] = replace(pools[name], gpus=left)
    named = {_pool_of(source, cluster): _pool_of(target, cluster) for source, target in (moves or {}).items()}
    return replace(cluster, pools=pools, moves={**cluster.moves, **named})


def _pool_of(written: str, cluster: Cluster) -> str:
    matching = [name for name in cluster.pools if name == written] or [
        name for name in cluster.pools if name.lower() == written.lower()
    ]
    if not matching:
        raise WhatIfError(f"there is no pool {written!r}; there are {', '.join(cluster.pools)}")
    return matching[0]


def study(
    history: History,
    as_is: Cluster,
    would_be: Cluster,
    *,
    order: Order | None = None,
    by_user: bool = False,
    advance: Advance = lambda done, total: None,
) -> WhatIf:
    """Without an ``order`` that one is used whose replay agrees best with the waits of the first half of the days. Jobs
    that name no pool ran in the only one. Raises WhatIfError."""
    jobs, left_out = _placed(history.jobs, as_is)
    days = days_of(history)
    records = {name: Record([job for job in jobs if job.pool == name], pool.gpus) for name, pool in as_is.pools.items()}
    jobs = sorted((job for record in records.values() for job in record.with_holds()), key=lambda job: job.submitted_s)
    orders = list(Order) if order is None and any(job.waited_s for job in jobs) else [order or Order.BEST_EFFORT]
    total = len(orders) + 1
    before = {}
    for number, each in enumerate(orders):
        before[each] = _replayed(jobs, as_is, each)
        advance(number + 1, total)
    selected = select_order(jobs, days, {each: replayed.start_s for each, replayed in before.items()})
    after = _replayed(jobs, would_be, selected)
    advance(total, total)
    excess = max(record.excess() for record in records.values())
    fitting_s = sum(record.fitting_s() for record in records.values())
    return WhatIf(
        figures_of(jobs, days, before[selected], after, by_user=by_user),
        check(jobs, days, selected, before[selected].start_s, excess, fitting_s),
        _assumptions(history, selected, as_is, would_be),
        left_out,
    )


def _placed(jobs: Sequence[PastJob], cluster: Cluster) -> tuple[list[PastJob], int]:
    """Jobs with the pool that they ran in, and how many ran in none that is named."""
    names = list(cluster.pools)
    only = names[0] if len(names) == 1 else ""
    placed = [job if job.pool else replace(job, pool=only) for job in jobs]
    listed = [job for job in placed if job.pool in cluster.pools]
    if not listed:
        others = ", ".join(sorted({job.pool for job in placed} - {""})) or "jobs that name no pool"
        raise WhatIfError(f"no job ran in {' or '.join(names) or 'a pool'}; there are {others}")
    return listed, len(placed) - len(listed)


def days_of(history: History) -> Days:
    """The days that figures are of. Raises WhatIfError."""
    first_s = history.jobs[0].submitted_s
    span_s = history.end_s - first_s
    if span_s < DAY_S:
        raise WhatIfError(f"the jobs are of {span_s / 3600:.1f} hours; a day is the least")
    start_s = first_s + min(_WARM_UP * span_s, span_s - DAY_S)
    return Days(start_s, int((history.end_s - start_s) / DAY_S + 1e-9))


def _replayed(jobs: Sequence[PastJob], cluster: Cluster, order: Order) -> Replayed:
    start_s: Floats = np.full(len(jobs), np.nan)
    pools = [cluster.moves.get(job.pool, job.pool) for job in jobs]
    for name, pool in cluster.pools.items():
        numbers = [number for number, of in enumerate(pools) if of == name]
        starts = replay([jobs[number] for number in numbers], pool, order)
        start_s[numbers] = [np.nan if at_s is None else at_s for at_s in starts]
    return Replayed(cluster.pools, cluster.prices, pools, start_s)


def _assumptions(history: History, order: Order, as_is: Cluster, would_be: Cluster) -> tuple[str, ...]:
    listed = [
        "Jobs are submitted when they were, run for as long as they did, and nobody submits more or less because waits "
        "are other ones.",
        f"Jobs start in the order {order.value}; priorities, evictions and fragmentation of nodes are not replayed.",
        "What of a wait passed while enough GPUs were free for all that waited stays: GPUs were not what jobs lacked.",
        "Pools had these GPUs all the time.",
    ]
    if history.unended:
        listed.append(f"{history.unended:,} jobs that still run count with what they had run.")
    if would_be.moves != as_is.moves:
        listed.append("Jobs that run in another pool run there for as long as before.")
    return tuple(listed)
