"""The search for the cheapest set, against all sets, and how few steps it may take to be sure of the best."""

import random
from collections.abc import Sequence
from itertools import combinations, cycle

import pytest

from kopt.policies.preemption.search import EXACT, Need, Option, cheapest


def option(name: str, gpus: int, cost: int, node: str = "") -> Option:
    return Option(name, cost, gpus, ((node, gpus),))


def first_of_the_best(options: Sequence[Option], need: Need) -> tuple[tuple[str, ...], int, int] | None:
    """Of all sets that suffice, by cost, number and GPUs; among equals the first by cost per GPU and name."""
    ordered = sorted(options, key=lambda each: (each.cost / each.gpus, each.name))
    result = []
    for indexes in (subset for size in range(len(ordered) + 1) for subset in combinations(range(len(ordered)), size)):
        victims = [ordered[index] for index in indexes]
        free = dict(need.free)
        for victim in victims:
            for node, amount in victim.on:
                free[node] = free.get(node, 0) + amount
        if need.met_by(free):
            cost, gpus = sum(victim.cost for victim in victims), sum(victim.gpus for victim in victims)
            result.append((cost, len(victims), gpus, indexes, tuple(sorted(victim.name for victim in victims))))
    if not result:
        return None
    cost, _, gpus, _, names = min(result)
    return names, cost, gpus


@pytest.mark.parametrize("seed", range(60))
def test_the_set_is_the_first_of_the_best_whatever_sizes_and_costs_there_are(seed: int) -> None:
    """Few different costs, so that most have ties; sizes without a common part, so that GPUs are left over."""
    chance = random.Random(seed)
    for _ in range(5):
        nodes = chance.choice([[""], [""], ["x", "y"]])
        costs = chance.choice([[0], [0, 7], [7, 14, 21], list(range(1, 60))])
        sizes = chance.choice([[1000], [300, 700], [1500, 3000], [400, 600, 1000, 1100]])
        options = [
            option(f"g{number}", chance.choice(sizes), chance.choice(costs), chance.choice(nodes))
            for number in range(chance.randint(1, 7))
        ]
        need = Need(chance.randint(1, 3), chance.choice([500, 1000, 1700]), {"x": chance.choice([0, 200, 500])})
        result = cheapest(options, need, 1)
        assert (result and (result.names, result.cost, result.gpus)) == first_of_the_best(options, need)


@pytest.mark.parametrize("seed", range(20))
def test_the_set_frees_all_limits_of_one_room(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(5):
        limits = ["x", "y", "z"]
        rooms = tuple(tuple(chance.sample(limits, chance.randint(1, 2))) for _ in range(chance.randint(1, 2)))
        options = [
            Option(f"g{number}", chance.randint(1, 9), gpus, tuple((key, gpus) for key in chance.sample(limits, 2)))
            for number, gpus in enumerate(chance.choices([500, 1000, 2000], k=chance.randint(1, 6)))
        ]
        free = {key: chance.choice([-1000, 0, 500, 1000]) for key in limits[: chance.randint(1, 3)]}
        need = Need(chance.randint(1, 2), 1000, free, rooms=rooms)
        result = cheapest(options, need, 1)
        assert (result and (result.names, result.cost, result.gpus)) == first_of_the_best(options, need)


def test_a_room_has_the_gpus_of_all_pods_free_below_each_of_its_limits() -> None:
    need = Need(2, 1000, rooms=(("x", "y"), ("z",)))
    assert need.met_by({"x": 2000, "y": 2000})
    assert need.met_by({"z": 2000})
    assert not need.met_by({"x": 2000, "y": 1999, "z": 1999})
    assert not need.met_by({"x": 9000}), "nothing is free below a limit that is not listed"
    assert not Need(1, 1, rooms=(("x",),)).met_by({})


@pytest.mark.parametrize(
    ("sizes", "costs", "need", "steps"),
    [
        pytest.param([1000], range(100, 130), Need(9, 1000), 25, id="each-for-one-pod"),
        pytest.param([1000, 2000, 3000, 4000], [50, 100, 150, 200], Need(1, 10_000), 30, id="all-of-one-price"),
        pytest.param([1000, 2000, 3000, 4000], [50], Need(1, 10_000), 40, id="all-of-one-cost"),
        pytest.param([1000, 2000, 3000, 4000], [0], Need(1, 10_000), 30, id="at-no-cost"),
        pytest.param([4000, 2000, 2000], [400, 210, 210], Need(1, 9_000), 150, id="with-GPUs-left-over"),
    ],
)
def test_of_many_gangs_the_best_set_is_known_to_be_so_after_few_steps(
    sizes: Sequence[int], costs: Sequence[int], need: Need, steps: int
) -> None:
    gangs = zip(range(EXACT + 10), cycle(sizes), cycle(costs), strict=False)
    result = cheapest([option(f"g{number:02}", gpus, cost) for number, gpus, cost in gangs], need, steps)
    assert result is not None
    assert result.exact


def test_room_on_two_nodes_is_none_for_a_pod_that_needs_it_on_one() -> None:
    assert cheapest([option("a", 999, 1, "x"), option("b", 999, 1, "y")], Need(1, 1000), 10) is None


def test_nothing_is_no_room_for_the_smallest_share() -> None:
    assert not Need(1, 1).met_by({"x": 0, "y": -5})
    assert Need(1, 1).met_by({"x": 0, "y": 1})
