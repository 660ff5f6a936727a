"""nvidia-smi: what its outputs say, and where a damaged one is wrong."""

import pytest
import topology_outputs as rendered
from topology_outputs import Machine, node

from kopt.core.hardware.node_topology import LinkType
from kopt.formats.topology import FormatError, parse

PAIR = Machine((("X", "NV12"), ("NV12", "X")), (("PIX",), ("SYS",)))
MATRIX = """\
        GPU0    GPU1    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV12    PIX     0-15            0               N/A
GPU1    NV12     X      SYS     16-31           1               N/A
NIC0    PIX     SYS      X
"""


def test_a_matrix_tells_links_cards_and_numa_nodes() -> None:
    found = node(rendered.topo_m(PAIR))
    assert [(gpu.index, gpu.numa) for gpu in found.gpus] == [(0, 0), (1, 1)]
    assert [(link.a, link.b, link.type, link.count) for link in found.links] == [(0, 1, LinkType.NVLINK, 12)]
    assert [(one.gpu, one.nic, one.type) for one in found.nic_affinity] == [
        (0, "mlx5_0", LinkType.PIX),
        (1, "mlx5_0", LinkType.SYS),
    ]
    assert (found.tool, found.vendor, found.warnings) == ("nvidia-smi topo -m", "nvidia", ())


def test_without_a_legend_cards_are_named_by_their_columns_and_it_is_told() -> None:
    found = node(MATRIX)
    assert [nic.name for nic in found.nics] == ["NIC0"]
    assert "legend of the network cards is missing" in found.warnings[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("GPU1    NV12 ", "GPU1    SYS  ", "line 3, column 9: GPU1 to GPU0 is SYS, but NV12 on line 2"),
        ("NV12     X      SYS", "NV12     X   ", "line 3, column 27: '16-31' in the row of GPU1 is no way"),
        ("NIC0    PIX     SYS      X\n", "", "line 1: 2 rows under a header of 3"),
        ("GPU1    NV12     X ", "GPU2    NV12     X ", "line 3, column 1: the row of GPU1 is expected, not 'GPU2'"),
        ("GPU1    NV12     X ", "GPU0    NV12     X ", "line 3, column 1: the row of GPU1 is expected, not 'GPU0'"),
        (
            "     X      NV12",
            "    NV12    NV12",
            "line 2, column 9: GPU0 to GPU0 is NV12; X stands for a device itself",
        ),
        ("NV12    PIX     0-15", "NV0     PIX     0-15", "line 2, column 17: 'NV0'"),
        ("16-31           1               N/A", "16-31           N/A", "line 3: the row of GPU1 has 2 of 3 cells"),
        ("0               N/A", "zero            N/A", "line 2: 'zero' is no NUMA Affinity of GPU0"),
        (
            "NIC0    CPU Affinity",
            "        CPU Affinity",
            "line 4, column 1: a row without a column of NIC0",
        ),
        ("X      SYS", "X      C3C", "line 3, column 25: 'C3C'"),
    ],
)
def test_a_damaged_matrix_is_refused_with_its_place(old: str, new: str, message: str) -> None:
    assert old in MATRIX
    with pytest.raises(FormatError, match=message):
        parse(MATRIX.replace(old, new, 1))


def test_rows_in_another_order_are_the_same_rows() -> None:
    lines = MATRIX.splitlines(keepends=True)
    assert node("".join([lines[0], *reversed(lines[1:])])).links == node(MATRIX).links


def test_a_shortened_legend_and_blank_affinities() -> None:
    legend = (
        "\nLegend:\n  SYS  = Connection traversing PCIe as well as\n         the SMP interconnect\n  NV#  = NVLinks\n"
    )
    head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    text = f"{head}GPU0\t X \tPIX\t\t0\t\tN/A\nGPU1\tPIX\t X \t1\t1\t\tN/A\n"
    assert [gpu.numa for gpu in node(text + legend).gpus] == [0, 1]


def test_a_matrix_straight_from_the_tool_has_its_legends() -> None:
    whole = rendered.topo_m(PAIR)
    for end in ("\nLegend:", "  NV#", "\nNIC Legend:"):
        with pytest.raises(FormatError, match=r"cut|missing|does not explain"):
            parse(whole[: whole.index(end)])


def test_a_legend_explains_every_word() -> None:
    text = MATRIX + rendered.LEGEND.replace("  PIX  =", "  PSB  =")
    with pytest.raises(FormatError, match="line 2, column 25: the legend does not explain PIX"):
        parse(text)


def test_an_older_legend_and_an_older_word() -> None:
    text = MATRIX.replace("SYS", "SOC") + rendered.LEGEND.replace("SYS  =", "SOC  =")
    assert {one.type for one in node(text).nic_affinity} == {LinkType.PIX, LinkType.SOC}


def test_a_gpu_near_several_numa_nodes_has_none() -> None:
    found = node(MATRIX.replace("0               N/A", "0,2-17          N/A"))
    assert found.gpus[0].numa is None
    assert found.warnings[-1] == "GPU0 is near NUMA nodes 0,2-17; which of them is not known"


def test_the_last_line_needs_its_end() -> None:
    with pytest.raises(FormatError, match="line 4: the last row of the matrix has no line break"):
        parse(MATRIX.rstrip("\n"))


def test_peer_access_is_read_but_tells_no_links() -> None:
    found = node(
        " \tGPU0\tGPU1\t\n GPU0\tX\tNS\t\n GPU1\tNS\tX\t\n\nLegend:\n\n  X    = Self\n  NS   = Not supported\n"
    )
    assert not found.links
    assert [(one.a, one.b, one.status) for one in found.peers] == [(0, 1, "NS")]


def test_a_matrix_and_its_peer_access_in_one_file() -> None:
    found = node(MATRIX + "\n        GPU0    GPU1\nGPU0    X       OK\nGPU1    OK      X\n")
    assert (len(found.links), found.peers[0].status) == (1, "OK")


def test_nvlink_status_gives_ports_and_their_speed() -> None:
    found = node(rendered.nvlink_status(2, 18, "26.562"))
    assert [(gpu.ports, gpu.port_gigabytes_per_s) for gpu in found.gpus] == [(18, 26.562)] * 2
    inactive = node(rendered.nvlink_status(1, 2).replace("1: 25 GB/s", "1: <inactive>"))
    assert (inactive.gpus[0].ports, inactive.gpus[0].port_gigabytes_per_s) == (1, 25.0)


def test_gpus_without_active_links_and_masked_uuids() -> None:
    message = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
    lone = f"GPU 2: NVIDIA A100-SXM4-80GB (UUID: {rendered.uuid(2)})\n{message}"
    assert [gpu.ports for gpu in node(rendered.nvlink_status(2) + lone).gpus] == [12, 12, 0]
    masked = node(rendered.nvlink_status(1).replace(rendered.uuid(0), "GPU-000000a0-..."))
    assert (masked.gpus[0].uuid, masked.warnings) == ("", ("the UUID of GPU 0 is not whole",))
    assert node(rendered.nvlink_status(1).replace(f" (UUID: {rendered.uuid(0)})", "")).gpus[0].ports == 12


def test_links_that_were_left_out_are_not_counted() -> None:
    text = rendered.nvlink_status(1, 2).replace("\t Link 1:", "\t [...]\n\t Link 17:")
    found = node(text)
    assert found.gpus[0].ports is None
    assert "line 3 says that something was left out" in found.warnings[0]


def test_a_list_with_mig_devices() -> None:
    uuid = rendered.uuid(0)
    text = (
        f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {uuid})\n"
        f"  MIG 3g.40gb     Device  0: (UUID: MIG-{uuid[4:]})\n"
        f"  MIG 1g.10gb     Device  1: (UUID: MIG-{uuid}/9/0)\n"
    )
    gpu = node(text).gpus[0]
    assert (gpu.name, gpu.uuid, gpu.instances, gpu.partition) == (
        "NVIDIA H100 80GB HBM3",
        uuid,
        ("3g.40gb", "1g.10gb"),
        "MIG",
    )
    with pytest.raises(FormatError, match="line 2: MIG device 0 of GPU 0 is expected, not 1"):
        parse(text.replace("  MIG 3g", "x MIG 3g", 1).split("\n", 1)[0] + "\n" + text.splitlines()[2] + "\n")


def test_a_list_with_a_gap_is_refused() -> None:
    text = "".join(f"GPU {n}: NVIDIA L4 (UUID: {rendered.uuid(n)})\n" for n in (0, 1, 3))
    with pytest.raises(FormatError, match="GPU 2 is missing"):
        parse(text)
    assert node(f"GPU 7: NVIDIA L4 (UUID: {rendered.uuid(7)})\n").gpus[0].index == 7


def test_gpu_instances_of_a_table() -> None:
    rule = "+----------------------------------------------------+\n"
    rows = rule.join(f"|   0  MIG 2g.20gb       14        {n + 3}          {n * 2}:2     |\n" for n in range(3))
    head = f"| GPU instances:{' ' * 37}|\n| GPU   Name          Profile  Instance   Placement  |\n|{'=' * 52}|\n"
    text = rule + head + rows + rule
    assert node(text).gpus[0].instances == ("2g.20gb",) * 3
    with pytest.raises(FormatError, match="stands twice, or in the place of another"):
        parse(text.replace("4:2", "3:2"))
    with pytest.raises(FormatError, match="not closed"):
        parse(text.removesuffix(rule))


def test_a_query_as_csv() -> None:
    text = (
        "index, name, uuid, pci.bus_id, memory.total [MiB]\n"
        f"0, NVIDIA L40S, {rendered.uuid(0)}, 00000000:3B:00.0, 46068 MiB\n"
        f"1, NVIDIA L40S, {rendered.uuid(1)}, 00000000:AF:00.0, 46068 MiB\n"
    )
    found = node(text)
    assert [(gpu.pci, gpu.memory_bytes) for gpu in found.gpus] == [
        ("0000:3b:00.0", 46068 << 20),
        ("0000:af:00.0", 46068 << 20),
    ]
    assert node(text.replace(" MiB\n", "\n")).gpus == found.gpus
    for damaged in (
        text.replace(", 00000000:AF:00.0", ""),
        text.replace("AF:00", "3B:00"),
        text.rstrip("\n"),
        text.replace("\n1,", "\n2,"),
        text.replace("46068 MiB", "46068 apples"),
    ):
        with pytest.raises(FormatError):
            parse(damaged)


FULL = """
==============NVSMI LOG==============

Driver Version                            : 570.86.10
Attached GPUs                             : 2
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA L4
    MIG Mode
        Current                           : N/A
    GPU UUID                              : GPU-000000a0-1111-2222-3333-444444444444
    PCI
        Bus Id                            : 00000000:3B:00.0
    FB Memory Usage
        Total                             : 23034 MiB
GPU 00000000:5E:00.0
    Product Name                          : NVIDIA L4
    MIG Mode
        Current                           : Enabled
    GPU UUID                              : GPU-000000a1-1111-2222-3333-444444444444
    PCI
        Bus Id                            : 00000000:5E:00.0
    FB Memory Usage
        Total                             : 23034 MiB
"""


def test_the_full_report() -> None:
    assert [(gpu.index, gpu.pci, gpu.partition, gpu.memory_bytes) for gpu in node(FULL).gpus] == [
        (0, "0000:3b:00.0", "", 23034 << 20),
        (1, "0000:5e:00.0", "MIG", 23034 << 20),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (": 2\n", ": 3\n"),
        ("GPU 00000000:5E:00.0\n", ""),
        (": 00000000:5E", ": 00000000:5F"),
        ("GPU-000000a1", "GPU-000000a0"),
        ("        Total                             : 23034 MiB\n", ""),
        ("23034 MiB", "23034 furlongs"),
    ],
)
def test_a_damaged_full_report_is_refused(old: str, new: str) -> None:
    with pytest.raises(FormatError):
        parse(FULL.replace(old, new, 1))


BOX = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.10              Driver Version: 570.86.10      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   41C    P0             69W /  700W |       0MiB /  81559MiB |      0%      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
"""


def test_the_box_of_nvidia_smi() -> None:
    gpu = node(BOX).gpus[0]
    assert (gpu.name, gpu.pci, gpu.memory_bytes, gpu.partition) == (
        "NVIDIA H100 80GB HBM3",
        "0000:1b:00.0",
        81559 << 20,
        "MIG",
    )
    lines = BOX.splitlines(keepends=True)
    for damaged in (
        "".join(lines[:-1]),
        "".join(lines[:6] + lines[7:]),
        BOX.replace("0MiB /  81559MiB", "99999MiB / 81559MiB"),
    ):
        with pytest.raises(FormatError):
            parse(damaged)
