"""Trees of queues that hold together, drawn at random."""

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kopt.cluster.client.resources import Object
from kopt.core.scheduling.queue_tree import (
    CPU,
    DEFAULT_POOL,
    GPU,
    MEMORY,
    UNLIMITED,
    KaiwoQueue,
    OtherResources,
    Reclaim,
    Share,
)

UNITS = {GPU: 500, CPU: 250, MEMORY: 1000 << 20}
WEIGHTS = st.none() | st.integers(1, 90).map(lambda number: number * 1000)


def declared(name: str, parent: str = "") -> Object:
    """A KaiwoQueue with eight GPUs."""
    spec = {"parentQueue": parent, "resources": {"gpu": {"quota": 8}}}
    return {"metadata": {"name": name, "generation": 1}, "spec": spec}


@st.composite
def trees(draw: Any, *, unlimited: bool = True) -> list[KaiwoQueue]:
    """Up to nine queues over up to two pools; departments have at least what their queues have."""
    pools = draw(st.sampled_from([(DEFAULT_POOL,), ("h100",), ("h100", "a100")]))
    parents = [""]
    for number in range(draw(st.integers(1, 8))):
        parents.append(draw(st.sampled_from(["", *(f"q{before}" for before in range(number + 1))])))
    queues = [_queue(draw, number, parent, pools, unlimited) for number, parent in enumerate(parents)]
    return fitting(queues)


def fitting(queues: list[KaiwoQueue]) -> list[KaiwoQueue]:
    """The same, with the amounts of departments raised to hold those of their queues."""
    result = {queue.name: queue for queue in queues}
    for queue in reversed(queues):
        children = [result[other.name] for other in queues if other.parent == queue.name]
        if children:
            shares = {
                pool: {
                    resource: _holding(share, [_of(child, pool, resource) for child in children])
                    for resource, share in row.items()
                }
                for pool, row in queue.pools.items()
            }
            result[queue.name] = replace(queue, pools=shares)
    return [result[queue.name] for queue in queues]


def _of(queue: KaiwoQueue, pool: str, resource: str) -> int:
    # Drawn queues that say something about a pool say it about each resource, so that sums are simple here.
    return queue.pools.get(pool, {}).get(resource, Share()).quota or 0


def _holding(share: Share, below: list[int]) -> Share:
    total = UNLIMITED if UNLIMITED in below else sum(below)
    if share.quota == UNLIMITED or total == UNLIMITED:
        return replace(share, quota=UNLIMITED, limit=None)
    quota = (share.quota or 0) + total
    return replace(share, quota=quota, limit=None if share.limit in (None, UNLIMITED) else quota + share.limit)


def _queue(draw: Any, number: int, parent: str, pools: tuple[str, ...], unlimited: bool) -> KaiwoQueue:
    return KaiwoQueue(
        f"q{number}",
        parent,
        draw(st.sampled_from(["", f"Queue {number}"])),
        draw(st.none() | st.integers(0, 200)),
        {pool: {resource: _share(draw, resource, unlimited) for resource in UNITS} for pool in pools},
        draw(st.sampled_from([(), ("team-a",), ("team-a", "team-b")])),
        draw(st.sampled_from([None, *Reclaim])),
        draw(st.none() | st.just(300)),
        draw(st.none() | st.just(600)),
        draw(st.sampled_from(OtherResources)),
    )


def _share(draw: Any, resource: str, unlimited: bool) -> Share:
    quota = draw(st.integers(0, 40)) * UNITS[resource]
    weight, more = draw(WEIGHTS), draw(st.none() | st.integers(0, 40))
    if unlimited and draw(st.integers(0, 9)) == 0:
        return Share(UNLIMITED, None, weight)
    limit = None if more is None else quota + more * UNITS[resource]
    return Share(quota, limit, weight, draw(st.none() | st.sampled_from([0, quota // 2, quota])))
