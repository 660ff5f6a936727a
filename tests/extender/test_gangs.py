"""Pods of one gang are placed one by one and end up together: in one node, else in one rack, else in one block."""

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import orjson
import pytest
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane

from kopt.agents.topology import labels as agents
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.cluster.workloads.placement.gang_membership import Membership, membership_of
from kopt.cluster.workloads.placement.topology_domains import LEVELS, domains_of_node
from kopt.cluster.workloads.requests.pods import Wish, ask_of
from kopt.controllers.extender.books.gpu_workloads import workload_of
from kopt.controllers.extender.books.topologies import report_of
from kopt.controllers.extender.calls.service import Extender
from kopt.controllers.extender.metrics import ExtenderMetrics
from kopt.controllers.extender.protocol import parse_offer
from kopt.controllers.extender.settings import ExtenderSettings
from kopt.core.decision import Mode
from kopt.core.hardware.complaint import Complaint
from kopt.policies.placement.fleet import Fleet
from tests.extender.conftest import Object, RunningExtender, gpu_pod
from tests.extender.test_books import NVIDIA, node
from tests.extender.test_planned_together import Nowhere
from tests.extender.test_scheduling_by_the_policy import bound

Start = Callable[..., RunningExtender]
GROUP, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"
RACK, BLOCK = "kaiwo.ai/topology-rack", "kaiwo.ai/topology-block"


def switched(name: str) -> Object:
    """A node with eight GPUs behind NVSwitch and as many network cards."""
    gpus = [{"index": n, "name": "NVIDIA H100 80GB HBM3", "numa": n // 4} for n in range(8)]
    links = [{"a": a, "b": b, "type": "NVLINK", "count": 18} for a, b in combinations(range(8), 2)]
    nics = [{"name": f"mlx5_{n}", "numa": n // 4, "gbitPerS": 400} for n in range(8)]
    affinity = [{"gpu": n, "nic": f"mlx5_{n}", "type": "PIX"} for n in range(8)]
    spec = {"tool": "nvidia-smi", "vendor": "nvidia", "gpus": gpus, "links": links, "nics": nics}
    return {
        "apiVersion": "kaiwo.ai/v1alpha1",
        "kind": "NodeTopology",
        "metadata": {"name": name},
        "spec": spec | {"nicAffinity": affinity},
    }


class Scene:
    """Racks r1 (one node free), r2 (two) and r3 (two) of block b, and what becomes of gangs there."""

    def __init__(self, racks: dict[str, str], *, linked: bool = False) -> None:
        settings = ExtenderSettings(Mode.ENFORCE)
        self.now_s = 0.0
        self.extender = Extender(Fleet(), Nowhere(), settings, ExtenderMetrics(), clock=lambda: self.now_s)
        self.names = list(racks)
        for name, rack in racks.items():
            domains = ("block b", f"rack {rack}") if rack else ()
            offers = {NVIDIA: replace(node(name)[NVIDIA], domains=domains)}
            self.extender.node_changed(Change(ChangeKind.ADDED, ("", name), None, offers))
            if linked:
                facts = report_of(switched(name))
                self.extender.topology_changed(Change(ChangeKind.ADDED, ("", name), None, facts))

    def seen(self, name: str, gpus: int = 8, gang: str = "g", pods: int = 0) -> Object:
        annotations = {TOTAL: str(pods)} if pods else {}
        document = gpu_pod(name, "ns", gpus, annotations=annotations, labels={GROUP: gang} if gang else {})
        document["metadata"] |= {"uid": name, "generation": 1}
        view = self.extender.pod_state(document)
        self.extender.pod_changed(Change(ChangeKind.ADDED, view.key, None, view))
        return document

    def place(self, name: str, gpus: int = 8, gang: str = "g", pods: int = 0, nodes: list[str] | None = None) -> str:
        """The node that the pod is given, "" for none."""
        document = self.seen(name, gpus, gang, pods)
        body = orjson.dumps({"Pod": document, "Nodes": None, "NodeNames": self.names if nodes is None else nodes})
        offered = orjson.loads(self.extender.filter(parse_offer(body)))["NodeNames"]
        return offered[0] if offered else ""

    def slow(self, a: str, b: str) -> None:
        for one, other in ((a, b), (b, a)):
            said = Complaint("", slow={other: 41.0}, degraded=False)
            self.extender.bandwidth_changed(Change(ChangeKind.ADDED, ("", one), None, said))

    def told(self, name: str) -> dict[str, str]:
        decision = self.extender.log.find(("ns", name))
        assert decision is not None
        return {one["code"]: one["message"] for one in decision.to_dict()["reasons"]}


RACKS = {"a": "r1", "b": "r2", "c": "r2", "d": "r3", "e": "r3", "f": "r3"}


@pytest.mark.parametrize("linked", [True, False])
async def test_a_gang_goes_to_the_rack_that_holds_all_of_it(linked: bool) -> None:
    scene = Scene(RACKS, linked=linked)
    placed = [scene.place(f"p{n}", pods=3) for n in range(3)]
    assert sorted(placed) == ["d", "e", "f"]
    told = scene.told("p0")["GANG_TOGETHER"]
    assert told.startswith("Gang g: block b/rack r3 holds all 3 pods")
    assert ("GB/s predicted" in told) is linked
    assert scene.told("p2")["GANG_TOGETHER"].endswith("; 2 of them are placed.")
    assert scene.place("alone", gang="") == "a"


@pytest.mark.parametrize("linked", [True, False])
async def test_a_gang_that_fits_into_one_node_gets_one(linked: bool) -> None:
    scene = Scene(RACKS, linked=linked)
    assert len({scene.place(f"p{n}", 4, pods=2) for n in range(2)}) == 1
    assert "node " in scene.told("p0")["GANG_TOGETHER"]


async def test_its_places_are_kept_while_others_come() -> None:
    scene = Scene(RACKS)
    for name in ("p1", "p2"):
        scene.seen(name)
    first = scene.place("p0")
    others = [scene.place(f"other{n}", gang="") for n in range(3)]
    assert sorted([first, scene.place("p1"), scene.place("p2")]) == ["d", "e", "f"]
    assert sorted(others) == ["a", "b", "c"]


async def test_places_that_a_gang_does_not_come_for_are_free_again() -> None:
    scene = Scene({"d": "r3", "e": "r3"})
    scene.seen("p1")
    assert scene.place("p0")
    assert scene.place("other", gang="") == ""
    scene.now_s = 11.0
    scene.extender.sweep()
    assert scene.place("other", gang="")


async def test_two_gangs_do_not_share_a_rack_that_holds_one() -> None:
    scene = Scene({"a": "r1", "b": "r1", "c": "r2", "d": "r2"})
    placed = [scene.place(f"{gang}{n}", gang=gang, pods=2) for n in range(2) for gang in "gh"]
    assert {tuple(sorted(placed[0::2])), tuple(sorted(placed[1::2]))} == {("a", "b"), ("c", "d")}


async def test_where_the_rack_is_full_the_block_is_next_and_it_is_said() -> None:
    scene = Scene(RACKS)
    assert {scene.place(f"p{n}", pods=2) for n in range(2)} == {"b", "c"}
    assert scene.place("p2", nodes=["a"]) == "a"
    assert scene.told("p2")["GANG_TOGETHER"] == "Gang g: block b holds all 3 pods; 2 of them are placed."


async def test_who_has_to_go_elsewhere_is_told_where_the_others_are() -> None:
    scene = Scene(RACKS)
    assert scene.place("p0", pods=2) == "b"
    assert scene.place("p1", pods=2, nodes=["a", "d"]) in "ad"
    assert scene.told("p1")["GANG_AWAY"].startswith("Gang g is in block b/rack r2, where no node")


async def test_only_nodes_that_the_scheduler_offers_count() -> None:
    """Kueue's topology-aware scheduling names the nodes itself."""
    scene = Scene(RACKS, linked=True)
    assert [scene.place("p0", pods=2, nodes=["a"]), scene.place("p1", pods=2, nodes=["f"])] == ["a", "f"]


@pytest.mark.parametrize("linked", [True, False])
async def test_nodes_that_were_slow_together_are_kept_apart(linked: bool) -> None:
    scene = Scene({"a": "r1", "b": "r1", "c": "r1"}, linked=linked)
    scene.slow("a", "b")
    placed = {scene.place(f"p{n}", pods=2) for n in range(2)}
    assert placed in ({"a", "c"}, {"b", "c"})
    assert scene.place("p2", pods=3), "where nothing else is left a slow pair is better than none"


async def test_a_gang_without_a_number_grows_near_itself() -> None:
    scene = Scene(RACKS)
    assert scene.place("p0", nodes=["d"]) == "d"
    assert {scene.place("p1"), scene.place("p2")} == {"e", "f"}
    assert scene.place("p3") in "abc"


@pytest.mark.parametrize(
    ("labels", "annotations", "found"),
    [
        ({GROUP: "g"}, {TOTAL: "4"}, 4),
        ({GROUP: "g"}, {TOTAL: "many"}, 0),
        ({"leaderworkerset.sigs.k8s.io/group-key": "k"}, {"leaderworkerset.sigs.k8s.io/size": "2"}, 2),
        ({"jobset.sigs.k8s.io/jobset-name": "j"}, {}, 0),
        ({"kgwe.nvidia.io/workload": "w"}, {}, 3),
        ({}, {"scheduling.k8s.io/group-name": "v"}, 0),
        ({"batch.kubernetes.io/job-name": "j"}, {"batch.kubernetes.io/job-completion-index": "0"}, 0),
        ({"batch.kubernetes.io/job-name": "j"}, {}, None),
        ({}, {}, None),
    ],
)
def test_gangs_are_known_by_what_their_makers_write(
    labels: dict[str, Any], annotations: dict[str, Any], found: int | None
) -> None:
    ask = ask_of(gpu_pod("p", "ns", 2))
    member = membership_of("ns", labels, annotations, ask, Wish(gpus=6))
    assert (member.pods if member else None) == found
    assert membership_of("ns", labels, annotations, ask_of(gpu_pod("p", "ns", 0))) is None
    assert isinstance(member, Membership | None)


@pytest.mark.parametrize(("kind", "together"), [("DistributedTraining", True), ("Inference", False), (None, True)])
def test_replicas_of_a_service_are_no_gang(kind: str | None, together: bool) -> None:
    spec = {"gpuRequirements": {"count": 4}} | ({"workloadType": kind} if kind else {})
    wish = workload_of({"metadata": {"resourceVersion": "1"}, "spec": spec}).wish
    member = membership_of("ns", {"kgwe.nvidia.io/workload": "w"}, {}, ask_of(gpu_pod("p", "ns", 2)), wish)
    assert (member is not None) is together


def test_the_labels_are_those_that_node_agents_write() -> None:
    assert [label for label, _ in LEVELS] == [agents.BLOCK, agents.RACK, agents.DOMAIN]
    assert domains_of_node({RACK: "r3", "other": "x"}) == ("rack r3",)


def test_on_a_cluster_a_gang_of_four_goes_to_the_rack_with_room_for_four(
    control_plane: ControlPlane, kwok: Kwok, start_extender: Start
) -> None:
    api, space = control_plane.api, control_plane.api.space("ext-gang")
    pool = {"pool": space, BLOCK: "b1"}
    with (
        kwok.nodes(3, gpus=8, labels=pool | {RACK: "r1"}),
        kwok.nodes(4, gpus=8, labels=pool | {RACK: "r2"}) as home,
        kwok.nodes(3, gpus=8, labels=pool | {RACK: "r3"}),
    ):
        extender = start_extender(control_plane, space)
        extender.start_scheduler(space)
        for number in range(4):
            api.create(
                gpu_pod(
                    f"rank-{number}",
                    space,
                    8,
                    scheduler=space,
                    labels={GROUP: "training"},
                    annotations={TOTAL: "4"},
                    selector={"pool": space},
                )
            )
        placed = {bound(api, f"rank-{number}", space)["spec"]["nodeName"] for number in range(4)}
        assert placed == set(home)
        (told,) = [
            one["message"] for one in extender.explain(space, "rank-0")["reasons"] if one["code"] == "GANG_TOGETHER"
        ]
        assert "block b1/rack r2 holds all 4 pods" in told
