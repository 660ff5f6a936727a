"""Simulated nodes: a real kwok gives them a kubelet's answers, so that pods bound to them run on until deleted.

A pod with the annotation ``kopt.test/runs-for`` (e.g. ``2s``) succeeds after that time, one with
``kopt.test/fails-after`` fails. Nodes send no heartbeats; the control plane does not wait for any.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from controlplane import build
from controlplane.api import Object, has_condition
from controlplane.plane import Cluster
from controlplane.processes import Server, free_port

RUNS_FOR = "kopt.test/runs-for"
FAILS_AFTER = "kopt.test/fails-after"
#: Label of the nodes that one call of ``Kwok.nodes`` made.
SET = "kopt.test/nodes"

_SELECTOR = "kwok.x-k8s.io/node=fake"


class Nodes(Sequence[str]):
    """Names of the nodes that were made together; as a context they are removed at its end, with their pods."""

    def __init__(self, cluster: Cluster, names: Sequence[str], label: str) -> None:
        self._cluster = cluster
        self._names = list(names)
        #: ``nodeSelector`` that only these nodes match.
        self.selector = {SET: label}

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return self._names[index]

    def __len__(self) -> int:
        return len(self._names)

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Deletes the nodes and at once every pod on them."""
        api, own = self._cluster.api, set(self._names)
        label = ",".join(f"{key}={value}" for key, value in self.selector.items())
        for pod in api.list("v1", "Pod"):
            if pod["spec"].get("nodeName") in own:
                meta = pod["metadata"]
                api.delete("v1", "Pod", meta["name"], meta["namespace"], gracePeriodSeconds=0)
        api.delete_all("v1", "Node", labels=label)


class Kwok:
    """A running kwok for a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        stages = cluster.folder / "kwok-stages.yaml"
        stages.write_text(yaml.safe_dump_all(_stages()))
        port = free_port()
        command: list[str | Path] = [
            build.binaries("kwok") / "kwok",
            f"--kubeconfig={cluster.kubeconfig}",
            f"--config={stages}",
            f"--manage-nodes-with-annotation-selector={_SELECTOR}",
            f"--server-address=127.0.0.1:{port}",
            "--node-lease-duration-seconds=0",
            "--cidr=10.128.0.0/9",
        ]
        self.server = Server("kwok", command, cluster.folder, url=f"http://127.0.0.1:{port}")

    def nodes(
        self,
        count: int,
        gpus: int = 8,
        resource: str = "nvidia.com/gpu",
        labels: Mapping[str, str] | None = None,
        cpu: str = "96",
        memory: str = "1Ti",
        prefix: str = "gpu",
        more: Mapping[str, str] | None = None,
        taints: Sequence[Object] = (),
    ) -> Nodes:
        """Makes nodes with ``gpus`` of a resource each (MIG and CPX names too) and returns once they are ready.

        ``more`` are further resources, e.g. ``{"nvidia.com/mig-1g.10gb": "7"}``.
        """
        number = str(next(self._numbers))
        resources = {"cpu": cpu, "memory": memory, "pods": "256", **({resource: str(gpus)} if gpus else {})}
        resources.update(more or {})
        names = [f"{prefix}-{number}-{index:04d}" for index in range(count)]
        made = Nodes(self._cluster, names, number)
        manifests = [_node(name, {**(labels or {}), **made.selector}, resources, taints) for name in names]
        with ThreadPoolExecutor(8) as several:
            list(several.map(self._cluster.api.create, manifests))
        label = f"{SET}={number}"
        self.server.wait_until(lambda: self._ready(label) == count, 60 + 0.1 * count, f"{count} nodes are ready")
        return made

    def _ready(self, label: str) -> int:
        nodes = self._cluster.api.list("v1", "Node", labels=label)
        return sum(_is_ready(node) for node in nodes)

    def stop(self) -> None:
        """Ends kwok; its nodes stay as they are."""
        self.server.kill()


def _node(name: str, labels: Mapping[str, str], resources: Mapping[str, str], taints: Sequence[Object]) -> Object:
    key, value = _SELECTOR.split("=")
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {key: value},
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "type": "kwok", **labels},
        },
        "spec": {"taints": list(taints)},
        "status": {"capacity": dict(resources), "allocatable": dict(resources)},
    }


def _is_ready(node: Object) -> bool:
    taints = {taint["key"] for taint in node["spec"].get("taints") or ()}
    return has_condition(node, "Ready") and "node.kubernetes.io/not-ready" not in taints


def _stages() -> Iterator[Object]:
    """kwok's own fast stages, except that only annotated pods come to an end."""
    folder = build.manifests("kwok") / "kustomize" / "stage"
    for path in ("node/fast/node-initialize.yaml", "pod/fast/pod-ready.yaml", "pod/fast/pod-delete.yaml"):
        yield from yaml.safe_load_all((folder / path).read_text())
    complete = (folder / "pod/fast/pod-complete.yaml").read_text()
    yield _ending(yaml.safe_load(complete), "pod-complete", RUNS_FOR)
    failing = (
        complete.replace("exitCode: 0", "exitCode: 1").replace("Completed", "Error").replace("Succeeded", "Failed")
    )
    yield _ending(yaml.safe_load(failing), "pod-fail", FAILS_AFTER)


def _ending(stage: Object, name: str, annotation: str) -> Object:
    """A stage that applies to running pods with the annotation, after the time it says."""
    expressions = stage["spec"]["selector"]["matchExpressions"]
    kept = [one for one in expressions if "ownerReferences" not in one["key"]]
    value = f'.metadata.annotations["{annotation}"]'
    stage["metadata"]["name"] = name
    stage["spec"]["selector"]["matchExpressions"] = [*kept, {"key": value, "operator": "Exists"}]
    stage["spec"]["delay"] = {"durationMilliseconds": 1000, "durationFrom": {"expressionFrom": value}}
    return stage
