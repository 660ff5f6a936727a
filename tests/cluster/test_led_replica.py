"""What controllers share: state that says when it has changed, gauges by name, and events of one action."""

import asyncio
from typing import Any

import pytest
from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import LEASE, node

from kopt.cluster.client.resources import EVENTS, NODES
from kopt.cluster.objects.fields import slim
from kopt.cluster.runtime.informer import Informer
from kopt.cluster.runtime.lease import Fence
from kopt.cluster.runtime.manager import LedReplica, ReplicaSettings
from kopt.cluster.runtime.object_cache import LiveState


class State(LiveState):
    def __init__(self, kube: Any) -> None:
        super().__init__()
        self.nodes: Informer[Any] = Informer(kube, NODES, keep=slim)
        self._observe(self.nodes)

    async def label(self, name: str) -> None:
        document = self.nodes.objects["", name]
        await self._fence.patch(NODES, document, {"metadata": {"labels": {"kaiwo.ai/counted": "true"}}})


class Counting:
    """Counts nodes, and marks each once."""

    errors = 0
    nodes = 0

    def __init__(self, replica: "Replica") -> None:
        self._replica = replica

    async def step(self) -> None:
        state = self._replica.state
        self.nodes = len(state.nodes.objects)
        for (_, name), document in list(state.nodes.objects.items()):
            if "kaiwo.ai/counted" not in document["metadata"]["labels"]:
                await state.label(name)
                self._replica.emit_event(
                    NODES.reference("", name, document["metadata"]["uid"]), "Counted", "It is one."
                )


class Replica(LedReplica):
    action = "Counting"

    def __init__(self, kube: Any) -> None:
        self.state = State(kube)
        super().__init__(kube, "count", ReplicaSettings(lease=LEASE), self.state.informers)
        self.gauge_of_stepper("nodes", "Nodes.")
        self.gauge_of_stepper("all", "The same under another name.", "nodes")

    async def lead(self, fence: Fence) -> None:
        self.state.begin(fence)
        await self.step_through(Counting(self), self.state.changed, 0.01)

    def value(self, name: str) -> float | None:
        return self.registry.get_sample_value(name)


async def test_each_change_leads_to_a_step_that_gauges_and_events_report() -> None:
    kube = MemoryKube()
    kube.put(NODES, node("n0"))
    replica = Replica(kube)
    assert replica.value("kopt_count_nodes") == 0
    task = asyncio.create_task(replica.run())
    try:
        async with asyncio.timeout(30):
            while replica.value("kopt_count_nodes") != 1:
                await asyncio.sleep(0.01)
            kube.put(NODES, node("n1"))
            while len(kube.all(EVENTS)) < 2:
                await asyncio.sleep(0.01)
    finally:
        await replica.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (replica.value("kopt_count_nodes"), replica.value("kopt_count_all")) == (2, 2)
    assert {(item["action"], item["reason"]) for item in kube.all(EVENTS)} == {("Counting", "Counted")}
    assert all(item["metadata"]["labels"]["kaiwo.ai/counted"] for item in kube.all(NODES))


async def test_before_a_term_nothing_is_written() -> None:
    kube = MemoryKube()
    kube.put(NODES, node("n0"))
    state = State(kube)
    running = asyncio.create_task(state.nodes.run())
    await asyncio.wait_for(state.changed.wait(), 20)
    with pytest.raises(AssertionError, match="only a leader writes"):
        await state.label("n0")
    running.cancel()
