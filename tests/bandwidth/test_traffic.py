"""What other jobs put on links, cards and uplinks, and what predictions make of it."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.hardware.bandwidth import BandwidthError, Collective
from kopt.core.hardware.node_topology import LinkType, NicAffinity, NodeTopology, TopologyGpu, TopologyLink, TopologyNic
from kopt.core.hardware.traffic import LinkTraffic, TrafficError
from kopt.models.bandwidth.loading import load_bandwidth
from kopt.models.bandwidth.predictor import BandwidthPredictor, BandwidthQuestion
from kopt.topology.from_node import machine_of_node
from kopt.topology.graph import Machine
from kopt.topology.sets.across_nodes import NodeOffer, choose_nodes
from kopt.topology.traffic import capacities_gbps, loaded, node_loads, under_traffic, uplink_shares
from tests.bandwidth_nodes import cube_mesh

GIB = 1 << 30


def rails() -> NodeTopology:
    """Eight H100 behind link switches, a card of 400 Gbit/s beside each."""
    links = tuple(TopologyLink(a, b, LinkType.NVLINK, 18) for a in range(8) for b in range(a + 1, 8))
    gpus = tuple(TopologyGpu(n, "NVIDIA H100 80GB HBM3", numa=n // 4) for n in range(8))
    nics = tuple(TopologyNic(f"mlx5_{n}", gbit_per_s=400.0, state="ACTIVE") for n in range(8))
    near = tuple(
        NicAffinity(gpu, f"mlx5_{nic}", LinkType.PIX if gpu == nic else LinkType.SYS)
        for gpu in range(8)
        for nic in range(8)
    )
    return NodeTopology("a", gpus, links, nics, near, tool="nvidia-smi topo -m", vendor="nvidia")


def bridged() -> NodeTopology:
    """Four cards on PCIe, two behind each switch."""
    ways = {(0, 1): LinkType.PIX, (2, 3): LinkType.PIX}
    links = tuple(TopologyLink(a, b, ways.get((a, b), LinkType.PHB)) for a in range(4) for b in range(a + 1, 4))
    return NodeTopology("p", tuple(TopologyGpu(n, "NVIDIA L40S", numa=0) for n in range(4)), links, vendor="nvidia")


@pytest.fixture(scope="module")
def model() -> BandwidthPredictor:
    return load_bandwidth("shipped")


MACHINES = {"rails": machine_of_node(rails()), "mesh": machine_of_node(cube_mesh()), "pcie": machine_of_node(bridged())}
LINKS = [(name, link) for name, machine in MACHINES.items() for link in capacities_gbps(machine)]


def _gbps(
    model: BandwidthPredictor,
    machine: Machine,
    gpus: tuple[int, ...],
    nodes: int,
    kind: Collective,
    traffic: list[LinkTraffic],
    size: int = GIB,
) -> tuple[float, float, float]:
    plain = model.estimate(BandwidthQuestion(machine, gpus, kind, size, nodes))
    said = under_traffic(plain, machine, node_loads(machine, traffic))
    assert said.latency_low_us <= said.latency_us <= said.latency_high_us
    assert math.isclose(said.bus_gigabytes_per_s * said.latency_us, plain.bus_gigabytes_per_s * plain.latency_us)
    return said.bus_low_gigabytes_per_s, said.bus_gigabytes_per_s, said.bus_high_gigabytes_per_s


@settings(max_examples=60, deadline=None)
@given(
    where=st.sampled_from(LINKS),
    rates=st.lists(st.floats(0, 1), min_size=2, max_size=4),
    flows=st.integers(1, 5),
    count=st.integers(2, 8),
    nodes=st.sampled_from([1, 2, 5]),
    kind=st.sampled_from(list(Collective)),
    size=st.sampled_from([4096, 1 << 22, GIB]),
)
def test_more_traffic_never_predicts_more(
    model: BandwidthPredictor,
    where: tuple[str, str],
    rates: list[float],
    flows: int,
    count: int,
    nodes: int,
    kind: Collective,
    size: int,
) -> None:
    machine, link = MACHINES[where[0]], where[1]
    gpus = machine.node.gpus[:count]
    nodes = nodes if machine.network is not None else 1
    capacity = capacities_gbps(machine)[link]
    figures = [
        _gbps(model, machine, gpus, nodes, kind, [LinkTraffic(link, rate * capacity, flows)], size)
        for rate in [0.0, *sorted(rates)]
    ]
    more = _gbps(model, machine, gpus, nodes, kind, [LinkTraffic(link, max(rates) * capacity, flows + 1)], size)
    for before, after in pairwise([*figures, more]):
        assert all(b >= a * (1 - 1e-12) for b, a in zip(before, after, strict=True))
        assert before[2] == after[2]


@pytest.mark.parametrize("name", MACHINES)
def test_without_traffic_the_answer_is_the_same_object(model: BandwidthPredictor, name: str) -> None:
    machine = MACHINES[name]
    plain = model.estimate(BandwidthQuestion(machine, machine.node.gpus, Collective.ALL_REDUCE, GIB))
    assert under_traffic(plain, machine, node_loads(machine, [])) is plain
    idle = [LinkTraffic(link, 0.0) for link in capacities_gbps(machine)]
    assert under_traffic(plain, machine, node_loads(machine, idle)) is plain
    assert loaded(machine, ()) is machine


@pytest.mark.parametrize(
    ("name", "gpus", "nodes", "link"),
    [
        ("rails", (0, 1, 2), 2, "mlx5_7"),
        ("rails", (0, 1, 2), 2, "GPU7"),
        ("rails", (0, 1, 2, 3, 4, 5, 6, 7), 1, "mlx5_0"),
        ("rails", (0, 1), 2, "GPU1/PCIe"),
        ("mesh", (0, 1, 2, 3), 1, "GPU5"),
        ("pcie", (0, 1), 1, "GPU2/PCIe"),
    ],
)
def test_traffic_elsewhere_changes_nothing(
    model: BandwidthPredictor, name: str, gpus: tuple[int, ...], nodes: int, link: str
) -> None:
    machine = MACHINES[name]
    full = [LinkTraffic(link, capacities_gbps(machine)[link], 3)]
    plain = model.estimate(BandwidthQuestion(machine, gpus, Collective.ALL_REDUCE, GIB, nodes))
    said = under_traffic(plain, machine, node_loads(machine, full))
    assert replace(said, reasons=()) == replace(plain, reasons=())
    assert said.reasons[-1].code == "TRAFFIC"


def test_the_busiest_of_the_cards_that_are_used_holds_up_all(model: BandwidthPredictor) -> None:
    machine = MACHINES["rails"]
    plain = model.estimate(BandwidthQuestion(machine, machine.node.gpus, Collective.ALL_REDUCE, GIB, 4))
    half = under_traffic(plain, machine, node_loads(machine, [LinkTraffic("mlx5_3", 25.0), LinkTraffic("mlx5_5", 10)]))
    assert plain.bus_gigabytes_per_s / half.bus_gigabytes_per_s == pytest.approx(2, rel=0.15)
    reason = half.reasons[-1]
    assert reason.numbers["link"] == "mlx5_3"
    assert reason.numbers["traffic_gigabytes_per_s"] == 35
    assert "mlx5_3 carries 25 of 50 GB/s" in reason.message
    # A fair share of a full card is expected, and what is left of it is the least.
    full = under_traffic(plain, machine, node_loads(machine, [LinkTraffic("mlx5_3", 50.0)]))
    assert full.bus_gigabytes_per_s == pytest.approx(half.bus_gigabytes_per_s, rel=0.01)
    assert full.bus_low_gigabytes_per_s < half.bus_low_gigabytes_per_s / 5


def test_what_gpus_put_on_a_switch_slows_others_that_leave_it(model: BandwidthPredictor) -> None:
    machine = MACHINES["pcie"]
    loads = node_loads(machine, [LinkTraffic("GPU1/PCIe", 24.0)])
    across = model.estimate(BandwidthQuestion(machine, (0, 2), Collective.ALL_REDUCE, GIB))
    assert under_traffic(across, machine, loads).bus_gigabytes_per_s < 0.7 * across.bus_gigabytes_per_s


@pytest.mark.parametrize(
    ("traffic", "says"),
    [
        (LinkTraffic("mlx_3", 1.0), "do you mean mlx5_3"),
        (LinkTraffic("gpu12", 1.0), "do you mean GPU2"),
        (LinkTraffic("weather", 1.0), "there are mlx5_0"),
        (LinkTraffic("mlx5_3", -1.0), "no rate"),
        (LinkTraffic("mlx5_3", math.nan), "no rate"),
        (LinkTraffic("mlx5_3", math.inf), "no rate"),
        (LinkTraffic("mlx5_3", 1.0, age_s=-1), "no rate"),
        (LinkTraffic("mlx5_3", 1.0, flows=0), "one at least"),
        (LinkTraffic("mlx5_3", 53.0), "which carries 50"),
        (LinkTraffic("uplink r1", 5.0), "capacity_gigabytes_per_s"),
    ],
)
def test_traffic_that_cannot_be_is_refused(traffic: LinkTraffic, says: str) -> None:
    with pytest.raises(TrafficError, match=says) as refused:
        node_loads(MACHINES["rails"], [LinkTraffic("mlx5_0", 1.0), traffic])
    assert refused.value.number == 1
    assert isinstance(refused.value, BandwidthError)


def test_several_rates_of_one_link_add_up_and_may_not_exceed_it() -> None:
    machine = MACHINES["rails"]
    (load,) = node_loads(machine, [LinkTraffic("mlx5_0", 20.0), LinkTraffic("MLX5_0", 15.0, 2)])
    assert (load.link, load.gbps, load.flows) == ("mlx5_0", 35.0, 3)
    with pytest.raises(TrafficError, match="carries 50"):
        node_loads(machine, [LinkTraffic("mlx5_0", 30.0), LinkTraffic("mlx5_0", 30.0)])
    assert node_loads(machine, [LinkTraffic("mlx5_0", 51.0)])[0].gbps == 50.0
    assert node_loads(machine, [LinkTraffic("mlx5_0", 30.0, age_s=601)]) == ()


def _offers(uplink_of: dict[str, tuple[str, ...]]) -> list[NodeOffer]:
    return [NodeOffer(name, MACHINES["rails"], tuple(range(8)), domains) for name, domains in uplink_of.items()]


def test_nodes_with_busy_cards_and_racks_with_busy_uplinks_are_left_alone() -> None:
    racks = {"a": ("r1",), "b": ("r1",), "c": ("r2",), "d": ("r2",)}
    plain = choose_nodes(_offers(racks), 16)
    assert plain is not None
    assert [share.node for share in plain.shares] == ["a", "b"]
    busy = loaded(MACHINES["rails"], node_loads(MACHINES["rails"], [LinkTraffic("mlx5_2", 40.0)]))
    offers = [replace(offer, machine=busy) if offer.name == "b" else offer for offer in _offers(racks)]
    beside = choose_nodes(offers, 16)
    assert beside is not None
    assert [share.node for share in beside.shares] == ["c", "d"]
    assert beside.gbps == plain.gbps


def test_an_uplink_counts_for_nodes_on_both_sides_of_it() -> None:
    traffic = [LinkTraffic("uplink r1", 700.0, capacity_gigabytes_per_s=800.0)]
    assert uplink_shares(traffic, [("r1",), ("r1",)]) == ()
    (crossed,) = uplink_shares(traffic, [("r1",), ("r2",), ("r1",)])
    assert crossed.nodes == 2
    racks = {"a": ("r1",), "c": ("r2",)}
    plain, beside = choose_nodes(_offers(racks), 16), choose_nodes(_offers(racks), 16, traffic=traffic)
    assert plain is not None
    assert beside is not None
    assert beside.gbps == plain.gbps
    narrow = [replace(traffic[0], gigabytes_per_s=300.0, capacity_gigabytes_per_s=400.0)]
    narrowed = choose_nodes(_offers(racks), 16, traffic=narrow)
    assert narrowed is not None
    assert narrowed.gbps < 0.8 * plain.gbps
