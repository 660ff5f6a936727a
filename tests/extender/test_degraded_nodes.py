"""A degraded node is avoided, and who looks is told why: /explain, the event on the pod, the scheduler's message."""

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import orjson
import pytest
from controlplane.api import Api
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from node_outputs import CUBE_MESH, pci

from kopt.cluster.objects.custom.node_bandwidth import NodeBandwidth, status_of
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.cluster.workloads.placement.node_complaints import of_bandwidth
from kopt.controllers.extender.books.topologies import report_of
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.protocol import parse_offer
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.core.decision import Mode
from kopt.core.hardware.bandwidth import Collective
from kopt.core.hardware.pairwise import Health, MeasuredPair
from kopt.policies.placement.fleet import Fleet
from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_books import node
from tests.extender.test_planned_together import Nowhere
from tests.extender.test_scheduling_by_the_policy import bound, indices

Start = Callable[..., RunningExtender]
CRDS = Path(__file__).parents[2] / "deploy" / "chart" / "crds"
V100 = {"nvidia.com/gpu.product": "Tesla-V100-SXM2-32GB", "nvidia.com/gpu.memory": "32768"}
BROKEN = (0, 3)
WHY = f"link {pci(0)} {pci(3)} (GPU 0, GPU 3) had 2, has 1"


def cube_mesh(name: str, *, broken: bool = False) -> Object:
    """A NodeTopology as an agent writes it; broken: of two links between GPU 0 and 3 one is left."""
    counts = CUBE_MESH | ({BROKEN: 1} if broken else {})
    links = [
        {"a": a, "b": b} | ({"type": "NVLINK", "count": counts[a, b]} if (a, b) in counts else {"type": "SYS"})
        for a, b in combinations(range(8), 2)
    ]
    gpus = [{"index": n, "name": "Tesla V100-SXM2-32GB", "pci": pci(n), "numa": n // 4} for n in range(8)]
    parts = [{"part": f"link {pci(0)} {pci(3)}", "was": 2, "now": 1, "since": "2026-11-22T10:00:00Z"}]
    return {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "NodeTopology",
        "metadata": {"name": name},
        "spec": {"tool": "nvidia-smi", "vendor": "nvidia", "gpus": gpus, "links": links},
        "status": {"degraded": parts if broken else []},
    }


def pairs(name: str, health: str, reason: str = "", **slow: float) -> Object:
    """A NodeBandwidth as the pairwise benchmark writes it: one test that was well, and those that were not."""
    tests = [("y", Health.HEALTHY, 92.0)] + [
        (other, Health.SLOW if gbps else Health.FAILED, gbps) for other, gbps in slow.items()
    ]
    found = [
        MeasuredPair(
            (name, other),
            8,
            Collective.ALL_REDUCE,
            1e9,
            alpha_us=9.0 if gbps else None,
            beta_gbps=gbps or None,
            health=of,
        )
        for other, of, gbps in tests
    ]
    status = status_of(NodeBandwidth(name, Health(health), reason, 1e9, tuple(found)))
    return {"apiVersion": "kaiwo.ai/v1alpha1", "kind": "NodeBandwidth", "metadata": {"name": name}, "status": status}


class Scene:
    """Nodes a and b, and what is said of them."""

    def __init__(self) -> None:
        settings = ExtenderSettings(Mode.ENFORCE)
        self.extender = Extender(Fleet(), Nowhere(), settings, ExtenderMetrics(), clock=lambda: 0.0)
        for name in "ab":
            self.extender.node_changed(Change(ChangeKind.ADDED, ("", name), None, node(name)))

    def topology(self, name: str, *, broken: bool = False) -> None:
        facts = report_of(cube_mesh(name, broken=broken))
        self.extender.topology_changed(Change(ChangeKind.UPDATED, ("", name), None, facts))

    def bandwidth(self, document: Object | None, name: str = "a") -> None:
        found = of_bandwidth(document) if document is not None else None
        self.extender.bandwidth_changed(Change(ChangeKind.UPDATED, ("", name), None, found))

    def offer(self, name: str, gpus: int, nodes: str = "ab") -> dict[str, Any]:
        document = gpu_pod(name, "ns", gpus)
        document["metadata"] |= {"uid": name, "generation": 1}
        body = orjson.dumps({"Pod": document, "Nodes": None, "NodeNames": list(nodes)})
        return dict(orjson.loads(self.extender.filter(parse_offer(body))))

    def told(self, name: str) -> dict[str, str]:
        decision = self.extender.log.find(("ns", name))
        assert decision is not None
        return {one["code"]: one["message"] for one in decision.to_dict()["reasons"]}


async def test_a_node_that_lost_a_link_is_avoided_and_taken_last() -> None:
    scene = Scene()
    scene.topology("a", broken=True)
    scene.topology("b")
    assert scene.offer("first", 4)["NodeNames"] == ["b"]
    assert scene.told("first")["DEGRADED_AVOIDED"] == f"Node a is degraded and was avoided: {WHY}."
    assert scene.offer("second", 8)["NodeNames"] == ["a"]
    assert scene.told("second")["DEGRADED_TAKEN"] == (
        f"Node a is degraded and was selected, as no healthy node can take the pod: {WHY}."
    )
    decision = scene.extender.log.find(("ns", "second"))
    assert decision is not None
    assert WHY in decision.summary
    scene.topology("a")
    assert scene.extender.fleet.complaints.text("a") == ""


async def test_a_node_whose_pairs_are_slow_is_avoided_until_they_are_not() -> None:
    scene = Scene()
    scene.bandwidth(pairs("a", "Slow", "all-reduce with 2 of 2 nodes reaches .41", b=41.2, c=0.0))
    assert scene.offer("first", 2)["NodeNames"] == ["b"]
    reason = scene.told("first")["DEGRADED_AVOIDED"]
    assert "all-reduce with 2 of 2 nodes reaches .41 (with b 41.2 GB/s; with c failed)" in reason
    assert scene.extender.fleet.complaints.slow_bandwidths() == {("a", "b"): 41.2, ("a", "c"): 0.0}
    scene.bandwidth(None)
    assert scene.offer("second", 7)["NodeNames"] == ["a"]
    assert "DEGRADED_TAKEN" not in scene.told("second")


async def test_a_healthy_node_is_not_blamed_for_its_peer() -> None:
    scene = Scene()
    scene.bandwidth(pairs("a", "Healthy", b=40.0))
    assert not scene.extender.fleet.complaints.degraded("a")
    assert scene.extender.fleet.complaints.slow_with("a") == {"b": 40.0}
    assert scene.extender.fleet.complaints.slow_with("b") == {"a": 40.0}
    assert scene.extender.fleet.complaints.slow_with("y") == {}


def test_many_parts_are_told_in_few_words() -> None:
    document = cube_mesh("a", broken=True)
    document["status"]["degraded"] = [
        {"part": f"lanes {pci(n)}", "was": 16, "now": 8, "since": "x"} for n in range(5)
    ] + [{"part": f"ports {pci(7)}", "was": 6, "now": 6, "since": "x"}]
    complaint = report_of(document).complaint
    assert complaint is not None
    assert complaint.text.startswith(f"lanes {pci(0)} (GPU 0) had 16, has 8; ")
    assert complaint.text.endswith(" and 3 more")
    assert (complaint.gpus, complaint.of) == ((0, 1, 2, 3, 4, 7), 8)


@pytest.fixture
def plane(control_plane: ControlPlane) -> Iterator[ControlPlane]:
    names = ("gpuworkloads.kgwe.nvidia.io", "nodetopologies.kaiwo.ai", "nodebandwidths.kaiwo.ai")
    definition = ("apiextensions.k8s.io/v1", "CustomResourceDefinition")
    control_plane.apply_crds([CRDS / f"{name.partition('.')[0]}.yaml" for name in names])
    yield control_plane
    for name in names:
        control_plane.api.delete(*definition, name)
        wait_for(lambda name=name: control_plane.api.find(*definition, name) is None)


def workload(space: str, name: str, **topology: object) -> Object:
    asked = {"count": 4, "topology": {"preference": "NVLinkOptimal", **topology}}
    return {
        "apiVersion": "kgwe.nvidia.io/v1",
        "kind": "GPUWorkload",
        "metadata": {"name": name, "namespace": space},
        "spec": {"gpuRequirements": asked},
    }


def notes(api: Api, space: str, pod: str, reason: str) -> list[str]:
    events = api.list("events.k8s.io/v1", "Event", space)
    return [one["note"] for one in events if one["reason"] == reason and one["regarding"]["name"] == pod]


def test_on_a_cluster_the_healthy_node_is_taken_first_and_the_degraded_one_with_a_word(
    plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    """And a minimum that only the whole mesh reaches is refused on the degraded one, with what is wrong with it."""
    api, space = plane.api, plane.api.space("ext-degraded")
    with kwok.nodes(2, gpus=8, labels=V100) as nodes:
        ill, well = nodes
        for document in (cube_mesh(ill, broken=True), cube_mesh(well)):
            api.create(document)
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        api.create(workload(space, "training"))
        api.create(workload(space, "fast", required=True, minBandwidthGBps=200))

        def create(name: str, of: str) -> None:
            labels = {"kgwe.nvidia.io/workload": of}
            api.create(gpu_pod(name, space, 4, scheduler=space, labels=labels, selector=nodes.selector))

        for name in ("first", "second"):
            create(name, "training")
            assert bound(api, name, space)["spec"]["nodeName"] == well
        assert WHY in reasons(extender, space, "first")["DEGRADED_AVOIDED"]
        told = wait_for(lambda: notes(api, space, "first", "NodeChosen"), what="the event")
        assert WHY in told[0]
        # Only the degraded one is left: of its halves the whole one.
        create("third", "training")
        pod = bound(api, "third", space)
        assert (pod["spec"]["nodeName"], indices(pod)) == (ill, [4, 5, 6, 7])
        assert WHY in reasons(extender, space, "third")["DEGRADED_TAKEN"]
        # A scheduler that still counts GPUs of pods that it has just bound refuses by itself: then another pod comes.
        for name in ("fourth", "fifth", "sixth"):
            create(name, "fast")
            (note, *_) = wait_for(lambda pod=name: notes(api, space, pod, "FailedScheduling"), what="its message")
            if "Insufficient" not in note or WHY in note:
                break
        assert f"it is degraded: {WHY}" in note
        assert WHY in reasons(extender, space, name)["DEGRADED_AVOIDED"]
        assert not api.get("v1", "Pod", name, space)["spec"].get("nodeName")


def test_on_a_cluster_a_node_with_slow_pairs_is_avoided_by_pods_on_several_gpus(
    plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api, space = plane.api, plane.api.space("ext-slow")
    with kwok.nodes(2, gpus=8, labels=V100) as nodes:
        api.create(pairs(nodes[0], "Slow", "all-reduce with 3 of 3 nodes reaches .41", z=41.0))
        extender = start_extender(plane, space)
        extender.start_scheduler(space)
        api.create(gpu_pod("first", space, 2, scheduler=space, selector=nodes.selector))
        assert bound(api, "first", space)["spec"]["nodeName"] == nodes[1]
        why = reasons(extender, space, "first")["DEGRADED_AVOIDED"]
        assert "all-reduce with 3 of 3 nodes reaches .41 (with z 41 GB/s)" in why


def reasons(extender: RunningExtender, space: str, pod: str) -> dict[str, str]:
    return {one["code"]: one["message"] for one in extender.explain(space, pod)["reasons"]}
