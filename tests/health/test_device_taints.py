"""GPUs that are allocated by claims are kept free one by one, and their node where that cannot be."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from attacks.api_in_memory import MemoryKube
from attacks.scenarios.objects import LEASE, node, space

from kopt.cluster.client.api import Page
from kopt.cluster.client.errors import NotFound
from kopt.cluster.client.resources import DEVICE_TAINT_RULES, EVENTS, NODE_TOPOLOGIES, NODES, Object, Resource
from kopt.cluster.holds.device_taint import DeviceName, read_rule, rule_of
from kopt.cluster.holds.node_taint import TAINT_KEY
from kopt.cluster.objects.device_slices import Device, DevicePool, Taint, mig_gpus, whole_gpus
from kopt.cluster.teardown.switch_off import switch_off
from kopt.cluster.workloads.requests.external import RESOURCE_SLICES
from kopt.controllers.health import main
from kopt.controllers.health.devices import devices_by_gpu, read_slice
from kopt.controllers.health.main import ProcessSettings, Replica
from kopt.controllers.health.reconciler import HealthSettings
from kopt.core.decision import Mode
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry

DRIVER, XID = "gpu.nvidia.com", "DCGM_FI_DEV_XID_ERRORS"
H100 = mig_geometry(find_gpu("h100-80gb"))


class Cluster(MemoryKube):
    """With ``answers`` a kube-controller-manager sees rules, with ``serves`` the API server has them."""

    def __init__(self, *, answers: bool = True, serves: bool = True) -> None:
        super().__init__()
        self.answers, self.serves_rules = answers, serves

    async def create(self, resource: Resource, body: Object, namespace: str = "", *, dry_run: bool = False) -> Object:
        if resource == DEVICE_TAINT_RULES and self.answers:
            body = body | {"status": {"conditions": [{"type": "EvictionInProgress", "status": "False"}]}}
        return await super().create(resource, body, namespace, dry_run=dry_run)

    async def pages(self, resource: Resource, *arguments: Any, **named: Any) -> AsyncIterator[Page]:
        if resource == DEVICE_TAINT_RULES and not self.serves_rules:
            raise NotFound(404, "NotFound", "the server could not find the requested resource")
        async for page in super().pages(resource, *arguments, **named):
            yield page

    def publish(self, pool: DevicePool) -> None:
        for document in pool.slices():
            self.put(RESOURCE_SLICES, document)

    def rules(self) -> dict[str, str]:
        """GPUs by device."""
        found = [read_rule(document) for document in self.all(DEVICE_TAINT_RULES)]
        return {rule.name.device: rule.gpu for rule in found}

    def is_tainted(self, name: str = "n0") -> bool:
        document = self.find(NODES, name)
        return document is not None and any(taint["key"] == TAINT_KEY for taint in document["spec"].get("taints") or ())

    def events(self, reason: str) -> list[str]:
        return [event["note"] for event in self.all(EVENTS) if event["reason"] == reason]


def claims_only(kube: Cluster, nodes: int = 2, gpus: int = 8) -> Cluster:
    """Nodes without a device plugin or a label: only slices speak of their GPUs."""
    space(kube, "team")
    for number in range(nodes):
        document = node(f"n{number}")
        for amounts in document["status"].values():
            if isinstance(amounts, dict):
                amounts.pop("nvidia.com/gpu", None)
        document["status"]["nodeInfo"] = {"bootID": "first"}
        kube.put(NODES, document)
        kube.publish(DevicePool(DRIVER, f"n{number}", whole_gpus(gpus, "H100", 80)))
    return kube


class Lead:
    """A replica that leads while the block runs; ``xids`` is what an exporter says, by node and GPU."""

    def __init__(self, kube: Cluster, mode: Mode = Mode.ENFORCE, **xids: float) -> None:
        self.kube, self.xids, self.looks = kube, xids, 0
        settings = ProcessSettings(lease=LEASE, health=HealthSettings(mode, 0.25, interval_s=0.05), port=0)
        self.replica = Replica(kube, settings, self._query)  # type: ignore[arg-type]

    async def _query(self, _: str) -> list[tuple[dict[str, str], float]]:
        self.looks += 1
        parts = [(name.split("_"), value) for name, value in self.xids.items()]
        return [({"__name__": XID, "Hostname": on, "gpu": gpu}, value) for (on, gpu), value in parts]

    async def __aenter__(self) -> "Lead":
        self._task = asyncio.create_task(self.replica.run())
        return self

    async def until(self, holds: Any) -> None:
        """And for three further looks, in which it would be undone."""
        async with asyncio.timeout(20):
            while not holds():
                assert not self._task.done(), self._task.exception()
                await asyncio.sleep(0.01)
            last = self.looks + 3
            while self.looks < last:
                await asyncio.sleep(0.01)
        assert holds()

    async def __aexit__(self, *_: object) -> None:
        await self.replica.stop()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "_GATHER_S", 0.01)


async def test_one_gpu_is_closed_and_its_node_stays_open_until_it_is_repaired() -> None:
    kube = claims_only(Cluster())
    async with Lead(kube, n0_3=79.0) as leader:
        await leader.until(lambda: kube.rules() == {"gpu-3": "3"} and not kube.is_tainted())
        (rule,) = kube.all(DEVICE_TAINT_RULES)
        assert rule["spec"] == {
            "deviceSelector": {"driver": DRIVER, "pool": "n0", "device": "gpu-3"},
            "taint": {"key": TAINT_KEY, "value": "XID_79", "effect": "NoSchedule"},
        }
        # A driver that starts anew publishes nothing for a moment.
        kept = kube.all(RESOURCE_SLICES)
        for document in kept:
            await kube.delete(RESOURCE_SLICES, document["metadata"]["name"])
        await leader.until(lambda: kube.rules() == {"gpu-3": "3"})
        for document in kept:
            kube.put(RESOURCE_SLICES, document)
        await leader.until(lambda: kube.rules() == {"gpu-3": "3"})
        await kube.patch(NODES, "n0", {"status": {"nodeInfo": {"bootID": "another"}}})
        await leader.until(lambda: kube.rules() == {})
    assert not kube.is_tainted()


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ANNOTATE])
async def test_only_in_mode_enforce_and_what_was_closed_is_given_back(mode: Mode) -> None:
    kube = claims_only(Cluster())
    async with Lead(kube, n0_3=79.0) as leader:
        await leader.until(lambda: len(kube.rules()) == 1)
    theirs = rule_of(DeviceName(DRIVER, "n1", "gpu-0"), "n1", "0", "theirs")
    theirs["metadata"] = {"name": "of-an-administrator"}
    kube.put(DEVICE_TAINT_RULES, theirs)
    async with Lead(kube, mode, n0_3=79.0) as leader:
        await leader.until(
            lambda: [item["metadata"]["name"] for item in kube.all(DEVICE_TAINT_RULES)] == ["of-an-administrator"]
        )


async def test_never_more_than_the_share_of_a_pools_gpus_the_worst_first_and_without_taking_turns() -> None:
    kube = claims_only(Cluster(), nodes=1)
    async with Lead(kube, n0_1=79.0, n0_2=79.0) as leader:
        await leader.until(lambda: set(kube.rules()) == {"gpu-1", "gpu-2"})
        leader.xids["n0_0"] = 79.0
        # A quarter of eight GPUs is two.
        await leader.until(lambda: bool(kube.events("HealthTaintWithheld")))
        assert set(kube.rules()) == {"gpu-1", "gpu-2"}
        assert not kube.is_tainted()
    assert kube.events("HealthTaintWithheld") == ["GPU 0 stays open: at most 25% of its pool's GPUs may be kept free."]


@pytest.mark.parametrize(
    ("served", "answered", "why"),
    [(False, True, "v1beta2) are not served"), (True, False, "kube-controller-manager ignores DeviceTaintRules")],
)
async def test_without_the_api_or_its_gate_the_node_is_tainted_and_that_is_said(
    served: bool, answered: bool, why: str
) -> None:
    kube = claims_only(Cluster(serves=served, answers=answered), nodes=4)
    async with Lead(kube, n0_3=79.0) as leader:
        await leader.until(kube.is_tainted)
        assert leader.replica.errors == 0
        (note,) = kube.events("NodeKeptFree")
        assert why in note


async def test_beside_a_device_plugin_the_node_is_tainted_too() -> None:
    kube = claims_only(Cluster(), nodes=4)
    for number in range(4):
        await kube.patch(NODES, f"n{number}", {"status": {"allocatable": {"nvidia.com/gpu": "8"}}})
    async with Lead(kube, n0_3=79.0) as leader:
        await leader.until(lambda: kube.is_tainted() and kube.rules() == {"gpu-3": "3"})


async def test_every_instance_that_can_be_cut_from_the_gpu_is_closed_and_none_of_another() -> None:
    kube = claims_only(Cluster(), nodes=1, gpus=1)
    for document in kube.all(RESOURCE_SLICES).copy():
        await kube.delete(RESOURCE_SLICES, document["metadata"]["name"])
    pool = mig_gpus(DRIVER, "n0", 4, H100)
    kube.publish(pool)
    async with Lead(kube, n0_1=79.0) as leader:
        expected = {device.name for device in pool.devices if device.name.startswith("gpu-1")}
        await leader.until(lambda: set(kube.rules()) == expected)
    assert len(expected) > 10


async def test_a_node_that_is_gone_leaves_no_rule_and_neither_does_switching_off() -> None:
    kube = claims_only(Cluster(), nodes=3)
    async with Lead(kube, n0_3=79.0, n1_4=79.0) as leader:
        await leader.until(lambda: len(kube.rules()) == 2)
        await kube.delete(NODES, "n0")
        for document in list(kube.all(RESOURCE_SLICES)):
            if document["spec"]["nodeName"] == "n0":
                await kube.delete(RESOURCE_SLICES, document["metadata"]["name"])
        await leader.until(lambda: kube.rules() == {"gpu-4": "4"})
    outcomes = [outcome async for outcome in switch_off(kube, held_kinds=())]  # type: ignore[arg-type]
    assert [item.error for item in outcomes if item.step.resource == DEVICE_TAINT_RULES] == [""]
    assert kube.rules() == {}


def sliced(*devices: Object) -> Object:
    return {"spec": {"driver": "gpu.amd.com", "nodeName": "n", "pool": {"name": "n"}, "devices": list(devices)}}


def test_amds_devices_are_known_by_the_address_that_the_nodes_agent_has() -> None:
    address = {"resource.kubernetes.io/pciBusID": {"string": "0000:C1:00.0"}, "type": {"string": "amdgpu"}}
    read = read_slice(sliced({"name": "gpu-9-136", "attributes": address}))
    assert read is not None
    assert list(devices_by_gpu(read.devices, {"0000:c1:00.0": "5"})) == ["5"]
    assert list(devices_by_gpu(read.devices, {})) == [""]


async def test_who_cannot_say_which_device_it_is_has_the_node_tainted() -> None:
    kube = claims_only(Cluster(), nodes=4)
    nameless = {"type": "amdgpu", "productName": "H100"}
    named = replace(whole_gpus(1, "H100", 80)[0], name="gpu-9-136", attributes=nameless)
    kube.publish(DevicePool(DRIVER, "n0", (named,)))
    async with Lead(kube, n0_3=79.0) as leader:
        await leader.until(kube.is_tainted)
        assert kube.rules() == {}
        # Its agent begins to.
        gpus = [{"index": number, "uuid": f"GPU-{number}"} for number in range(8)]
        kube.put(NODE_TOPOLOGIES, {"metadata": {"name": "n0"}, "spec": {"gpus": gpus}})
        known = replace(named, attributes=nameless | {"uuid": "GPU-3"})
        kube.publish(DevicePool(DRIVER, "n0", (known,)))
        await leader.until(lambda: kube.rules() == {"gpu-9-136": "3"} and not kube.is_tainted())


async def test_a_device_that_its_driver_has_tainted_already_gets_no_rule() -> None:
    kube = claims_only(Cluster(), nodes=4)
    devices = whole_gpus(8, "H100", 80)
    tainted: Device = devices[3].tainted(Taint("gpu.nvidia.com/unhealthy", "NoSchedule"))
    kube.publish(DevicePool(DRIVER, "n0", (*devices[:3], tainted, *devices[4:])))
    async with Lead(kube, n0_3=79.0, n0_4=79.0) as leader:
        await leader.until(lambda: kube.rules() == {"gpu-4": "4"})


@pytest.mark.parametrize("document", [{}, {"spec": []}, {"spec": {"driver": "gpu.x", "nodeName": "n", "devices": [1]}}])
def test_no_slice_and_no_rule_breaks_the_reader(document: Any) -> None:
    read_slice(document)
    assert read_rule(document | {"metadata": {"annotations": [], "creationTimestamp": 7}}).node == ""
