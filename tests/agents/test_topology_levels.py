"""The labels that the agent writes are levels to the real Kueue and KAI, and Volcano's API takes them: what
docs/topology-levels.md shows is run."""

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path

import pytest
import yaml
from controlplane.api import Object, Refused
from controlplane.kai import Kai
from controlplane.kueue import Kueue, admitted, workload_of
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from controlplane.test_gangs import pods_of

from kopt.agents.topology.labels import BLOCK, RACK, LabelSettings, labels_of
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink

pytestmark = pytest.mark.cluster
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "topology-levels.md"
SPACE = "train"
FULL = ("b1", "r1"), ("b1", "r2"), ("b2", "r1")
"""Racks of two nodes of which one is taken; both of b2/r2 are free."""
MESH = NodeTopology(
    "n",
    tuple(map(TopologyGpu, range(8))),
    tuple(TopologyLink(a, b, LinkType.NVLINK, 1) for a, b in combinations(range(8), 2)),
)


def shown(heading: str) -> list[Object]:
    """The objects of a section of the document."""
    section = DOCUMENT.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [one for text in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL) for one in yaml.safe_load_all(text)]


def named(objects: list[Object], kind: str) -> Object:
    return copy.deepcopy(next(one for one in objects if one["kind"] == kind))


@pytest.fixture
def racks(control_plane: ControlPlane, kwok: Kwok) -> Iterator[dict[str, tuple[str, str]]]:
    """Nodes in two racks of each of two blocks, by what the agent makes of a cloud's labels; racks are named alike."""
    control_plane.api.namespace(SPACE)
    places: dict[str, tuple[str, str]] = {}
    with ExitStack() as made:
        for place in (*FULL, ("b2", "r2")):
            cloud = dict(zip(("topology.kubernetes.io/block", "topology.kubernetes.io/rack"), place, strict=True))
            labels = labels_of(MESH, "", None, "n", cloud, LabelSettings())
            assert {labels[BLOCK], labels[RACK]} == set(place)
            nodes = made.enter_context(kwok.nodes(2, gpus=8, labels={**cloud, **labels}))
            places |= dict.fromkeys(nodes, place)
            if place in FULL:
                control_plane.api.create(_taking(nodes[0]))
        wait_for(lambda: len(_running(control_plane)) == len(FULL), what="one node of each of three racks is taken")
        yield places
        control_plane.api.delete_all("v1", "Pod", SPACE, gracePeriodSeconds=0)


def _taking(node: str) -> Object:
    container = {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
    meta = {"name": f"taking-{node}", "namespace": SPACE}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": node, "containers": [container]}}


def _running(plane: ControlPlane) -> list[Object]:
    return list(plane.api.list("v1", "Pod", SPACE, fields="status.phase=Running"))


def _nodes_of(plane: ControlPlane, name: str) -> list[str]:
    """Where the pods of a job run."""
    found = _running(plane)
    return [one["spec"]["nodeName"] for one in found if one["metadata"]["name"].startswith(f"{name}-")]


@pytest.fixture
def cleaned(control_plane: ControlPlane) -> Iterator[Callable[[Object], Object]]:
    """Makes an object that goes when the test ends."""
    with ExitStack() as made:

        def make(one: Object) -> Object:
            stored = control_plane.api.create(one)
            meta = stored["metadata"]
            made.callback(
                control_plane.api.delete,
                one["apiVersion"],
                one["kind"],
                meta["name"],
                meta.get("namespace", ""),
                propagationPolicy="Background",
            )
            return stored

        yield make


def test_kueue_admits_a_job_into_one_rack(
    control_plane: ControlPlane, kueue: Kueue, racks: dict[str, tuple[str, str]], cleaned: Callable[[Object], Object]
) -> None:
    objects = shown("Kueue")
    for one in objects[:-1]:
        cleaned(one)
    job = named(objects, "Job")
    made = cleaned(job)
    wait_for(lambda: admitted(workload_of(control_plane, made)), what="the job is admitted")
    wait_for(lambda: len(_nodes_of(control_plane, "in-one-rack")) == 2, what="both pods run")
    assert {racks[node] for node in _nodes_of(control_plane, "in-one-rack")} == {("b2", "r2")}
    # Two nodes are left, one in each rack of a block: a rack is too small, a block is not.
    wide = named(objects, "Job")
    wide["metadata"]["name"] = "in-no-rack"
    waits = workload_of(control_plane, cleaned(wide))["metadata"]["name"]
    held = control_plane.api.wait(
        "kueue.x-k8s.io/v1beta2", "Workload", waits, lambda one: one.get("status", {}).get("conditions"), SPACE
    )
    assert "topology" in held["status"]["conditions"][0]["message"]
    wide["metadata"]["name"] = "in-one-block"
    wide["spec"]["template"]["metadata"]["annotations"]["kueue.x-k8s.io/podset-required-topology"] = BLOCK
    cleaned(wide)
    wait_for(lambda: len(_nodes_of(control_plane, "in-one-block")) == 2, what="both pods run")
    assert {racks[node] for node in _nodes_of(control_plane, "in-one-block")} == {("b1", "r1"), ("b1", "r2")}
    assert not _nodes_of(control_plane, "in-no-rack")


@pytest.mark.long
def test_kai_places_a_gang_in_one_rack(
    control_plane: ControlPlane, kai: Kai, racks: dict[str, tuple[str, str]], cleaned: Callable[[Object], Object]
) -> None:
    control_plane.install_crds("training-operator")
    objects = shown("KAI")
    cleaned(named(objects, "Topology"))
    with kai.queue() as queue:
        text = yaml.safe_dump(named(objects, "PyTorchJob")).replace(
            "kai.scheduler/queue: team", f"kai.scheduler/queue: {queue}"
        )
        gang = yaml.safe_load(text)
        for pod in pods_of(gang, cleaned(gang)):
            cleaned(pod)
        wait_for(lambda: len(_nodes_of(control_plane, "in-one-rack")) == 2, what="both pods run")
        assert {racks[node] for node in _nodes_of(control_plane, "in-one-rack")} == {("b2", "r2")}
        gang["metadata"]["name"] = "in-one-block"
        gang["metadata"]["annotations"]["kai.scheduler/topology-required-placement"] = BLOCK
        for pod in pods_of(gang, cleaned(gang)):
            cleaned(pod)
        wait_for(lambda: len(_nodes_of(control_plane, "in-one-block")) == 2, what="both pods run")
        assert {racks[node] for node in _nodes_of(control_plane, "in-one-block")} == {("b1", "r1"), ("b1", "r2")}


@pytest.mark.long
def test_volcanos_api_takes_levels_by_label(control_plane: ControlPlane, cleaned: Callable[[Object], Object]) -> None:
    control_plane.install_crds("volcano")
    objects = shown("Volcano")
    for one in objects:
        assert cleaned(one)["spec"] == one["spec"]
    rack, block = (one["spec"]["members"][0]["selector"] for one in objects)
    assert rack["labelMatch"]["matchLabels"] == {BLOCK: "b1", RACK: "r1"}
    both = copy.deepcopy(objects[0])
    both["metadata"]["name"] = "both"
    both["spec"]["members"][0]["selector"] |= block
    with pytest.raises(Refused, match="Only one of"):
        control_plane.api.create(both)
