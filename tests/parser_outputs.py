"""An output of every parser of topology tools; a new parser's stands here as well."""

import json
from collections.abc import Mapping

import topology_outputs as rendered

M = rendered.machine(3, 4, 2)
RULE = "+----------------------------------------------------+\n"
MIG = (
    f"{RULE}| GPU instances:{' ' * 37}|\n| GPU   Name          Profile  Instance   Placement  |\n|{'=' * 52}|\n"
    f"|   0  MIG 2g.20gb       14        3          0:2     |\n{RULE}"
)
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
GRAPHS = (
    '<graphs version="1">\n<graph id="0" pattern="4" nchannels="1" speedintra="48" speedinter="24">\n'
    '<channel><net dev="0"/><gpu dev="0"/><gpu dev="1"/></channel>\n</graph>\n</graphs>\n'
)
LSPCI = "1b:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)\n"
LINK = "link mlx5_0/1 state ACTIVE physical_state LINK_UP netdev ens1f0np0 \n"
IBSTAT = "CA 'mlx5_1'\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tRate: 200\n\t\tLink layer: Ethernet\n"
PORT = (
    " RDMA_Write BW Test\n Device         : mlx5_3\n Link type      : InfiniBand\n"
    " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    " 65536      5000             394.55             392.18             0.747823\n"
)
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

OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "nccl topology xml": (rendered.nccl_xml(M),),
    "nccl graph xml": (GRAPHS,),
    "nccl-tests": (rendered.nccl_tests(),),
    "rocm-smi --showtopo": (rendered.rocm_topo(M),),
    "amd-smi topology": (rendered.amd_topo(M),),
    "nvidia-smi topo -m": (rendered.topo_m(M),),
    "nvidia-smi -q": (FULL,),
    "nvidia-smi": (BOX,),
    "nvidia-smi mig": (MIG,),
    "nvidia-smi -L": (rendered.nvlink_status(),),
    "amd-smi": (AMD,),
    "rocm-smi": (ROCM,),
    "ibnetdiscover": (rendered.fabric(),),
    "ibv_devinfo": (LINK, IBSTAT, PORT),
    "lspci": (LSPCI,),
    "dcgm-exporter": (DCGM,),
    "nvidia-smi --query-gpu": (QUERY,),
    "topograph model": (MODEL,),
    "nccl-tests -J": (rendered.nccl_tests_json(),),
    "rocm-smi --showtopo --json": (rendered.rocm_topo_json(M),),
    "amd-smi topology --json": (rendered.amd_topo_json(M),),
    "gpustack-runtime": (rendered.gpustack(M),),
    "amd-smi --json": (json.dumps([{"gpu": 0, "bdf": "0000:05:00.0", "numa": {"node": 1}}]),),
    "rocm-smi --json": (json.dumps({"card0": {"VRAM Total Memory (B)": "9", "VRAM Total Used Memory (B)": "2"}}),),
    "kfd sysfs": (rendered.kfd_json(M),),
}
"""By the name of the parser, ``Parser.tool``."""
