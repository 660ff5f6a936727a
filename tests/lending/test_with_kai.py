"""The same under a real KAI: the limit of a Queue follows what is lent, Jobs are suspended and go on."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from controlplane.kai import QUEUE_LABEL, SCHEDULER, Kai
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.client.api import connect
from kopt.cluster.teardown.switch_off import switch_off
from kopt.controllers.lending.state import gpu_job

from .conftest import GPU, POOL, Controller, Object, Scene
from .endpoint import Endpoint

QUEUE = ("scheduling.run.ai/v2", "Queue")


class KaiScene(Scene):
    """Borrowers are Jobs of two pods, scheduled by KAI as gangs."""

    def quota(self) -> int:
        return int(self.api.get(*QUEUE, self.queue, "")["spec"]["resources"]["gpu"]["limit"])

    def pool(self, mode: str = "enforce", **spec: Any) -> None:
        super().pool(mode, borrowers=[{"system": "KAI", "queue": self.queue}], **spec)

    def run(self, name: str, gpus: int, **_: Any) -> None:
        container = {"name": "train", "image": "team/train:1", "resources": {"limits": {GPU: str(gpus)}}}
        spec = {
            "restartPolicy": "Never",
            "containers": [container],
            "nodeSelector": self._selector,
            "schedulerName": SCHEDULER,
            "terminationGracePeriodSeconds": 1,
        }
        labels = {QUEUE_LABEL: self.queue}
        self.jobs[name] = self.api.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": self.space, "labels": labels},
                "spec": {
                    "parallelism": 2,
                    "completions": 2,
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            }
        )

    def job(self, name: str) -> Object:
        return self.api.get("batch/v1", "Job", name, self.space)

    def runs(self) -> set[str]:
        return {name for name in self.jobs if len(self.pods(name)) == 2}

    def held(self) -> set[str]:
        return {
            name for name in self.jobs if self.job(name)["metadata"].get("labels", {}).get("kaiwo.ai/held") == "lending"
        }


@pytest.fixture
def lender(plane: ControlPlane, kai: Kai, kwok: Kwok, forecasts: Endpoint) -> Iterator[KaiScene]:
    space = plane.api.space("kai-lending", {"kaiwo.ai/managed": "true"})
    with kwok.nodes(1, gpus=8) as nodes, kai.queue(gpus=0) as queue:
        plane.api.patch(*QUEUE, queue, {"spec": {"resources": {"gpu": {"limit": 0}}}}, "")
        one = KaiScene(plane, space, dict(nodes.selector), queue, forecasts)
        yield one
        plane.api.delete(*POOL, space, "")
        for name in one.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        plane.api.delete_all("v1", "Pod", space, "app=chat")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


def test_borrow_spike_reclaim_and_return(lender: KaiScene, controller: Callable[..., Controller]) -> None:
    controller()
    lender.serve("chat-0", "chat-1")
    lender.expect(2, 2.4, 2.6, 2.9)
    lender.pool()
    wait_for(lambda: lender.quota() == 5, what="five GPUs are lent")
    lender.run("one", 1)
    lender.run("two", 1)
    wait_for(lambda: lender.runs() == {"one", "two"}, what="both run on lent GPUs")
    lender.note("one", lost=5000)
    lender.note("two", lost=10)
    lender.expect(4, 5, 5, 5.9)
    wait_for(lambda: lender.held() == {"two"}, what="who loses least was told to go")
    wait_for(lambda: lender.runs() == {"one"}, what="and went as a gang")
    assert lender.quota() == 2
    lender.serve("chat-2", "chat-3", "chat-4", "chat-5")
    wait_for(lambda: len(lender.serving()) == 6, what="the service has its GPUs")
    lender.stop_serving("chat-2", "chat-3", "chat-4", "chat-5")
    lender.expect(2, 2.4, 2.6, 2.9)
    wait_for(lambda: lender.runs() == {"one", "two"}, what="it goes on")
    assert lender.held() == set()


@pytest.mark.parametrize(("kind", "ours"), [("", True), ("CronJob", True), ("JobSet", False), ("MPIJob", False)])
def test_jobs_that_another_controller_would_start_again_are_not_chosen(kind: str, ours: bool) -> None:
    owners = [{"kind": kind, "uid": "1", "controller": True}] if kind else []
    job = {"metadata": {"name": "train", "labels": {QUEUE_LABEL: "lent"}, "ownerReferences": owners}, "spec": {}}
    assert (gpu_job(job) is not None) is ours


@pytest.mark.long
async def test_off_gives_limit_and_jobs_back(
    lender: KaiScene, controller: Callable[..., Controller], tmp_path: Path
) -> None:
    one = controller()
    lender.serve("chat-0")
    lender.expect(2, 2.4, 2.6, 2.9)
    lender.pool()
    wait_for(lambda: lender.quota() == 5, what="five GPUs are lent")
    lender.run("one", 1)
    wait_for(lambda: lender.runs() == {"one"}, what="it runs on lent GPUs")
    lender.note("one")
    lender.expect(7, 7, 7, 7)
    wait_for(lambda: lender.held() == {"one"}, what="it was told to go")
    lender.expect(4, 4, 4, 6.5)
    wait_for(lambda: lender.quota() == 1, what="one GPU is lent")
    one.server.kill()
    async with connect(lender.plane.kubeconfig) as kube:
        found = [step async for step in switch_off(kube, namespace=lender.space, wait_s=5)]
    assert [step for step in found if step.error] == []
    assert (lender.quota(), lender.held()) == (0, set())
    assert lender.job("one")["spec"]["suspend"] is False
