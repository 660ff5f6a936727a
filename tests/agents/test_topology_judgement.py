"""What the topology agent makes of readings: what is worse than it was, which labels, and when it writes."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import node_outputs as outputs
import pytest

from kopt.agents.topology.documents import document_of, health_of, same, spec_of
from kopt.agents.topology.facts import HostDetails, PcieLink
from kopt.agents.topology.health import Degraded, Health, boards_of, evaluate, measure
from kopt.agents.topology.labels import LabelSettings, labels_of
from kopt.agents.topology.publishing import PublishedNode, Publisher, PublishSettings, published_node
from kopt.agents.topology.readings import CollectorProblem, Reading
from kopt.agents.topology.scanning import Scanner, ScanResult
from kopt.agents.topology.sources import Sources
from kopt.agents.topology.ways import with_affinity
from kopt.cluster.client.api import Conflict, Kube, Listing
from kopt.cluster.runtime.informer import Change, ChangeKind
from kopt.core.hardware.fabric import Cable, Fabric, FabricHost, FabricSwitch
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink, TopologyNic

NODE, UID = "gpu-7", "0b0c"
Object = dict[str, Any]


def mesh(links: Mapping[outputs.Pair, int], gpus: int = 4, uuid: str = "a", partition: str = "") -> NodeTopology:
    """Every pair is told: linked, or the way around."""
    pairs = [(a, b) for a in range(gpus) for b in range(a + 1, gpus)]
    told = [
        TopologyLink(a, b, LinkType.NVLINK, links[a, b]) if links.get((a, b)) else TopologyLink(a, b, LinkType.SYS)
        for a, b in pairs
    ]
    return NodeTopology(
        NODE,
        tuple(
            TopologyGpu(n, pci=outputs.pci(n), uuid=uuid and f"{uuid}{n}", partition=partition, ports=4)
            for n in range(gpus)
        ),
        tuple(told),
        (TopologyNic("mlx5_0", gbit_per_s=200.0),),
        vendor="nvidia",
    )


WHOLE = mesh({(0, 1): 2, (2, 3): 2})
PART = f"link {outputs.pci(2)} {outputs.pci(3)}"


def health_after(*readings: NodeTopology, details: HostDetails = HostDetails()) -> Health:  # noqa: B008
    found: Health | None = None
    for at_s, topology in enumerate(readings):
        found = evaluate(measure(topology, details), boards_of(topology), found, float(at_s), {}, 600)
    assert found is not None
    return found


def fallen(health: Health) -> dict[str, tuple[float, float]]:
    return {one.part: (one.was, one.now) for one in health.degraded}


def test_a_first_reading_is_taken_for_healthy_and_the_best_is_kept() -> None:
    assert health_after(mesh({(0, 1): 1})).degraded == ()
    better = health_after(mesh({(0, 1): 1}), WHOLE)
    assert better.degraded == ()
    assert better.best[PART] == 2


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (mesh({(0, 1): 2, (2, 3): 1}), {PART: (2, 1)}),
        (mesh({(0, 1): 2}), {PART: (2, 0)}),
        (mesh({(0, 1): 2}, gpus=3), {f"gpu {outputs.pci(3)}": (1, 0)}),
    ],
)
def test_fewer_links_and_lost_gpus_are_degraded(now: NodeTopology, expected: object) -> None:
    assert fallen(health_after(WHOLE, now)) == expected


def test_lanes_count_always_and_speed_only_where_a_slow_link_does_not_save_power() -> None:
    def details(width: int, gt_per_s: float, idles: bool) -> HostDetails:
        return HostDetails(pcie=(PcieLink(outputs.pci(0), width, gt_per_s, idles=idles),))

    def after(now: HostDetails) -> dict[str, tuple[float, float]]:
        best = evaluate(measure(WHOLE, details(16, 16.0, False)), boards_of(WHOLE), None, 0, {}, 600)
        return fallen(evaluate(measure(WHOLE, now), boards_of(WHOLE), best, 1, {}, 600))

    assert after(details(16, 2.5, True)) == {}
    assert after(details(8, 16.0, True)) == {f"lanes {outputs.pci(0)}": (16, 8)}
    assert after(details(16, 8.0, False)) == {f"pcie-speed {outputs.pci(0)}": (16, 8)}


def test_another_gpu_or_another_partition_is_not_compared_with_what_was_there() -> None:
    assert health_after(WHOLE, mesh({}, uuid="b")).degraded == ()
    divided = health_after(mesh({(0, 1): 2}, partition="SPX/NPS1"), mesh({}, partition="CPX/NPS4"))
    assert divided.degraded == ()
    unknown = health_after(WHOLE, mesh({(0, 1): 2}, uuid=""))
    assert fallen(unknown)[PART] == (2, 0)


def test_a_link_that_comes_and_goes_is_one_entry_that_counts_and_stays_until_it_was_healthy_for_a_while() -> None:
    broken = mesh({(0, 1): 2})
    health = health_after(WHOLE, broken, WHOLE, broken, WHOLE, broken)
    assert health.degraded == (Degraded(PART, 2, 0, since_s=1, falls=3),)
    again = evaluate(measure(WHOLE, HostDetails()), boards_of(WHOLE), health, 100, {PART: 50}, 600)
    assert again.degraded == (Degraded(PART, 2, 2, since_s=1, falls=3),)
    later = evaluate(measure(WHOLE, HostDetails()), boards_of(WHOLE), again, 700, {PART: 50}, 600)
    assert later.degraded == ()


def test_what_is_not_told_neither_fell_nor_recovered() -> None:
    listed = health_after(WHOLE, mesh({(0, 1): 2}))
    silent = NodeTopology(NODE, WHOLE.gpus)
    assert fallen(evaluate(measure(silent, HostDetails()), boards_of(silent), listed, 9, {}, 600)) == {PART: (2, 0)}


def found_of(topology: NodeTopology | None, **more: Any) -> ScanResult:
    readings = more.pop(
        "readings", (Reading("nvidia-smi-topo", "text"), Reading("kfd", problem=CollectorProblem.ABSENT))
    )
    return ScanResult(topology, readings=readings, **more)


def document(found: ScanResult, before: Object | None = None, at_s: float = 1_800_000_000) -> Object:
    assert found.topology is not None
    health = evaluate(
        measure(found.topology, found.details), boards_of(found.topology), health_of(before), at_s, {}, 600
    )
    return document_of(NODE, UID, found, health, before, at_s)


def test_the_object_has_the_fields_that_placement_reads() -> None:
    from kopt.controllers.extender.books.topologies import report_of

    links = report_of(document(found_of(WHOLE))).links
    assert links.gbps[0][1] > 0
    assert links.gbps[0][2] == 0
    spec = spec_of(WHOLE)
    assert spec["gpus"][1] == {"index": 1, "pci": outputs.pci(1), "uuid": "a1", "ports": 4}
    assert spec["nics"] == [{"name": "mlx5_0", "gbitPerS": 200.0}]


def test_times_and_figures_in_messages_make_no_difference_and_everything_else_does() -> None:
    one = document(found_of(WHOLE))
    assert same(one, document(found_of(WHOLE), one, at_s=1_900_000_000))

    def failing(message: str, problem: CollectorProblem = CollectorProblem.FAILED) -> Object:
        reading = Reading("nvidia-smi-q", "", problem, message)
        return document(found_of(WHOLE, readings=(reading,)), one)

    assert same(failing("ended with 9: pid 4711"), failing("ended with 9: pid 4712"))
    assert not same(failing("ended with 9"), failing("no answer", CollectorProblem.TIMEOUT))
    assert not same(one, failing("ended with 9"))
    for theirs in ({"sources": ["x"]}, {"sources": [{"message": 7}]}, {"conditions": ["x"]}, {"sources": 7}):
        assert not same({**one, "status": {**one["status"], **theirs}}, one), "somebody else wrote it"
    assert not same(one, document(found_of(mesh({(0, 1): 1})), one))
    assert not same(one, {**one, "metadata": {"ownerReferences": [{"uid": "another"}]}})


def test_health_survives_in_the_object() -> None:
    one = document(found_of(WHOLE))
    worse = document(found_of(mesh({(0, 1): 2})), one)
    kept = health_of(worse)
    assert kept is not None
    assert fallen(kept) == {PART: (2, 0)}
    assert document(found_of(mesh({(0, 1): 2})), worse)["status"]["degraded"] == worse["status"]["degraded"]
    assert "link" in next(c for c in worse["status"]["conditions"] if c["type"] == "Healthy")["message"]


def test_where_nothing_is_found_any_more_the_spec_stays() -> None:
    one = document(found_of(WHOLE))
    reading = Reading("nvidia-smi-topo", "", CollectorProblem.FAILED, "the driver is gone")
    empty = document_of(NODE, UID, found_of(None, readings=(reading,)), Health({}, {}), one, 1_900_000_000)
    assert empty["spec"] == one["spec"]
    assert {c["type"]: c["reason"] for c in empty["status"]["conditions"]}["Discovered"] == "NothingFound"


FABRIC = Fabric(
    "ibnetdiscover",
    (FabricSwitch("S-1", "leaf 1"), FabricSwitch("S-2", "leaf 2"), FabricSwitch("S-9", "spine")),
    (FabricHost("H-1", node=NODE, domain="nvl1"), FabricHost("H-2", node="other")),
    (Cable("S-1", "H-1"), Cable("S-2", "H-2"), Cable("S-9", "S-1"), Cable("S-9", "S-2")),
)


@pytest.mark.parametrize(
    ("topology", "domain", "fabric", "there", "expected"),
    [
        (WHOLE, "", None, {}, {"gpu-link": "nvlink", "gpu-link-shape": "partial"}),
        (mesh({}), "", None, {}, {"gpu-link": "pcie", "gpu-link-shape": "none"}),
        (
            mesh({(0, 1): 18}, gpus=2),
            "c.1",
            None,
            {},
            {"gpu-link": "nvlink", "gpu-link-shape": "full", "nvlink-domain": "c.1"},
        ),
        (mesh({}, gpus=1), "", None, {"nvidia.com/gpu.clique": "c.2"}, {"nvlink-domain": "c.2"}),
        (None, "", FABRIC, {}, {"topology-block": "spine", "topology-rack": "leaf-1", "nvlink-domain": "nvl1"}),
        (
            None,
            "",
            FABRIC,
            {"network.topology.nvidia.com/leaf": "sw1", "network.topology.nvidia.com/spine": "sw9"},
            {"topology-block": "sw9", "topology-rack": "sw1", "nvlink-domain": "nvl1"},
        ),
        (
            None,
            "",
            None,
            {"cloud.google.com/gce-topology-block": "b1", "cloud.google.com/gce-topology-subblock": "s1"},
            {"topology-block": "b1", "topology-rack": "s1"},
        ),
        (None, "", None, {"example.com/row": "A", "example.com/rack": "-?-"}, {"topology-block": "A"}),
    ],
)
def test_labels_name_levels_from_the_outside_in(
    topology: NodeTopology | None, domain: str, fabric: Fabric | None, there: dict[str, str], expected: object
) -> None:
    settings = LabelSettings(levels=(("example.com/row", "example.com/rack"),))
    found = labels_of(topology, domain, fabric, NODE, there, settings)
    assert {name.removeprefix("kaiwo.ai/"): text for name, text in found.items()} == expected
    assert labels_of(topology, domain, fabric, NODE, there, LabelSettings(write=False)) == {}


@pytest.mark.parametrize(
    ("gpu", "nic", "way"),
    [
        (
            "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
            "0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:04:00.0",
            "PIX",
        ),
        (
            "0000:00:01.0/0000:01:00.0/0000:02:00.0/0000:03:00.0",
            "0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:05:00.0/0000:06:00.0/0000:07:00.0",
            "PXB",
        ),
        ("0000:00:01.0/0000:03:00.0", "0000:00:02.0/0000:04:00.0", "PHB"),
        ("0000:00:01.0/0000:03:00.0", "0000:40:02.0/0000:44:00.0", "NODE"),
        ("0000:00:01.0/0000:03:00.0", "0000:80:02.0/0000:84:00.0", "SYS"),
    ],
)
def test_the_way_to_a_card_is_told_by_the_bridges_above(gpu: str, nic: str, way: str) -> None:
    paths = {one.rpartition("/")[2]: tuple(one.split("/")) for one in (gpu, nic)}
    card = TopologyNic("mlx5_0", nic.rpartition("/")[2], 1 if way == "SYS" else 0)
    topology = NodeTopology(NODE, (TopologyGpu(0, pci=gpu.rpartition("/")[2], numa=0),), nics=(card,))
    (affinity,) = with_affinity(topology, paths).nic_affinity
    assert affinity.type == way


class FakeKube:
    """Keeps what is applied, as an API server does; ``refuse`` is raised once."""

    def __init__(self) -> None:
        self.requests: list[Object] = []
        self.refuse: Exception | None = None
        self.stored: Object | None = None

    async def patch(self, resource: Any, name: str, body: Object, **options: Any) -> Object:
        assert options["field_manager"] == "kopt-topology"
        if self.refuse is not None:
            refused, self.refuse = self.refuse, None
            raise refused
        self.requests.append(body)
        labels = body["metadata"].get("labels")
        fields = {f"f:{one}": {} for one in labels or ()}
        managed = [{"manager": "kopt-topology", "fieldsV1": {"f:metadata": {"f:labels": fields}}}]
        version = str(len(self.requests))
        return {
            **body,
            "metadata": {**body["metadata"], "uid": UID, "resourceVersion": version, "managedFields": managed},
        }

    async def list(self, resource: Any, namespace: str = "", **selectors: str) -> Listing:
        assert selectors == {"field_selector": f"metadata.name={NODE}"}
        return Listing([self.stored] if self.stored else [], "1")


class Bench:
    """A publisher with a fake API server and a clock that stands still."""

    def __init__(self, settings: PublishSettings | None = None) -> None:
        self.kube, self.now_s = FakeKube(), 1_800_000_000.0
        kube: Any = self.kube
        assert isinstance(Kube, type)
        self.publisher = Publisher(
            kube,
            NODE,
            LabelSettings(),
            settings or PublishSettings(retry_first_s=0.01),
            now=lambda: self.now_s,
            clock=lambda: self.now_s,
        )
        self.publisher.node_changed(Change(ChangeKind.ADDED, ("", NODE), None, PublishedNode(UID, {}, frozenset())))

    async def after(self, found: ScanResult, seconds: float = 0.0) -> list[str]:
        """Kinds that were written when ``found`` came ``seconds`` later."""
        self.now_s += seconds
        before = len(self.kube.requests)
        running = asyncio.create_task(self.publisher.run())
        self.publisher.scanned(found)
        await asyncio.sleep(0.05)
        running.cancel()
        return [one["kind"] for one in self.kube.requests[before:]]


async def test_nothing_is_written_when_nothing_changed() -> None:
    bench = Bench()
    assert await bench.after(found_of(WHOLE)) == ["NodeTopology", "Node"]
    for _ in range(5):
        assert await bench.after(found_of(WHOLE), 300) == []
    assert await bench.after(found_of(mesh({(0, 1): 1})), 300) == ["NodeTopology"]
    assert await bench.after(found_of(mesh({(0, 1): 1})), 300) == []


async def test_a_link_that_flaps_is_written_ever_more_seldom() -> None:
    bench = Bench()
    broken = mesh({(0, 1): 2})
    writes = []
    for number in range(120):
        writes += await bench.after(found_of((WHOLE, broken)[number % 2]), 60)
    objects = writes.count("NodeTopology")
    # Two hours of a change every minute: pauses of 5 s to 10 min, and not 120 writes.
    assert 10 <= objects <= 25
    live = bench.publisher.live
    assert live is not None
    assert live["status"]["degraded"][0]["falls"] >= 3


async def test_a_refused_write_is_tried_again() -> None:
    bench = Bench()
    bench.kube.refuse = Conflict(409, "Conflict", "somebody else wrote")
    assert await bench.after(found_of(WHOLE)) == ["NodeTopology", "Node"]
    assert bench.publisher.written == {("object", "Conflict"): 1, ("object", "ok"): 1, ("labels", "ok"): 1}


async def test_a_server_that_keeps_fewer_fields_is_not_written_to_again_and_again() -> None:
    bench = Bench()
    whole = bench.kube.patch

    async def pruning(resource: Any, name: str, body: Object, **options: Any) -> Object:
        stored = await whole(resource, name, body, **options)
        return {key: value for key, value in stored.items() if key != "status"}

    bench.kube.patch = pruning  # type: ignore[method-assign]
    assert "NodeTopology" in await bench.after(found_of(WHOLE))
    assert await bench.after(found_of(WHOLE), 300) == []


async def test_an_agent_that_is_started_again_writes_nothing_anew() -> None:
    first, again = Bench(), Bench()
    await first.after(found_of(WHOLE))
    again.kube.stored = first.publisher.live
    assert await again.after(found_of(WHOLE), 3600) == ["Node"]


async def test_what_the_object_said_was_best_is_not_lost_where_news_of_it_come_late() -> None:
    bench = Bench()
    bench.kube.stored = document(found_of(WHOLE))
    await bench.after(found_of(mesh({(0, 1): 2})))
    live = bench.publisher.live
    assert live is not None
    assert [one["part"] for one in live["status"]["degraded"]] == [PART]


async def test_a_node_without_gpus_gets_no_object() -> None:
    bench = Bench()
    assert await bench.after(found_of(None)) == []


async def test_news_that_is_older_than_the_own_write_is_not_believed() -> None:
    bench = Bench()
    await bench.after(found_of(WHOLE))
    live = bench.publisher.live
    assert live is not None
    live["metadata"]["resourceVersion"] = "10"
    old = {**live, "spec": {"gpus": []}, "metadata": {**live["metadata"], "resourceVersion": "9"}}
    bench.publisher.object_changed(Change(ChangeKind.UPDATED, ("", NODE), None, old))
    assert await bench.after(found_of(WHOLE), 300) == []
    newer = {**old, "metadata": {**live["metadata"], "resourceVersion": "11"}}
    bench.publisher.object_changed(Change(ChangeKind.UPDATED, ("", NODE), None, newer))
    assert await bench.after(found_of(WHOLE), 300) == ["NodeTopology"]


def test_labels_that_this_agent_wrote_are_known_by_their_manager() -> None:
    def managed(manager: str, *labels: str) -> Object:
        fields = {"f:metadata": {"f:labels": {f"f:{one}": {} for one in labels}}}
        return {"manager": manager, "operation": "Apply", "fieldsV1": fields}

    view = published_node(
        {
            "metadata": {
                "uid": UID,
                "labels": {"kaiwo.ai/gpu-link": "nvlink", "kaiwo.ai/topology-rack": "r"},
                "managedFields": [
                    managed("kopt-topology", "kaiwo.ai/gpu-link"),
                    managed("kubectl", "kaiwo.ai/topology-rack"),
                ],
            }
        }
    )
    assert view.ours == {"kaiwo.ai/gpu-link"}


def test_recorded_cube_mesh_has_the_links_of_the_machine(tmp_path: Path) -> None:
    found = asyncio.run(Scanner(Sources(replay=outputs.cube_mesh(tmp_path)).collectors()).scan())
    assert found.topology is not None
    assert {(one.a, one.b): one.count for one in found.topology.links if one.type.direct} == dict(outputs.CUBE_MESH)
