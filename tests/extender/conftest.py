"""A real extender process beside a real kube-scheduler."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.plane import ControlPlane
from controlplane.processes import PATIENCE_S, Server, free_port, wait_for

from kopt.controllers.extender.configuration import scheduler_configuration

KOPT = Path(sys.executable).with_name("kopt")
Object = dict[str, Any]


class RunningExtender:
    """``kopt extender`` as a process; ``url`` is what a scheduler calls."""

    def __init__(
        self,
        plane: ControlPlane,
        namespace: str,
        *options: str,
        name: str,
        kubeconfig: Path | None,
        env: dict[str, str] | None,
    ) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = [
            KOPT,
            "extender",
            "--kubeconfig",
            kubeconfig or plane.kubeconfig,
            f"--port={port}",
            f"--namespace={namespace}",
            f"--identity={name}",
            *options,
        ]
        self.server: Server = plane.start_server(name, command, env)
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=60)
        self._plane, self._schedulers = plane, ExitStack()

    def wait_ready(self, timeout_s: float = PATIENCE_S) -> None:
        """Until it answers calls."""
        self.server.wait_until(lambda: self.leads, timeout_s)

    @property
    def leads(self) -> bool:
        return self.http.get("/leads").is_success

    @property
    def is_ready(self) -> bool:
        return self.http.get("/readyz").is_success

    def explain(self, namespace: str, pod: str) -> Object:
        answer = self.http.get("/explain", params={"pod": f"{namespace}/{pod}"})
        answer.raise_for_status()
        return dict(answer.json())

    def metric(self, line: str) -> float:
        """The value of the sample that ``line`` begins with; 0 when there is none."""
        for sample in self.http.get("/metrics").text.splitlines():
            if sample.startswith(f"{line} "):
                return float(sample.rsplit(" ", 1)[1])
        return 0.0

    def start_scheduler(self, name: str) -> Server:
        """A kube-scheduler of this name that asks this extender."""
        scheduler = self._plane.start_scheduler(scheduler_configuration(self.url, name))
        self._schedulers.callback(scheduler.kill)
        return scheduler

    def stop(self) -> None:
        self._schedulers.close()
        self.http.close()
        self.server.kill()


@pytest.fixture
def start_extender() -> Iterator[Callable[..., RunningExtender]]:
    """``start_extender(plane, namespace, "--shortlist=2", mode="enforce")`` starts one and waits until it serves."""
    with ExitStack() as running:
        numbers = iter(range(100))
        cleared: list[ControlPlane] = []

        def start(
            plane: ControlPlane,
            namespace: str,
            *options: str,
            mode: str = "enforce",
            wait: bool = True,
            name: str = "",
            kubeconfig: Path | None = None,
            env: dict[str, str] | None = None,
        ) -> RunningExtender:
            if plane not in cleared:
                clear_gpu_pods(plane, keep=namespace)
                cleared.append(plane)
            name = name or f"{namespace}-extender-{next(numbers)}"
            one = RunningExtender(
                plane, namespace, f"--mode={mode}", *options, name=name, kubeconfig=kubeconfig, env=env
            )
            running.callback(one.stop)
            if wait:
                one.wait_ready()
            return one

        yield start


def clear_gpu_pods(plane: ControlPlane, keep: str) -> None:
    """Deletes pods with GPUs that earlier tests left, and what would create them again.

    From sixteen pods on, an extender learns which pods are typical, and then prefers other nodes.
    """

    def left() -> list[Object]:
        return [
            pod
            for pod in plane.api.list("v1", "Pod")
            if pod["metadata"]["namespace"] != keep and not pod["metadata"].get("finalizers") and uses_gpus(pod)
        ]

    for namespace in {pod["metadata"]["namespace"] for pod in left()}:
        for api_version, kind in (("apps/v1", "Deployment"), ("apps/v1", "StatefulSet"), ("batch/v1", "Job")):
            plane.api.delete_all(api_version, kind, namespace, propagationPolicy="Background")

    def gone() -> bool:
        pods = left()
        for pod in pods:
            meta = pod["metadata"]
            plane.api.delete("v1", "Pod", meta["name"], meta["namespace"], gracePeriodSeconds=0)
        return not pods

    wait_for(gone, what="pods of earlier tests are gone")


def uses_gpus(pod: Object) -> bool:
    """Whether a container has a limit of GPUs, of any vendor or size."""
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return any(name.startswith(("nvidia.com/", "amd.com/")) for limit in limits for name in limit)


def gpu_pod(
    name: str,
    namespace: str,
    gpus: int = 1,
    *,
    scheduler: str = "",
    resource: str = "nvidia.com/gpu",
    cpu: str = "1",
    memory: str = "1Gi",
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    selector: dict[str, str] | None = None,
) -> Object:
    """A pod's manifest."""
    limits = {"cpu": cpu, "memory": memory} | ({resource: str(gpus)} if gpus else {})
    spec: Object = {
        "containers": [{"name": "main", "image": "any", "resources": {"limits": limits}}],
        "terminationGracePeriodSeconds": 0,
    }
    if scheduler:
        spec["schedulerName"] = scheduler
    if selector:
        spec["nodeSelector"] = selector
    metadata = {"name": name, "namespace": namespace, "annotations": annotations or {}, "labels": labels or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
