"""NVIDIA's GPUs through NVML (the package ``nvidia-ml-py``), as the document of ``kopt topology parse``.

A program of its own (``python -m kopt.agents.topology.nvml``): where a driver hangs, the call never returns, and only
another process can be given up. Beside the topology it tells ``versions``, ``domain`` (the multi-node NVLink domain)
and ``pcie`` (width and generation, now and at most, and whether the GPU is in its fastest state: in others it saves
power by slowing its PCIe link).
"""

import importlib
import itertools
import json
import sys
import uuid
from collections import Counter
from dataclasses import dataclass
from typing import Any

from kopt.agents.topology.sysfs import NoPartError
from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyGpu, TopologyLink
from kopt.core.units import Bytes

_WAYS = {10: LinkType.PIX, 20: LinkType.PXB, 30: LinkType.PHB, 40: LinkType.NODE, 50: LinkType.SYS}
"""``nvmlGpuTopologyLevel_t``."""
_TO_GPU, _TO_SWITCH = 0, 2
"""``nvmlIntNvLinkDeviceType_t``."""
_FABRIC_COMPLETED = 3


@dataclass
class _Device:
    gpu: TopologyGpu
    handle: Any
    peers: "Counter[str]"
    """Active NVLinks by the PCI address at their other end."""
    switched: int
    """Active NVLinks to a switch."""


def read(nvml: Any) -> dict[str, Any]:
    """Raises NoPartError and NVMLError."""
    count = nvml.nvmlDeviceGetCount()
    if not count:
        raise NoPartError("NVML sees no GPU")
    devices = [_device(nvml, index) for index in range(count)]
    links = [link for a, b in itertools.combinations(devices, 2) if (link := _link(nvml, a, b)) is not None]
    topology = NodeTopology("", tuple(device.gpu for device in devices), tuple(links), tool="nvml", vendor="nvidia")
    domains = {_domain(nvml, device.handle) for device in devices}
    return topology.to_dict() | {
        "versions": {"nvidia": _text(nvml.nvmlSystemGetDriverVersion())},
        "domain": domains.pop() if len(domains) == 1 else "",
        "pcie": {device.gpu.pci: _pcie(nvml, device.handle) for device in devices},
    }


def _device(nvml: Any, index: int) -> _Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    peers: Counter[str] = Counter()
    switched = speed = 0
    links = [number for number in range(nvml.NVML_NVLINK_MAX_LINKS) if _ask(nvml, "NvLinkState", handle, number)]
    for number in links:
        kind = _ask(nvml, "NvLinkRemoteDeviceType", handle, number)
        if kind == _TO_SWITCH:
            switched += 1
        elif kind in (_TO_GPU, None):
            remote = _ask(nvml, "NvLinkRemotePciInfo", handle, number)
            if remote is not None:
                peers[_address(remote.busId)] += 1
    if links:
        result = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON])[0]
        speed = result.value.uiVal if result.nvmlReturn == 0 else 0
    memory = _ask(nvml, "MemoryInfo", handle)
    mig = _ask(nvml, "MigMode", handle)
    gpu = TopologyGpu(
        index,
        _text(nvml.nvmlDeviceGetName(handle)),
        _address(nvml.nvmlDeviceGetPciInfo(handle).busId),
        _ask(nvml, "NumaNodeId", handle),
        Bytes(memory.total if memory is not None else 0),
        "MIG" if mig and mig[0] else "",
        _text(nvml.nvmlDeviceGetUUID(handle)),
        (),
        len(links) or None,
        speed / 1000 if speed else None,
    )
    return _Device(gpu, handle, peers, switched)


def _link(nvml: Any, a: _Device, b: _Device) -> TopologyLink | None:
    count = a.peers[b.gpu.pci] or min(a.switched, b.switched)
    if count:
        speed = a.gpu.port_gigabytes_per_s
        total = speed * count if speed else None
        return TopologyLink(a.gpu.index, b.gpu.index, LinkType.NVLINK, count, gigabytes_per_s=total)
    way = _ask(nvml, "TopologyCommonAncestor", a.handle, b.handle)
    return TopologyLink(a.gpu.index, b.gpu.index, _WAYS[way]) if way in _WAYS else None


def _pcie(nvml: Any, handle: Any) -> dict[str, Any]:
    return {
        "width": _ask(nvml, "CurrPcieLinkWidth", handle),
        "max_width": _ask(nvml, "MaxPcieLinkWidth", handle),
        "generation": _ask(nvml, "CurrPcieLinkGeneration", handle),
        "max_generation": _ask(nvml, "MaxPcieLinkGeneration", handle),
        "fast": _ask(nvml, "PerformanceState", handle) == 0,
    }


def _domain(nvml: Any, handle: Any) -> str:
    """Empty where the GPU is in no multi-node domain, or not yet."""
    try:
        info = nvml.c_nvmlGpuFabricInfo_t()
        nvml.nvmlDeviceGetGpuFabricInfo(handle, nvml.byref(info))
    except (nvml.NVMLError, AttributeError):
        return ""
    cluster = uuid.UUID(bytes=bytes(byte & 0xFF for byte in info.clusterUuid))
    return f"{cluster}.{info.cliqueId}" if cluster.int and info.state == _FABRIC_COMPLETED else ""


def _ask(nvml: Any, what: str, *arguments: Any) -> Any:
    """None for what this GPU or driver does not know."""
    try:
        return getattr(nvml, f"nvmlDeviceGet{what}")(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _address(name: Any) -> str:
    """``0000:3b:00.0`` of NVML's ``00000000:3B:00.0``."""
    domain, _, rest = _text(name).lower().partition(":")
    return f"{domain[-4:] if not domain[:-4].strip('0') else domain}:{rest}"


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def main() -> int:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        sys.stderr.write("nvidia-ml-py is not installed\n")
        return 3
    except nvml.NVMLError as error:
        sys.stderr.write(f"NVML does not answer: {error}\n")
        missing = (nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return 3 if error.value in missing else 1
    try:
        sys.stdout.write(json.dumps(read(nvml), indent=0) + "\n")
    except (NoPartError, nvml.NVMLError) as error:
        sys.stderr.write(f"{error}\n")
        return 3 if isinstance(error, NoPartError) else 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
