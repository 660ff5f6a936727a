"""``kopt agent topology`` beside a real API server: what it publishes, when it writes, and who places by it."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import node_outputs as outputs
import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import Server, free_port, wait_for
from replicas import KOPT

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
KIND = ("kaiwo.ai/v1alpha1", "NodeTopology")
Object = dict[str, Any]


class Agent:
    """A running agent of one node, which replays ``folder``."""

    def __init__(self, plane: ControlPlane, node: str, folder: Path, *options: str) -> None:
        self._api, self.node, self.folder = plane.api, node, folder
        self._metrics = f"http://127.0.0.1:{(port := free_port())}/metrics"
        arguments = [
            "agent",
            "topology",
            "--node",
            node,
            "--replay",
            str(folder),
            "--interval",
            "3600",
            "--port",
            str(port),
            *options,
        ]
        self.server: Server = plane.start_server(
            f"topology-{node}", [*KOPT, *arguments], {"KUBECONFIG": str(plane.kubeconfig)}
        )

    def metric(self, sample: str) -> float:
        text = httpx.get(self._metrics, trust_env=False).text
        return next((float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"{sample} ")), 0.0)

    def wait(self, check: Callable[[Object], object]) -> Object:
        """The object, once ``check`` is true of it."""
        return self._api.wait(*KIND, self.node, check, "")

    def look(self) -> None:
        """Look at the node again, and wait until that is done and nothing is to be written any more."""
        before = self.metric("kopt_topology_scans_total")
        self.server.signal(signal.SIGHUP)
        wait_for(lambda: self.metric("kopt_topology_scans_total") > before, what="another scan")

    def labels(self) -> Object:
        found = self._api.get("v1", "Node", self.node, "")["metadata"]["labels"]
        return {name.removeprefix("kaiwo.ai/"): text for name, text in found.items() if name.startswith("kaiwo.ai/")}

    @property
    def writes(self) -> dict[str, float]:
        return {
            what: self.metric(f'kopt_topology_writes_total{{object="{what}",outcome="ok"}}')
            for what in ("object", "labels")
        }


@pytest.fixture(scope="module")
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    control_plane.apply_crds(
        [ROOT / "deploy/chart/crds" / name for name in ("gpuworkloads.yaml", "nodetopologies.yaml")]
    )
    yield control_plane
    for kind in ("gpuworkloads.kgwe.nvidia.io", "nodetopologies.kaiwo.ai"):
        definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition", kind)
        control_plane.api.delete(*definition)
        wait_for(lambda definition=definition: control_plane.api.find(*definition) is None)


@pytest.fixture
def start(plane: ControlPlane) -> Iterator[Callable[..., Agent]]:
    with ExitStack() as running:

        def agent(node: str, folder: Path, *options: str) -> Agent:
            one = Agent(plane, node, folder, *options)
            running.callback(one.server.stop)
            return one

        yield agent


def test_nodes_publish_what_links_their_gpus(
    plane: ControlPlane, kwok: Kwok, start: Callable[..., Agent], tmp_path: Path
) -> None:
    api = plane.api
    with kwok.nodes(2, gpus=8, labels={"topology.kubernetes.io/rack": "r7"}) as nodes:
        cube = start(nodes[0], outputs.cube_mesh(tmp_path / "cube"))
        amd = start(nodes[1], outputs.record(tmp_path / "amd", kfd=outputs.kfd(4)))
        found = cube.wait(bool)
        assert found["spec"]["vendor"] == "nvidia"
        assert len(found["spec"]["gpus"]) == 8
        links = {(one["a"], one["b"]): one.get("count") for one in found["spec"]["links"] if one["type"] == "NVLINK"}
        assert links == dict(outputs.CUBE_MESH)
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": nodes[0],
            "uid": api.get("v1", "Node", nodes[0], "")["metadata"]["uid"],
        }
        assert found["metadata"]["ownerReferences"] == [owner]
        states = {one["type"]: one["status"] for one in found["status"]["conditions"]}
        assert states == {"Discovered": "True", "Healthy": "True"}
        assert found["status"]["versions"] == {"nvidia": "580.65.06"}
        assert {link["type"] for link in amd.wait(bool)["spec"]["links"]} == {"XGMI"}
        wait_for(lambda: cube.labels() and amd.labels(), what="labels")
        assert cube.labels() == {"gpu-link": "nvlink", "gpu-link-shape": "partial", "topology-rack": "r7"}
        assert amd.labels() == {"gpu-link": "xgmi", "gpu-link-shape": "full", "topology-rack": "r7"}
        api.delete("v1", "Node", nodes[1], "")
        wait_for(lambda: api.find(*KIND, nodes[1], "") is None, timeout_s=90, what="the object goes with its node")


@pytest.mark.long
def test_it_writes_when_something_changed_and_then_once(
    plane: ControlPlane, kwok: Kwok, start: Callable[..., Agent], tmp_path: Path
) -> None:
    with kwok.nodes(1, gpus=8) as nodes:
        agent = start(nodes[0], outputs.cube_mesh(tmp_path / "cube"))
        first = agent.wait(bool)
        wait_for(agent.labels, what="labels")
        assert agent.writes == {"object": 1, "labels": 1}
        for _ in range(3):
            agent.look()
        assert agent.wait(bool)["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        outputs.cube_mesh(tmp_path / "cube", {**outputs.CUBE_MESH, (0, 3): 1})
        agent.look()
        worse = agent.wait(lambda one: one["status"].get("degraded"))
        assert {(one["part"], one["was"], one["now"]) for one in worse["status"]["degraded"]} == {
            (f"link {outputs.pci(0)} {outputs.pci(3)}", 2, 1),
            (f"ports {outputs.pci(0)}", 6, 5),
            (f"ports {outputs.pci(3)}", 6, 5),
        }
        assert next(one for one in worse["status"]["conditions"] if one["type"] == "Healthy")["status"] == "False"
        for _ in range(3):
            agent.look()
        wait_for(lambda: agent.writes == {"object": 2, "labels": 1}, what="one more write")
        asked = wait_for(
            lambda: [
                one
                for one in plane.audit_entries("kopt-topology")
                if nodes[0] in one["requestURI"] and one["verb"] == "patch"
            ],
            what="the audit log",
        )
        assert {one["objectRef"]["resource"] for one in asked} == {"nodetopologies", "nodes"}
        assert len({one["auditID"] for one in asked}) == 3


@pytest.mark.long
def test_what_it_knew_outlives_it_and_is_forgotten_with_the_object(
    plane: ControlPlane, kwok: Kwok, start: Callable[..., Agent], tmp_path: Path
) -> None:
    api = plane.api
    with kwok.nodes(1, gpus=8) as nodes:
        first = start(nodes[0], outputs.cube_mesh(tmp_path / "cube"))
        first.wait(bool)
        first.server.kill()
        outputs.cube_mesh(tmp_path / "cube", {pair: n for pair, n in outputs.CUBE_MESH.items() if pair != (6, 7)})
        again = start(nodes[0], tmp_path / "cube")
        worse = again.wait(lambda one: one["status"].get("degraded"))
        part = f"link {outputs.pci(6)} {outputs.pci(7)}"
        assert (part, 2, 0) in {(one["part"], one["was"], one["now"]) for one in worse["status"]["degraded"]}
        api.delete(*KIND, nodes[0], "")
        anew = again.wait(lambda one: one["metadata"]["uid"] != worse["metadata"]["uid"])
        assert "degraded" not in anew["status"]


def test_labels_of_others_are_left_alone_and_its_own_go_when_they_are_switched_off(
    plane: ControlPlane, kwok: Kwok, start: Callable[..., Agent], tmp_path: Path
) -> None:
    labels = {"kaiwo.ai/topology-rack": "mine", "topology.kubernetes.io/rack": "other", "team": "nlp"}
    with kwok.nodes(1, gpus=8, labels=labels) as nodes:
        agent = start(nodes[0], outputs.cube_mesh(tmp_path / "cube"))
        agent.wait(bool)
        wait_for(lambda: "gpu-link" in agent.labels(), what="labels")
        assert agent.labels() == {"gpu-link": "nvlink", "gpu-link-shape": "partial", "topology-rack": "mine"}
        # A rack that becomes known later is news of the node, not of a scan.
        plane.api.patch("v1", "Node", nodes[0], {"metadata": {"labels": {"topology.kubernetes.io/block": "b1"}}}, "")
        wait_for(lambda: agent.labels().get("topology-block") == "b1", what="the block's label")
        agent.server.stop()
        without = start(nodes[0], tmp_path / "cube", "--no-labels")
        wait_for(lambda: without.labels() == {"topology-rack": "mine"}, what="labels are gone")
        assert plane.api.get("v1", "Node", nodes[0], "")["metadata"]["labels"]["team"] == "nlp"


def test_an_object_that_somebody_changed_is_put_right(
    plane: ControlPlane, kwok: Kwok, start: Callable[..., Agent], tmp_path: Path
) -> None:
    with kwok.nodes(1, gpus=8) as nodes:
        agent = start(nodes[0], outputs.cube_mesh(tmp_path / "cube"))
        agent.wait(bool)
        plane.api.patch(*KIND, nodes[0], {"spec": {"links": [{"a": 0, "b": 5, "type": "NVLINK", "count": 99}]}}, "")
        agent.wait(lambda one: len(one["spec"]["links"]) == 28)


@pytest.mark.long
def test_the_largest_node_is_taken_and_not_written_twice(
    plane: ControlPlane, kwok: Kwok, start: Callable[..., Agent], tmp_path: Path
) -> None:
    with kwok.nodes(1, gpus=64) as nodes:
        agent = start(nodes[0], outputs.record(tmp_path / "partitions", kfd=outputs.kfd(64)))
        assert len(agent.wait(bool)["spec"]["links"]) == 64 * 63 // 2
        wait_for(agent.labels, what="labels")
        agent.look()
        assert agent.writes == {"object": 1, "labels": 1}
