"""A made-up machine, and how each tool prints it. Layouts follow the tools' sources; nothing is a recording."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kopt.core.hardware.node_topology import NodeTopology
from kopt.formats.topology import FormatError, parse

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS", "NV1", "NV4", "NV12", "NV18")
NIC_WAYS = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True)
class Machine:
    """``way[a][b]`` of every two GPUs as nvidia-smi names it, ``card[a][n]`` from GPU to card; symmetric."""

    way: tuple[tuple[str, ...], ...]
    card: tuple[tuple[str, ...], ...]

    @property
    def gpus(self) -> int:
        return len(self.way)

    @property
    def cards(self) -> int:
        return len(self.card[0]) if self.card else 0

    def numa(self, gpu: int) -> int:
        return 2 * gpu // self.gpus

    def bdf(self, gpu: int) -> str:
        return f"0000:{0x11 + 0x10 * gpu:02x}:00.0"

    def is_xgmi(self, a: int, b: int) -> bool:
        return self.way[a][b].startswith("NV")


def machine(seed: int, gpus: int = 4, cards: int = 2) -> Machine:
    """Any machine; equal seeds, equal machines."""
    draw = random.Random(seed)
    way = [["X"] * gpus for _ in range(gpus)]
    for a in range(gpus):
        for b in range(a):
            way[a][b] = way[b][a] = draw.choice(WAYS)
    card = tuple(tuple(draw.choice(NIC_WAYS) for _ in range(cards)) for _ in range(gpus))
    return Machine(tuple(map(tuple, way)), card)


def topo_m(m: Machine, *, legend: bool = True, raw: bool = True) -> str:
    """As the tool writes it: tabs, an underlined header, the legends."""
    names = [f"GPU{n}" for n in range(m.gpus)] + [f"NIC{n}" for n in range(m.cards)]
    head = "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    lines = [f"\t\x1b[4m{head[1:]}\x1b[0m" if raw else head]
    for a in range(m.gpus):
        cells = [" X " if a == b else m.way[a][b] for b in range(m.gpus)] + list(m.card[a])
        node = m.numa(a)
        lines.append("\t".join([f"GPU{a}", *cells, f"{node * 16}-{node * 16 + 15}", str(node), "", "N/A"]))
    for n in range(m.cards):
        cells = [m.card[a][n] for a in range(m.gpus)] + [" X " if n == k else "SYS" for k in range(m.cards)]
        lines.append("\t".join([f"NIC{n}", *cells]))
    cards = "".join(f"  NIC{n}: mlx5_{n}\n" for n in range(m.cards))
    end = LEGEND + (f"\nNIC Legend:\n\n{cards}\n" if cards else "") if legend else ""
    return "\n".join(lines) + "\n" + end


def rocm_topo(m: Machine) -> str:
    def table(title: str, cell: Callable[[int, int], object]) -> list[str]:
        head = "       " + "".join(f"{f'GPU{b}':<13}" for b in range(m.gpus))
        rows = [f"GPU{a}   " + "".join(f"{cell(a, b)!s:<13}" for b in range(m.gpus)) for a in range(m.gpus)]
        return [f" {title} ".center(80, "="), head, *rows, ""]

    lines = ["", " ROCm System Management Interface ".center(80, "=")]
    lines += table("Weight between two GPUs", lambda a, b: 0 if a == b else weight(m, a, b))
    lines += table("Hops between two GPUs", lambda a, b: 0 if a == b else hops(m, a, b))
    lines += table("Link Type between two GPUs", lambda a, b: 0 if a == b else "XGMI" if m.is_xgmi(a, b) else "PCIE")
    lines.append(" Numa Nodes ".center(80, "="))
    for a in range(m.gpus):
        lines += [f"GPU[{a}]\t\t: (Topology) Numa {what}: {m.numa(a)}" for what in ("Node", "Affinity")]
    return "\n".join([*lines, " End of ROCm SMI Log ".center(80, "=")]) + "\n"


def weight(m: Machine, a: int, b: int) -> int:
    return 15 if m.is_xgmi(a, b) else 40 if m.numa(a) == m.numa(b) else 72


def hops(m: Machine, a: int, b: int) -> int:
    return 1 if m.is_xgmi(a, b) else 2 if m.numa(a) == m.numa(b) else 3


def rocm_topo_json(m: Machine) -> str:
    pairs = [(a, b) for a in range(m.gpus) for b in range(a + 1, m.gpus)]
    between = "(Topology) {} between DRM devices {} and {}"
    system = {between.format("Weight", a, b): str(weight(m, a, b)) for a, b in pairs}
    system |= {between.format("Hops", a, b): str(hops(m, a, b)) for a, b in pairs}
    system |= {between.format("Link type", a, b): "XGMI" if m.is_xgmi(a, b) else "PCIE" for a, b in pairs}
    cards = {
        f"card{a}": {f"(Topology) Numa {what}": str(m.numa(a)) for what in ("Node", "Affinity")} for a in range(m.gpus)
    }
    return json.dumps({"system": system, **cards}) + "\n"


def amd_topo(m: Machine) -> str:
    def table(title: str, cell: Callable[[int, int], object]) -> list[str]:
        head = " " * 13 + " ".join(f"{m.bdf(b):<12}" for b in range(m.gpus))
        rows = [f"{m.bdf(a)} " + " ".join(f"{cell(a, b)!s:<12}" for b in range(m.gpus)) for a in range(m.gpus)]
        return [f"{title} TABLE:", head, *rows, ""]

    lines = table("ACCESS", lambda a, b: "ENABLED")
    lines += table("WEIGHT", lambda a, b: 0 if a == b else weight(m, a, b))
    lines += table("HOPS", lambda a, b: 0 if a == b else hops(m, a, b))
    lines += table("LINK TYPE", lambda a, b: "SELF" if a == b else "XGMI" if m.is_xgmi(a, b) else "PCIE")
    lines += table("NUMA BW", lambda a, b: "50000-50000" if a != b and m.is_xgmi(a, b) else "N/A")
    return "\n".join(lines) + "\n"


def amd_topo_json(m: Machine) -> str:
    def link(a: int, b: int) -> Mapping[str, object]:
        kind = "SELF" if a == b else "XGMI" if m.is_xgmi(a, b) else "PCIE"
        return {
            "gpu": b,
            "bdf": m.bdf(b),
            "weight": 0 if a == b else weight(m, a, b),
            "link_status": "ENABLED",
            "link_type": kind,
            "num_hops": 0 if a == b else hops(m, a, b),
            "bandwidth": "50000-50000" if kind == "XGMI" else "N/A",
        }

    nodes = [{"gpu": a, "bdf": m.bdf(a), "links": [link(a, b) for b in range(m.gpus)]} for a in range(m.gpus)]
    return json.dumps(nodes, indent=4) + "\n"


def nccl_xml(m: Machine) -> str:
    """Each GPU behind a bridge of its own; NVLinks where the machine has them."""
    lines = ['<system version="1">']
    for numa in sorted({m.numa(a) for a in range(m.gpus)}):
        lines.append(f'  <cpu numaid="{numa}" affinity="ffff" arch="x86_64" vendor="AuthenticAMD">')
        for a in range(m.gpus):
            if m.numa(a) != numa:
                continue
            lines.append(f'    <pci busid="{m.bdf(a)}" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">')
            lines.append(f'      <gpu dev="{a}" sm="90" rank="{a}" gdr="1">')
            for b in range(m.gpus):
                if b != a and m.is_xgmi(a, b):
                    count = m.way[a][b].removeprefix("NV")
                    lines.append(f'        <nvlink target="{m.bdf(b)}" count="{count}" tclass="0x030200"/>')
            lines += ["      </gpu>", "    </pci>"]
        for n in range(m.cards if numa == 0 else 0):
            lines.append(f'    <pci busid="0000:c{n}:00.0" class="0x020700">')
            lines += [
                "      <nic>",
                f'        <net name="mlx5_{n}" dev="{n}" speed="400000" port="1"/>',
                "      </nic>",
                "    </pci>",
            ]
        lines.append("  </cpu>")
    return "\n".join([*lines, "</system>"]) + "\n"


def gpustack(m: Machine) -> str:
    far = {"PIX": 10, "PXB": 20, "PHB": 30, "NODE": 40, "SYS": 50}
    rows = [[0 if a == b else far.get(m.way[a][b], 5) for b in range(m.gpus)] for a in range(m.gpus)]
    nodes = [str(m.numa(a)) for a in range(m.gpus)]
    one = {
        "manufacturer": "nvidia",
        "devices_distances": rows,
        "devices_cpu_affinities": ["0-15"] * m.gpus,
        "devices_numa_affinities": nodes,
        "appendices": [{} for _ in range(m.gpus)],
    }
    return json.dumps([one], indent=2) + "\n"


def kfd(m: Machine) -> dict[str, str]:
    """``/sys/class/kfd/kfd/topology`` of two processors and the GPUs, which follow them."""

    def link(a: int, b: int, kind: int, far: int, speed: int) -> str:
        return (
            f"type {kind}\nversion_major 0\nnode_from {a}\nnode_to {b}\nweight {far}\nmax_bandwidth {speed}\nflags 1\n"
        )

    links: dict[int, list[str]] = {node: [] for node in range(m.gpus + 2)}
    links[0].append(link(0, 1, 1, 32, 0))
    links[1].append(link(1, 0, 1, 32, 0))
    for a in range(m.gpus):
        links[m.numa(a)].append(link(m.numa(a), a + 2, 2, 20, 32000))
        links[a + 2].append(link(a + 2, m.numa(a), 2, 20, 32000))
        links[a + 2] += [link(a + 2, b + 2, 11, 15, 50000) for b in range(m.gpus) if b != a and m.is_xgmi(a, b)]
    tree = {}
    for node, own in links.items():
        simd, location = (0, 0) if node < 2 else (1216, (0x11 + 0x10 * (node - 2)) << 8)
        tree[f"nodes/{node}/properties"] = (
            f"simd_count {simd}\nio_links_count {len(own)}\nlocation_id {location}\ndomain 0\n"
            "gfx_target_version 90402\n"
        )
        tree |= {f"nodes/{node}/io_links/{n}/properties": text for n, text in enumerate(own)}
    return tree


def nvlink_status(gpus: int = 4, links: int = 12, speed: str = "25") -> str:
    lines = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA A100-SXM4-80GB (UUID: {uuid(gpu)})")
        lines += [f"\t Link {n}: {speed} GB/s" for n in range(links)]
    return "\n".join(lines) + "\n"


def uuid(gpu: int) -> str:
    return f"GPU-{gpu + 0xA0:08x}-1111-2222-3333-444444444444"


def nccl_tests(ranks: int = 8, collective: str = "all_reduce") -> str:
    """Sizes from 64 KiB to 1 MiB; in place as fast as out of place."""
    figure = "   time   algbw   busbw  #wrong"
    lines = [
        f"# Collective test starting: {collective}_perf",
        "# nThread 1 nGpus 1 minBytes 65536 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20",
        "#",
        "# Using devices",
    ]
    for n in range(ranks):
        where = f"on node-1 device {n:2} [0000:{0x11 + n:02x}:00] NVIDIA H100 80GB HBM3"
        lines.append(f"#  Rank {n:2} Group  0 Pid {4000 + n} {where}")
    lines += ["#", f"#       size         count      type   redop    root  {figure}  {figure}"]
    lines.append("#        (B)    (elements)                               (us)  (GB/s)  (GB/s)")
    factor = 2 * (ranks - 1) / ranks if collective == "all_reduce" else (ranks - 1) / ranks
    total, size = 0.0, 65536
    while size <= 1048576:
        time = 20 + size / 10000
        algbw = size / time / 1000
        figures = f"{time:8.2f} {algbw:7.2f} {algbw * factor:7.2f}       0"
        lines.append(f"{size:12} {size // 4:13}     float     sum      -1 {figures} {figures}")
        total += round(algbw * factor, 2)
        size *= 2
    lines += [
        "# Out of bounds values : 0 OK",
        f"# Avg bus bandwidth    : {total / 5:.6g} ",
        "#",
        f"# Collective test concluded: {collective}_perf",
    ]
    return "\n".join(lines) + "\n"


def nccl_tests_json(processes: int = 2, gpus: int = 4, collective: str = "all_reduce") -> str:
    """The report of ``-J``, as it is written where a process drives ``gpus`` GPUs: one device for each process."""
    ranks = processes * gpus
    factor = 2 * (ranks - 1) / ranks if collective == "all_reduce" else (ranks - 1) / ranks
    results, rates = [], []
    for size in (65536, 131072, 262144, 524288, 1048576):
        time = 20 + size / 10000
        rates.append(size / time / 1000 * factor)
        half = {"time": time, "alg_bw": size / time / 1000, "bus_bw": rates[-1], "nwrong": 0.0}
        row = {"size": size, "count": size // 4, "type": "float", "redop": "sum", "root": "    -1"}
        results.append({**row, "out_of_place": half, "in_place": half, "actual_iterations": 20})
    devices = [
        {"rank": n * gpus, "group": 0, "pid": 40 + n, "hostname": f"node-{n}", "device": 0, "device_hex": "0000:11:00"}
        for n in range(processes)
    ]
    config = {"nthreads": 1, "ngpus": gpus, "minimum_bytes": 65536, "maximum_bytes": 8 << 20, "step_factor": 2}
    report = {"version": 3, "args": [f"./build/{collective}_perf", "-J", "out.json"], "env": [], "nccl_version": 22903}
    report |= {"config": config, "devices": [{**device, "device_info": "NVIDIA H100"} for device in devices]}
    average = {"bandwidth": sum(rates) / len(rates), "okay": "unchecked"}
    return json.dumps(report | {"results": results, "average_bus_bandwidth": average, "errors": []})


def fabric(hosts: int = 3) -> str:
    """Two switches with cables between them, and cards below the first."""
    lines = ["#", "# Topology file: generated on Mon Jan  5 10:00:00 2026", "#", ""]
    for key, other in (("a", "b"), ("b", "a")):
        lines += [
            "vendid=0x2c9",
            f"switchguid=0x{key}0(00)",
            f'Switch\t40 "S-{key}0"\t\t# "leaf {key}" base port 0 lid 1 lmc 0',
        ]
        lines += [
            f'[{n + 1}]\t"H-{n + 1:x}f"[1]({n + 1:x}f) \t\t# "node{n} mlx5_0" lid {n} 4xNDR'
            for n in range(hosts if key == "a" else 0)
        ]
        lines += [f'[40]\t"S-{other}0"[40]\t\t# "leaf {other}" lid 9 4xNDR', ""]
    for n in range(hosts):
        lines += [
            f"caguid=0x{n + 1:x}f",
            f'Ca\t1 "H-{n + 1:x}f"\t\t# "node{n} mlx5_0"',
            f'[1]({n + 1:x}f) \t"S-a0"[{n + 1}]\t\t# lid {n} lmc 0 "leaf a" lid 1 4xNDR',
            "",
        ]
    return "\n".join(lines) + "\n"


def pasted(m: Machine) -> str:
    """As people paste a matrix: blanks, no colours."""
    return topo_m(m, raw=False).expandtabs(8)


def bare(m: Machine) -> str:
    """As people paste it without the legend; no cards, which the legend names."""
    return topo_m(Machine(m.way, ((),) * m.gpus), raw=False, legend=False).expandtabs(8)


def kfd_json(m: Machine) -> str:
    return json.dumps(kfd(m), indent=0) + "\n"


Printer = Callable[[Machine], str]
PRINTERS: tuple[Printer, ...] = (
    topo_m,
    pasted,
    bare,
    rocm_topo,
    amd_topo,
    amd_topo_json,
    gpustack,
    nccl_xml,
    kfd_json,
    rocm_topo_json,
)
TABLES = PRINTERS[:5]
"""Tables that tell every pair from both ends, so that a changed cell shows."""


def facts(found: NodeTopology) -> object:
    """What a damaged output may not change: GPUs, links, cards, and the ways to them."""
    return (
        tuple(gpu.index for gpu in found.gpus),
        tuple(sorted((one.a, one.b, one.type, one.count, one.weight, one.hops) for one in found.links)),
        len(found.nics),
        tuple(sorted((one.gpu, one.type) for one in found.nic_affinity)),
    )


def read(text: str) -> object | None:
    """Facts, or None where the output is refused; any other exception fails the test."""
    try:
        found = parse(text)
    except FormatError:
        return None
    assert isinstance(found, NodeTopology)
    return facts(found)


def node(text: str) -> NodeTopology:
    """What an output says of a node."""
    found = parse(text)
    assert isinstance(found, NodeTopology)
    return found
