"""No parser is left out: an output of each, damaged in any way, is refused or read, and nothing else happens."""

import json
import pkgutil
from contextlib import suppress

import pytest
import topology_outputs as rendered
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.agents.topology.merging import read
from kopt.cli.edge import Refused
from kopt.cli.topology_tree import load_yaml
from kopt.formats import topology
from kopt.formats.topology import FormatError, parse, parse_tree
from kopt.formats.topology.text import source_of
from kopt.formats.topology.topograph import recognises

M = rendered.machine(3, 4, 2)
RULE = "+----------------------------------------------------+\n"
MIG = (f"{RULE}| GPU instances:{' ' * 37}|\n| GPU   Name          Profile  Instance   Placement  |\n|{'=' * 52}|\n"
       f"|   0  MIG 2g.20gb       14        3          0:2     |\n{RULE}")  # fmt: skip
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
FULL = """
==============NVSMI LOG==============

Attached GPUs                             : 1
GPU 00000000:3B:00.0
    Product Name                          : NVIDIA L4
    GPU UUID                              : GPU-000000a0-1111-2222-3333-444444444444
    PCI
        Bus Id                            : 00000000:3B:00.0
    FB Memory Usage
        Total                             : 23034 MiB
"""
QUERY = f"index, name, uuid, pci.bus_id\n0, NVIDIA L4, {rendered.uuid(0)}, 00000000:11:00.0\n"
GRAPHS = ('<graphs version="1">\n<graph id="0" pattern="4" nchannels="1" speedintra="48" speedinter="24">\n'
          '<channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/></channel>\n</graph>\n</graphs>\n')  # fmt: skip
LSPCI = "1b:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n"
LINK = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0np0 \n"
IBSTAT = "CA 'mlx5_1'\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n\t\tLink layer: Ethernet\n"
PORT = (" RDMA_Write BW Test\n Device         : mlx5_3\n Link type      : InfiniBand\n"
        " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
        " 65536      5000             394.55             392.18             0.747823\n")  # fmt: skip
LABELS = '{gpu="0",UUID="GPU-1",pci_bus_id="00000000:1B:00.0",modelName="NVIDIA L4",Hostname="a"}'
DCGM = f"DCGM_FI_DEV_FB_USED{LABELS} 10\nDCGM_FI_DEV_FB_FREE{LABELS} 20\n"
MEMORY = "".join(
    f"GPU[0]          : VRAM Total {what} (B): {size}\n" for what, size in (("Memory", 9), ("Used Memory", 2))
)
ROCM = f"====== ROCm System Management Interface ======\n{MEMORY}====== End of ROCm SMI Log ======\n"
AMD = """\
GPU: 0
    BDF: 0000:05:00.0
    PARTITION:
        ACCELERATOR_PARTITION: CPX
        MEMORY_PARTITION: NPS4
"""
MODEL = "switches:\n  core:\n    switches: [leaf1]\nblocks:\n- switch: leaf1\n  nodes: ['n[01-03]', n7]\n"

OUTPUTS = {
    "amd_smi_gpus": (AMD, json.dumps([{"gpu": 0, "bdf": "0000:05:00.0", "numa": {"node": 1}}])),
    "amd_smi_topo": (rendered.amd_topo(M), rendered.amd_topo_json(M)), "exporters": (DCGM,),
    "gpustack": (rendered.gpustack(M),), "ibnetdiscover": (rendered.fabric(),), "lspci": (LSPCI,),
    "nccl_graph": (GRAPHS,), "nccl_tests": (rendered.nccl_tests(),), "nccl_topo": (rendered.nccl_xml(M),),
    "nvidia_full": (FULL,), "nvidia_list": (rendered.nvlink_status(),), "nvidia_mig": (MIG,), "nvidia_query": (QUERY,),
    "nvidia_table": (BOX,), "nvidia_topo": (rendered.topo_m(M),), "rdma": (LINK, IBSTAT, PORT),
    "rocm_gpus": (ROCM, json.dumps({"card0": {"VRAM Total Memory (B)": "9", "VRAM Total Used Memory (B)": "2"}})),
    "rocm_topo": (rendered.rocm_topo(M),), "rocm_topo_json": (rendered.rocm_topo_json(M),),
    "sysfs": (rendered.kfd_json(M),), "topograph": (MODEL,),
}  # fmt: skip
HELPERS = {"documents", "matrix", "merge", "text", "values", "xml"}
TEXTS = [text for texts in OUTPUTS.values() for text in texts]
PIECES = (
    "",
    "\n",
    "\t",
    " ",
    "-1",
    "0",
    "99999999999999999999",
    "nan",
    "1e400",
    "²",
    "\x00",
    "\ufeff",
    "{",
    "]",
    '"',
    "<",
    "&x;",
    "|",
)


def test_there_is_an_output_of_every_parser_and_it_is_read() -> None:
    assert {one.name for one in pkgutil.iter_modules(topology.__path__)} == set(OUTPUTS) | HELPERS
    for name, texts in OUTPUTS.items():
        module = __import__(f"kopt.formats.topology.{name}", fromlist=[name])
        for text in texts:
            assert parse(text, load_yaml), name
            if text[0] not in "[{" and name != "sysfs":
                assert module.recognises(source_of(text)), name


@pytest.mark.parametrize("text", TEXTS)
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_a_damaged_output_is_refused_or_read(text: str, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 40)))
        piece = data.draw(st.one_of(st.sampled_from(PIECES), st.text(max_size=6), st.just(text[start:end] * 2)))
        text = text[:start] + piece + text[end:]
    with suppress(FormatError, Refused):
        assert json.dumps(parse(text, load_yaml).to_dict())


@pytest.mark.parametrize(
    "value", ["2026-13-45", "0x_", "!!int x", "!!map ab", "!!binary x", "*a", "[" * 5000, "{? [a] : b}"]
)
def test_yaml_that_cannot_be_read_is_refused_by_the_command_and_the_agent(value: str) -> None:
    text = MODEL.replace("switches: [leaf1]", f"switches: {value}")
    assert recognises(source_of(text))
    with pytest.raises((Refused, FormatError)):
        parse(text, load_yaml)
    with pytest.raises(FormatError):
        read("fabric", text)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_folder_is_refused_or_read(data: st.DataObject) -> None:
    tree = dict(rendered.kfd(M))
    for _ in range(data.draw(st.integers(1, 4))):
        path = data.draw(st.sampled_from(sorted(tree)))
        lines = tree[path].splitlines(keepends=True)
        lines[data.draw(st.integers(0, max(0, len(lines) - 1))) :][:1] = []
        tree[data.draw(st.sampled_from([path, f"{path}0"]))] = "".join(lines) + data.draw(st.sampled_from(PIECES))
    with suppress(FormatError):
        assert json.dumps(parse_tree(tree).to_dict())
