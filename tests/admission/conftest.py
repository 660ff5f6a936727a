"""Running replicas of the webhooks in front of the real API server."""

import contextlib
import itertools
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from replicas import KOPT

CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
CRD = CRDS / "conformancepolicies.yaml"
SYSTEM = "kopt-system"
POLICY = {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "ConformancePolicy", "metadata": {"name": "default"}}
CONFIGURATION = "00-kaiwo-optimizer"
_numbers = itertools.count(1)


class Replica:
    """One ``kopt webhook`` process; ``url`` is what the API server calls."""

    def __init__(self, plane: ControlPlane, port: int, options: tuple[str, ...] = ()) -> None:
        self.port, self._probes = port, free_port()
        self.url = f"https://127.0.0.1:{port}"
        command = [
            *KOPT,
            "webhook",
            "--kubeconfig",
            str(plane.kubeconfig),
            "--listen",
            f"127.0.0.1:{port}",
            "--probes",
            str(self._probes),
            "--url",
            self.url,
            "--namespace",
            SYSTEM,
            "--drain",
            "0.2",
            "--reuse-port",
            *options,
        ]
        self.server: Server = plane.start_server(f"webhook-{next(_numbers)}", command)
        self.server.wait_until(lambda: self.probe("/readyz").is_success)

    def probe(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self._probes}{path}", trust_env=False, timeout=5)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in self.probe("/metrics").text.splitlines():
            match = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total


class Webhooks:
    """The webhooks as a cluster's administrator sees them: replicas, the policy, managed namespaces."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.api = plane, plane.api
        self.replicas: list[Replica] = []
        self._spaces = itertools.count(1)

    def start(self, *options: str, port: int | None = None) -> Replica:
        """Another replica; they share a port, as they would share a Service."""
        shared = port or (self.replicas[0].port if self.replicas else free_port())
        self.replicas.append(Replica(self.plane, shared, options))
        return self.replicas[-1]

    def policy(self, **spec: Any) -> None:
        """Put the policy into force and wait until every replica follows it, and the API server its conditions."""
        stored = self.api.apply(POLICY | {"spec": spec})
        for replica in self.replicas:
            if replica.server.alive:
                wait_for(
                    lambda one=replica: (
                        one.metric("kopt_conformance_policy_generation")  # type: ignore[misc]
                        == stored["metadata"]["generation"]
                    )
                )

    def namespace(self, annotations: dict[str, str] | None = None, managed: bool = True) -> str:
        """A namespace of the test's own."""
        labels = {"kaiwo.ai/managed": "true"} if managed else {}
        return self.api.space("team", labels, annotations)

    def seen(self, namespace: str, check: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """Dry-run a GPU pod until the API server treats it as ``check`` wants: webhook configurations take a moment."""
        from admission.workloads import pod

        def tried() -> dict[str, Any] | None:
            found = self.api.create(
                pod("probe") | {"metadata": {"name": "probe", "namespace": namespace}}, dryRun="All"
            )
            return found if check(found) else None

        return wait_for(tried)

    def command(self, *arguments: str) -> dict[str, Any]:
        """A ``kopt`` command's JSON answer, as it would print it."""
        done = subprocess.run(
            [*KOPT, *arguments, "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return dict(yaml.safe_load(done.stdout))

    def clear(self) -> None:
        """Everything of ours out of the cluster."""
        for replica in self.replicas:
            replica.server.kill()
        self.replicas.clear()
        for kind in ("Mutating", "Validating"):
            self.api.delete("admissionregistration.k8s.io/v1", f"{kind}WebhookConfiguration", CONFIGURATION)
        self.api.delete(POLICY["apiVersion"], "ConformancePolicy", "default")


@pytest.fixture(scope="session")
def webhook_plane(control_plane: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without any queueing system, so that queues can be named that do not exist."""
    plane = ControlPlane(tmp_path_factory.mktemp("webhook-plane"))
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def webhooks(webhook_plane: ControlPlane) -> Iterator[Webhooks]:
    """The webhooks with one replica running, before an API server that knows their custom resource."""
    yield from running(webhook_plane)


def running(plane: ControlPlane) -> Iterator[Webhooks]:
    """Install the custom resource and start a replica; take everything out in the end."""
    plane.apply_crds([CRD, CRDS / "kaiwopools.yaml"])
    plane.api.namespace(SYSTEM)
    ours = Webhooks(plane)
    with contextlib.ExitStack() as stack:
        stack.callback(ours.clear)
        ours.start()
        yield ours
