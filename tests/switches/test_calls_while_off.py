"""Features whose component answers calls: switched off, the answer is what it would be without us."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, cast

import orjson
import pytest
from admission.workloads import Object, job, pod, review
from attacks.scenarios.objects import LEASE, node, space, workload
from attacks.scenarios.objects import pod as gpu_pod
from attacks.scenarios.preemption import fill_kueue
from autoscaling.test_metrics_api import Endpoint, metric

from kopt.cluster.admission.address import Address
from kopt.cluster.admission.review import parse_review
from kopt.cluster.client.resources import (
    CONFORMANCE_POLICIES,
    FEATURE_ROLLOUTS,
    KAIWO_POOLS,
    KUEUE_LOCAL_QUEUES,
    KUEUE_WORKLOADS,
    LEASES,
    NODES,
    PODS,
)
from kopt.cluster.objects.device_slices import mig_gpus
from kopt.cluster.runtime.http import Request
from kopt.cluster.runtime.switches import LiveSwitches
from kopt.cluster.workloads.requests.external import CLAIMS, DEVICE_CLASSES, RESOURCE_SLICES
from kopt.controllers.admission.handlers import Admissions
from kopt.controllers.admission.sizes.cache import SizingCache
from kopt.controllers.admission.state import LiveState
from kopt.controllers.autoscaling.api import MetricsApi
from kopt.controllers.devices.admission import DevicesAtAdmission
from kopt.controllers.extender import main as extender
from kopt.controllers.extender.calls.server import ServerSettings
from kopt.controllers.extender.leadership import LeadershipSettings
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.controllers.preemption import main as preemption
from kopt.controllers.preemption.ports import ControllerSettings
from kopt.controllers.preemption.workload_hold import HoldSettings
from kopt.controllers.sizing.admission import SizingAtAdmission
from kopt.controllers.staging.admission import StagingAtAdmission
from kopt.core.decision import Mode
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.hardware.mig import mig_geometry
from kopt.core.switches import FEATURES, Owner, is_included
from kopt.core.times import stamp

from .acting import Watched, rollout

PATIENCE_S = 60.0
POLICY = {
    "mode": "enforce",
    "queues": {"default": "research"},
    "schedulers": {
        "packing": {
            "scheduler": "packer",
            "maxGpus": 1,
            "running": {"lease": {"namespace": "kopt-system", "name": "packer"}},
        }
    },
    "tracing": {"samplesPerThousand": 1000},
}
ALL_OFF = {feature.name: 0 for feature in FEATURES}
INCLUDED = next(name for name in (f"x{n}" for n in range(99)) if is_included(10, Owner.of("jobs", "team", name)))
EXCLUDED = next(name for name in (f"x{n}" for n in range(99)) if not is_included(10, Owner.of("jobs", "team", name)))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Webhook:
    """The webhook's parts over an API server in memory, with a policy that changes every GPU workload."""

    def __init__(self, kube: Watched) -> None:
        self.kube = kube
        api = cast(Any, kube)
        self.view = LiveState(api)
        gate = self.view.switches
        self._parts = (
            self.view,
            SizingAtAdmission(api, "kopt-system", gate=gate),
            StagingAtAdmission(api, "kopt-system", gate=gate),
            DevicesAtAdmission(api, gate=gate),
        )
        self.devices = self._parts[3]
        self._admissions = Admissions(self.view, SizingCache(None), self.view, *self._parts[1:])
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(part.run()) for part in self._parts]
        await until(
            lambda: (
                self.view.ready
                and self._parts[1].controller_lives
                and self._parts[2].controller_lives
                and self.view.running_schedulers()
                and self.view.pools()
                and self.view.queues(self.view.policy.queues.framework, "team")
            )
        )

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def switch(self, **percents: int) -> None:
        self.kube.put(FEATURE_ROLLOUTS, rollout(**percents))
        now = self.view.switches
        await until(lambda: dict(now.now.defaults) == percents)
        await until(lambda: self.view.queues(self.view.policy.queues.framework, "team"))
        await until(self.view.running_schedulers)

    async def changes(self, workload: Object) -> set[str]:
        """What the answer to its creation changes, as JSON."""
        found = parse_review(json.dumps(review(workload, namespace="team")).encode())
        answer = (await self._admissions.mutate(found)).answer.encoded
        patch = json.loads(b"{%s}" % answer).get("patch") if answer else None
        return {json.dumps(item) for item in json.loads(base64.b64decode(patch))} if patch else set()

    async def refused_at_once(self, workload: Object) -> bool:
        """Whether the mutating half refuses it."""
        found = parse_review(json.dumps(review(workload, namespace="team")).encode())
        return bool((await self._admissions.mutate(found)).answer.refusal)

    async def refuses(self, workload: Object) -> bool:
        found = parse_review(json.dumps(review(workload, namespace="team")).encode())
        return bool((await self._admissions.validate(found)).answer.refusal)


@pytest.fixture
async def webhook() -> AsyncIterator[Webhook]:
    kube = Watched()
    space(kube, "team")
    kube.put(CONFORMANCE_POLICIES, {"metadata": {"name": "default", "generation": 1}, "spec": POLICY})
    kube.put(KAIWO_POOLS, {"metadata": {"name": "h100"}, "spec": {"nodeLabels": {"gpu": "h100"}}})
    kube.put(KUEUE_LOCAL_QUEUES, {"metadata": {"name": "research", "namespace": "team"}, "spec": {}})
    for name in ("kopt-sizing", "kopt-staging", "packer"):
        spec = {"holderIdentity": "x", "renewTime": stamp(time.time() + 3600), "leaseDurationSeconds": 15}
        kube.put(LEASES, {"metadata": {"name": name, "namespace": "kopt-system"}, "spec": spec})
    result = Webhook(kube)
    await result.start()
    yield result
    await result.stop()


def wants_data(name: str) -> Object:
    made = job(name)
    made["metadata"]["annotations"] = {"kaiwo.ai/staged-data": "tokens"}
    return made


def wants_share(name: str) -> Object:
    made = pod(name)
    made["metadata"]["annotations"] = {"kaiwo.ai/gpu-fraction": "0.25"}
    made["spec"]["containers"][0]["resources"] = {}
    return made


def wants_pool(name: str) -> Object:
    made = job(name)
    made["metadata"]["annotations"] = {"kaiwo.ai/node-pools": "h100"}
    return made


async def test_a_pool_that_there_is_not_is_no_refusal_while_pools_are_off(webhook: Webhook) -> None:
    wrong = job("a")
    wrong["metadata"]["annotations"] = {"kaiwo.ai/node-pools": "h10"}
    await webhook.switch(queues=0)
    assert await webhook.refused_at_once(wrong)
    await webhook.switch(pools=0)
    assert not await webhook.refused_at_once(wrong)


async def test_the_webhook_changes_nothing_while_all_is_off(webhook: Webhook) -> None:
    for wanted in (job("a"), pod("b"), wants_data("c"), wants_pool("d")):
        await webhook.switch()
        assert await webhook.changes(wanted), "the policy changes it"
        await webhook.switch(**ALL_OFF)
        assert await webhook.changes(wanted) == set()


async def test_each_switch_of_the_webhook_is_its_own(webhook: Webhook) -> None:
    for feature, wanted, path in (
        ("queues", job("a"), "queue-name"),
        ("schedulers", job("a"), "schedulerName"),
        ("pools", wants_pool("a"), "nodeSelectorTerms"),
        ("staging", wants_data("a"), "staging"),
    ):
        await webhook.switch(**ALL_OFF | {feature: 100})
        assert any(path in each for each in await webhook.changes(wanted)), feature
        await webhook.switch(**{feature: 0})
        assert not any(path in each for each in await webhook.changes(wanted)), feature


async def test_shares_have_a_switch(webhook: Webhook) -> None:
    """A device plugin's replicas, which a queue of Kueue counts."""
    labels = {"nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "time-slicing"}
    status = {"allocatable": {"nvidia.com/gpu": "4"}}
    webhook.kube.put(NODES, {"metadata": {"name": "node", "labels": labels}, "spec": {}, "status": status})
    await until(webhook.view.sharing)
    await until(lambda: any(each.offers for each in webhook.view.sharing().offered()))  # type: ignore[union-attr]
    await webhook.switch(**ALL_OFF | {"fractions": 100})
    assert any("gpu-executor" in each for each in await webhook.changes(wants_share("a")))
    beyond = wants_share("b")
    beyond["metadata"]["annotations"]["kaiwo.ai/gpu-fraction"] = "0.5"
    assert await webhook.refused_at_once(beyond)
    await webhook.switch(**ALL_OFF)
    assert await webhook.changes(wants_share("a")) == set()
    assert not await webhook.refused_at_once(beyond)


async def test_devices_have_a_switch(webhook: Webhook) -> None:
    kube, driver = webhook.kube, "gpu.nvidia.com"
    geometry = mig_geometry(find_gpu("h100-80gb"))
    for document in mig_gpus(driver, "node", 1, geometry).slices():
        kube.put(RESOURCE_SLICES, document)
    kube.put(NODES, {"metadata": {"name": "node"}, "spec": {}})
    kube.put(
        DEVICE_CLASSES,
        {
            "metadata": {"name": "mig"},
            "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
        },
    )
    owner = kube.put(PODS, {**pod("infer"), "metadata": {"name": "infer", "namespace": "team"}})
    profile = f'device.attributes["{driver}"].profile == "1g.10gb"'
    exactly = {"deviceClassName": "mig", "selectors": [{"cel": {"expression": profile}}]}
    claim = {
        "apiVersion": CLAIMS.api_version,
        "kind": CLAIMS.kind,
        "metadata": {
            "namespace": "team",
            "generateName": "infer-",
            "ownerReferences": [{"kind": "Pod", "name": "infer", "uid": owner["metadata"]["uid"], "controller": True}],
        },
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }
    devices = webhook.devices
    await until(lambda: devices.is_wanted(claim) and devices.books.instances())
    await webhook.switch()
    assert any("firstAvailable" in each for each in await webhook.changes(claim))
    await webhook.switch(devices=0)
    assert await webhook.changes(claim) == set()


async def test_profiling_has_a_switch_at_creation_too(webhook: Webhook) -> None:
    trains = job("a")
    trains["spec"]["template"]["spec"]["containers"][0]["command"] = ["train"]
    trains["spec"]["template"]["spec"]["restartPolicy"] = "Never"
    await webhook.switch()
    assert any("held" in each for each in await webhook.changes(trains))
    await webhook.switch(profiling=0)
    assert not any("held" in each for each in await webhook.changes(trains))


async def test_a_percentage_picks_the_same_workloads_whatever_part_is_looked_at(webhook: Webhook) -> None:
    await webhook.switch(**dict.fromkeys(ALL_OFF, 10))
    assert await webhook.changes(job(INCLUDED))
    assert await webhook.changes(job(EXCLUDED)) == set()


async def test_nothing_is_refused_while_queues_are_off(webhook: Webhook) -> None:
    spec = POLICY | {"queues": {"groups": [{"name": "nobody", "queue": "research"}]}}
    webhook.kube.put(CONFORMANCE_POLICIES, {"metadata": {"name": "default", "generation": 2}, "spec": spec})
    await until(lambda: webhook.view.policy.generation == 2)
    await webhook.switch()
    assert await webhook.refuses(job("a"))
    await webhook.switch(queues=0)
    assert not await webhook.refuses(job("a"))


async def test_the_extender_offers_every_node_and_writes_nothing_while_placement_is_off() -> None:
    kube = Watched()
    space(kube, "team")
    for name in ("n0", "n1"):
        kube.put(NODES, node(name))
    waits = gpu_pod("waits")
    kube.put(PODS, waits | {"metadata": waits["metadata"] | {"uid": "waits"}})
    kube.put(FEATURE_ROLLOUTS, rollout(placement=0))
    kube.filled()
    settings = extender.ProcessSettings(
        extender=ExtenderSettings(Mode.ENFORCE),
        server=ServerSettings(port=0, drain_s=0),
        leadership=LeadershipSettings(identity="one", lease=LEASE),
        upkeep_s=0.01,
    )
    replica = extender.Replica(cast(Any, kube), settings)
    task = asyncio.create_task(replica.run())

    async def offered() -> list[str]:
        document = kube.find(PODS, "waits", "team")
        body = orjson.dumps({"Pod": document, "Nodes": None, "NodeNames": ["n0", "n1"]})
        reply = replica.server._answer(Request("POST", "/filter", body))
        reply = await reply if asyncio.iscoroutine(reply) else reply
        return list(orjson.loads(cast(Any, reply).body)["NodeNames"])

    try:
        await until(lambda: replica.serves)
        assert await offered() == ["n0", "n1"]
        kube.put(FEATURE_ROLLOUTS, rollout(placement=100))
        await until(lambda: not replica.switches.is_off("placement"))
        assert len(await offered()) == 1
        kube.put(FEATURE_ROLLOUTS, rollout(placement=0))
        await until(lambda: replica.switches.is_off("placement"))
        assert await offered() == ["n0", "n1"]
        assert kube.written == []
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await replica.server.stop()
        replica.close()


async def test_no_new_workload_is_held_for_a_decision_while_preemption_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kube = Watched()
    fill_kueue(kube)
    hold = HoldSettings(Address("kopt-system", "kopt"), ("x",))
    settings = preemption.ProcessSettings(lease=LEASE, controller=ControllerSettings(Mode.ENFORCE), hold=hold, port=0)
    replica = preemption.Replica(cast(Any, kube), settings)
    holding = replica._holding
    assert holding is not None
    monkeypatch.setattr(holding, "_led", lambda: True)
    tasks = [asyncio.create_task(informer.run()) for informer in replica._informers]
    document = workload("more-urgent", priority=2000)
    document |= {"apiVersion": KUEUE_WORKLOADS.api_version, "kind": KUEUE_WORKLOADS.kind}
    body = orjson.dumps(review(document, namespace="team"))

    async def holds() -> bool:
        reply = holding._review(Request("POST", "/hold", body))
        reply = await reply if asyncio.iscoroutine(reply) else reply
        return "patch" in orjson.loads(cast(Any, reply).body)["response"]

    try:
        await until(lambda: all(informer.synced.is_set() for informer in replica._informers))
        assert await holds()
        kube.put(FEATURE_ROLLOUTS, rollout(preemption=0))
        await until(lambda: replica.cluster.gated(Owner.of("jobs", "team", "x"), Mode.ENFORCE) is Mode.OBSERVE)
        assert not await holds()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_autoscalers_get_no_value_and_why_while_autoscaling_is_off() -> None:
    kube = Watched()
    switches = LiveSwitches(cast(Any, kube))
    task = asyncio.create_task(switches.informer.run())
    endpoint = Endpoint([40.0, 60.0])
    api = MetricsApi(endpoint.ask, gate=switches)
    try:
        assert (await metric(api, "service%3Dchat"))[0] == 404, "not before the switches are known"
        await until(switches.informer.synced.is_set)
        assert (await metric(api, "service%3Dchat"))[0] == 200
        asked = len(endpoint.queries)
        kube.put(FEATURE_ROLLOUTS, rollout(autoscaling=0))
        await until(lambda: switches.is_off("autoscaling"))
        status, document = await metric(api, "service%3Dchat")
        assert (status, "SWITCHED_OFF" in document["message"]) == (404, True)
        assert len(endpoint.queries) == asked, "the endpoint is left alone"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
