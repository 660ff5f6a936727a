"""What a scan tells beside the topology: versions, the multi-node NVLink domain, PCIe links, where network cards are.

Text in, values out. What cannot be read is left out here: the same texts are held to their format where they are
parsed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.agents.topology.readings import LONGEST_CHARS, Reading
from kopt.core.untrusted import UnreadableError, decode

_GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""By PCIe generation."""
_MOST_LANES = 32
_SPEED = re.compile(r"(\d{1,2}(?:\.\d)?) GT/s")
_DRIVER = re.compile(r"^\s*(?:Driver Version|DRIVER version)\s*:\s*(\d[\w.]{0,30})\s*$", re.MULTILINE | re.IGNORECASE)
_SMI = re.compile(r"^\s*NVIDIA-SMI version\s*:\s*(\d[\w.]{0,30})\s*$", re.MULTILINE | re.IGNORECASE)
_FABRIC = re.compile(
    r"^ +Fabric\s*\n +State +: Completed\s*\n(?: +Status +: .*\n)? +CliqueId +: (\d{1,10})\s*\n"
    r" +ClusterUUID +: ([0-9a-fA-F-]{36})\s*$",
    re.MULTILINE,
)
_VERSION = re.compile(r"\d[\w.+-]{0,40}")


@dataclass(frozen=True)
class PcieLink:
    """A device's own link; ``gt_per_s`` per lane. ``idles``: slow may mean that it saves power, as GPUs do."""

    pci: str
    width: int
    gt_per_s: float
    most_width: int = 0
    most_gt_per_s: float = 0.0
    idles: bool = False


@dataclass(frozen=True)
class HostDetails:
    """``cards``: PCI address and NUMA node (None: not known) by the name of a network card. ``paths``: the bridges from
    the root of its bus to a device, and the device itself, by PCI address."""

    versions: Mapping[str, str] = field(default_factory=dict)
    domain: str = ""
    pcie: tuple[PcieLink, ...] = ()
    cards: Mapping[str, tuple[str, int | None]] = field(default_factory=dict)
    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def details_of(readings: Iterable[Reading]) -> HostDetails:
    """Of all texts of a scan."""
    texts = {reading.name: reading.text for reading in readings if reading.problem is None}
    nvml = _object(texts.get("nvml", ""))
    pci = _object(texts.get("pci", ""))
    links = {link.pci: link for link in _sysfs_links(pci)} | {link.pci: link for link in _nvml_links(nvml)}
    return HostDetails(
        dict(sorted(_versions(texts, nvml))),
        str(nvml.get("domain") or "") or _domain(texts.get("nvidia-smi-q", "")),
        tuple(links[address] for address in sorted(links)),
        dict(_cards(_object(texts.get("infiniband", "")))),
        {path.removesuffix("/path"): tuple(str(way).split("/")) for path, way in pci.items() if path.endswith("/path")},
    )


def _versions(texts: Mapping[str, str], nvml: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    sources = [_object(texts.get("driver-versions", "")), nvml.get("versions")]
    for document in sources:
        for name, text in document.items() if isinstance(document, dict) else ():
            if match := _VERSION.match(str(text)):
                yield str(name), match[0]
    for name, pattern in (("nvidia", _DRIVER), ("nvidia-smi", _SMI)):
        for source in ("nvidia-smi-q", "nvidia-smi-version"):
            if match := pattern.search(texts.get(source, "")):
                yield name, match[1]
    tools = _json(texts.get("amd-smi-version", ""))
    for tool in tools if isinstance(tools, list) else [tools]:
        for name, key in (("amd-smi", "version"), ("rocm", "rocm_version")):
            if isinstance(tool, dict) and (match := _VERSION.match(str(tool.get(key) or ""))):
                yield name, match[0]


def _domain(text: str) -> str:
    """Cluster and clique where all GPUs are in the same: nodes with the same one share NVLink."""
    result = {f"{cluster.lower()}.{clique}" for clique, cluster in _FABRIC.findall(text) if cluster.strip("0-")}
    return result.pop() if len(result) == 1 else ""


def _sysfs_links(tree: Mapping[str, Any]) -> Iterator[PcieLink]:
    devices: dict[str, dict[str, str]] = {}
    for path, text in tree.items():
        address, _, name = path.partition("/")
        devices.setdefault(address, {})[name] = str(text).strip()
    for address, own in devices.items():
        kind = own.get("class", "")[:4]
        if kind == "0x06":
            continue
        width, speed = _whole(own.get("current_link_width")), _gt_per_s(own.get("current_link_speed", ""))
        if 0 < width <= _MOST_LANES and speed:
            yield PcieLink(
                address,
                width,
                speed,
                _whole(own.get("max_link_width")),
                _gt_per_s(own.get("max_link_speed", "")),
                idles=kind != "0x02",
            )


def _nvml_links(nvml: Mapping[str, Any]) -> Iterator[PcieLink]:
    result = nvml.get("pcie")
    items = result.items() if isinstance(result, dict) else ()
    for address, item in ((address, item) for address, item in items if isinstance(item, dict)):
        width, generation = _whole(item.get("width")), _whole(item.get("generation"))
        if 0 < width <= _MOST_LANES and generation in _GT_PER_S:
            yield PcieLink(
                str(address),
                width,
                _GT_PER_S[generation],
                _whole(item.get("max_width")),
                _GT_PER_S.get(_whole(item.get("max_generation")), 0.0),
                not item.get("fast"),
            )


def _cards(tree: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, int | None]]]:
    for path, text in tree.items():
        name, _, rest = path.partition("/")
        if rest == "device":
            numa = str(tree.get(f"{name}/device/numa_node", "-1")).strip()
            yield name, (str(text), _whole(numa) if numa.isdigit() else None)


def _object(text: str) -> dict[str, Any]:
    result = _json(text)
    return result if isinstance(result, dict) else {}


def _json(text: str) -> Any:
    try:
        return decode(text, longest_chars=LONGEST_CHARS) if text else None
    except UnreadableError:
        return None


def _whole(value: Any) -> int:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _gt_per_s(text: str) -> float:
    match = _SPEED.match(text)
    return float(match[1]) if match else 0.0
