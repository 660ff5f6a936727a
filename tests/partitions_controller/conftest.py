"""Nodes with the labels of NVIDIA's GPU operator, pods that want instances, and a stand-in of its mig-manager."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from controlplane.api import Api, Refused
from controlplane.kwok import Kwok, Nodes
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from replicas import ControllerProcess, replicas

CRD = Path(__file__).resolve().parents[2] / "deploy" / "chart" / "crds" / "migstrategies.yaml"
LABEL, STATE = "nvidia.com/mig.config", "nvidia.com/mig.config.state"
GPUS = 2
NODE_LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": str(GPUS),
    "nvidia.com/mig.strategy": "mixed",
    "nvidia.com/gpu.deploy.mig-manager": "true",
    STATE: "success",
}
FILE = """
version: v1
mig-configs:
  all-disabled: [{devices: all, mig-enabled: false}]
  all-1g.10gb: [{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}]
  all-3g.40gb: [{devices: all, mig-enabled: true, mig-devices: {"3g.40gb": 2}}]
  all-balanced:
    - devices: all
      device-filter: ["0x20B010DE"]
      mig-enabled: true
      mig-devices: {"1g.5gb": 2, "2g.10gb": 1, "3g.20gb": 1}
    - devices: all
      device-filter: ["0x233010DE"]
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
  too-many: [{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 6, "2g.20gb": 1}}]
"""
INSTANCES: dict[str, dict[str, int]] = {
    "all-disabled": {"nvidia.com/gpu": GPUS},
    "all-1g.10gb": {"nvidia.com/mig-1g.10gb": 7 * GPUS},
    "all-3g.40gb": {"nvidia.com/mig-3g.40gb": 2 * GPUS},
    "all-balanced": {
        "nvidia.com/mig-1g.10gb": 2 * GPUS,
        "nvidia.com/mig-2g.20gb": GPUS,
        "nvidia.com/mig-3g.40gb": GPUS,
    },
}
KINDS = {name for amounts in INSTANCES.values() for name in amounts}
Object = dict[str, Any]
Start = Callable[..., ControllerProcess]


class MigManager:
    """Plays NVIDIA's mig-manager: it cuts by the label, refuses what pods use, and says how it went. ``fails``: a
    configuration that the hardware does not do."""

    def __init__(self, plane: ControlPlane, nodes: Nodes) -> None:
        self._api, self._nodes = Api(plane.kubeconfig), nodes
        self.applied: dict[str, str] = {}
        self.cut: list[tuple[str, str, int]] = []
        """Node, configuration, and pods that were on it."""
        self.fails = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        self._api.http.close()

    def _run(self) -> None:
        while not self._over.wait(0.1):
            for name in self._nodes:
                with contextlib.suppress(Refused):
                    self._look(name)

    def _look(self, name: str) -> None:
        wanted = self._api.get("v1", "Node", name)["metadata"]["labels"].get(LABEL, "")
        if not wanted or self.applied.get(name, "all-disabled") == wanted:
            return
        pods = [pod for pod in self._api.list("v1", "Pod") if pod["spec"].get("nodeName") == name and _has_gpus(pod)]
        self.cut.append((name, wanted, len(pods)))
        self.applied[name] = wanted
        self._say(name, "pending")
        if pods or wanted == self.fails or wanted not in INSTANCES:
            self._say(name, "failed")
            return
        amounts = dict.fromkeys(KINDS, "0") | {key: str(value) for key, value in INSTANCES[wanted].items()}
        status = {"status": {"capacity": amounts, "allocatable": amounts}}
        self._api.patch("v1", "Node", name, status, subresource="status")
        self._say(name, "success")

    def _say(self, name: str, state: str) -> None:
        self._api.patch("v1", "Node", name, {"metadata": {"labels": {STATE: state}}})


def _has_gpus(pod: Object) -> bool:
    limits = [container.get("resources", {}).get("limits", {}) for container in pod["spec"]["containers"]]
    return any(key.startswith("nvidia.com/") for each in limits for key in each)


class Bench:
    """Nodes of two H100 each, a namespace, and the ConfigMap."""

    def __init__(self, plane: ControlPlane, nodes: Nodes) -> None:
        self.plane, self.api, self.nodes = plane, plane.api, nodes
        self.space = plane.api.space("partitions")
        self.selector = dict(nodes.selector)
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "mig-parted", "namespace": self.space},
                "data": {"config.yaml": FILE},
            }
        )
        self.made: list[str] = []

    def strategy(self, name: str, profiles: Mapping[str, str] | None = None, **partition: Any) -> str:
        """One of the test's own, named after its namespace."""
        name = f"{self.space}-{name}"
        shares = [{key: value} for key, value in (profiles or {"1g.10gb": "70%", "3g.40gb": "30%"}).items()]
        spec = {
            "nodeSelector": self.selector,
            "partitionStrategy": {"preferredProfiles": shares, "rebalanceInterval": "5m", **partition},
        }
        body = {"apiVersion": "kgwe.nvidia.io/v1", "kind": "MIGStrategy", "metadata": {"name": name}, "spec": spec}
        self.api.create(body)
        self.made.append(name)
        return name

    def status(self, name: str) -> Object:
        found: Object = self.api.get("kgwe.nvidia.io/v1", "MIGStrategy", name, "").get("status") or {}
        return found

    def version(self, name: str) -> str:
        found = self.api.get("kgwe.nvidia.io/v1", "MIGStrategy", name, "")
        return str(found["metadata"]["resourceVersion"])

    def accepted(self, name: str) -> str:
        return next((row["reason"] for row in self.status(name).get("conditions", ())), "")

    def pod(self, name: str, resource: str, count: int = 1, node: str = "", **notes: str) -> None:
        selector = self.selector | ({"kubernetes.io/hostname": node} if node else {})
        limits = {resource: str(count)} if resource else {}
        container = {"name": "main", "image": "team/infer:1", "resources": {"limits": limits}}
        spec = {"nodeSelector": selector, "terminationGracePeriodSeconds": 0, "containers": [container]}
        metadata = {"name": name, "namespace": self.space, "annotations": notes}
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def claim_template(self, name: str, driver: str, profile: str) -> None:
        where = f'device.attributes["{driver}"].profile == "{profile}"'
        exactly = {"deviceClassName": driver, "selectors": [{"cel": {"expression": where}}]}
        self.api.create(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaimTemplate",
                "metadata": {"name": name, "namespace": self.space},
                "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
            }
        )

    def pod_with_claim(self, name: str, template: str, node: str) -> None:
        container = {"name": "main", "image": "team/infer:1", "resources": {"claims": [{"name": "gpu"}]}}
        spec = {
            "nodeSelector": self.selector | {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": template}],
        }
        metadata = {"name": name, "namespace": self.space}
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def label(self, node: str, configuration: str, by: str) -> None:
        """As another program writes it, whose name the API server keeps."""
        body = {"metadata": {"labels": {LABEL: configuration}}}
        path = f"{self.api.path('v1', 'Node', '', node)}"
        headers = {"Content-Type": "application/merge-patch+json"}
        self.api.request("PATCH", path, json=body, headers=headers, params={"fieldManager": by})

    def bind(self, name: str, resource: str, node: str) -> None:
        """A pod that a scheduler binds now, whatever has become of the node since it was selected."""
        container = {"name": "main", "image": "team/infer:1", "resources": {"limits": {resource: "1"}}}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
        metadata = {"name": name, "namespace": self.space}
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def bound(self, name: str) -> str:
        return str(wait_for(lambda: self.where(name), what=f"{name} is bound"))

    def where(self, name: str) -> str:
        return str(self.api.get("v1", "Pod", name, self.space)["spec"].get("nodeName") or "")

    def ends(self, name: str) -> None:
        self.api.delete("v1", "Pod", name, self.space, gracePeriodSeconds=0)

    def node(self, name: str) -> Object:
        return self.api.get("v1", "Node", name, "")

    def labels(self) -> dict[str, str]:
        return {name: self.node(name)["metadata"]["labels"].get(LABEL, "") for name in self.nodes}

    def held(self) -> Counter[str]:
        return Counter(self.node(name)["metadata"]["labels"].get("kaiwo.ai/held", "") for name in self.nodes)

    def row(self, strategy: str, node: str) -> Object:
        return next((row for row in self.status(strategy).get("nodes", ()) if row["name"] == node), {})

    def close(self) -> None:
        for name in self.made:
            self.api.delete("kgwe.nvidia.io/v1", "MIGStrategy", name, "")


@pytest.fixture
def bench(control_plane: ControlPlane, kwok: Kwok) -> Iterator[Bench]:
    control_plane.apply_crd(yaml.safe_load(CRD.read_text()))
    control_plane.api.namespace("kopt-system")
    with kwok.nodes(3, gpus=GPUS, labels=NODE_LABELS, prefix="mig") as nodes:
        result = Bench(control_plane, nodes)
        yield result
        result.close()


@pytest.fixture
def manager(bench: Bench) -> Iterator[MigManager]:
    result = MigManager(bench.plane, bench.nodes)
    yield result
    result.stop()


@pytest.fixture
def controller(bench: Bench) -> Iterator[Start]:
    """Starts a replica that leads, with a Lease of the test's own."""
    options = [f"--namespace={bench.space}", f"--configurations={bench.space}/mig-parted", "--settle=1s"]
    with replicas(partial(ControllerProcess, bench.plane, "partitions", *options)) as start:
        yield start
