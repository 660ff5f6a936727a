"""Claims and a condemned GPU on the real scheduler: they get the node's other GPU, and it once it is repaired."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from attacks.scenarios.objects import LEASE
from controlplane.plane import ControlPlane

from kopt.cluster.client.api import connect
from kopt.cluster.objects.device_slices import whole_gpus
from kopt.controllers.health import main
from kopt.controllers.health.main import ProcessSettings, Replica
from kopt.controllers.health.reconciler import HealthSettings
from kopt.core.decision import Mode
from tests.devices.bench import CANNOT_ALLOCATE, Bench, Request, Situation, reason_of
from tests.devices.situations import plain

from .conftest import status, taints

pytestmark = pytest.mark.cluster
RULES = ("resource.k8s.io/v1beta2", "DeviceTaintRule")
GPU = Request()


@pytest.fixture
def bench(plane: ControlPlane) -> Iterator[Bench]:
    """A node with two GPUs of claims."""
    situation = Situation("health", (plain(*whole_gpus(2, "H100", 80)),), ())
    made = Bench(plane, plane.api.space("health-claims"), 90, situation)
    made.drivers = ["gpu.s90.test"]
    made.run()
    boot(plane, made.nodes[0], "first")
    yield made
    made.close()


def boot(plane: ControlPlane, node: str, identity: str) -> None:
    plane.api.patch("v1", "Node", node, {"status": {"nodeInfo": {"bootID": identity}}}, subresource="status")


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(holds):
            await asyncio.sleep(0.05)


async def test_claims_get_the_other_gpu_of_a_node_until_the_condemned_one_is_repaired(
    plane: ControlPlane, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_GATHER_S", 0.02)
    api, (name,) = plane.api, bench.nodes

    async def query(_: str) -> list[tuple[dict[str, str], float]]:
        return [({"__name__": "DCGM_FI_DEV_XID_ERRORS", "Hostname": name, "gpu": "0"}, 79.0)]

    space = api.space("health")
    health = HealthSettings(Mode.ENFORCE, 0.5, interval_s=0.1)
    settings = ProcessSettings(namespace=space, lease=LEASE, health=health, port=0)
    async with connect(plane.kubeconfig) as kube:
        replica = Replica(kube, settings, query)
        running = asyncio.create_task(replica.run())
        try:
            await until(lambda: [rule["spec"]["deviceSelector"]["device"] for rule in api.list(*RULES)] == ["gpu-0"])
            assert status(api, name)["verdict"] == "Condemned"
            # The scheduler would take the first device otherwise.
            first = bench.ask([GPU])
            bench.bound(first)
            assert bench.results(first)[0]["device"] == "gpu-1"
            last = bench.ask([GPU])
            await until(lambda: CANNOT_ALLOCATE in reason_of(bench.outcome(last)))
            # The controller manager has answered the rule, and the node was open all the time.
            assert api.list(*RULES)[0]["status"]["conditions"]
            assert taints(api, name) == []
            boot(plane, name, "second")
            await until(lambda: not api.list(*RULES))
            await until(lambda: bench.results(last))
            assert bench.results(last)[0]["device"] == "gpu-0"
            assert replica.errors == 0
        finally:
            await replica.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
