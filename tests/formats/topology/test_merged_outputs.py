"""Several outputs of one node become one topology; what contradicts is told or refused."""

from dataclasses import replace

import pytest
import topology_outputs as rendered
from topology_outputs import Machine, node

from kopt.core.hardware.node_topology import (
    LinkType,
    NodeTopology,
    TopologyError,
    TopologyGpu,
    TopologyLink,
    TopologyNic,
)
from kopt.formats.topology import merged

PAIR = Machine((("X", "NV12"), ("NV12", "X")), (("PIX",), ("SYS",)))
QUERY = (
    "index, name, uuid, pci.bus_id, memory.total [MiB]\n"
    f"0, NVIDIA A100-SXM4-80GB, {rendered.uuid(0)}, 00000000:11:00.0, 81920 MiB\n"
    f"1, NVIDIA A100-SXM4-80GB, {rendered.uuid(1)}, 00000000:21:00.0, 81920 MiB\n"
)


def test_matrix_links_and_query_complete_each_other() -> None:
    whole = merged([node(rendered.topo_m(PAIR)), node(rendered.nvlink_status(2, 12)), node(QUERY)])
    gpu = whole.gpus[1]
    assert (gpu.pci, gpu.numa, gpu.memory_bytes, gpu.ports) == ("0000:21:00.0", 1, 81920 << 20, 12)
    assert (whole.links[0].count, whole.links[0].gigabytes_per_s) == (12, 300.0)
    assert (len(whole.nic_affinity), whole.warnings) == (2, ())
    assert whole.tool == "nvidia-smi topo -m + nvidia-smi nvlink --status + nvidia-smi --query-gpu"


def test_gpus_are_the_same_by_address_whatever_their_numbers() -> None:
    turned = NodeTopology(
        "",
        (TopologyGpu(0, "sm_80", "0000:21:00.0", 1), TopologyGpu(1, "sm_80", "0000:11:00.0", 0)),
        (TopologyLink(0, 1, LinkType.NVLINK, 12),),
        tool="other",
    )
    whole = merged([node(QUERY), turned])
    assert [(gpu.index, gpu.pci, gpu.numa) for gpu in whole.gpus] == [(0, "0000:11:00.0", 0), (1, "0000:21:00.0", 1)]
    assert whole.gpus[0].name == "NVIDIA A100-SXM4-80GB"
    assert whole.warnings == ("other numbers the GPUs otherwise: 0 is 1, 1 is 0",)


def test_contradictions_about_links_are_refused() -> None:
    first = node(rendered.topo_m(PAIR))
    for other in (TopologyLink(0, 1, LinkType.NVLINK, 8), TopologyLink(0, 1, LinkType.PHB)):
        with pytest.raises(TopologyError, match="GPU 0 to GPU 1"):
            merged([first, replace(first, links=(other,), tool="other")])


def test_other_contradictions_are_told_and_the_first_is_kept() -> None:
    first = node(rendered.topo_m(PAIR))
    other = replace(first, gpus=(replace(first.gpus[0], numa=5), first.gpus[1]), tool="other")
    whole = merged([first, other])
    assert whole.gpus[0].numa == 0
    assert whole.warnings == ("GPU 0: numa is 0 by nvidia-smi topo -m, but 5 by other",)


def test_two_machines_are_refused() -> None:
    first = node(QUERY)
    elsewhere = replace(first, gpus=tuple(replace(gpu, pci=f"0000:9{gpu.index}:00.0", uuid="") for gpu in first.gpus))
    with pytest.raises(TopologyError, match="no GPU in common"):
        merged([first, elsewhere])
    with pytest.raises(TopologyError, match="is of vendor 'nvidia'"):
        merged([first, node(rendered.rocm_topo(PAIR))])
    with pytest.raises(TopologyError, match="is of node 'a'"):
        merged([replace(first, node="a"), replace(first, node="b")])


def test_a_source_that_shows_fewer_gpus_is_told() -> None:
    whole = merged([node(QUERY), node(f"GPU 1: NVIDIA A100-SXM4-80GB (UUID: {rendered.uuid(1)})\n")])
    assert len(whole.gpus) == 2
    assert whole.warnings == ("nvidia-smi -L does not show 1 of the GPUs of nvidia-smi --query-gpu",)


def test_cards_join_by_name_and_by_address() -> None:
    named = NodeTopology("", (), nics=(TopologyNic("mlx5_0", "0000:2a:00.0", interface="ib0"),), tool="ibdev2netdev")
    listed = NodeTopology(
        "", (), nics=(TopologyNic("0000:2a:00.0", "0000:2a:00.0", 1), TopologyNic("0000:3a:00.0", "0000:3a:00.0"))
    )
    state = NodeTopology("", (), nics=(TopologyNic("mlx5_0", gbit_per_s=400.0, state="ACTIVE"),))
    for order in ([named, listed, state], [listed, named, state], [state, named, listed]):
        whole = merged(order)
        assert whole.nics == (TopologyNic("mlx5_0", "0000:2a:00.0", 1, 400.0, "ACTIVE", "", "ib0"),)
        assert whole.warnings == ("1 network cards are known by their address only and were left out",)


def test_a_topology_survives_its_document() -> None:
    whole = merged([node(rendered.topo_m(PAIR)), node(rendered.nccl_xml(PAIR))])
    document = whole.to_dict()
    assert document["schema"] == "kopt/v1"
    assert NodeTopology.from_dict(document) == whole
