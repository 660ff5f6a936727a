"""The ideal division: what dominant resource fairness promises holds for random trees, to the thousandth."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.policies.shares import ShareQueue, ShareTree, ideal_shares

RESOURCES = ("cpu", "gpu", "memory")
CAPACITY = {"cpu": 900_000, "gpu": 64_000, "memory": 4096 * 1000 << 30}
UNITS = {"cpu": 7_000, "gpu": 1_000, "memory": 37 * 1000 << 30}
AMOUNTS = st.dictionaries(st.sampled_from(RESOURCES), st.integers(0, 60), max_size=3)
ROUNDING = 1


def amounts(draw: Any) -> dict[str, int]:
    return {name: count * UNITS[name] for name, count in draw(AMOUNTS).items()}


@st.composite
def worlds(draw: Any, *, bounds: bool = True, flat: bool = False) -> list[ShareQueue]:
    """Up to eight queues; quotas fit into those above and into the capacity, guarantees into quotas."""
    names = [f"q{number}" for number in range(draw(st.integers(1, 8)))]
    parents = {
        name: "" if flat else draw(st.sampled_from(["", "", *names[:number]])) for number, name in enumerate(names)
    }
    free = {name: {} if not bounds else dict(CAPACITY) for name in ("", *names)}
    result = []
    for name in names:
        has_children = name in parents.values()
        quota, limit, guarantee = {}, {}, {}
        for resource in RESOURCES if bounds else ():
            most = free[parents[name]].get(resource, 0)
            quota[resource] = most * draw(st.integers(0, 4)) // 4
            free[parents[name]][resource] = most - quota[resource]
            free[name][resource] = quota[resource]
            if draw(st.booleans()):
                limit[resource] = quota[resource] + UNITS[resource] * draw(st.integers(0, 30))
            if not has_children and draw(st.booleans()):
                guarantee[resource] = quota[resource] * draw(st.integers(0, 2)) // 2
        weight = draw(st.sampled_from([1000, 1000, 2000, 500, 7000]))
        demand = {} if has_children else amounts(draw)
        result.append(ShareQueue(name, parents[name], weight, quota, limit, guarantee, demand))
    return result


def withheld(tree: ShareTree, shares: dict[str, dict[str, int]], name: str, resource: str) -> int:
    """What a queue has, or keeps from others, of a resource."""
    children = tree.children(name)
    below = sum(withheld(tree, shares, child, resource) for child in children)
    own = below if children else shares[name].get(resource, 0)
    return max(own, tree.queues[name].guarantee.get(resource, 0))


def met(queue: ShareQueue, share: dict[str, int]) -> float:
    """The part of its demand that a leaf has."""
    return min((share[name] / value for name, value in queue.demand.items() if value), default=1.0)


@given(worlds())
def test_nobody_has_more_than_there_is_than_it_demands_or_than_its_limit(queues: list[ShareQueue]) -> None:
    tree, shares = ShareTree(queues), ideal_shares(queues, CAPACITY)
    for resource, capacity in CAPACITY.items():
        assert sum(shares[root].get(resource, 0) for root in tree.children("")) <= capacity
        assert sum(withheld(tree, shares, root, resource) for root in tree.children("")) <= capacity
    for queue in queues:
        share = shares[queue.name]
        assert all(share.get(name, 0) <= limit for name, limit in queue.limit.items())
        if not tree.children(queue.name):
            assert all(share[name] <= queue.demand[name] for name in share)


@given(worlds())
def test_a_leaf_has_its_quota_where_it_demands_it(queues: list[ShareQueue]) -> None:
    tree, shares = ShareTree(queues), ideal_shares(queues, CAPACITY)
    for leaf in map(tree.queues.__getitem__, tree.leaves):
        wanted = {name: value for name, value in leaf.demand.items() if value}
        part = min([1.0, *(leaf.quota[name] / value for name, value in wanted.items() if name in leaf.quota)])
        for name, value in wanted.items():
            assert shares[leaf.name][name] >= int(part * value * (1 - 1e-12)) - ROUNDING
            if part == 1.0:
                assert shares[leaf.name][name] == value


@given(worlds())
def test_nobody_could_have_more_without_taking_it_from_others(queues: list[ShareQueue]) -> None:
    """Pareto efficiency: every leaf that lacks something has reached a bound of one of the resources it needs."""
    tree, shares = ShareTree(queues), ideal_shares(queues, CAPACITY)
    room = len(queues) + ROUNDING
    for leaf in tree.leaves:
        demand = {name: value for name, value in tree.queues[leaf].demand.items() if value}
        if all(shares[leaf][name] == value for name, value in demand.items()):
            continue
        bounds = []
        for name, capacity in CAPACITY.items():
            if name not in demand:
                continue
            lineage = tree.lineages[leaf]
            bounds += [tree.queues[q].limit[name] - shares[q][name] for q in lineage if name in tree.queues[q].limit]
            bounds.append(capacity - sum(shares[root].get(name, 0) for root in tree.children("")))
            # Where an unused guarantee of its own, or of a queue above it, is left, that is not shared with others.
            own = any(withheld_beyond(tree, shares, queue, name) for queue in lineage)
            if not own:
                bounds.append(capacity - sum(withheld(tree, shares, root, name) for root in tree.children("")))
        assert min(bounds) <= room


def withheld_beyond(tree: ShareTree, shares: dict[str, dict[str, int]], name: str, resource: str) -> bool:
    children = tree.children(name)
    below = sum(withheld(tree, shares, child, resource) for child in children)
    own = below if children else shares[name].get(resource, 0)
    return tree.queues[name].guarantee.get(resource, 0) > own + ROUNDING


@given(worlds(bounds=False, flat=True))
def test_sharing_gives_everybody_at_least_its_own_part_of_every_resource(queues: list[ShareQueue]) -> None:
    """The sharing incentive: with a wall between them, queues would have no more."""
    shares = ideal_shares(queues, CAPACITY)
    # Those that demand nothing do not have their part walled off here; with fewer queues parts only grow.
    total = sum(queue.weight for queue in queues)
    for queue in queues:
        walled = [queue.weight / total * CAPACITY[name] / value for name, value in queue.demand.items() if value]
        rounding = ROUNDING / min((value for value in queue.demand.values() if value), default=1)
        assert met(queue, shares[queue.name]) >= min([1.0, *walled]) * (1 - 1e-9) - rounding


@given(worlds(bounds=False, flat=True))
def test_dominant_shares_are_as_the_weights_where_nobody_is_blocked_first(queues: list[ShareQueue]) -> None:
    """No envy: whoever lacks a resource has a dominant share, for its weight, as large as anybody who uses it."""
    shares = ideal_shares(queues, CAPACITY)
    levels = {
        queue.name: max((shares[queue.name].get(name, 0) / CAPACITY[name] for name in RESOURCES), default=0.0)
        / queue.weight
        for queue in queues
    }
    for queue in queues:
        if met(queue, shares[queue.name]) < 0.999:
            rivals = [
                other
                for other in queues
                if all(shares[other.name].get(name, 0) for name, value in queue.demand.items() if value)
            ]
            rounding = 2 * ROUNDING / min(CAPACITY.values()) / queue.weight
            assert all(levels[queue.name] >= levels[other.name] - rounding for other in rivals)


@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_queues_does_not_matter(queues: list[ShareQueue], order: random.Random) -> None:
    shuffled = order.sample(queues, len(queues))
    assert ideal_shares(shuffled, CAPACITY) == ideal_shares(queues, CAPACITY)


def test_the_example_of_the_paper() -> None:
    """9 CPUs and 18 GB; tasks of A need 1 CPU and 4 GB, of B 3 CPUs and 1 GB: three run of A, two of B (NSDI 2011)."""
    queues = [
        ShareQueue("a", demand={"cpu": 1_000_000, "memory": 4_000_000}),
        ShareQueue("b", demand={"cpu": 3_000_000, "memory": 1_000_000}),
    ]
    shares = ideal_shares(queues, {"cpu": 9000, "memory": 18_000})
    assert shares == {"a": {"cpu": 3000, "memory": 12_000}, "b": {"cpu": 6000, "memory": 2000}}


def test_a_queue_does_not_starve_because_of_what_its_sibling_has() -> None:
    """Naive dominant shares count GPUs that nobody else wants against the sibling that needs CPUs (SoCC 2013)."""
    queues = [
        ShareQueue("n"),
        ShareQueue("n-cpu", "n", demand={"cpu": 100_000}),
        ShareQueue("n-gpu", "n", demand={"gpu": 100_000}),
        ShareQueue("m", demand={"cpu": 100_000}),
    ]
    shares = ideal_shares(queues, {"cpu": 100_000, "gpu": 100_000})
    assert shares["n-gpu"]["gpu"] == 100_000
    assert shares["n-cpu"]["cpu"] == pytest.approx(50_000, abs=1)
    assert shares["m"]["cpu"] == pytest.approx(50_000, abs=1)


def test_what_a_department_has_above_its_queues_stays_in_it() -> None:
    queues = [
        ShareQueue("a", quota={"gpu": 6000}),
        ShareQueue("a1", "a", quota={"gpu": 1000}, demand={"gpu": 9000}),
        ShareQueue("a2", "a", quota={"gpu": 1000}, demand={"gpu": 1000}),
        ShareQueue("b", quota={"gpu": 2000}, weight=9000, demand={"gpu": 9000}),
    ]
    shares = {name: share.get("gpu") for name, share in ideal_shares(queues, {"gpu": 8000}).items()}
    assert shares == {"a": 6000, "a1": 5000, "a2": 1000, "b": 2000}


@pytest.mark.parametrize(
    ("queues", "why"),
    [
        ([ShareQueue("a"), ShareQueue("a")], "one name"),
        ([ShareQueue("a", "b")], "no queue b"),
        ([ShareQueue("a", "b"), ShareQueue("b", "a")], "own ancestor"),
        ([ShareQueue("a", demand={"gpu": 1}), ShareQueue("b", "a")], "no demand"),
    ],
)
def test_what_is_no_tree_is_refused(queues: list[ShareQueue], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        ideal_shares(queues, CAPACITY)


def test_a_guarantee_that_nobody_uses_is_lent_to_nobody() -> None:
    queues = [
        ShareQueue("a", quota={"gpu": 4000}, guarantee={"gpu": 3000}, demand={"gpu": 1000}),
        ShareQueue("b", quota={"gpu": 2000}, demand={"gpu": 9000}),
    ]
    shares = ideal_shares(queues, {"gpu": 8000})
    assert shares == {"a": {"gpu": 1000}, "b": {"gpu": 5000}}
    assert (
        ideal_shares([ShareQueue("a", guarantee={"gpu": 3000}, demand={"gpu": 9000})], {"gpu": 8000})["a"]["gpu"]
        == 8000
    )
