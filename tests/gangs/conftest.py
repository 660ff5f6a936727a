"""The controller of gangs as processes, before a real control plane with simulated nodes."""

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import ControllerProcess, replicas

GPU, SYSTEM = "nvidia.com/gpu", "kopt-system"
BATCH = ("batch/v1", "Job")
GATE = "team.test/in-turn"
Object = dict[str, Any]
Start = Callable[..., ControllerProcess]


class Gangs:
    """Indexed Jobs whose pods reach the scheduler in the order that a test asks for."""

    def __init__(self, plane: ControlPlane, space: str, selector: dict[str, str]) -> None:
        self.plane, self.api, self.space, self._selector = plane, plane.api, space, selector
        self.jobs: list[str] = []

    def submit(
        self, name: str, pods: int = 2, gpus: int = 4, queue: str = "", gated: bool = True, **annotations: str
    ) -> None:
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": self._selector,
            "schedulingGates": [{"name": GATE}] if gated else [],
            "containers": [
                {
                    "name": "train",
                    "image": "team/train:1",
                    "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}},
                }
            ],
        }
        job = {
            "apiVersion": BATCH[0],
            "kind": BATCH[1],
            "metadata": {
                "name": name,
                "namespace": self.space,
                "annotations": {f"kaiwo.ai/{key.replace('_', '-')}": value for key, value in annotations.items()},
                "labels": {"kueue.x-k8s.io/queue-name": queue} if queue else {},
            },
            "spec": {
                "completionMode": "Indexed",
                "parallelism": pods,
                "completions": pods,
                "suspend": bool(queue),
                "backoffLimit": 20,
                "template": {"spec": spec},
            },
        }
        self.api.create(job)
        self.jobs.append(name)
        wait_for(lambda: len(self.pods(name)) == pods, what=f"the pods of {name} are there")

    def pods(self, name: str) -> list[Object]:
        found = self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")
        alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(alive, key=lambda pod: pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"])

    def let(self, name: str, index: int, binds: bool) -> None:
        """Shows a pod to the scheduler, and waits until it is bound, or refused."""
        pod = self.pods(name)[index]
        self.api.patch("v1", "Pod", pod["metadata"]["name"], {"spec": {"schedulingGates": []}}, self.space)

        def answered() -> bool:
            found = self.pods(name)[index]
            conditions = {one["type"]: one for one in found["status"].get("conditions", [])}
            if binds:
                return bool(found["spec"].get("nodeName"))
            return conditions.get("PodScheduled", {}).get("reason") == "Unschedulable"

        wait_for(answered, what=f"{name}-{index} is {'bound' if binds else 'refused'}")

    def let_all(self, name: str) -> None:
        for pod in self.pods(name):
            if pod["spec"].get("schedulingGates"):
                self.api.patch("v1", "Pod", pod["metadata"]["name"], {"spec": {"schedulingGates": []}}, self.space)

    def deadlock(self, first: str = "older", second: str = "newer", queue: str = "", **annotations: str) -> float:
        """Two gangs that each hold one of two nodes and lack the other; when the second was bound (Unix seconds)."""
        self.submit(first, queue=queue, **annotations)
        self.submit(second, queue=queue, **annotations)
        self.let(first, 0, binds=True)
        began_s = time.time()
        # Times of pods are whole seconds: the younger has to be seen to be younger.
        wait_for(lambda: time.time() - began_s > 1.1, what="a second has passed")
        self.let(second, 0, binds=True)
        bound_s = time.time()
        self.let(first, 1, binds=False)
        self.let(second, 1, binds=False)
        return bound_s

    def bound(self, name: str) -> int:
        return sum(bool(pod["spec"].get("nodeName")) for pod in self.pods(name))

    def job(self, name: str) -> Object:
        return self.api.get(*BATCH, name, self.space)

    def report(self, name: str) -> str:
        """What is said of a deadlock on a Job; empty for nothing."""
        annotations = self.job(name)["metadata"].get("annotations", {})
        return str(annotations.get("kaiwo.ai/gang-deadlock", ""))

    def is_suspended(self, name: str) -> bool:
        return self.job(name)["spec"].get("suspend") is True

    def ends(self, name: str) -> None:
        self.api.delete(*BATCH, name, self.space, propagationPolicy="Background")
        self.jobs.remove(name)
        wait_for(lambda: not self.pods(name), what=f"{name} is gone")

    def events(self, reason: str) -> list[Object]:
        found = self.api.list("events.k8s.io/v1", "Event", self.space)
        return [event for event in found if event.get("reason") == reason]


@pytest.fixture
def gangs(request: pytest.FixtureRequest, control_plane: ControlPlane, kwok: Kwok) -> Iterator[Gangs]:
    """Two nodes (or as many as the parameter says) with four GPUs each, in a namespace that is ours to act in."""
    control_plane.api.namespace(SYSTEM)
    space = control_plane.api.space("gangs", {"kaiwo.ai/managed": "true"})
    with kwok.nodes(getattr(request, "param", 2), gpus=4) as nodes:
        team = Gangs(control_plane, space, dict(nodes.selector))
        yield team
        for name in list(team.jobs):
            control_plane.api.delete(*BATCH, name, space, propagationPolicy="Background")
        wait_for(lambda: not control_plane.api.list("v1", "Pod", space), what="the pods are gone")


@pytest.fixture
def controller(gangs: Gangs) -> Iterator[Start]:
    """``controller("--mode=enforce")`` starts a replica that leads; all are killed in the end. Each test has a Lease of
    its own, so that none waits for another's to run out."""
    with replicas(partial(ControllerProcess, gangs.plane, "gangs", f"--namespace={gangs.space}")) as start:
        yield start
