"""The recorder of the ledger as a process, before a real control plane with simulated nodes."""

import base64
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.api import Api
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from replicas import KOPT

from kopt.cluster.objects.seals import Seal

CRD = Path(__file__).parents[2] / "deploy" / "chart" / "crds" / "evictions.yaml"
EVICTION, BATCH = ("kaiwo.ai/v1alpha1", "Eviction"), ("batch/v1", "Job")
GPU, SYSTEM = "nvidia.com/gpu", "kopt-system"
QUEUE = "kueue.x-k8s.io/queue-name"
Object = dict[str, Any]
Start = Callable[..., Server]


def job(
    name: str,
    space: str,
    gpus: int,
    selector: dict[str, str],
    *,
    pods: int = 1,
    priority: str = "",
    queue: bool = False,
) -> Object:
    """A Job whose pods run until they are deleted."""
    container = {"name": "main", "image": "any", "resources": {"limits": {GPU: str(gpus)}}}
    spec = {
        "containers": [container],
        "nodeSelector": selector,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
    }
    labels = {QUEUE: "gpus"} if queue else {}
    if priority:
        labels["kueue.x-k8s.io/priority-class"] = priority
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": space, "labels": labels},
        "spec": {"parallelism": pods, "completions": pods, "template": {"spec": spec}},
    }


class Ledger:
    """What stands in the ledger of a namespace."""

    def __init__(self, plane: ControlPlane, space: str) -> None:
        self.api, self.space = plane.api, space

    def lines(self) -> list[Object]:
        found = self.api.list(*EVICTION, self.space)
        return sorted(found, key=lambda one: (one["spec"]["evictedAt"], one["metadata"]["name"]))

    def phases(self) -> dict[str, str]:
        """By workload; of its newest line."""
        return {one["spec"]["workload"]["name"]: one.get("status", {}).get("phase", "") for one in self.lines()}

    def wait(self, until: Callable[[Object], object] = bool, timeout_s: float = 90) -> Object:
        """The only line, once ``until`` is true of it."""

        def found() -> Object | None:
            lines = self.lines()
            assert len(lines) < 2, lines
            return lines[0] if lines and until(lines[0]) else None

        return wait_for(found, timeout_s, f"a line of the ledger; there are {self.lines()}") or {}

    def phase(self, phase: str) -> Object:
        return self.wait(lambda one: one.get("status", {}).get("phase") == phase)

    def running(self, name: str, pods: int = 1) -> list[Object]:
        """A Job's pods once so many run."""

        def found() -> list[Object]:
            label = f"batch.kubernetes.io/job-name={name}"
            there = self.api.list("v1", "Pod", self.space, labels=label, fields="status.phase=Running")
            there = [one for one in there if "deletionTimestamp" not in one["metadata"]]
            return there if len(there) == pods else []

        return wait_for(found, what=f"{pods} pods of {name} run") or []

    def annotate(self, pods: list[Object], **notes: str) -> None:
        """As the log agent would."""
        for pod in pods:
            changes = {
                "metadata": {"annotations": {f"kaiwo.ai/{key.replace('_', '-')}": it for key, it in notes.items()}}
            }
            self.api.patch("v1", "Pod", pod["metadata"]["name"], changes, self.space)


def sealed(api: Api, uid: str, notice: Object) -> str:
    """A notice as one of our controllers writes it on the object ``uid``, with the key that the recorder has made."""
    secret = api.get("v1", "Secret", "kopt-seal", SYSTEM)
    return Seal(base64.b64decode(secret["data"]["key"])).sealed("kaiwo.ai/evicting", uid, notice)


@pytest.fixture(scope="session")
def plane(control_plane: ControlPlane) -> ControlPlane:
    """The shared control plane with the custom resource and the Lease's namespace."""
    control_plane.apply_crds([CRD])
    control_plane.api.namespace(SYSTEM)
    return control_plane


@pytest.fixture
def ledger(plane: ControlPlane) -> Ledger:
    return Ledger(plane, plane.api.space("ledger"))


@pytest.fixture
def start(plane: ControlPlane) -> Iterator[Start]:
    """``start()`` starts a replica and returns when it leads; all are killed in the end."""
    with ExitStack() as running:
        numbers = itertools.count()

        def begin(*options: str, leads: bool = True) -> Server:
            port = free_port()
            command = [
                *KOPT,
                "controller",
                "evictions",
                "--kubeconfig",
                str(plane.kubeconfig),
                f"--port={port}",
                f"--identity=replica-{next(numbers)}",
                *options,
            ]
            server = plane.start_server(f"ledger-{next(numbers)}", command)
            running.callback(server.kill)
            url = f"http://127.0.0.1:{port}"
            if leads:
                wait_for(lambda: "\nkopt_ledger_leading 1.0" in _read(f"{url}/metrics"), what="it leads")
            else:
                wait_for(lambda: _read(f"{url}/readyz") == "ready\n", what="it watches")
            return server

        yield begin


def _read(url: str) -> str:
    try:
        return httpx.get(url, trust_env=False).text
    except httpx.HTTPError:
        return ""
