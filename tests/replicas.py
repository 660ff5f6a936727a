"""Replicas of a controller as processes, for the tests of controllers before a real control plane."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port
from controlplane.warm import KOPT

_numbers = itertools.count(1)


class ControllerProcess:
    """One replica of ``kopt controller NAME``."""

    def __init__(self, plane: ControlPlane, name: str, *options: str, kubeconfig: Path | None = None) -> None:
        self.port, self._name, number = free_port(), name, next(_numbers)
        command = [
            *KOPT,
            "controller",
            name,
            "--kubeconfig",
            str(kubeconfig or plane.kubeconfig),
            f"--port={self.port}",
            f"--identity=replica-{number}",
            *options,
        ]
        self.server: Server = plane.start_server(f"{name}-{number}", command)

    @property
    def leads(self) -> bool:
        return self.metric(f"kopt_{self._name}_leading") == 1.0

    def wait_leading(self) -> None:
        self.server.wait_until(lambda: self.leads, what="it leads")

    def wait_deposed(self) -> None:
        self.server.wait_until(lambda: not self.leads, what="it does not lead any more")

    @property
    def metrics(self) -> str:
        return httpx.get(f"http://127.0.0.1:{self.port}/metrics", trust_env=False).text

    def metric(self, name: str) -> float:
        for line in self.metrics.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        return 0.0


C = TypeVar("C", bound=ControllerProcess)


@contextmanager
def replicas(make: Callable[..., C]) -> Iterator[Callable[..., C]]:
    """What starts a replica by ``make``, one that leads unless told otherwise; all are killed in the end."""
    with ExitStack() as running:

        def start(*options: str, leads: bool = True, **settings: Any) -> C:
            one = make(*options, **settings)
            running.callback(one.server.kill)
            if leads:
                one.wait_leading()
            return one

        yield start


@contextmanager
def reviewing(plane: ControlPlane, name: str, namespace: str, **policy_spec: object) -> Iterator[Server]:
    """A replica of the webhook while the block runs, taken out again in the end: the control plane is shared."""
    port, probes = free_port(), free_port()
    command = [
        *KOPT,
        "webhook",
        "--kubeconfig",
        str(plane.kubeconfig),
        "--listen",
        f"127.0.0.1:{port}",
        "--probes",
        str(probes),
        "--url",
        f"https://127.0.0.1:{port}",
        "--namespace",
        namespace,
        "--drain",
        "0",
    ]
    policy = {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "ConformancePolicy", "metadata": {"name": "default"}}
    plane.api.apply(policy | {"spec": {"namespaces": "OptIn", "rollout": {"queues": 0}, **policy_spec}})
    server = plane.start_server(name, command)
    yield server
    server.kill()
    for kind in ("Mutating", "Validating"):
        plane.api.delete("admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", "00-kaiwo-optimizer")
    plane.api.delete("kaiwo.ai/v1alpha1", "ConformancePolicy", "default")
