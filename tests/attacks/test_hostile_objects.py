"""One object on which somebody has written what they like, beside one that is as it should be: whatever stands on the
first, the second is handled, by every controller's own process over an API server in memory."""

import asyncio
import os
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.cluster.client.resources import EVICTIONS, Object

from .api_in_memory import MemoryKube
from .hostile import KEYS, OURS, hostile, schema_of
from .scenarios import SCENARIOS
from .scenarios.examples import EXAMPLES
from .scenarios.ledger import LEDGER
from .scenarios.objects import Host, Scenario
from .scenarios.preemption import EVICTION

PATIENCE_S = float(os.environ.get("KOPT_ATTACK_PATIENCE_S", "60"))
Drawn = list[tuple[Host, Object]]


def some(hosts: tuple[Host, ...], most: int = 3) -> st.SearchStrategy[Drawn]:
    """Hostile objects of these kinds."""

    def of(host: Host) -> st.SearchStrategy[tuple[Host, Object]]:
        schema = schema_of(host.schema) if host.schema else None
        keys = [*OURS, *OURS, *KEYS]
        return hostile(host.base, EXAMPLES, keys, host.fixed, schema).map(lambda document: (host, document))

    return st.lists(st.sampled_from(hosts).flatmap(of), min_size=1, max_size=most)


async def handles(scenario: Scenario, objects: Drawn) -> None:
    kube = MemoryKube()
    scenario.fill(kube)
    for host, document in objects:
        # The keys of an object are not what is drawn: the API server has its own rules for those.
        names = {key: host.base["metadata"][key] for key in ("name", "namespace") if key in host.base["metadata"]}
        kube.put(host.resource, document | {"metadata": document["metadata"] | names})
    replica = scenario.start(kube)
    task = asyncio.create_task(replica.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not scenario.handled(kube):
                if task.done():
                    task.result()
                await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.stop()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_the_ordinary_object_alone_is_handled(scenario: Scenario) -> None:
    asyncio.run(handles(scenario, []))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_a_hostile_object_costs_no_other_its_turn(scenario: Scenario) -> None:
    @settings(max_examples=8)
    @given(some(scenario.hosts, 2))
    def holds(objects: Drawn) -> None:
        asyncio.run(handles(scenario, objects))

    holds()


@pytest.mark.parametrize("value", [["x"], {"x": 1}], ids=["list", "mapping"])
def test_a_foreign_eviction_whose_uid_is_no_text_ends_no_ledger(value: Any) -> None:
    """What fuzzing found once: it stood in the ledger before the first leader began."""
    document = deepcopy(EVICTION)
    document["spec"]["workload"]["uid"] = value
    asyncio.run(handles(LEDGER, [(Host(EVICTIONS, EVICTION), document)]))


@pytest.mark.thorough
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.name)
def test_no_hostile_object_of_very_many_costs_another_its_turn(scenario: Scenario) -> None:
    @settings(max_examples=int(os.environ.get("KOPT_ATTACK_EXAMPLES", "1500")))
    @given(some(scenario.hosts, 6))
    def holds(objects: Drawn) -> None:
        asyncio.run(handles(scenario, objects))

    holds()
