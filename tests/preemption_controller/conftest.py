"""The pre-emption controller as a process, before a real control plane with a real Kueue and simulated nodes."""

import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for

KOPT = [sys.executable, "-P", "-c", "from kopt.cli.main import app; app()"]
SYSTEM, GPU = "kopt-system", "nvidia.com/gpu"
WORKLOAD = ("kueue.x-k8s.io/v1beta1", "Workload")
WEBHOOKS = ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration")
CONFIGURATION = "00-kaiwo-optimizer-preemption"
LOW, HIGH = 100, 1000
Object = dict[str, Any]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane, kueue: Kueue) -> ControlPlane:
    """The shared control plane with Kueue and two classes of priority."""
    control_plane.api.namespace(SYSTEM)
    for name, value in (("low", LOW), ("high", HIGH)):
        control_plane.api.apply({"apiVersion": WORKLOAD[0], "kind": "WorkloadPriorityClass",
                                 "metadata": {"name": name}, "value": value})  # fmt: skip
    return control_plane


class Team:
    """A namespace with a queue of its own, and jobs in it."""

    def __init__(self, plane: ControlPlane, space: str, selector: dict[str, str]) -> None:
        self.plane, self.api, self.space, self._selector = plane, plane.api, space, selector
        self.jobs: dict[str, Object] = {}

    def submit(self, name: str, gpus: int, priority: str = "low", pods: int = 1) -> Object:
        """A Job of ``pods`` times ``gpus``; its Workload."""
        limits = {"limits": {GPU: str(gpus)}}
        container = {"name": "train", "image": "team/train:1", "resources": limits | {"requests": {"cpu": "1"}}}
        template = {"spec": {"restartPolicy": "Never", "containers": [container], "nodeSelector": self._selector}}
        labels = {"kueue.x-k8s.io/queue-name": "gpus", "kueue.x-k8s.io/priority-class": priority}
        spec = {"parallelism": pods, "completions": pods, "suspend": True, "template": template}
        metadata = {"name": name, "namespace": self.space, "labels": labels}
        wanted = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
        self.jobs[name] = self.api.create(wanted)
        return workload_of(self.plane, self.jobs[name])

    def run(self, name: str, gpus: int, pods: int = 1) -> None:
        """A job of low priority that runs; one after the other, a second apart: Kueue counts in seconds."""
        started = time.time()
        self.submit(name, gpus, pods=pods)
        wait_for(lambda: len(self.pods(name)) == pods, what=f"{name} runs")
        wait_for(lambda: time.time() - started > 1.1)

    def workload(self, name: str) -> Object:
        return workload_of(self.plane, self.jobs[name])

    def admitted(self, name: str) -> bool:
        return admitted(self.workload(name))

    def runs(self) -> set[str]:
        return {name for name in self.jobs if self.admitted(name)}

    def evicted(self) -> set[str]:
        """Who was ever pre-empted by Kueue: the condition stays when a Workload runs again."""
        conditions = {name: self.workload(name).get("status", {}).get("conditions", []) for name in self.jobs}
        return {name for name, found in conditions.items() if any(one["type"] == "Preempted" for one in found)}

    def pods(self, name: str) -> list[Object]:
        found = self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")
        return [one for one in found if one["status"].get("phase") == "Running"]

    def note(self, name: str, state: str = "TRAIN", safe: bool = True, lost: int = 100, known: bool = True) -> None:
        """What a log agent writes onto the pods of a job."""
        annotations: Object = {
            "kaiwo.ai/checkpoint-state": state, "kaiwo.ai/checkpoint-safe": str(safe).lower(),
            "kaiwo.ai/checkpoint-observed-at": stamp(), "kaiwo.ai/work-at-risk": str(lost),
            "kaiwo.ai/work-at-risk-interval": f"{lost // 2}-{lost * 2}", "kaiwo.ai/checkpoint-model": "logs/7",
        }  # fmt: skip
        if known:
            annotations |= {"kaiwo.ai/last-checkpoint-time": stamp(-30), "kaiwo.ai/last-checkpoint-step": "500"}
        for pod in self.pods(name):
            self.api.patch("v1", "Pod", pod["metadata"]["name"], {"metadata": {"annotations": annotations}}, self.space)

    def events(self, name: str) -> dict[str, str]:
        """Reasons and sentences on a job's Workload."""
        uid = self.workload(name)["metadata"]["uid"]
        found = self.api.list("events.k8s.io/v1", "Event", self.space)
        return {one["reason"]: one["note"] for one in found if one["regarding"].get("uid") == uid}

    def left_over(self) -> list[str]:
        """Workloads that carry a mark or a priority of ours."""
        found = self.api.list(*WORKLOAD, self.space)
        return [one["metadata"]["name"] for one in found if one["spec"]["priority"] not in (LOW, HIGH)
                or "kaiwo.ai/held" in one["metadata"].get("labels", {})
                or "kaiwo.ai/held-undo" in one["metadata"].get("annotations", {})]  # fmt: skip

    def decision(self, name: str) -> Object:
        text = self.workload(name)["metadata"].get("annotations", {}).get("kaiwo.ai/preemption", "{}")
        return dict(json.loads(text))


def stamp(ago_s: float = 0.0) -> str:
    return datetime.fromtimestamp(time.time() + ago_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def team(plane: ControlPlane, kueue: Kueue, kwok: Kwok) -> Iterator[Team]:
    """12 GPUs on three nodes, a queue that pre-empts lower priorities."""
    space = f"preemption-{next(_numbers)}"
    plane.api.namespace(space, {"kaiwo.ai/managed": "true"})
    with (
        kwok.nodes(3, gpus=4) as nodes,
        kueue.queue(space, {GPU: 12, "cpu": 100}, preemption={"withinClusterQueue": "LowerPriority"}),
    ):
        one = Team(plane, space, dict(nodes.selector))
        yield one
        for name in one.jobs:
            plane.api.delete("batch/v1", "Job", name, space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")


class Controller:
    """One replica as a process."""

    def __init__(self, plane: ControlPlane, *options: str, kubeconfig: Path | None = None, review: int = 0) -> None:
        self.port, self.review = free_port(), review or free_port()
        number = next(_numbers)
        url = f"https://127.0.0.1:{self.review}"
        command = [*KOPT, "controller", "preemption", "--kubeconfig", str(kubeconfig or plane.kubeconfig),
                   f"--port={self.port}", f"--review-port={self.review}", f"--url={url}",
                   f"--identity=replica-{number}", *options]  # fmt: skip
        self.server: Server = plane.start_server(f"preemption-{number}", command)
        self._plane = plane

    def wait_leading(self) -> None:
        self.server.wait_until(lambda: self.metric("kopt_preemption_leading") == 1.0)
        self.wait_reviewing()

    def wait_reviewing(self) -> None:
        """The API server knows where, and trusts it."""

        def reviewed() -> bool:
            found = self._plane.api.get(*WEBHOOKS, CONFIGURATION)
            config = found["webhooks"][0]["clientConfig"]
            return bool(config.get("caBundle")) and config["url"].endswith(f":{self.review}/hold")

        self.server.wait_until(reviewed)

    def metric(self, name: str) -> float:
        for line in httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return 0.0


@pytest.fixture
def controller(plane: ControlPlane) -> Iterator[Callable[..., Controller]]:
    """``controller("--mode=enforce")`` starts a replica that leads; all are killed in the end."""
    with ExitStack() as running:

        def start(*options: str, leads: bool = True, **settings: Any) -> Controller:
            one = Controller(plane, *options, **settings)
            running.callback(one.server.kill)
            if leads:
                one.wait_leading()
            return one

        yield start
    plane.api.delete(*WEBHOOKS, CONFIGURATION)
