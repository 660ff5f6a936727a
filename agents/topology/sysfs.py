"""Parts of ``/sys`` as one JSON object of paths and contents, as ``kopt topology parse`` reads them.

A program of its own (``python -m kopt.agents.topology.sysfs PART ROOT``): reading the configuration of a device that no
longer answers can take for ever, and only another process can be given up.
"""

import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

_LONGEST_FILE_BYTES = 64 << 10
_MOST_FILES = 50_000
_PCI_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200", "0x0680", "0x0200", "0x0207", "0x0604")
"""Display and processing controllers, NVSwitches (other bridges), network controllers, PCI bridges."""
_PCI_FILES = (
    "class",
    "vendor",
    "device",
    "numa_node",
    "current_link_width",
    "max_link_width",
    "current_link_speed",
    "max_link_speed",
)
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
MODULES = ("nvidia", "amdgpu", "mlx5_core")
_Files = Iterator[tuple[str, str]]


class NoPartError(Exception):
    """The node has no such hardware, or no driver for it."""


def kfd(root: Path) -> _Files:
    """AMD's compute nodes, their links and memories."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for pattern in (
        "*/properties",
        "*/gpu_id",
        "*/io_links/*/properties",
        "*/p2p_links/*/properties",
        "*/mem_banks/*/properties",
    ):
        yield from _read(nodes, nodes.glob(pattern), "nodes/")


def infiniband(root: Path) -> _Files:
    """RDMA devices and their ports; ``NAME/device`` is the PCI address."""
    folder = root / "sys/class/infiniband"
    for pattern in ("*/board_id", "*/fw_ver", "*/hca_type", "*/node_guid", "*/device/numa_node"):
        yield from _read(folder, folder.glob(pattern))
    for name in ("rate", "state", "phys_state", "link_layer"):
        yield from _read(folder, folder.glob(f"*/ports/*/{name}"))
    for device in folder.glob("*/device"):
        yield f"{device.parent.name}/device", device.resolve().name


def pci(root: Path) -> _Files:
    """GPUs, switches, network cards and bridges; ``ADDRESS/path`` is the way from the root of its bus."""
    folder = root / "sys/bus/pci/devices"
    for device in folder.glob("*:*:*.*"):
        if _text(device / "class")[:6] in _PCI_CLASSES:
            yield from _read(folder, (device / name for name in _PCI_FILES))
            yield f"{device.name}/path", "/".join(part for part in device.resolve().parts if _PCI.fullmatch(part))


def versions(root: Path) -> _Files:
    """Of drivers and of ROCm, by name."""
    for module in MODULES:
        if text := _text(root / "sys/module" / module / "version").strip():
            yield module, text
    if text := _text(root / "opt/rocm/.info/version").strip():
        yield "rocm", text


def traffic(root: Path) -> _Files:
    """What the ports of RDMA devices and network interfaces have sent and received."""
    classes = root / "sys/class"
    for name in ("port_xmit_data", "port_rcv_data"):
        yield from _read(classes, (classes / "infiniband").glob(f"*/ports/*/counters/{name}"))
    for name in ("tx_bytes", "rx_bytes"):
        yield from _read(classes, (classes / "net").glob(f"*/statistics/{name}"))


PARTS: dict[str, Callable[[Path], _Files]] = {
    "kfd": kfd,
    "infiniband": infiniband,
    "pci": pci,
    "versions": versions,
    "traffic": traffic,
}


def read_part(name: str, root: Path) -> str:
    """JSON. Raises NoPartError."""
    result = dict(itertools.islice(PARTS[name](root), _MOST_FILES))
    if not result:
        raise NoPartError(f"{name}: nothing below {root}")
    return json.dumps(result, indent=0, sort_keys=True)


def _read(folder: Path, paths: Iterable[Path], prefix: str = "") -> _Files:
    for path in paths:
        if text := _text(path):
            yield f"{prefix}{path.relative_to(folder)}", text


def _text(path: Path) -> str:
    """Empty where there is none: attributes differ between kernels, and devices vanish while they are read."""
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_FILE_BYTES).decode(errors="replace")
    except OSError:
        return ""


def main() -> int:
    try:
        sys.stdout.write(read_part(sys.argv[1], Path(sys.argv[2])) + "\n")
    except NoPartError as nothing:
        sys.stderr.write(f"{nothing}\n")
        return 3
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
