"""Queues and Jobs of Volcano's, by the contract of volcano.sh/apis: no Volcano runs here. The test takes its part: it
carries out Commands and deletes them, as Volcano's controller does."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.client.api import connect
from kopt.cluster.client.resources import VOLCANO_COMMANDS, VOLCANO_JOBS, VOLCANO_QUEUES, Resource
from kopt.cluster.teardown.switch_off import switch_off

from .conftest import GPU, POOL, Controller, Object, Scene
from .endpoint import Endpoint

JOB, QUEUE = ("batch.volcano.sh/v1alpha1", "Job"), ("scheduling.volcano.sh/v1beta1", "Queue")
COMMAND = ("bus.volcano.sh/v1alpha1", "Command")


def definition(one: Resource) -> Object:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": one.plural, "singular": one.kind.lower(), "kind": one.kind, "listKind": f"{one.kind}List"}
    version = {"name": one.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{one.plural}.{one.group}"},
        "spec": {
            "group": one.group,
            "scope": "Namespaced" if one.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def test_the_contract_is_what_volcanos_types_say() -> None:
    # Several parts of the control plane bring it, each in a version of its own.
    found = max((Path.home() / "go" / "pkg" / "mod" / "volcano.sh").glob("apis@*"), default=None)
    if found is None:
        pytest.skip("the module volcano.sh/apis is not in Go's cache")
    types = found / "pkg" / "apis"
    command = (types / "bus" / "v1alpha1" / "commands.go").read_text()
    assert {"action", "target", "reason", "message"} <= set(re.findall(r'json:"(\w+)', command))
    assert {'"AbortJob"', '"ResumeJob"'} <= set(re.findall(r'"\w+"', (types / "bus/v1alpha1/actions.go").read_text()))
    job = (types / "batch" / "v1alpha1" / "job.go").read_text()
    assert {"queue", "tasks", "replicas", "template", "state", "phase"} <= set(re.findall(r'json:"(\w+)', job))
    assert {"Aborting", "Aborted", "Completed", "Terminated", "Failed"} <= set(re.findall(r'JobPhase = "(\w+)"', job))
    assert 'json:"capability' in (types / "scheduling" / "v1beta1" / "types.go").read_text()


class VolcanoScene(Scene):
    def quota(self) -> int:
        return int(self.api.get(*QUEUE, self.queue, "")["spec"]["capability"][GPU])

    def pool(self, mode: str = "enforce", **spec: object) -> None:
        super().pool(mode, borrowers=[{"system": "Volcano", "queue": self.queue}], **spec)

    def run(self, name: str, gpus: int, **_: object) -> None:
        container = {"name": "train", "image": "team/train:1", "resources": {"limits": {GPU: str(gpus)}}}
        spec = {"containers": [container], "nodeSelector": self._selector, "terminationGracePeriodSeconds": 0}
        task = {"name": "train", "replicas": 2, "template": {"spec": spec}}
        self.jobs[name] = self.api.create(
            {
                "apiVersion": JOB[0],
                "kind": JOB[1],
                "metadata": {"name": name, "namespace": self.space},
                "spec": {"queue": self.queue, "tasks": [task]},
                "status": {"state": {"phase": "Pending"}},
            }
        )
        self.start(name)

    def start(self, name: str) -> None:
        """What Volcano does with a Job that may run."""
        job = self.api.get(*JOB, name, self.space)
        owner = {"apiVersion": JOB[0], "kind": JOB[1], "name": name, "uid": job["metadata"]["uid"], "controller": True}
        for number in range(2):
            metadata = {
                "name": f"{name}-{number}",
                "namespace": self.space,
                "ownerReferences": [owner],
                "labels": {"batch.kubernetes.io/job-name": name},
            }
            spec = job["spec"]["tasks"][0]["template"]["spec"]
            self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        self.phase(name, "Running")

    def phase(self, name: str, phase: str) -> None:
        self.api.patch(*JOB, name, {"status": {"state": {"phase": phase}}}, self.space)

    def orders(self) -> dict[str, Object]:
        return {one["target"]["name"]: one for one in self.api.list(*COMMAND, self.space)}

    def carry_out(self, name: str) -> None:
        """An order for a Job, as Volcano's controller carries it out."""
        order = wait_for(lambda: self.orders().get(name), what=f"an order for {name}") or {}
        assert order["target"]["uid"] == self.jobs[name]["metadata"]["uid"]
        self.api.delete(*COMMAND, order["metadata"]["name"], self.space)
        if order["action"] == "AbortJob":
            for number in range(2):
                self.api.delete("v1", "Pod", f"{name}-{number}", self.space)
            self.phase(name, "Aborted")
        else:
            self.start(name)

    def held(self) -> set[str]:
        found = {name: self.api.get(*JOB, name, self.space)["metadata"] for name in self.jobs}
        return {name for name, one in found.items() if one.get("labels", {}).get("kaiwo.ai/held") == "lending"}


@pytest.fixture
def lender(plane: ControlPlane, kwok: Kwok, forecasts: Endpoint) -> Iterator[VolcanoScene]:
    space = plane.api.space("volcano-lending", {"kaiwo.ai/managed": "true"})
    definitions = [definition(one) for one in (VOLCANO_QUEUES, VOLCANO_JOBS, VOLCANO_COMMANDS)]
    plane.apply_crd(*definitions)
    plane.api.create(
        {
            "apiVersion": QUEUE[0],
            "kind": QUEUE[1],
            "metadata": {"name": space},
            "spec": {"capability": {GPU: "0", "cpu": "100"}},
        }
    )
    with kwok.nodes(1, gpus=8) as nodes:
        one = VolcanoScene(plane, space, dict(nodes.selector), space, forecasts)
        yield one
        plane.api.delete(*POOL, space, "")
        plane.api.delete_all("v1", "Pod", space)
        for definition_ in definitions:
            plane.api.delete(definition_["apiVersion"], definition_["kind"], definition_["metadata"]["name"], "")


@pytest.mark.long
def test_borrow_spike_abort_and_resume(lender: VolcanoScene, controller: Callable[..., Controller]) -> None:
    controller()
    lender.serve("chat-0")
    lender.expect(2, 2.4, 2.6, 2.9)
    lender.pool()
    wait_for(lambda: lender.quota() == 5, what="the queue may use five GPUs")
    lender.run("one", 1)
    lender.run("two", 1)
    wait_for(lambda: lender.status()["borrowedGpus"] == 4, what="four are borrowed")
    lender.note("one", lost=10)
    lender.note("two", "CKPT_WRITING", safe=False)
    lender.expect(4, 5, 5, 5.9)
    wait_for(lambda: lender.held() == {"one"}, what="it is told to go")
    assert lender.quota() == 2
    lender.carry_out("one")
    wait_for(lambda: "reclaiming" not in lender.status(), what="its GPUs are back")
    assert lender.orders() == {}
    lender.expect(2, 2.4, 2.6, 2.9)
    lender.carry_out("one")
    wait_for(lambda: lender.held() == set(), what="it is held no longer")
    wait_for(lambda: lender.quota() == 5, what="five GPUs are lent again")
    assert lender.orders() == {}


@pytest.mark.long
async def test_off_lets_it_go_on(lender: VolcanoScene, controller: Callable[..., Controller]) -> None:
    one = controller()
    lender.expect(2, 2.4, 2.6, 2.9)
    lender.serve("chat-0")
    lender.pool()
    wait_for(lambda: lender.quota() == 5, what="the queue may use five GPUs")
    lender.run("one", 1)
    wait_for(lambda: lender.status()["borrowedGpus"] == 2, what="two are borrowed")
    lender.note("one")
    lender.expect(7, 7, 7, 7)
    wait_for(lambda: lender.held() == {"one"}, what="it is told to go")
    lender.carry_out("one")
    lender.expect(4, 4, 4, 6.5)
    wait_for(lambda: lender.quota() == 1, what="one GPU is lent")
    one.server.kill()
    async with connect(lender.plane.kubeconfig) as kube:
        found = [step async for step in switch_off(kube, namespace=lender.space, wait_s=5)]
    assert [step for step in found if step.error] == []
    assert (lender.quota(), lender.held()) == (0, set())
    assert lender.orders()["one"]["action"] == "ResumeJob"
