"""The node: registration, heartbeats, and the pods that the scheduler binds to it."""

import itertools
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
from controlplane.api import Api, Object, Refused
from controlplane.kubelet.containers import now
from controlplane.kubelet.devices import DeviceManager, NoDevices
from controlplane.kubelet.logs import LogServer
from controlplane.kubelet.network import PodNetwork
from controlplane.kubelet.pods import PodWorker
from controlplane.plane import ControlPlane

_LEASE_SECONDS = 10
_numbers = itertools.count(1)


class Kubelet:
    """A node of a control plane whose pods are local processes; a context that drains nothing and kills all."""

    def __init__(
        self,
        plane: ControlPlane,
        name: str = "",
        resources: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        entrypoints: Mapping[str, Sequence[str]] | None = None,
        network: PodNetwork | None = None,
        devices: DeviceManager | None = None,
        root: Path | None = None,
    ) -> None:
        """``entrypoints`` are the commands that stand for images, by their last name: ``{"kopt": ["kopt"]}``.

        With a ``network`` the pods have addresses, ports and processes of their own; ``devices`` gives them theirs.
        Below ``root`` lie the paths of the host that pods mount, and there are logs of pods as runtimes leave them;
        without, they lie on this machine.
        """
        self._root = root
        for folder in ("var/log/pods", "var/lib/kubelet/pods") if root is not None else ():
            (root / folder).mkdir(parents=True, exist_ok=True)
        self._devices = devices
        self._entrypoints = entrypoints or {}
        self._network = network
        self._number = next(_numbers)
        self.name = name or f"local-{self._number}"
        #: ``nodeSelector`` that only this node matches.
        self.selector = {"kubernetes.io/hostname": self.name}
        self._plane = plane
        self._folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=plane.folder))
        self.api = Api(plane.kubeconfig_as(f"system:node:{self.name}", ["system:nodes"]))
        self._workers: dict[str, PodWorker] = {}
        self._stopped = threading.Event()
        self._addresses = itertools.count(2)
        self._server = LogServer(plane.issue(f"{self.name}-serving", self.name), plane.ca, self._find)
        offered = {**(resources or {}), **(devices.capacity if devices is not None else {})}
        capacity = {"cpu": str(os.cpu_count() or 1), "memory": "16Gi", "pods": "110", **offered}
        self._register(capacity, labels or {})
        self._threads = [
            threading.Thread(target=target, name=f"{self.name} {target.__name__}", daemon=True)
            for target in (self._server.serve_forever, self._renew, self._follow)
        ]
        for thread in self._threads:
            thread.start()
        plane.api.wait("v1", "Node", self.name, lambda node: not node["spec"].get("taints"))

    @property
    def pods(self) -> Path:
        """What ``/var/lib/kubelet/pods`` is on a node: a folder for each pod, by uid, with its volumes."""
        return self._folder

    def __enter__(self) -> "Kubelet":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Kills the pods' processes, removes the node and its pods."""
        self.crash()
        for pod in self._plane.api.list("v1", "Pod", fields=f"spec.nodeName={self.name}"):
            meta = pod["metadata"]
            self._plane.api.delete("v1", "Pod", meta["name"], meta["namespace"], gracePeriodSeconds=0)
        self._plane.api.delete("v1", "Node", self.name)
        shutil.rmtree(self._folder, ignore_errors=True)

    def crash(self) -> None:
        """What a power cut does: no process, no heartbeat and no report any more."""
        self._stopped.set()
        for worker in list(self._workers.values()):
            worker.abandon()
        for worker in list(self._workers.values()):
            worker.join()
        self._server.shutdown()
        self._server.server_close()
        self.api.close()

    def _register(self, capacity: Mapping[str, str], labels: Mapping[str, str]) -> None:
        usual = {"kubernetes.io/hostname": self.name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        meta = {"name": self.name, "labels": {**usual, **labels}}
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": meta})
        heartbeat = {"lastHeartbeatTime": now(), "lastTransitionTime": now()}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready", **heartbeat}
        pressures = [
            {"type": kind, "status": "False", "reason": "Fine", "message": "", **heartbeat}
            for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
        ]
        status = {
            "capacity": dict(capacity),
            "allocatable": dict(capacity),
            "conditions": [ready, *pressures],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": self.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._server.server_address[1]}},
            "nodeInfo": {
                "architecture": "amd64",
                "operatingSystem": "linux",
                "kubeletVersion": "v1.36.3",
                "bootID": "",
                "containerRuntimeVersion": "process://1",
                "kernelVersion": "",
                "kubeProxyVersion": "",
                "machineID": "",
                "osImage": "",
                "systemUUID": "",
            },
        }
        self.api.patch("v1", "Node", self.name, {"status": status}, "", "status")

    def resize(self, resource: str, count: int) -> None:
        """A device plugin tells how many devices it has."""
        amounts = {resource: str(count)}
        self.api.patch("v1", "Node", self.name, {"status": {"capacity": amounts, "allocatable": amounts}}, "", "status")

    def _renew(self) -> None:
        """Renews the node's lease, which is how the node controller knows that it lives."""
        while True:
            spec = {
                "holderIdentity": self.name,
                "leaseDurationSeconds": 4 * _LEASE_SECONDS,
                "renewTime": now().replace("Z", ".000000Z"),
            }
            meta = {"name": self.name, "namespace": "kube-node-lease"}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
            try:
                self.api.replace(lease)
            except (Refused, httpx.HTTPError, RuntimeError):
                if self._stopped.is_set():
                    return  # the connection was closed
            if self._stopped.wait(_LEASE_SECONDS):
                return

    def _follow(self) -> None:
        """Lists and watches the node's pods for as long as it lives, whatever happens to the API server."""
        while not self._stopped.is_set():
            try:
                self._watch()
            except (Refused, httpx.HTTPError, ValueError, RuntimeError):
                # Unreachable, expired or closed by stop(): list again.
                self._stopped.wait(0.5)

    def _watch(self) -> None:
        chosen = {"fieldSelector": f"spec.nodeName={self.name}"}
        path = self.api.path("v1", "Pod")
        listing = self.api.request("GET", path, params=chosen).json()
        for pod in listing["items"]:
            self._see(pod)
        present = {pod["metadata"]["uid"] for pod in listing["items"]}
        for uid in [uid for uid in self._workers if uid not in present]:
            self._forget(uid)
        params = {**chosen, "watch": "true", "resourceVersion": listing["metadata"]["resourceVersion"]}
        with self.api.http.stream("GET", path, params=params, timeout=httpx.Timeout(10, read=330)) as answer:
            for line in answer.iter_lines():
                if self._stopped.is_set():
                    return
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                if event["type"] == "DELETED":
                    self._forget(event["object"]["metadata"]["uid"])
                else:
                    self._see(event["object"])

    def _see(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._workers:
            self._workers[uid].update(pod)
        elif pod["status"].get("phase") not in {"Succeeded", "Failed"} and not self._stopped.is_set():
            try:
                variables = self._devices.admit(pod) if self._devices is not None else {}
            except NoDevices as error:
                self._refuse(pod, str(error))
                return
            sandbox = self._network.pod(pod["metadata"]["namespace"]) if self._network else None
            address = sandbox.ip if sandbox else self._address()
            self._workers[uid] = PodWorker(
                pod,
                self.api,
                self._plane.ca,
                self._folder / uid,
                address,
                self._entrypoints,
                sandbox,
                variables,
                self._root,
            )

    def _refuse(self, pod: Object, why: str) -> None:
        """What a kubelet does with a pod for which its devices do not suffice."""
        meta = pod["metadata"]
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": why, "startTime": now()}
        self.api.patch("v1", "Pod", meta["name"], {"status": status}, meta["namespace"], "status")

    def _forget(self, uid: str) -> None:
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.abandon()
        if self._devices is not None:
            self._devices.release(uid)

    def _find(self, namespace: str, name: str) -> PodWorker | None:
        for worker in list(self._workers.values()):
            meta = worker.pod["metadata"]
            if (meta["namespace"], meta["name"]) == (namespace, name):
                return worker
        return None

    def _address(self) -> str:
        """A loopback address for the next pod."""
        number = next(self._addresses)
        return f"127.{1 + self._number % 250}.{number // 250 % 250}.{1 + number % 250}"
