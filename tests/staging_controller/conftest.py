"""The staging controller as a process before a real control plane with a real Kueue, whose pods truly run `kopt stage`
from a real S3 server into a folder that stands for the claim."""

import itertools
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from controlplane.kubelet import Kubelet
from controlplane.kueue import Kueue, workload_of
from controlplane.object_store import S3, s3_server
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for
from replicas import KOPT, ControllerProcess, replicas, reviewing

__all__ = ["s3_server"]
CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
SYSTEM, GPU = "kopt-system", "nvidia.com/gpu"
BATCH, DATA = ("batch/v1", "Job"), ("kaiwo.ai/v1alpha1", "StagedData")
Object = dict[str, Any]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane, kueue: Kueue) -> ControlPlane:
    """The shared control plane with Kueue, our custom resources, and the namespace of the Lease."""
    control_plane.apply_crds(
        [CRDS / f"{name}.yaml" for name in ("stageddata", "conformancepolicies", "sizingprofiles")]
    )
    control_plane.api.namespace(SYSTEM)
    return control_plane


@pytest.fixture(scope="session")
def node(plane: ControlPlane) -> Iterator[Kubelet]:
    """A node with GPUs whose pods are processes."""
    with Kubelet(plane, resources={GPU: "8"}, entrypoints={"kopt-staging": KOPT, "kopt-agents": KOPT}) as running:
        yield running


class Team:
    """A namespace with a queue, a claim that is the folder ``claim``, and jobs that ask for data."""

    def __init__(self, plane: ControlPlane, node: Kubelet, s3: S3, space: str, folder: Path) -> None:
        self.plane, self.api, self.node, self.s3, self.space = plane, plane.api, node, s3, space
        self.claim = folder / "claim"
        self.claim.mkdir()
        self.secret("s3", s3.variables)
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(self.claim)},
            "claimRef": {"name": "data", "namespace": space},
        }
        claim = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": space,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        self.api.apply(
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": space}, "spec": volume},
            {
                "apiVersion": "v1",
                "kind": "PersistentVolumeClaim",
                "metadata": {"name": "data", "namespace": space},
                "spec": claim,
            },
        )

    def secret(self, name: str, values: dict[str, str]) -> None:
        self.api.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": self.space},
                "stringData": values,
            }
        )

    def stage(self, name: str, source: str, path: str = "", **spec: Any) -> Object:
        place = {"claim": "data", "path": path or name}
        wanted = {"source": source, "destination": place, "credentials": {"secretName": "s3"}} | spec
        return self.api.create(
            {
                "apiVersion": DATA[0],
                "kind": DATA[1],
                "metadata": {"name": name, "namespace": self.space},
                "spec": wanted,
            }
        )

    def submit(
        self,
        name: str,
        data: str = "",
        queue: str = "gpus",
        script: str = "sleep 600",
        gpus: int = 1,
        params: dict[str, str] | None = None,
        secret: str = "",
        **notes: str,
    ) -> Object:
        """A Job of one pod that mounts the claim at /data."""
        annotations = {"kaiwo.ai/staged-data": data} if data else {}
        annotations |= {f"kaiwo.ai/{key.replace('_', '-')}": value for key, value in notes.items()}
        container = {
            "name": "train",
            "image": "team/train:1",
            "command": ["sh", "-c", script],
            "resources": {"limits": {GPU: str(gpus)}, "requests": {"cpu": "100m"}},
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        if secret:
            container["envFrom"] = [{"secretRef": {"name": secret}}]
        pod = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "nodeSelector": self.node.selector,
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        }
        labels = {"kueue.x-k8s.io/queue-name": queue} if queue else {}
        metadata = {"name": name, "namespace": self.space, "labels": labels, "annotations": annotations}
        spec = {"template": {"spec": pod}, "suspend": bool(queue), "backoffLimit": 0}
        return self.api.create(
            {"apiVersion": BATCH[0], "kind": BATCH[1], "metadata": metadata, "spec": spec}, **(params or {})
        )

    def wait_reviewed(self) -> None:
        """Until the webhook holds what asks for data as it is created."""

        def held() -> bool:
            found = self.submit("probe", "any", params={"dryRun": "All"})
            return bool(found["metadata"]["labels"].get("kaiwo.ai/held") == "staging")

        wait_for(held, what="the webhook holds")

    def job(self, name: str) -> Object:
        return self.api.get(*BATCH, name, self.space)

    def holder(self, name: str) -> str:
        return str(self.job(name)["metadata"].get("labels", {}).get("kaiwo.ai/held", ""))

    def history(self, stored: Object) -> list[Object]:
        """Every state that an object had since it was stored."""
        query = {
            "watch": "true",
            "timeoutSeconds": "1",
            "resourceVersion": stored["metadata"]["resourceVersion"],
            "fieldSelector": f"metadata.name={stored['metadata']['name']}",
        }
        path = self.api.path(stored["apiVersion"], stored["kind"], self.space)
        answer = self.api.request("GET", path, params=query)
        return [stored, *(json.loads(line)["object"] for line in answer.text.splitlines())]

    def holders(self, stored: Object) -> list[str]:
        """Who has held a Job since it was stored, one after the other; "" for nobody."""
        found = [str(one["metadata"]["labels"].get("kaiwo.ai/held", "")) for one in self.history(stored)]
        return [one for one, _ in itertools.groupby(found)]

    def told(self, name: str) -> Object:
        return dict(json.loads(self.job(name)["metadata"].get("annotations", {}).get("kaiwo.ai/staging", "{}")))

    def status(self, name: str) -> Object:
        return dict(self.api.get(*DATA, name, self.space).get("status") or {})

    def runs(self, name: str) -> bool:
        return bool(self.job(name)["status"].get("ready"))

    def conditions(self, name: str) -> dict[str, Object]:
        """Of the Job's Workload, those that are true, by their type."""
        found = workload_of(self.plane, self.job(name)).get("status", {}).get("conditions", [])
        return {one["type"]: one for one in found if one["status"] == "True"}

    def staging_jobs(self) -> list[Object]:
        return self.api.list(*BATCH, self.space, "app.kubernetes.io/component=staging")

    def events(self, name: str) -> dict[str, str]:
        found = self.api.list("events.k8s.io/v1", "Event", self.space)
        return {one["reason"]: one["note"] for one in found if one["regarding"].get("name") == name}

    def times(self, name: str, reason: str) -> int:
        """How often an event was written about something."""
        found = self.api.list("events.k8s.io/v1", "Event", self.space)
        ours = [one for one in found if (one["regarding"].get("name"), one["reason"]) == (name, reason)]
        return sum((one.get("series") or {}).get("count", 1) for one in ours)

    def again(self, name: str) -> None:
        """Somebody has the download tried again at once."""
        notes = {"kaiwo.ai/stage-again": str(next(_numbers))}
        self.api.patch(*DATA, name, {"metadata": {"annotations": notes}}, self.space)

    def wait_phase(self, name: str, phase: str, timeout_s: float = 90) -> Object:
        wait_for(lambda: self.status(name).get("phase") == phase, timeout_s, f"{name} is {phase}")
        return self.status(name)

    def wait_told(self, name: str, state: str, timeout_s: float = 90) -> Object:
        wait_for(lambda: self.told(name).get("state") == state, timeout_s, f"{name} is told {state}")
        return self.told(name)


@pytest.fixture
def team(plane: ControlPlane, kueue: Kueue, node: Kubelet, s3_server: S3, tmp_path: Path) -> Iterator[Team]:
    space = plane.api.space("staging", {"kaiwo.ai/managed": "true"}, {"kaiwo.ai/mode": "enforce"})
    with kueue.queue(space, {GPU: 8, "cpu": 100, "memory": "100Gi"}):
        one = Team(plane, node, s3_server, space, tmp_path)
        yield one
        for data in plane.api.list(*DATA, space):
            plane.api.patch(*DATA, data["metadata"]["name"], {"metadata": {"finalizers": None}}, space)
            plane.api.delete(*DATA, data["metadata"]["name"], space)
        for job in plane.api.list(*BATCH, space):
            plane.api.delete(*BATCH, job["metadata"]["name"], space, propagationPolicy="Background")
        wait_for(lambda: not plane.api.list("v1", "Pod", space), what="the pods are gone")
        plane.api.delete("v1", "PersistentVolume", space)


class Controller(ControllerProcess):
    """One replica as a process."""

    def __init__(self, plane: ControlPlane, *options: str, kubeconfig: Path | None = None) -> None:
        super().__init__(plane, "staging", "--image=kopt-staging:test", "--cpu=10m", *options, kubeconfig=kubeconfig)


@pytest.fixture
def controller(plane: ControlPlane) -> Iterator[Callable[..., Controller]]:
    """``controller("--slow-retry=2s")`` starts a replica that leads; all are killed in the end."""
    with replicas(partial(Controller, plane)) as start:
        yield start


@pytest.fixture
def webhook(plane: ControlPlane) -> Iterator[Server]:
    """A replica of the webhook, taken out again in the end: the control plane is shared."""
    with reviewing(plane, "staging-webhook", SYSTEM, tracing={"samplesPerThousand": 0}) as running:
        yield running
