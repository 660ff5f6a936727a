"""Situations of ``benchmarks.why_situations`` on a control plane with a real KAI, and what makes their changes there.

Gangs are PyTorchJobs, whose pods nobody else makes here: of Jobs KAI starts every pod by itself. KAI finds the nodes of
what runs in its queues; other pods are on the nodes that the situation has them on.
"""

import copy
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarked import benchmark_module
from controlplane.kai import QUEUE_LABEL
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import NotReady, wait_for
from typer.testing import CliRunner

from kopt.cli.main import app

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
_CLASSES = {50: "train", 100: "build"}
_GROUP = "pod-group-name"
_PATIENCE_S, _STILL_S = 30.0, 2.5


class OnKai:
    """A constructed situation, as objects of the control plane."""

    def __init__(self, plane: ControlPlane, kwok: Kwok, constructed: Any) -> None:
        self.plane, self.api, self.kwok, self.constructed = plane, plane.api, kwok, constructed
        self.space, self.others = self.api.space("kai-advised"), self.api.space("kai-others")
        self._cluster = constructed.cluster
        self._nodes: dict[str, str] = {}
        self._queues = {item["metadata"]["name"]: f"{self.space}-{item['metadata']['name']}" for item in self._queued()}
        (group,) = [item for item in self._cluster.kai_groups if item["metadata"]["name"] == "train"]
        self.queue, self.least = self._queues[group["spec"]["queue"]], group["spec"]["minMember"]
        (job,) = self._cluster.jobs
        self.manifest = self._gang("train", self.space, self.queue, job["spec"]["template"]["spec"], self.least)

    def _queued(self) -> Sequence[Object]:
        return list(self._cluster.kai_queues)

    @contextmanager
    def built(self) -> Iterator["OnKai"]:
        with ExitStack() as stack:
            try:
                self._make_queues(stack)
                self._make_nodes(stack)
                self._make_running()
                self.submit(self.manifest)
                yield self
            finally:
                for space in (self.space, self.others):
                    self._clear(space)

    def diagnosis(self) -> Object:
        """Once something binds, and everything that runs counts."""

        def answer() -> Object | None:
            words = ["why", "train", "-n", self.space, "--kubeconfig", str(self.plane.kubeconfig), "-o", "json"]
            done = CliRunner().invoke(app, words)
            assert done.exit_code == 0, done.output
            result: Object | None = json.loads(done.stdout)["diagnosis"]
            return result if result and result["causes"] and result["causes"][0]["code"] != "FITS_NOW" else None

        return wait_for(answer, what="it waits") or {}

    def holds(self, change: Object) -> bool:
        """Whether the gang is bound once the change is made; everything of it is gone afterwards."""
        if change["kind"] == "wait":
            for name in change["names"]:
                self._end(name)
            manifest = self.manifest
            self.submit(manifest)
        else:
            manifest = self._changed(change, int(change["after"]) if change["kind"] == "fewer-pods" else 0)
            self.submit(manifest)
        try:
            return self._is_bound(manifest, _PATIENCE_S)
        finally:
            self._clear(self.space)

    def is_smallest(self, change: Object) -> bool:
        """Whether with one GPU, or one pod, more it stays without nodes."""
        more = int(change["after"]) + 1
        if more == int(change["before"]):
            manifest = self.manifest
        elif change["kind"] == "fewer-pods":
            manifest = self._changed(change, more)
        else:
            patch = [{**operation, "value": type(operation["value"])(more)} for operation in change["patch"]]
            manifest = self._changed({**change, "patch": patch})
        self.submit(manifest)
        try:
            return not self._is_bound(manifest, _STILL_S)
        finally:
            self._clear(self.space)

    def submit(self, manifest: Object) -> None:
        stored = self.api.create(copy.deepcopy(manifest))
        worker = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]
        self._create_pods(stored, worker["template"], worker["replicas"])

    def forget(self) -> None:
        """The waiting gang, so that another one may come."""
        self._clear(self.space)

    def _create_pods(self, stored: Object, template: Object, replicas: int) -> None:
        metadata = stored["metadata"]
        owner = {"apiVersion": stored["apiVersion"], "kind": stored["kind"], "controller": True}
        owner |= {"name": metadata["name"], "uid": metadata["uid"]}
        labels = {**template["metadata"]["labels"], "training.kubeflow.org/replica-type": "worker"}
        for number in range(replicas):
            of_pod = {"name": f"{metadata['name']}-worker-{number}", "namespace": metadata["namespace"]}
            of_pod |= {"labels": labels, "ownerReferences": [owner]}
            self.api.create(
                {"apiVersion": "v1", "kind": "Pod", "metadata": of_pod, "spec": copy.deepcopy(template["spec"])}
            )

    def _changed(self, change: Object, replicas: int = 0) -> Object:
        manifest, patch = copy.deepcopy(self.manifest), benchmark_module("why_situations.redo").patch
        for operation in change["patch"]:
            patch(manifest, operation)
        manifest["metadata"]["name"] = "changed"
        if replicas:
            # Which of a PyTorchJob's replicas there are fewer of, only its owner knows.
            manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = replicas
        return manifest

    def _is_bound(self, manifest: Object, within_s: float) -> bool:
        replicas = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"]
        try:
            wait_for(lambda: len(self._on_nodes(self.space)) == replicas, within_s)
        except NotReady:
            return False
        return True

    def _on_nodes(self, space: str) -> list[Object]:
        pods = self.api.list("v1", "Pod", space, fields="spec.nodeName!=")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def _end(self, name: str) -> None:
        space, _, short = name.partition("/")
        for pod in self.api.list("v1", "Pod", space):
            metadata = pod["metadata"]
            names = {metadata["name"], metadata.get("annotations", {}).get(_GROUP)}
            if short in names | {owner["name"] for owner in metadata.get("ownerReferences", ())}:
                self.api.delete("v1", "Pod", metadata["name"], space, gracePeriodSeconds=0)

    def _clear(self, space: str) -> None:
        self.api.delete_all("v1", "Pod", space, gracePeriodSeconds=0)
        self.api.delete_all("kubeflow.org/v1", "PyTorchJob", space)
        wait_for(lambda: not self.api.list("v1", "Pod", space), what="the pods are gone")
        wait_for(lambda: not self.api.list("scheduling.run.ai/v2alpha2", "PodGroup", space), what="… and the groups")

    def _make_queues(self, stack: ExitStack) -> None:
        """KAI starts nothing in a queue without one above it."""
        free = {"quota": -1, "limit": -1, "overQuotaWeight": 1}
        root = f"{self.space}-root"
        specs = {root: {"resources": dict.fromkeys(("cpu", "memory", "gpu"), free)}}
        for item in sorted(self._queued(), key=lambda item: "parentQueue" in item["spec"]):
            spec = item["spec"]
            parent = spec.get("parentQueue")
            resources = {"cpu": free, "memory": free, **spec["resources"]}
            above = self._queues[parent] if parent else root
            specs[self._queues[item["metadata"]["name"]]] = {"parentQueue": above, "resources": resources}
        for name, spec in specs.items():
            document = {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}}
            self.api.apply(document | {"spec": spec})
            stack.callback(self.api.delete, "scheduling.run.ai/v2", "Queue", name)

    def _make_nodes(self, stack: ExitStack) -> None:
        alike: dict[str, list[Object]] = {}
        for node in self._cluster.nodes:
            labels = {key: value for key, value in node["metadata"]["labels"].items() if "hostname" not in key}
            alike.setdefault(json.dumps([labels, node["spec"], node["status"]["allocatable"]]), []).append(node)
        for key, nodes in alike.items():
            labels, spec, amounts = json.loads(key)
            taints = [taint for taint in spec["taints"] if not taint["key"].startswith("node.kubernetes.io/")]
            made = self.kwok.nodes(
                len(nodes),
                int(amounts.get(GPU, 0)),
                labels=labels,
                cpu=amounts["cpu"],
                memory=amounts["memory"],
                prefix=self.space,
                taints=taints,
            )
            stack.enter_context(made)
            self._nodes |= zip((node["metadata"]["name"] for node in nodes), made, strict=True)
            for name in made if spec.get("unschedulable") else ():
                self.api.patch("v1", "Node", name, {"spec": {"unschedulable": True}})

    def _make_running(self) -> None:
        gangs = Counter[str]()
        templates: dict[str, Object] = {}
        for pod in self._cluster.pods:
            if pod["metadata"]["namespace"] != "others":
                continue
            if group := pod["metadata"]["annotations"].get(_GROUP):
                gangs[group] += 1
                templates[group] = pod["spec"]
                continue
            spec = self._spec(pod["spec"]) | {"nodeName": self._nodes[pod["spec"]["nodeName"]]}
            metadata = {"name": pod["metadata"]["name"], "namespace": self.others}
            self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        queues = {item["metadata"]["name"]: item["spec"]["queue"] for item in self._cluster.kai_groups}
        for name, number in gangs.items():
            queue = self._queues[queues[name]]
            self.submit(self._gang(name, self.others, queue, templates[name], number))
        number = sum(pod["metadata"]["namespace"] == "others" for pod in self._cluster.pods)
        wait_for(lambda: len(self._on_nodes(self.others)) == number, _PATIENCE_S, "the others run")

    def _gang(self, name: str, space: str, queue: str, spec: Object, replicas: int) -> Object:
        template = {"metadata": {"labels": {QUEUE_LABEL: queue}}, "spec": self._spec(spec)}
        return {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "namespace": space, "labels": {QUEUE_LABEL: queue}},
            "spec": {"pytorchReplicaSpecs": {"Worker": {"replicas": replicas, "template": template}}},
        }

    def _spec(self, spec: Object) -> Object:
        result = {key: value for key, value in copy.deepcopy(spec).items() if key not in ("priority", "nodeName")}
        result["restartPolicy"] = "Never"
        if "priority" in spec:
            result["priorityClassName"] = _CLASSES[spec["priority"]]
        return result
