"""The reallocation controller as a process, before a real control plane with a real Kueue and simulated nodes."""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from agent_notes import checkpoint_notes, stamp
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import ControllerProcess, replicas

from .endpoint import Endpoint, endpoint

CHART = Path(__file__).parents[2] / "deploy" / "chart"
SYSTEM, GPU = "kopt-system", "nvidia.com/gpu"
WORKLOAD = ("kueue.x-k8s.io/v1beta1", "Workload")
CLUSTER_QUEUE = ("kueue.x-k8s.io/v1beta1", "ClusterQueue")
POOL = ("kaiwo.ai/v1alpha1", "LendingPool")
Object = dict[str, Any]


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane, kueue: Kueue) -> ControlPlane:
    """The shared control plane with Kueue, our custom resources and a class of priority for services."""
    control_plane.api.namespace(SYSTEM)
    control_plane.apply_crds([CHART / "crds" / f"{name}.yaml" for name in ("lendingpools", "evictions")])
    control_plane.api.priority_class("services", 100_000)
    return control_plane


@pytest.fixture
def forecasts() -> Iterator[Endpoint]:
    with endpoint() as one:
        yield one


class Scene:
    """A namespace with services and borrowers that share eight GPUs."""

    gpus = 8

    def __init__(
        self, plane: ControlPlane, space: str, selector: dict[str, str], queue: str, forecasts: Endpoint
    ) -> None:
        self.plane, self.api, self.space, self.queue, self.forecasts = plane, plane.api, space, queue, forecasts
        self._selector = selector
        self.jobs: dict[str, Object] = {}

    def expect(self, *gpus: float) -> None:
        """The service's demand in GPUs at the quantiles .5, .9, .95 and .99; one of which 100 requests are served."""
        self.forecasts.demand[f"{self.space}/chat"] = tuple(100.0 * one for one in gpus)

    def pool(self, mode: str = "enforce", **spec: Any) -> None:
        service = {
            "name": "chat",
            "namespace": self.space,
            "selector": {"matchLabels": {"app": "chat"}},
            "capacityPerGpu": 100,
            "minimumGpus": 1,
        }
        wanted = {
            "gpus": self.gpus,
            "services": [service],
            "hold": "0s",
            "leadTime": "5m",
            "mode": mode,
            "borrowers": [{"system": "Kueue", "queue": self.queue}],
            **spec,
        }
        self.api.apply({"apiVersion": POOL[0], "kind": POOL[1], "metadata": {"name": self.space}, "spec": wanted})

    def status(self) -> Object:
        return dict(self.api.get(*POOL, self.space, "").get("status") or {})

    def lent(self, gpus: int) -> bool:
        return self.status().get("lentGpus") == gpus

    def quota(self) -> int:
        found = self.api.get(*CLUSTER_QUEUE, self.queue, "")
        resources = found["spec"]["resourceGroups"][0]["flavors"][0]["resources"]
        return int(next(one["nominalQuota"] for one in resources if one["name"] == GPU))

    def serve(self, *names: str, gpus: int = 1) -> None:
        """Pods of the service, of a priority above everybody."""
        for name in names:
            container = {"name": "serve", "image": "team/serve:1", "resources": {"limits": {GPU: str(gpus)}}}
            spec = {
                "containers": [container],
                "nodeSelector": self._selector,
                "priorityClassName": "services",
                "terminationGracePeriodSeconds": 0,
            }
            metadata = {"name": name, "namespace": self.space, "labels": {"app": "chat"}}
            self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def stop_serving(self, *names: str) -> None:
        for name in names:
            self.api.delete("v1", "Pod", name, self.space)

    def serving(self) -> set[str]:
        found = self.api.list("v1", "Pod", self.space, "app=chat")
        return {one["metadata"]["name"] for one in found if one["status"].get("phase") == "Running"}

    def submit(self, name: str, gpus: int, askable: bool = False, queue: str = "gpus") -> Object:
        container = {
            "name": "train",
            "image": "team/train:1",
            "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "1"}},
        }
        template: Object = {
            "spec": {
                "restartPolicy": "Never",
                "containers": [container],
                "nodeSelector": self._selector,
                "terminationGracePeriodSeconds": 1,
            }
        }
        if askable:
            template["metadata"] = {"annotations": {"kaiwo.ai/saves-on-request": "true"}}
        metadata = {"name": name, "namespace": self.space, "labels": {"kueue.x-k8s.io/queue-name": queue}}
        wanted = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {"suspend": True, "template": template},
        }
        self.jobs[name] = self.api.create(wanted)
        return workload_of(self.plane, self.jobs[name])

    def run(self, name: str, gpus: int, **options: Any) -> None:
        """A job that runs; a second apart, Kueue counts in seconds."""
        started = time.time()
        self.submit(name, gpus, **options)
        wait_for(lambda: self.pods(name), what=f"{name} runs")
        wait_for(lambda: time.time() - started > 1.1)

    def workload(self, name: str) -> Object:
        return workload_of(self.plane, self.jobs[name])

    def runs(self) -> set[str]:
        return {name for name in self.jobs if admitted(self.workload(name)) and self.pods(name)}

    def held(self) -> set[str]:
        return {
            name
            for name in self.jobs
            if self.workload(name)["metadata"].get("labels", {}).get("kaiwo.ai/held") == "lending"
        }

    def pods(self, name: str) -> list[Object]:
        found = self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")
        return [
            one
            for one in found
            if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
        ]

    def note(
        self,
        name: str,
        state: str = "TRAIN",
        safe: bool = True,
        lost: int = 100,
        known: bool = True,
        saved_s: float = -30.0,
    ) -> None:
        """What a log agent writes onto the pods of a job."""
        annotations = checkpoint_notes(state, safe, lost, saved_s if known else None)
        for pod in self.pods(name):
            self.api.patch("v1", "Pod", pod["metadata"]["name"], {"metadata": {"annotations": annotations}}, self.space)

    def notice(self, name: str) -> Object:
        text = self.workload(name)["metadata"].get("annotations", {}).get("kaiwo.ai/evicting", "{}")
        return dict(json.loads(text))

    def asked(self, name: str) -> Object:
        texts = [one["metadata"].get("annotations", {}).get("kaiwo.ai/save-requested") for one in self.pods(name)]
        return dict(json.loads(texts[0])) if texts and all(texts) else {}

    def line(self, name: str, order: int, ago_s: float = 0.0) -> None:
        """A line of the ledger about a job that was told to go, just now or longer ago."""
        metadata, at = self.jobs[name]["metadata"], stamp(-ago_s) if ago_s else self.notice(name)["at"]
        ref = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": metadata["uid"]}
        spec = {"workload": ref, "system": "Kueue", "evictedAt": at, "cause": "Lending", "gpus": 2000, "order": order}
        self.api.create(
            {
                "apiVersion": "kaiwo.ai/v1alpha1",
                "kind": "Eviction",
                "spec": spec,
                "metadata": {"name": name, "namespace": self.space},
            }
        )
        self.api.patch("kaiwo.ai/v1alpha1", "Eviction", name, {"status": {"phase": "Waiting"}}, self.space, "status")

    def returned(self) -> list[str]:
        """Jobs in the order in which Kueue let them run again."""
        found = {
            name: next(
                one["lastTransitionTime"]
                for one in self.workload(name)["status"]["conditions"]
                if one["type"] == "Admitted"
            )
            for name in self.jobs
        }
        return sorted(found, key=lambda name: found[name])

    def condition(self, kind: str) -> Object:
        return next((one for one in self.status().get("conditions", ()) if one["type"] == kind), {"reason": ""})

    def events(self) -> dict[str, str]:
        """Reasons and sentences on the pool."""
        found = self.api.list("events.k8s.io/v1", "Event")
        return {
            one["reason"]: one["note"]
            for one in found
            if one["regarding"].get("kind") == "LendingPool" and one["regarding"]["name"] == self.space
        }


@pytest.fixture
def scene(plane: ControlPlane, kueue: Kueue, kwok: Kwok, forecasts: Endpoint) -> Iterator[Scene]:
    """Eight GPUs of a node, a queue without any of its own."""
    space = plane.api.space("lending", {"kaiwo.ai/managed": "true"})
    with (
        kwok.nodes(1, gpus=8) as nodes,
        kueue.queue(space, {GPU: 0, "cpu": 100}) as queue,
    ):
        one = Scene(plane, space, dict(nodes.selector), queue, forecasts)
        yield one
        plane.api.delete(*POOL, space, "")
        for name in one.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        plane.api.delete_all("v1", "Pod", space, "app=chat")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


class Controller(ControllerProcess):
    """One replica as a process."""

    def __init__(self, plane: ControlPlane, *options: str, kubeconfig: Path | None = None) -> None:
        super().__init__(plane, "reallocation", "--refresh=1s", *options, kubeconfig=kubeconfig)


@pytest.fixture
def controller(plane: ControlPlane, forecasts: Endpoint) -> Iterator[Callable[..., Controller]]:
    """``controller()`` starts a replica that leads; all are killed in the end."""
    with replicas(partial(Controller, plane, f"--predictions={forecasts.url}")) as start:
        yield start
