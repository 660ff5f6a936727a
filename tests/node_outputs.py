"""Outputs of topology tools, rendered for machines that tests describe."""

import json
from collections.abc import Mapping
from pathlib import Path

Pair = tuple[int, int]

#: NVLinks of the hybrid cube mesh (NVIDIA DGX-1 with V100, system guide): the other pairs go through the processors.
CUBE_MESH: Mapping[Pair, int] = {
    (0, 1): 1,
    (0, 2): 1,
    (0, 3): 2,
    (0, 4): 2,
    (1, 2): 2,
    (1, 3): 1,
    (1, 5): 2,
    (2, 3): 2,
    (2, 6): 1,
    (3, 7): 1,
    (4, 5): 1,
    (4, 6): 1,
    (4, 7): 2,
    (5, 6): 2,
    (5, 7): 1,
    (6, 7): 2,
}


def pci(index: int) -> str:
    return f"0000:{0x1A + 0x10 * index:02x}:00.0"


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-4000-8000-{index:012x}"


def topo_m(gpus: int, links: Mapping[Pair, int], nics: Mapping[str, int] | None = None) -> str:
    """``nvidia-smi topo -m``; ``nics``: name and the GPU that they lie beside."""
    nics = nics or {}
    names = [f"GPU{n}" for n in range(gpus)] + [f"NIC{n}" for n in range(len(nics))]
    beside = list(nics.values())

    def cell(a: int, b: int) -> str:
        if a == b:
            return " X "
        low, high = min(a, b), max(a, b)
        if high < gpus:
            return f"NV{links[low, high]}" if links.get((low, high)) else "SYS"
        return "PIX" if low < gpus and beside[high - gpus] == low else "SYS"

    rows = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for a, name in enumerate(names):
        last = [f"{0 if a < gpus // 2 else 20}-{19 if a < gpus // 2 else 39}", str(int(a >= gpus // 2)), "", "N/A"]
        rows.append("\t".join([name, *(cell(a, b) for b in range(len(names))), *(last if a < gpus else ["", "", ""])]))
    legend = [
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect",
        "  PIX  = Connection traversing at most a single PCIe bridge",
        "  NV#  = Connection traversing a bonded set of # NVLinks",
    ]
    if nics:
        legend += ["", "NIC Legend:", "", *(f"  NIC{n}: {name}" for n, name in enumerate(nics))]
    return "\n".join([*rows, *legend]) + "\n"


def smi_list(gpus: int, name: str = "Tesla V100-SXM2-32GB") -> str:
    """``nvidia-smi -L``."""
    return "".join(f"GPU {n}: {name} (UUID: {uuid(n)})\n" for n in range(gpus))


def nvlink(gpus: int, links: Mapping[Pair, int], name: str = "Tesla V100-SXM2-32GB") -> str:
    """``nvidia-smi nvlink -s``; six ports, the last of them down where a GPU has fewer links."""
    rows = []
    for gpu in range(gpus):
        active = sum(count for pair, count in links.items() if gpu in pair)
        rows.append(f"GPU {gpu}: {name} (UUID: {uuid(gpu)})")
        rows += [f"\t Link {n}: {'25.781 GB/s' if n < active else '<inactive>'}" for n in range(6)]
    return "\n".join(rows) + "\n"


def query(
    gpus: int, driver: str = "580.65.06", cluster: str = "", clique: int = 0, name: str = "Tesla V100-SXM2-32GB"
) -> str:
    """``nvidia-smi -q``, the parts that are read."""
    rows = [
        "==============NVSMI LOG==============",
        "",
        _entry(0, "Driver Version", driver),
        "",
        _entry(0, "Attached GPUs", gpus),
    ]
    for gpu in range(gpus):
        address = f"0000{pci(gpu).upper()}"
        rows += [
            f"GPU {address}",
            _entry(1, "Product Name", name),
            "    MIG Mode",
            _entry(2, "Current", "N/A"),
            _entry(1, "GPU UUID", uuid(gpu)),
            _entry(1, "Minor Number", gpu),
            "    PCI",
            _entry(2, "Bus Id", address),
            "    FB Memory Usage",
            _entry(2, "Total", "32768 MiB"),
        ]
        if cluster:
            rows += [
                "    Fabric",
                _entry(2, "State", "Completed"),
                _entry(2, "Status", "Success"),
                _entry(2, "CliqueId", clique),
                _entry(2, "ClusterUUID", cluster),
            ]
        rows.append(_entry(1, "Processes", "None"))
    return "\n".join(rows) + "\n"


def _entry(depth: int, name: str, value: object) -> str:
    return f"{'    ' * depth}{name}".ljust(40) + f": {value}"


def infiniband(cards: Mapping[str, int], gbit_per_s: int = 200) -> str:
    """/sys/class/infiniband: names and the GPU whose bus they are on."""
    found: dict[str, str] = {}
    for name, gpu in cards.items():
        found |= {
            f"{name}/ports/1/rate": f"{gbit_per_s} Gb/sec (4X HDR)\n",
            f"{name}/ports/1/state": "4: ACTIVE\n",
            f"{name}/ports/1/link_layer": "InfiniBand\n",
            f"{name}/device": card_pci(gpu),
            f"{name}/device/numa_node": "0\n",
        }
    return json.dumps(found)


def card_pci(gpu: int) -> str:
    return pci(gpu).replace(":00.0", ":01.0")


def pci_devices(gpus: int, width: int = 16, narrow: int = -1, cards: Mapping[str, int] | None = None) -> str:
    """/sys/bus/pci/devices; ``narrow`` is a GPU whose link has half its lanes."""
    found: dict[str, str] = {}
    for gpu in range(gpus):
        found |= _device(pci(gpu), "0x030200", "0x10de", width // 2 if gpu == narrow else width, gpu)
    for gpu in (cards or {}).values():
        found |= _device(card_pci(gpu), "0x020700", "0x15b3", 16, gpu)
    return json.dumps(found)


def _device(address: str, kind: str, vendor: str, width: int, gpu: int) -> dict[str, str]:
    bridge = f"0000:{0x10 + gpu:02x}:00.0"
    return {
        f"{address}/class": f"{kind}\n",
        f"{address}/vendor": f"{vendor}\n",
        f"{address}/device": "0x1db5\n",
        f"{address}/numa_node": f"{gpu // 4}\n",
        f"{address}/current_link_width": f"{width}\n",
        f"{address}/max_link_width": "16\n",
        f"{address}/current_link_speed": "8.0 GT/s PCIe\n",
        f"{address}/max_link_speed": "8.0 GT/s PCIe\n",
        f"{address}/path": f"{bridge}/{address}",
    }


def kfd(gpus: int, xgmi: Mapping[Pair, int] | None = None, weight: int = 15) -> str:
    """AMD's /sys/class/kfd/kfd/topology: one processor, GPUs that are all linked unless ``xgmi`` names the pairs."""
    pairs = set(xgmi) if xgmi is not None else {(a, b) for a in range(gpus) for b in range(a + 1, gpus)}
    found = {"nodes/0/properties": "cpu_cores_count 64\nsimd_count 0\n"}
    for gpu in range(gpus):
        location = (0x63 + gpu) << 8
        found[f"nodes/{gpu + 1}/properties"] = (
            f"cpu_cores_count 0\nsimd_count 440\ngfx_target_version 90010\nlocation_id {location}\ndomain 0\n"
        )
        number = 0
        for other in range(-1, gpus):
            linked = other < 0 or (min(gpu, other), max(gpu, other)) in pairs
            if other == gpu or not linked:
                continue
            kind = 2 if other < 0 else 11
            speed = 32000 if other < 0 else 50000
            heavy = 20 if other < 0 else weight
            found[f"nodes/{gpu + 1}/io_links/{number}/properties"] = (
                f"type {kind}\nnode_from {gpu + 1}\nnode_to {other + 1}\nweight {heavy}\nmax_bandwidth {speed}\n"
            )
            number += 1
        found[f"nodes/0/io_links/{gpu}/properties"] = (
            f"type 2\nnode_from 0\nnode_to {gpu + 1}\nweight 20\nmax_bandwidth 32000\n"
        )
    return json.dumps(found)


def record(folder: Path, **texts: str) -> Path:
    """A folder for ``--replay``: file names with minus signs for underscores."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name.replace('_', '-')}.txt").write_text(text)
    return folder


def cube_mesh(folder: Path, links: Mapping[Pair, int] = CUBE_MESH, **more: str) -> Path:
    """An eight-GPU node with the hybrid cube mesh."""
    return record(
        folder,
        nvidia_smi_topo=topo_m(8, links, {"mlx5_0": 0, "mlx5_1": 4}),
        nvidia_smi_list=smi_list(8),
        nvidia_smi_q=query(8),
        nvidia_smi_nvlink=nvlink(8, links),
        **more,
    )
