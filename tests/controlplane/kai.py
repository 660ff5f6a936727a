"""A real KAI scheduler beside the control plane: pod grouper, scheduler, binder and queue controller.

KAI's admission webhook (GPU fractions, runtime classes) and its pod-group controller (usage in the queues' status)
listen on fixed ports of every interface and are left out; grouping, gangs, queues and binding need neither.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane import build
from controlplane.api import Object
from controlplane.plane import Cluster
from controlplane.processes import NotReady, Server, free_port

#: Label of the pods (or the job) that names their queue, and the scheduler's name in the pods.
QUEUE_LABEL = "kai.scheduler/queue"
SCHEDULER = "kai-scheduler"
_PROBES = "--health-probe-bind-address"
_RATE = ("--qps=1000", "--burst=2000")
_DEFINITIONS = (
    "scheduling.run.ai_queues",
    "scheduling.run.ai_podgroups",
    "scheduling.run.ai_bindrequests",
    "kai.scheduler_topologies",
)
_PRIORITIES = {"train": 50, "build-preemptible": 75, "build": 100, "inference": 125}


class Kai:
    """A running KAI, ready when the constructor returns."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._install()
        self.servers: list[Server] = []
        try:
            self._start("binder", "--fake-gpu-nodes", "--rate-limiter-base-delay=1", f"{_PROBES}={_anywhere()}")
            self._start("podgrouper", f"{_PROBES}={_anywhere()}")
            self._start("queuecontroller", "--enable-webhook=false", metrics="--metrics-listen-address")
            # Its debugging port cannot be bound to loopback; one that does not exist is not opened. With the
            # election its Lease tells others that it runs.
            scheduler = ["--schedule-period=300ms", "--plugin-server-port=-1", "--leader-elect"]
            self._start("scheduler", *scheduler, metrics="--listen-address")
            cluster.api.wait("coordination.k8s.io/v1", "Lease", SCHEDULER, _held, "kai-scheduler")
        except NotReady:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends every process; queues and pod groups stay."""
        for server in self.servers:
            server.kill()

    @contextmanager
    def queue(self, gpus: int = -1, over_quota_weight: int = 1, priority: int = 100) -> Iterator[str]:
        """A queue with a quota of ``gpus`` (-1: any number) below a department of its own; yields its name."""
        name = f"team-{next(self._numbers)}"
        parent = f"department-{name}"
        free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
        resources = {"cpu": free, "memory": free, "gpu": {**free, "quota": gpus, "overQuotaWeight": over_quota_weight}}
        self._cluster.api.apply(
            _queue(parent, {"resources": dict.fromkeys(resources, free)}),
            _queue(name, {"parentQueue": parent, "priority": priority, "resources": resources}),
        )
        try:
            yield name
        finally:
            for one in (name, parent):
                self._cluster.api.delete("scheduling.run.ai/v2", "Queue", one)

    def _start(self, name: str, *flags: str, metrics: str = "--metrics-bind-address") -> None:
        address = f"127.0.0.1:{free_port()}"
        command: list[str | Path] = [build.binaries("kai") / name, *_RATE, f"{metrics}={address}", *flags]
        env = {"KUBECONFIG": str(self._cluster.kubeconfig)}
        server = Server(f"kai-{name}", command, self._cluster.folder, env, url=f"http://{address}")
        self.servers.append(server)
        server.wait_until(lambda: self._cluster.api.http.get(f"{server.url}/metrics").is_success)

    def _install(self) -> None:
        folder = build.manifests("kai") / "deployments" / "kai-scheduler" / "crds"
        self._cluster.apply_crds([folder / f"{name}.yaml" for name in _DEFINITIONS])
        for name in ("kai-scheduler", "kai-resource-reservation", "kai-scale-adjust"):
            self._cluster.api.namespace(name)
        for name, value in _PRIORITIES.items():
            self._cluster.api.priority_class(name, value)


def _anywhere() -> str:
    return f"127.0.0.1:{free_port()}"


def _held(lease: Object) -> bool:
    return bool(lease["spec"].get("holderIdentity"))


def _queue(name: str, spec: Object) -> Object:
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}
