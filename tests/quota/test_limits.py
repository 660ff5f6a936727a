"""What victims free, by limit, is what Kueue's arithmetic says once they are gone; in random cohort trees."""

import random
from dataclasses import dataclass

from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.workloads.kueue.queues import read_cluster_queue, read_cohort
from kopt.core.scheduling.quota import Admitted, Demand, FlavorResource, PodSetDemand, QueueRules
from kopt.policies.preemption.search import Need
from kopt.policies.quota import Mode, QuotaTree, assign, limits
from kopt.policies.quota.victims import fits

from .cohort_trees import GPU, random_case


@dataclass
class World:
    """A tree that some workloads were admitted to, and the next one."""

    tree: QuotaTree
    admitted: list[Admitted]
    demand: Demand
    rules: QueueRules


def world(seed: int) -> World:
    objects, jobs = random_case(seed, "x")
    cohorts = [read_cohort(item) for item in objects if item["kind"] == "Cohort"]
    queues = {item["metadata"]["name"]: read_cluster_queue(item) for item in objects if item["kind"] == "ClusterQueue"}
    admitted: list[Admitted] = []
    for number, job in enumerate(jobs):
        queue = queues[job["queue"]]
        flavors = frozenset([job["selector"]] if job["selector"] else queue.flavors(GPU))
        pods = PodSetDemand({GPU: job["gpus"] * 1000}, flavors)
        demand = Demand(f"w{number}", queue.name, job["priority"], float(number), (pods,))
        tree = QuotaTree.of([*cohorts, *(item.node for item in queues.values())], admitted)
        assignment = assign(demand, queue.rules, tree, admitted)
        if assignment.mode is not Mode.FIT:
            break
        uses = dict(assignment.requests)
        admitted.append(Admitted(demand.name, queue.name, demand.priority, float(number), float(number), uses))
    return World(tree, admitted, demand, queue.rules)


def available(tree: QuotaTree, key: str, cell: FlavorResource) -> int:
    """The definition, by recursion: what a node keeps for itself, and what its parent leaves to it."""
    quota, parent = tree.quota(key, cell), tree.nodes[key].parent
    total, used = subtree(tree, key, cell), usage(tree, key, cell)
    if not parent:
        return total - used
    local = kept(tree, key, cell)
    above = available(tree, parent, cell)
    if quota.borrowing_limit is not None:
        above = min(above, total - local - max(0, used - local) + quota.borrowing_limit)
    return max(0, local - used) + above


def subtree(tree: QuotaTree, key: str, cell: FlavorResource) -> int:
    below = [subtree(tree, child, cell) - kept(tree, child, cell) for child in tree.children(key)]
    return tree.quota(key, cell).nominal + sum(below)


def kept(tree: QuotaTree, key: str, cell: FlavorResource) -> int:
    limit = tree.quota(key, cell).lending_limit
    return 0 if limit is None else max(0, subtree(tree, key, cell) - limit)


def usage(tree: QuotaTree, key: str, cell: FlavorResource) -> int:
    if not key.startswith("cohort/"):
        return tree.used(key, cell)
    return sum(max(0, usage(tree, child, cell) - kept(tree, child, cell)) for child in tree.children(key))


@given(st.integers(0, 10_000))
@settings(max_examples=examples(200))
def test_what_is_available_is_as_defined(seed: int) -> None:
    made = world(seed)
    for number in range(len(made.admitted) + 1):
        for key in made.tree.nodes:
            for flavor in made.demand.pod_sets[0].flavors:
                cell = (flavor, GPU)
                assert made.tree.used(key, cell) == usage(made.tree, key, cell)
                assert made.tree.available(key, cell) == max(0, available(made.tree, key, cell))
        if number < len(made.admitted):
            made.tree.add(made.admitted[number].queue, made.admitted[number].uses, -1)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
@settings(max_examples=examples(300))
def test_victims_make_room_for_it_where_the_limits_say_so(seed: int, choice: int) -> None:
    made, rng = world(seed), random.Random(choice)
    (pods,) = made.demand.pod_sets
    flavor = rng.choice(sorted(pods.flavors))
    cell, amount = (flavor, GPU), pods.requests[GPU]
    bounds = limits(made.demand, made.rules, made.tree, made.admitted, GPU, [flavor])
    need = Need(1, amount, bounds.free, rooms=tuple(bounds.rooms))
    free, able = dict(bounds.free), True
    for victim in rng.sample(made.admitted, len(made.admitted)):
        if victim.name not in bounds.frees or not stays_above(made.tree, victim, made.demand.queue, cell):
            continue
        able = able and any(key.startswith(f"{flavor} of") for key in bounds.frees[victim.name])
        made.tree.add(victim.queue, victim.uses, -1)
        for key in bounds.frees[victim.name]:
            free[key] += victim.uses[cell]
        if amount > made.tree.capacity(made.demand.queue, cell):
            assert not bounds.rooms
            continue
        # Some may only be taken if the queue does not borrow then.
        room = fits(made.tree, made.demand.queue, {cell: amount}, borrowing=able)
        assert not need.met_by(free) or fits(made.tree, made.demand.queue, {cell: amount})
        assert need.met_by(free) or not room or (not able and len(bounds.rooms) < 2), "a room that nobody knows of"


def stays_above(tree: QuotaTree, victim: Admitted, queue: str, cell: FlavorResource) -> bool:
    """Whether neither its queue nor its cohorts, up to those of the other queue, fall below their quota."""
    shared = set(tree.lineage(queue))
    return all(
        tree.used(key, cell) - victim.uses.get(cell, 0) >= tree.subtree(key, cell)
        for key in tree.lineage(victim.queue)
        if key not in shared
    )
