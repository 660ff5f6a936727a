"""The controller of reservations as processes, before a real control plane with Kueue and simulated nodes."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from controlplane.kueue import Kueue
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import ControllerProcess, replicas

CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
GPU, SYSTEM, GPUS_PER_NODE = "nvidia.com/gpu", "kopt-system", 4
BATCH = ("batch/v1", "Job")
KIND = ("kaiwo.ai/v1alpha1", "KaiwoReservation")
KUEUE = "kueue.x-k8s.io/v1beta1"
Object = dict[str, Any]
Start = Callable[..., ControllerProcess]


def stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Team:
    """A namespace with two queues of one ClusterQueue: ``gpus``, and ``nightly``, for which GPUs are reserved."""

    def __init__(self, plane: ControlPlane, space: str, selector: dict[str, str]) -> None:
        self.plane, self.api, self.space, self._selector = plane, plane.api, space, selector

    def reserve(self, name: str = "night", **spec: Any) -> None:
        fields = {"queueName": "nightly", "nodes": 1, "gpusPerNode": GPUS_PER_NODE} | spec
        for key in ("start", "until"):
            if isinstance(fields[key], float):
                fields[key] = stamp(fields[key])
        metadata = {"name": name, "namespace": self.space}
        self.api.create({"apiVersion": KIND[0], "kind": KIND[1], "metadata": metadata, "spec": fields})

    def move(self, start_s: float, until_s: float, name: str = "night") -> None:
        self.api.patch(*KIND, name, {"spec": {"start": stamp(start_s), "until": stamp(until_s)}}, self.space)

    def reservation(self, name: str = "night") -> Object:
        return self.api.get(*KIND, name, self.space)

    def status(self, name: str = "night") -> Object:
        result: Object = self.reservation(name).get("status") or {}
        return result

    def phase(self, name: str = "night") -> str:
        return str(self.status(name).get("phase", ""))

    def word(self, name: str = "night") -> tuple[str, str]:
        """Reason and message of its condition Accepted."""
        for condition in self.status(name).get("conditions") or ():
            if condition["type"] == "Accepted":
                return condition["reason"], condition["message"]
        return "", ""

    def submit(self, name: str, gpus: int, queue: str = "gpus", longest_s: int = 0, **annotations: str) -> None:
        """A Job of pods that fill nodes."""
        pods, each = max(1, gpus // GPUS_PER_NODE), min(gpus, GPUS_PER_NODE)
        labels = {"kueue.x-k8s.io/queue-name": queue}
        if longest_s:
            labels["kueue.x-k8s.io/max-exec-time-seconds"] = str(longest_s)
        container = {"name": "train", "image": "team/train:1", "resources": {"limits": {GPU: str(each)}}}
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": self._selector,
            "containers": [container],
        }
        notes = {f"kaiwo.ai/{key.replace('_', '-')}": value for key, value in annotations.items()}
        template = {"metadata": {"annotations": notes}, "spec": spec}
        self.api.create(
            {
                "apiVersion": BATCH[0],
                "kind": BATCH[1],
                "metadata": {"name": name, "namespace": self.space, "labels": labels},
                "spec": {"suspend": True, "parallelism": pods, "completions": pods, "template": template},
            }
        )

    def runs(self, name: str) -> bool:
        """Whether all of its pods have nodes."""
        job = self.api.get(*BATCH, name, self.space)
        bound = [pod for pod in self.pods(name) if pod["spec"].get("nodeName")]
        return len(bound) == job["spec"]["parallelism"]

    def pods(self, name: str) -> list[Object]:
        found = self.api.list("v1", "Pod", self.space, f"batch.kubernetes.io/job-name={name}")
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def workload(self, name: str) -> Object:
        for each in self.api.list(KUEUE, "Workload", self.space):
            owners = each["metadata"].get("ownerReferences") or ()
            if any(owner["name"] == name for owner in owners):
                return dict(each)
        return {}

    def holder(self, name: str) -> str:
        metadata = self.workload(name).get("metadata") or {}
        return str((metadata.get("labels") or {}).get("kaiwo.ai/held", ""))

    def hold_jobs(self) -> list[Object]:
        found = self.api.list("batch/v1", "Job", self.space, "app.kubernetes.io/component=reservations")
        return [job for job in found if "deletionTimestamp" not in job["metadata"]]

    def held(self) -> int:
        """GPUs that our Jobs hold on nodes."""
        found = self.api.list("v1", "Pod", self.space, "app.kubernetes.io/component=reservations")
        bound = [pod for pod in found if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]]
        return sum(int(pod["spec"]["containers"][0]["resources"]["limits"][GPU]) for pod in bound)

    def note(self, name: str, notes: dict[str, str]) -> None:
        for pod in self.pods(name):
            self.api.patch("v1", "Pod", pod["metadata"]["name"], {"metadata": {"annotations": notes}}, self.space)

    def ends(self, name: str) -> None:
        self.api.delete(*BATCH, name, self.space, propagationPolicy="Background")

    def clear(self) -> None:
        for each in self.api.list(*KIND, self.space):
            self.api.delete(*KIND, each["metadata"]["name"], self.space)
        for job in self.api.list(*BATCH, self.space):
            self.ends(job["metadata"]["name"])
        wait_for(lambda: not self.api.list("v1", "Pod", self.space), what="the pods are gone")
        wait_for(lambda: not self.api.list(KUEUE, "Workload", self.space), what="the Workloads are gone")


@pytest.fixture
def team(request: pytest.FixtureRequest, control_plane: ControlPlane, kueue: Kueue, kwok: Kwok) -> Iterator[Team]:
    """Four nodes (or as many as the parameter says) with four GPUs each."""
    control_plane.api.namespace(SYSTEM)
    control_plane.apply_crds([CRDS / "kaiworeservations.yaml"])
    space = control_plane.api.space("reservations", {"kaiwo.ai/managed": "true"})
    count = getattr(request, "param", 4)
    with (
        kwok.nodes(count, gpus=GPUS_PER_NODE) as nodes,
        kueue.queue(space, {GPU: GPUS_PER_NODE * count}, node_labels=nodes.selector) as owner,
    ):
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": "nightly", "namespace": space}}
        control_plane.api.create(local | {"spec": {"clusterQueue": owner}})
        team = Team(control_plane, space, dict(nodes.selector))
        yield team
        team.clear()
        control_plane.api.delete(KUEUE, "LocalQueue", "nightly", space)


@pytest.fixture
def controller_of(serving: Any) -> Iterator[Start]:
    """As ``controller``, for the queue of ``serving``."""
    team: Team = serving.team
    with replicas(partial(ControllerProcess, team.plane, "reservations", f"--namespace={team.space}")) as start:
        yield start


@pytest.fixture
def controller(team: Team) -> Iterator[Start]:
    """``controller("--mode=enforce")`` starts a replica that leads; all are killed in the end."""
    with replicas(partial(ControllerProcess, team.plane, "reservations", f"--namespace={team.space}")) as start:
        yield start
