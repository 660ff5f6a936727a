"""rocm-smi, amd-smi, KFD and the exporters: what they say, and where a damaged one is wrong."""

import json

import pytest
import topology_outputs as rendered
from topology_outputs import Machine, node

from kopt.core.hardware.node_topology import LinkType, NodeTopology
from kopt.formats.topology import FormatError, parse, parse_tree

HIVES = Machine(
    tuple(tuple("X" if a == b else "NV1" if a // 2 == b // 2 else "SYS" for b in range(4)) for a in range(4)), ((),) * 4
)
"""Two pairs by XGMI, PCIe between them."""


def kinds(found: NodeTopology) -> list[tuple[int, int, str, int | None, int | None]]:
    return [(one.a, one.b, one.type.value, one.weight, one.hops) for one in found.links]


EXPECTED = [
    (0, 1, "XGMI", 15, 1),
    (0, 2, "PCIE", 72, 3),
    (0, 3, "PCIE", 72, 3),
    (1, 2, "PCIE", 72, 3),
    (1, 3, "PCIE", 72, 3),
    (2, 3, "XGMI", 15, 1),
]


@pytest.mark.parametrize(
    "printer", [rendered.rocm_topo, rendered.rocm_topo_json, rendered.amd_topo, rendered.amd_topo_json]
)
def test_every_tool_tells_the_same_links(printer: rendered.Printer) -> None:
    found = node(printer(HIVES))
    assert kinds(found) == EXPECTED
    assert found.vendor == "amd"


def test_kfd_counts_hops_and_weights_as_rocm_smi_does() -> None:
    found = parse_tree(rendered.kfd(HIVES))
    assert kinds(found) == EXPECTED
    assert [(gpu.name, gpu.pci, gpu.numa) for gpu in found.gpus][:2] == [
        ("gfx942", "0000:11:00.0", 0),
        ("gfx942", "0000:21:00.0", 0),
    ]
    assert found.links[0].gigabytes_per_s == 50.0


def test_numa_nodes_and_addresses() -> None:
    assert [gpu.numa for gpu in node(rendered.rocm_topo(HIVES)).gpus] == [0, 0, 1, 1]
    assert [gpu.pci for gpu in node(rendered.amd_topo(HIVES)).gpus][3] == "0000:41:00.0"
    unknown = rendered.rocm_topo(HIVES).replace("Numa Node: 1", "Numa Node: -1")
    assert [gpu.numa for gpu in node(unknown).gpus] == [0, 0, None, None]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("XGMI ", "FOO  ", "line 19, column 21: 'FOO' is no type of a link"),
        ("GPU[3]\t\t: (Topology) Numa Node: 1\n", "", "GPU 3 has only one of NUMA node and NUMA affinity"),
        ("Link Type between two GPUs", "Link Tipe between two GPUs", "line 18: this line belongs to no table"),
        ("GPU3   72", "GPU3   73", "line 8, column 8: GPU3 to GPU0 is '73', but '72' on line 5"),
    ],
)
def test_damaged_tables_of_rocm_smi_are_refused(old: str, new: str, message: str) -> None:
    text = rendered.rocm_topo(HIVES)
    assert old in text
    with pytest.raises(FormatError, match=message):
        parse(text.replace(old, new, 1))


def test_one_part_of_showtopo_is_enough_but_two_are_not_all() -> None:
    lines = rendered.rocm_topo(HIVES).splitlines(keepends=True)
    weights = "".join(lines[:8] + lines[-1:])
    assert not node(weights).links
    assert "run rocm-smi --showtopo" in node(weights).warnings[0]
    with pytest.raises(FormatError, match="'Link Type between two GPUs' is missing"):
        parse("".join(lines[:15] + lines[-1:]))
    with pytest.raises(FormatError, match="line 'End of ROCm SMI Log' is missing"):
        parse("".join(lines[:8]))


def test_a_remark_that_output_was_truncated_is_taken_at_its_word() -> None:
    text = rendered.amd_topo(HIVES)
    with pytest.raises(FormatError, match="truncated here"):
        parse(text + "[output truncated]\n")
    with pytest.raises(FormatError, match="LINK TYPE TABLE is missing"):
        parse(text[: text.index("HOPS TABLE")])


def test_json_links_must_agree_from_both_ends() -> None:
    nodes = json.loads(rendered.amd_topo_json(HIVES))
    nodes[1]["links"][0]["weight"] = 40
    with pytest.raises(FormatError, match="GPU 0 to GPU 1 is"):
        parse(json.dumps(nodes))
    del nodes[1]["links"][0]
    with pytest.raises(FormatError, match="GPU 1 does not say how it is linked to GPU 0"):
        parse(json.dumps(nodes))


def test_json_is_refused_when_cut_or_doubled() -> None:
    text = rendered.rocm_topo_json(HIVES)
    with pytest.raises(FormatError, match=r"not JSON .* is it cut\?"):
        parse(text[:200])
    with pytest.raises(FormatError, match="the key 'card0' stands twice"):
        parse(text.replace('"card1"', '"card0"'))
    with pytest.raises(FormatError, match="the weight between 0 and 2 is missing"):
        parse(text.replace('"(Topology) Weight between DRM devices 0 and 2": "72", ', ""))


BLOCKS = """\
GPU: 0
    BDF: 0000:05:00.0
    UUID: 1fff74a1-0000-1000-8000-000000000000
    PARTITION:
        ACCELERATOR_PARTITION: CPX
        MEMORY_PARTITION: NPS4

GPU: 1
    BDF: 0000:05:00.1
    UUID: 1fff74a1-0000-1000-8000-000000000001
    PARTITION:
        ACCELERATOR_PARTITION: CPX
        MEMORY_PARTITION: NPS4
"""


def test_partitions_of_amd_smi() -> None:
    assert [(gpu.pci, gpu.partition) for gpu in node(BLOCKS).gpus] == [
        ("0000:05:00.0", "CPX/NPS4"),
        ("0000:05:00.1", "CPX/NPS4"),
    ]
    listed = [{"gpu": 0, "bdf": "0000:05:00.0", "vram": {"size": {"value": 196592, "unit": "MB"}}, "numa": {"node": 1}}]
    gpu = node(json.dumps(listed)).gpus[0]
    assert (gpu.memory_bytes, gpu.numa) == (196592 << 20, 1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GPU: 1\n", ""),
        ("GPU: 1\n", "GPU: 2\n"),
        ("        MEMORY_PARTITION: NPS4\n\n", "\n"),
        ("05:00.1", "05:00.0"),
        ("NPS4\n\nGPU: 1", "NPS4\n\nGPU: one"),
        ("BDF: 0000:05:00.1", "BDF: 0000:05"),
    ],
)
def test_damaged_blocks_are_refused(old: str, new: str) -> None:
    assert old in BLOCKS
    with pytest.raises(FormatError):
        parse(BLOCKS.replace(old, new, 1))


def test_an_answer_to_a_set_command_says_that_it_is_one() -> None:
    text = "GPU: 0\n    MEMORY_PARTITION: Successfully set memory partition to NPS1\n"
    assert "sets partitions" in node(text).warnings[0]


MEMORY = "".join(
    f"GPU[{gpu}]          : VRAM Total {what} (B): {size}\n"
    for gpu in range(2)
    for what, size in (("Memory", 206141652992), ("Used Memory", 297611264))
)
FRAME = "====== ROCm System Management Interface ======\n{}====== End of ROCm SMI Log ======\n"


def test_memory_of_rocm_smi() -> None:
    text = FRAME.format(MEMORY)
    assert [gpu.memory_bytes for gpu in node(text).gpus] == [206141652992] * 2
    with pytest.raises(FormatError, match="cut"):
        parse(text[: text.index("====== End")])
    with pytest.raises(FormatError, match=r"line 6: VRAM Total Memory \(B\) of GPU 1 is '1'"):
        parse(FRAME.format(MEMORY + "GPU[1]          : VRAM Total Memory (B): 1\n"))


def test_the_concise_table_of_rocm_smi() -> None:
    row = "{}       4     0x74a1,   50375  48.0°C      110.0W    NPS1, SPX, 0        98Mhz   0%     0%\n"
    table = (
        "===== Concise Info =====\n"
        "Device  Node  IDs              Temp        Power     Partitions          SCLK    VRAM%  GPU%\n"
        "              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)\n"
        "========================\n" + row.format(0) + row.format(1) + "========================\n"
    )
    assert [gpu.partition for gpu in node(FRAME.format(table)).gpus] == ["SPX/NPS1"] * 2
    for damaged in (table.replace("NPS1, ", "", 1), table.replace("Device  Node", "Devise  Node"), table[:-26]):
        with pytest.raises(FormatError):
            parse(FRAME.format(damaged))


DCGM = (
    "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n"
    'DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-1",pci_bus_id="00000000:1B:00.0",modelName="NVIDIA L4",Hostname="a"} 10\n'
    'DCGM_FI_DEV_FB_FREE{gpu="0",UUID="GPU-1",pci_bus_id="00000000:1B:00.0",modelName="NVIDIA L4",Hostname="a"} 20\n'
)


def test_exporters() -> None:
    gpu = node(DCGM).gpus[0]
    assert (node(DCGM).node, gpu.pci, gpu.memory_bytes, gpu.name) == ("a", "0000:1b:00.0", 30 << 20, "NVIDIA L4")
    mig = node(DCGM.replace('Hostname="a"', 'Hostname="a",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"')).gpus[0]
    assert (mig.partition, mig.instances) == ("MIG", ("1g.10gb",))
    amd = node('gpu_gfx_activity{namespace="prod",gpu_id="3"} 12\n')
    assert (amd.vendor, amd.gpus[0].index) == ("amd", 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"} 20', '"} twenty'),
        ('Hostname="a"} 20', 'Hostname="b"} 20'),
        ('FREE{gpu="0",UUID="GPU-1"', 'FREE{gpu="0",UUID="GPU-2"'),
        ('gpu="0",UUID', 'gpu="zero",UUID'),
        ("} 20", ""),
        ("FB_FREE", "FB_USED"),
    ],
)
def test_damaged_series_are_refused(old: str, new: str) -> None:
    with pytest.raises(FormatError):
        parse(DCGM.replace(old, new, 1))


def test_gpustack_and_links_whose_kind_is_not_known() -> None:
    assert node(rendered.gpustack(HIVES)).links[0].type is LinkType.NVLINK
    foreign = node(rendered.gpustack(HIVES).replace('"nvidia"', '"iluvatar"'))
    assert len(foreign.links) == 4
    assert "a direct link of iluvatar" in foreign.warnings[0]


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("nodes/2/properties", lambda text: text.replace("io_links_count 2", "io_links_count 3")),
        ("nodes/2/properties", lambda _: None),
        ("nodes/2/properties", lambda text: text.replace("simd_count", "simd")),
        ("nodes/2/io_links/1/properties", lambda text: text.replace("weight 15", "weight 16")),
        ("nodes/2/io_links/1/properties", lambda text: text.replace("node_to 3", "node_to 9")),
        ("nodes/2/io_links/1/properties", lambda text: text.replace("type 11", "type eleven")),
    ],
)
def test_a_damaged_folder_of_kfd_is_refused(path: str, change) -> None:  # type: ignore[no-untyped-def]
    tree = rendered.kfd(HIVES)
    changed = change(tree.pop(path))
    with pytest.raises(FormatError):
        parse_tree(tree if changed is None else {**tree, path: changed})
