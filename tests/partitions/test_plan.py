"""Plans of partitions: what runs stays, what is cut lies on the GPUs, and nothing better is left out."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import MigError, mig_geometry
from kopt.policies.partitions.configurations import (
    WHOLE,
    InfeasibleError,
    NodeOption,
    model_rules,
    node_option,
    require_feasible,
    smallest_profile,
)
from kopt.policies.partitions.layouts import layouts_of
from kopt.policies.partitions.plan import PartitionPlan, PartitionPool, PlanNode, plan_partitions

H100 = mig_geometry(find_gpu("h100-80gb"))
GPUS = 2
CUTS: dict[str, dict[str, int] | None] = {
    "all-disabled": None,
    "all-1g.10gb": {"1g.10gb": 7},
    "all-2g.20gb": {"2g.20gb": 3},
    "all-3g.40gb": {"3g.40gb": 2},
    "all-balanced": {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1},
}
OPTIONS = [node_option(H100, GPUS, name, [(None, cut)]) for name, cut in CUTS.items()]
NAMES = [*(profile.name for profile in H100.profiles), WHOLE]
SLICES = {**{profile.name: profile.compute_slices for profile in H100.profiles}, WHOLE: 7}


@st.composite
def pools(draw: st.DrawFn, most: int = 6) -> PartitionPool:
    nodes = []
    for at in range(draw(st.integers(1, most))):
        have = draw(st.sampled_from(OPTIONS)).instances
        used = {name: draw(st.integers(0, count)) for name, count in have.items()}
        idle = not any(used.values())
        nodes.append(PlanNode(f"n{at}", have, used, idle and draw(st.booleans())))
    pending = {name: draw(st.integers(0, 20)) for name in ("1g.10gb", "2g.20gb", "3g.40gb", WHOLE)}
    threshold = draw(st.sampled_from([None, 0.3, 1.0]))
    return PartitionPool(H100, nodes, OPTIONS, pending, {"1g.10gb": 70, "2g.20gb": 20, "3g.40gb": 10}, threshold)


def after(pool: PartitionPool, plan: PartitionPlan) -> dict[str, NodeOption | PlanNode]:
    return {node.name: plan.changes.get(node.name, node) for node in pool.nodes}


def served_slices(pool: PartitionPool, instances: dict[str, int]) -> int:
    return sum(SLICES[name] * min(pool.pending.get(name, 0), instances.get(name, 0)) for name in NAMES)


@settings(max_examples=150, deadline=None)
@given(pools())
def test_a_plan_touches_nothing_that_runs_and_cuts_only_what_lies_on_the_gpus(pool: PartitionPool) -> None:
    plan = plan_partitions(pool)
    by_name = {node.name: node for node in pool.nodes}
    for name, option in plan.changes.items():
        node = by_name[name]
        assert node.may_change
        assert not any(node.used.values())
        assert option in pool.options
        slices = sum(SLICES[profile] * count for profile, count in option.instances.items())
        assert slices <= GPUS * H100.compute_slices
    for name, state in after(pool, plan).items():
        assert all(count <= state.instances.get(profile, 0) for profile, count in by_name[name].used.items())
    supply = Counter[str]()
    for node in pool.nodes:
        supply.update(plan.changes[node.name].instances if node.name in plan.changes else node.instances)
        supply.subtract(node.used)
    assert all(count <= min(supply[name], pool.pending[name]) for name, count in plan.served.items())


@settings(max_examples=60, deadline=None)
@given(pools(most=3))
def test_no_other_plan_serves_more_or_as_much_with_fewer_changes(pool: PartitionPool) -> None:
    """Against every plan there is."""
    plan = plan_partitions(pool)
    states = [[None, *OPTIONS] if node.may_change else [None] for node in pool.nodes]
    best = (0, 0)
    for chosen in itertools.product(*states):
        supply = Counter[str]()
        for node, option in zip(pool.nodes, chosen, strict=True):
            supply.update(node.instances if option is None else option.instances)
            supply.subtract(node.used)
        best = max(best, (served_slices(pool, supply), -sum(option is not None for option in chosen)))
    got = sum(SLICES[name] * count for name, count in plan.served.items())
    assert got == best[0]
    if pool.min_utilization is None:
        assert len(plan.changes) == -best[1]


@given(st.dictionaries(st.sampled_from([p.name for p in H100.profiles]), st.integers(0, 7), max_size=4))
def test_what_is_feasible_is_what_a_layout_has(instances: dict[str, int]) -> None:
    layouts = layouts_of(H100)
    wanted = Counter({H100.index(name): count for name, count in instances.items() if count})
    lies = any(Counter(profile for profile, _ in layout) == wanted for layout in layouts.layouts)
    try:
        require_feasible(H100, instances)
    except InfeasibleError:
        assert not lies
    else:
        assert lies


def test_what_is_not_feasible_is_refused_with_the_sum() -> None:
    with pytest.raises(InfeasibleError, match=r"6 x 1g\.10gb \+ 1 x 2g\.20gb .* 8 of 7 compute slices and 8 of 8 mem"):
        require_feasible(H100, {"1g.10gb": 6, "2g.20gb": 1})
    with pytest.raises(MigError, match=r"no partitions '1g\.5gb'"):
        require_feasible(H100, {"1g.5gb": 1})
    with pytest.raises(InfeasibleError, match="leaves 1 of 2 GPUs"):
        node_option(H100, 2, "half", [((0,), None)])
    with pytest.raises(InfeasibleError, match="GPU 5, and the node has 2"):
        node_option(H100, 2, "more", [(None, None), ((5,), None)])


def test_rules_for_some_models_are_those_with_its_profiles() -> None:
    rules = [(None, {"1g.5gb": 2}, True), (None, {"1g.10gb": 2}, True)]
    assert model_rules(H100, rules) == [(None, {"1g.10gb": 2})]
    assert model_rules(H100, [*rules, (None, {"1g.10gb": 3}, True)]) is None


def test_the_smallest_profile_that_suffices() -> None:
    memory = {profile.name: int(profile.memory_bytes) for profile in find_gpu("h100-80gb").partitions}
    assert smallest_profile(H100, memory, 5 << 30) == "1g.10gb"
    assert smallest_profile(H100, memory, 15 << 30) == "1g.20gb"
    assert smallest_profile(H100, memory, 30 << 30) == "3g.40gb"
    assert smallest_profile(H100, memory, 500 << 30) is None


def test_what_has_a_free_instance_already_changes_nothing() -> None:
    nodes = [PlanNode(f"n{at}", OPTIONS[1].instances, {}, True) for at in range(3)]
    pool = PartitionPool(H100, nodes, OPTIONS, {"1g.10gb": 40}, {"1g.10gb": 100})
    plan = plan_partitions(pool)
    assert not plan.changes
    assert plan.served == {"1g.10gb": 40}


def test_idle_nodes_follow_the_shares_only_while_little_is_used() -> None:
    nodes = [PlanNode(f"n{at}", OPTIONS[0].instances, {}, True) for at in range(10)]
    shares = {"1g.10gb": 50, "3g.40gb": 50}
    assert not plan_partitions(PartitionPool(H100, nodes, OPTIONS, {}, shares)).changes
    busy = [PlanNode(f"b{at}", OPTIONS[3].instances, OPTIONS[3].instances) for at in range(10)]
    # Six of seven slices of every 3g.40gb: more than .3 of the pool.
    pool = PartitionPool(H100, [*nodes, *busy], OPTIONS, {}, shares, 0.3)
    assert not plan_partitions(pool).changes
    plan = plan_partitions(PartitionPool(H100, [*nodes, *busy], OPTIONS, {}, shares, 0.6))
    total = Counter[str]()
    for node in (*nodes, *busy):
        total.update(plan.changes[node.name].instances if node.name in plan.changes else node.instances)
    assert abs(total["1g.10gb"] - total["3g.40gb"]) <= 6
