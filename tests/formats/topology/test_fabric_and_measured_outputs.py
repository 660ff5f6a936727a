"""NCCL's files, network tools, fabrics and measurements: what they say, and where a damaged one is wrong."""

import re

import pytest
import topology_outputs as rendered
from topology_outputs import Machine, machine, node

from kopt.core.hardware.collectives import CollectiveGraphs, CollectiveLog, PortTests
from kopt.core.hardware.fabric import Fabric
from kopt.core.hardware.node_topology import LinkType
from kopt.formats.topology import FormatError, parse, parse_tree
from kopt.formats.topology.fabric.topograph import parse as parse_model

PAIR = Machine((("X", "NV4"), ("NV4", "X")), (("SYS",), ("SYS",)))


def test_nccl_xml_tells_links_ways_and_cards() -> None:
    found = node(rendered.nccl_xml(PAIR))
    assert [(one.type, one.count) for one in found.links] == [(LinkType.NVLINK, 4)]
    assert [(gpu.pci, gpu.numa, gpu.name) for gpu in found.gpus] == [
        ("0000:11:00.0", 0, "sm_90"),
        ("0000:21:00.0", 1, "sm_90"),
    ]
    assert [(nic.name, nic.gbit_per_s, nic.numa) for nic in found.nics] == [("mlx5_0", 400.0, 0)]
    assert [(one.gpu, one.type) for one in found.nic_affinity] == [(0, LinkType.PHB), (1, LinkType.SYS)]


def test_gpus_behind_one_bridge_or_two() -> None:
    gpu = '<pci busid="0000:0{0}:00.0" class="0x030200"><gpu dev="{0}" sm="90" rank="{0}"/></pci>'
    bridge = '<pci busid="0000:1{0}:00.0" class="0x060400">{1}</pci>'
    inner = bridge.format(1, gpu.format(0) + gpu.format(1)) + bridge.format(2, gpu.format(2))
    text = f'<system version="1"><cpu numaid="0">{bridge.format(0, inner)}</cpu></system>'
    ways = {(one.a, one.b): one.type for one in node(text).links}
    assert ways == {(0, 1): LinkType.PIX, (0, 2): LinkType.PXB, (1, 2): LinkType.PXB}


def test_a_card_without_an_address_may_stand_under_each_processor_but_once() -> None:
    text = rendered.nccl_xml(PAIR)
    card = '    <nic>\n      <net name="eth0" dev="{}" speed="10000" port="0"/>\n    </nic>\n  </cpu>'
    one, two = text.split("  </cpu>", 1)
    both = one + card.format(1) + two.replace("  </cpu>", card.format(2), 1)
    if "<cpu" not in two:
        both = both.replace("</system>", '  <cpu numaid="1">\n' + card.format(2) + "\n</system>")
    found = node(both)
    assert [nic.name for nic in found.nics if "eth0" in nic.name] == ["eth0:0", "eth0:0@1"]
    assert any("eth0 stands under several processors" in warning for warning in found.warnings)
    line = '      <net name="eth0" dev="1" speed="10000" port="0"/>\n'
    with pytest.raises(FormatError, match="stands twice"):
        parse(both.replace(line, line * 2))


def test_comments_are_passed_over_also_those_that_are_no_xml() -> None:
    line = "-" * 70
    text = f"<!--{line}\n - A licence -- of some kind: <system>\n {line}-->\n" + rendered.nccl_xml(PAIR)
    assert node(text.replace("  <cpu", "  <!-- a -- b -->\n  <cpu", 1)).links == node(rendered.nccl_xml(PAIR)).links
    with pytest.raises(FormatError, match="line 1: a comment does not end"):
        parse(f"<!-- {rendered.nccl_xml(PAIR)}")
    for deep in (
        "<system>" + '<cpu numaid="0">' * 200 + "</cpu>" * 200 + "</system>",
        "[" * 100_000,
        '{"a":' * 100_000,
    ):
        with pytest.raises(FormatError, match="deep"):
            parse(deep)


def test_nvswitches_link_every_pair() -> None:
    gpu = (
        '<pci busid="0000:0{0}:00.0" class="0x030200"><gpu dev="{0}" sm="90" rank="{0}">'
        '<nvlink target="0000:f0:00.0" count="8" tclass="0x068000"/>'
        '<nvlink target="0000:f1:00.0" count="10" tclass="0x068000"/></gpu></pci>'
    )
    text = f'<system version="1"><cpu numaid="0">{gpu.format(0)}{gpu.format(1)}</cpu></system>'
    found = node(text)
    assert (found.links[0].type, found.links[0].count, found.switches[0].gpus) == (LinkType.NVLINK, 18, (0, 1))
    with pytest.raises(FormatError, match="different numbers of links into NVSwitches"):
        parse(text.replace('count="8"', 'count="6"', 1))


def test_a_dump_of_a_job_on_some_gpus_is_a_part_of_the_node() -> None:
    text = rendered.nccl_xml(PAIR)
    more = '"/>\n        <nvlink target="0000:8{}:00.0" count="4" tclass="0x030200"/>'
    both = text.replace('tclass="0x030200"/>', 'tclass="0x030200' + more.format(1) + more.format(2)[3:])
    found = node(both)
    assert len(found.links) == 1
    assert found.warnings == ("links lead to 2 more GPUs that are not in the file: it shows a part of the node",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('count="4"', 'count="3"', "GPU 0 to GPU 1 is 3 NVLINK, but 4 NVLINK the other way"),
        ('count="4"', 'count="many"', "line 5, column 9: <nvlink> count='many' is no number"),
        ('target="0000:11:00.0"', 'target="0000:99:00.0"', "but nothing the other way"),
        ('target="0000:11:00.0"', 'target="somewhere"', "target='somewhere' is no PCI address"),
        ("</system>", "", "there is no </system>: the output is cut"),
        ('rank="1"', 'rank="0"', r"the ranks of the GPUs are \[0, 0\]"),
        ('dev="1"', 'dev="0"', "two GPUs have one dev number"),
        ('busid="0000:21:00.0"', 'busid="0000:11:00.0"', "stands twice"),
        ('speed="400000"', 'speed="fast"', "speed='fast' is no number"),
        ("<cpu", "<!DOCTYPE a [<!ENTITY b 'c'>]><cpu", "line 2: a declaration of a document type"),
        ("<cpu", "<cpu a='&b;'", "not XML"),
        (
            '<system version="1">',
            '<!DOCTYPE s [<!ENTITY a "b">]><system version="1">',
            "declaration of a document type",
        ),
        ('        <net name="mlx5_0" dev="0" speed="400000" port="1"/>\n', "", "<nic> holds no <net>"),
    ],
)
def test_damaged_nccl_xml_is_refused(old: str, new: str, message: str) -> None:
    text = rendered.nccl_xml(PAIR)
    assert old in text
    with pytest.raises(FormatError, match=message):
        parse(text.replace(old, new, 1))


def test_a_gpu_that_all_others_link_to_must_be_there() -> None:
    m = Machine(tuple(tuple("X" if a == b else "NV1" for b in range(4)) for a in range(4)), ((),) * 4)
    lines = rendered.nccl_xml(m).splitlines()
    start = next(n for n, line in enumerate(lines) if m.bdf(3) in line and "busid" in line)
    with pytest.raises(FormatError, match="a GPU is missing"):
        parse("\n".join(lines[:start] + lines[start + 7 :]))


def test_graphs_hold_as_many_channels_as_they_say() -> None:
    text = (
        '<graphs version="1">\n<graph id="0" pattern="4" nchannels="2" speedintra="48" speedinter="24">\n'
        '<channel><net dev="0"/><gpu dev="0"/><gpu dev="0x1"/></channel>\n'
        '<channel><net dev="1"/><gpu dev="1"/><gpu dev="0"/></channel>\n</graph>\n</graphs>\n'
    )
    found = parse(text)
    assert isinstance(found, CollectiveGraphs)
    assert found.graphs[0].channels == (("net 0", "gpu 0", "gpu 1"), ("net 1", "gpu 1", "gpu 0"))
    for old, new in (
        ('nchannels="2"', 'nchannels="3"'),
        ('<gpu dev="0x1"/>', ""),
        ('speedintra="48"', 'speedintra="x"'),
    ):
        with pytest.raises(FormatError):
            parse(text.replace(old, new))


def test_measured_collectives() -> None:
    found = parse(rendered.nccl_tests(8, "all_gather"))
    assert isinstance(found, CollectiveLog)
    run = found.runs[0]
    assert (run.collective, len(run.ranks), run.hosts, len(run.rows)) == ("all_gather", 8, 1, 10)
    assert (run.rows[0].bytes, run.rows[0].in_place, run.rows[0].wrong) == (65536, False, 0)
    assert run.ranks[3].pci == "0000:14:00"


def test_logs_of_mpirun_and_of_a_least_bandwidth() -> None:
    text = re.sub(r"(Avg bus bandwidth.*?) \n", r"\1 OK\n", rendered.nccl_tests().replace("_perf", "_perf_mpi"))
    assert " OK\n#\n" in text
    found = parse("".join(f"[1,0]<stdout>:{line}\n" for line in text.splitlines()))
    assert isinstance(found, CollectiveLog)
    assert (found.runs[0].collective, len(found.runs[0].rows)) == ("all_reduce", 10)


@pytest.mark.parametrize(
    ("lost", "message"),
    [
        ("Avg bus", "no average at its end"),
        (" 131072 ", "a row is missing"),
        (" 1048576 ", "a row is missing"),
        ("Rank  7", "ranks"),
        ("Rank  3", "rank 3 is expected, not 4"),
        ("#       size", "without headings"),
        ("# nThread", "outside of a run"),
    ],
)
def test_a_log_that_lost_a_line_is_refused(lost: str, message: str) -> None:
    lines = rendered.nccl_tests().splitlines(keepends=True)
    gone = next(line for line in lines if lost in line and line.startswith("#") != lost.startswith(" "))
    lines.remove(gone)
    with pytest.raises(FormatError, match=message):
        parse("".join(lines))


LIST = """\
00:1f.0 ISA bridge [0601]: Intel Corporation LPC Controller [8086:2918] (rev 02)
1b:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
2a:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]
3a:00.0 Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)
"""


def test_lspci() -> None:
    found = node(LIST)
    assert [(gpu.name, gpu.pci) for gpu in found.gpus] == [
        ("NVIDIA Corporation GH100 [H100 SXM5 80GB]", "0000:1b:00.0")
    ]
    assert [device.kind for device in found.devices] == ["other", "gpu", "nic", "switch"]
    changes = (("2a:00.0", "1b:00.0"), ("2a:00.0 Infiniband", "2a:00.0"), ("Family [", "Family\n["))
    for damaged in (LIST.rstrip("\n"), *(LIST.replace(old, new) for old, new in changes)):
        with pytest.raises(FormatError):
            parse(damaged)


def test_the_tree_of_lspci() -> None:
    text = (
        "-+-[0000:00]-+-00.0  Advanced Micro Devices, Inc. [AMD] Device 14a4\n"
        " |           +-01.1-[01-02]----00.0-[02]--+-00.0  NVIDIA Corporation AD102GL [RTX 6000 Ada Generation]\n"
        " |           |                            \\-00.1  NVIDIA Corporation AD102 Audio Controller\n"
        " \\-[0000:40]---01.1-[41]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]\n"
    )
    found = node(text)
    assert [(one.pci, one.kind, one.parent) for one in found.devices] == [
        ("0000:00:00.0", "other", ""),
        ("0000:00:01.1", "bridge", ""),
        ("0000:01:00.0", "bridge", "0000:00:01.1"),
        ("0000:02:00.0", "gpu", "0000:01:00.0"),
        ("0000:02:00.1", "other", "0000:01:00.0"),
        ("0000:40:01.1", "bridge", ""),
        ("0000:41:00.0", "nic", "0000:40:01.1"),
    ]


DEVINFO = """\
hca_id:\tmlx5_0
\ttransport:\t\t\tInfiniBand (0)
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tlink_layer:\t\tInfiniBand
\t\t\tactive_width:\t\t4X (2)
\t\t\tactive_speed:\t\t100.0 Gbps (128)
"""


def test_cards_of_every_tool() -> None:
    def nics(text: str) -> list[tuple[str, float | None, str, str]]:
        return [(nic.name, nic.gbit_per_s, nic.state, nic.interface) for nic in node(text).nics]

    assert nics(DEVINFO) == [("mlx5_0", 400.0, "ACTIVE", "")]
    ibstat = (
        "CA 'mlx5_1'\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n\t\tLink layer: Ethernet\n"
    )
    assert nics(ibstat) == nics(ibstat.rstrip()) == [("mlx5_1", 200.0, "ACTIVE", "")]
    assert nics(DEVINFO + ibstat) == nics(DEVINFO)
    link = (
        "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0np0 \n"
        "link mlx5_0/2 state DOWN physical_state DISABLED \n"
    )
    assert nics(link) == [("mlx5_0:1", None, "ACTIVE", "ens1f0np0"), ("mlx5_0:2", None, "DOWN", "")]
    assert nics("mlx5_0 port 1 ==> ens64np1 (Up)\n") == [("mlx5_0", None, "UP", "ens64np1")]
    tree = {
        f"infiniband/mlx5_0/ports/1/{name}": text
        for name, text in (("rate", "400 Gb/sec (4X NDR)\n"), ("state", "4: ACTIVE\n"), ("link_layer", "InfiniBand\n"))
    }
    assert [(nic.gbit_per_s, nic.state, nic.link_layer) for nic in parse_tree(tree).nics] == [
        (400.0, "ACTIVE", "InfiniBand")
    ]
    for damaged in (
        DEVINFO.replace("cnt:\t\t\t1", "cnt:\t\t\t2"),
        DEVINFO[: DEVINFO.index("\t\t\tlink_layer")],
        link.replace(" physical_state LINK_UP", ""),
        link * 2,
    ):
        with pytest.raises(FormatError):
            parse(damaged)


def test_pci_devices_of_sys() -> None:
    files = {"class": "0x030200", "vendor": "0x10de", "device": "0x2330", "numa_node": "1"}
    tree = {f"devices/0000:1b:00.0/{name}": f"{text}\n" for name, text in files.items()}
    assert [(gpu.pci, gpu.numa) for gpu in parse_tree(tree).gpus] == [("0000:1b:00.0", 1)]
    with pytest.raises(FormatError, match="numa_node is 'one'"):
        parse_tree({**tree, "devices/0000:1b:00.0/numa_node": "one"})


def test_a_bandwidth_test_of_two_cards() -> None:
    text = (
        "                    RDMA_Write BW Test\n Device         : mlx5_3\n Link type      : InfiniBand\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        " 65536      5000             394.55             392.18             0.747823\n"
    )
    found = parse(text)
    assert isinstance(found, PortTests)
    assert (found.tests[0].device, found.tests[0].average_gbit_per_s) == ("mlx5_3", 392.18)
    for damaged in (
        "\n".join(text.splitlines()[:-1]) + "\n",
        text.replace("394.55", ""),
        text.replace("392.18", "492.18"),
    ):
        with pytest.raises(FormatError):
            parse(damaged)


def test_a_fabric_from_both_ends() -> None:
    found = parse(rendered.fabric())
    assert isinstance(found, Fabric)
    assert (len(found.switches), len(found.hosts), len(found.cables)) == (2, 3, 4)
    assert (found.hosts[0].node, found.cables[0].speed) == ("node0", "NDR")
    with pytest.raises(FormatError, match="is not told alike from there"):
        parse(rendered.fabric().replace('"S-a0"[2]', '"S-a0"[3]'))


def test_a_model_of_topograph() -> None:
    model = {
        "switches": {"core": {"switches": ["leaf1", "leaf2"]}},
        "blocks": [
            {"switch": "leaf1", "nodes": ["n[01-03]", "n7"], "annotations": {"a/domain": "nvl1"}},
            {"switch": "leaf2", "nodes": ["m[1,4]"]},
        ],
    }
    found = parse_model(model)
    assert [host.key for host in found.hosts] == ["n01", "n02", "n03", "n7", "m1", "m4"]
    assert (len(found.switches), len(found.cables), found.hosts[0].domain) == (3, 8, "nvl1")
    circle = {
        "switches": {"a": {"switches": ["b"]}, "b": {"switches": ["a"]}},
        "blocks": [{"switch": "a", "nodes": ["n"]}],
    }
    for damaged in (
        circle,
        {"switches": {}},
        {**model, "blocks": [{"switch": "leaf9", "nodes": ["n1"]}]},
        {**model, "blocks": [{"switch": "leaf1", "nodes": ["n[3-1]"]}]},
        [],
        None,
    ):
        with pytest.raises(FormatError):
            parse_model(damaged)


def test_what_no_tool_prints_is_refused_with_what_it_says() -> None:
    for text in ("bash: nvidia-smi: command not found\n", "No devices were found\n", "[1, 2, 3]", '{"a": 1}'):
        with pytest.raises(FormatError, match="known here"):
            parse(text)
    for nothing in ("", " \n\t\n", "\x1b[0m\n"):
        with pytest.raises(FormatError, match="nothing in it"):
            parse(nothing)
    with pytest.raises(FormatError, match="zero bytes"):
        parse("GPU0\x00GPU1")
    with pytest.raises(FormatError, match="an output has at most 64"):
        parse("x" * ((64 << 20) + 1))
    assert node(rendered.topo_m(machine(1, 1, 0))).gpus[0].index == 0
