"""Typical pods are learned beside the answers: decisions go on, by what was known before, and are not held up."""

import asyncio

import pytest

from kopt.cluster.workloads.requests.pods import ask_of
from kopt.controllers.extender.books.typical_pods import Learner
from kopt.core.scheduling.placement import FleetNode
from kopt.core.units import GIB, Bytes
from kopt.policies.placement.cache import FragmentationCache
from kopt.policies.placement.fleet import Fleet
from kopt.policies.placement.fragmentation import Valuation
from kopt.policies.placement.state import FleetState
from kopt.policies.placement.typical import TypicalPods
from tests.extender.conftest import gpu_pod
from tests.extender.test_books import NVIDIA

KINDS = 40
"""Requests that differ; a valuation of so many takes a tenth of a second and more."""


def fleet_of(nodes: int) -> Fleet:
    fleet = Fleet()
    for number in range(nodes):
        name = f"n{number:05d}"
        offer = FleetNode(name, 96_000, Bytes(1024 * GIB), 8, f"GPU-{number % 4}", Bytes(80 * GIB))
        fleet.set_node(name, {NVIDIA: offer})
    return fleet


def learner_that_saw(kinds: int) -> Learner:
    learner = Learner()
    for cpu in range(1, kinds + 1):
        learner.saw(ask_of(gpu_pod(f"p{cpu}", "ns", 1 + cpu % 4, cpu=str(cpu))))
    return learner


async def test_what_was_learned_counts_from_the_next_decision_on() -> None:
    fleet, learner = fleet_of(4), learner_that_saw(KINDS)
    before = fleet.pools[NVIDIA].cache
    assert await learner.teach(fleet) == 1
    after = fleet.pools[NVIDIA].cache
    assert after is not before
    assert len(after.typical.weights) == KINDS
    assert await learner.teach(fleet) == 0
    assert fleet.pools[NVIDIA].cache is after


async def test_decisions_that_come_meanwhile_are_made_and_reserved_in_the_books() -> None:
    fleet, learner = fleet_of(4), learner_that_saw(KINDS)
    teaching = asyncio.create_task(learner.teach(fleet))
    ask, taken = ask_of(gpu_pod("p", "ns", 8)), []
    while not teaching.done():
        await asyncio.sleep(0)
        placement = fleet.choose(ask, None)
        if placement.choice.node is not None:
            fleet.reserve(f"p{len(taken)}", ("ns", "p"), ask, placement, 10.0)
            taken.append(placement.choice.node)
    assert sorted(taken) == ["n00000", "n00001", "n00002", "n00003"]
    # The new picture is of the fleet as it is, not as it was when learning began.
    assert fleet.choose(ask, None).choice.node is None


async def test_calls_are_answered_while_it_learns_and_while_it_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inline both hold up everything, for tenths of a second at this size."""
    fleet, learner = fleet_of(5_000), learner_that_saw(KINDS)
    turns, seen = 0, {"learn": 0}
    learn = FragmentationCache.learn

    def watched(cache: FragmentationCache, state: FleetState, typical: TypicalPods) -> Valuation:
        before = turns
        found = learn(cache, state, typical)
        seen["learn"] = turns - before
        return found

    monkeypatch.setattr(FragmentationCache, "learn", watched)
    teaching = asyncio.create_task(learner.teach(fleet))
    while not teaching.done():
        await asyncio.sleep(0)
        turns += 1
    assert seen["learn"] > 10, "nothing was answered while the valuation was made"
    # Sixteen frequent requests, five pieces of the fleet each.
    assert turns - seen["learn"] > 16 * 4
