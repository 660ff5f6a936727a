"""A program that really runs is asked to save, does, and is taken by Kueue afterwards: nothing from before the request
is lost. And what happens to one that does not answer."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from agent_notes import stamp
from controlplane.api import Refused
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue, workload_of
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.holds.checkpoint_request import request_of

from .teams import GPU, Controller, Object, Team

pytestmark = [pytest.mark.cluster, pytest.mark.slow]
PROGRAM = """
import sys, time
from kopt.saving import SaveRequests
requests, answers, step = SaveRequests(sys.argv[1]), sys.argv[2] == "answers", 0
while True:
    step += 1
    time.sleep(0.1)
    print("step", step, flush=True)
    if step == 3 or (requests.asked() and answers):
        print("saving", step, flush=True)
        time.sleep(0.3)
        print("saved", step, time.time(), flush=True)
"""


class Real:
    """Jobs whose pods are processes, and a log agent of the tests that tells on pods what their logs say."""

    def __init__(self, plane: ControlPlane, space: str, node: Kubelet) -> None:
        self.team = Team(plane, space, node.selector)
        self.plane, self.api, self.space, self.selector = plane, plane.api, space, node.selector
        self.durable = (0, 0.0)
        self.step = 0
        self._over = threading.Event()
        self._agent = threading.Thread(target=self._tell, daemon=True)
        self._agent.start()

    def submit(self, name: str, arguments: list[str], priority: str = "low") -> None:
        item = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
        container = {
            "name": "train",
            "image": "none",
            "command": ["python", "-u", "-c", PROGRAM],
            "args": arguments,
            "resources": {"limits": {GPU: "4"}, "requests": {"cpu": "100m"}},
            "volumeMounts": [{"name": "podinfo", "mountPath": "/etc/podinfo"}],
        }
        template = {
            "metadata": {"annotations": {"kaiwo.ai/saves-on-request": "true"}},
            "spec": {
                "restartPolicy": "Never",
                "containers": [container],
                "nodeSelector": self.selector,
                "volumes": [{"name": "podinfo", "downwardAPI": {"items": [item]}}],
                "terminationGracePeriodSeconds": 1,
            },
        }
        labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": priority}
        metadata = {"name": name, "namespace": self.space, "labels": labels}
        wanted = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {"suspend": True, "template": template},
        }
        self.team.jobs[name] = self.api.create(wanted)
        workload_of(self.plane, self.team.jobs[name])

    def pod(self, name: str = "training") -> Object | None:
        return next(iter(self.team.pods(name)), None)

    def close(self) -> None:
        self._over.set()
        self._agent.join()

    def _tell(self) -> None:
        while not self._over.wait(0.5):
            with suppress(Refused):
                if (pod := self.pod()) is not None:
                    self._read(pod["metadata"]["name"])

    def _read(self, name: str) -> None:
        path = self.api.path("v1", "Pod", self.space, name)
        lines = [line.split() for line in self.api.request("GET", f"{path}/log").text.splitlines()]
        self.step = max([self.step, *(int(one[1]) for one in lines if one[0] == "step")])
        saves = [one for one in lines if one[0] in ("saving", "saved")]
        done = [one for one in saves if one[0] == "saved"]
        if not done:
            return
        self.durable = (int(done[-1][1]), float(done[-1][2]))
        lost = 4 * (time.time() - self.durable[1]) + 40
        writing = saves[-1][0] == "saving"
        annotations = {
            "kaiwo.ai/checkpoint-state": "CKPT_WRITING" if writing else "TRAIN",
            "kaiwo.ai/checkpoint-safe": "false" if writing else "true",
            "kaiwo.ai/checkpoint-observed-at": stamp(),
            "kaiwo.ai/last-checkpoint-time": stamp(self.durable[1] - time.time()),
            "kaiwo.ai/last-checkpoint-step": str(self.durable[0]),
            "kaiwo.ai/work-at-risk": f"{lost:.0f}",
            "kaiwo.ai/work-at-risk-interval": f"{lost / 2:.0f}-{lost * 2:.0f}",
            "kaiwo.ai/checkpoint-model": "logs/7",
        }
        self.api.patch("v1", "Pod", name, {"metadata": {"annotations": annotations}}, self.space)


@pytest.fixture
def real(plane: ControlPlane, kueue: Kueue, request: pytest.FixtureRequest) -> Iterator[Real]:
    """A node of processes with 4 GPUs and a queue of as many."""
    space = plane.api.space("saving", {"kaiwo.ai/managed": "true"})
    with (
        Kubelet(plane, resources={GPU: "4"}) as node,
        kueue.queue(space, {GPU: 4, "cpu": 100}, preemption={"withinClusterQueue": "LowerPriority"}),
    ):
        one = Real(plane, space, node)
        yield one
        one.close()
        for name in one.team.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


def asked(real: Real) -> Any:
    pod = real.pod()
    return request_of(pod) if pod else None


def test_what_was_done_before_the_request_is_not_lost(real: Real, controller: Callable[..., Controller]) -> None:
    controller("--mode=enforce", "--budget=100s")
    real.submit("training", ["/etc/podinfo/annotations", "answers"])
    wait_for(lambda: real.durable[0] == 3, what="it trains")
    wait_for(lambda: time.time() - real.durable[1] > 10, what="it has something to lose")
    before = real.step
    real.submit("urgent", ["/etc/podinfo/annotations", "answers"], "high")
    request = wait_for(lambda: asked(real), what="it is asked to save")
    assert request.for_whom.startswith(f"{real.space}/")
    wait_for(lambda: real.team.admitted("urgent"), what="the urgent job has its GPUs")
    assert real.team.evicted() == {"training"}
    step, durable_s = real.durable
    assert step > before, "its last checkpoint is of after the request"
    assert durable_s >= request.at_s
    assert real.step - step < 80, "what it did while it was told to go is all that is lost"
    wait_for(lambda: {"SaveRequested", "Preempting"} <= real.team.events("training").keys())
    assert real.team.decision("urgent")["lostGpuSeconds"] < 4 * 10 + 40
    assert real.team.left_over() == []


@pytest.mark.long
def test_one_that_does_not_answer_goes_when_the_budget_is_over(
    real: Real, controller: Callable[..., Controller]
) -> None:
    controller("--mode=enforce", "--budget=65s")
    real.submit("training", ["/etc/podinfo/annotations", "is deaf"])
    wait_for(lambda: real.durable[0] == 3, what="it trains")
    wait_for(lambda: time.time() - real.durable[1] > 10, what="it has something to lose")
    real.submit("urgent", ["/etc/podinfo/annotations", "answers"], "high")
    request = wait_for(lambda: asked(real), what="it is asked to save")
    created = real.team.workload("urgent")["metadata"]["creationTimestamp"]
    wait_for(lambda: real.team.admitted("urgent"), 120, what="the urgent job has its GPUs")
    assert real.team.evicted() == {"training"}
    assert time.time() >= request.until_s - 1, f"made at {created}"
    assert real.durable[0] == 3
