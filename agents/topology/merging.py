"""The collectors' texts as parts of one topology, in the order in which they are trusted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kopt.agents.topology.facts import HostDetails
from kopt.agents.topology.readings import LONGEST_CHARS
from kopt.agents.topology.ways import with_affinity
from kopt.core.hardware.fabric import Fabric
from kopt.core.hardware.node_topology import NodeTopology, TopologyError
from kopt.core.untrusted import decode_mapping
from kopt.formats.topology import FormatError, merged, parse
from kopt.formats.yaml_text import YamlError, load_yaml

ORDER = (
    "nvidia-smi-topo",
    "nvml",
    "nvidia-smi-p2p",
    "nvidia-smi-nvlink",
    "nvidia-smi-list",
    "nvidia-smi-q",
    "amd-smi-topology",
    "rocm-smi-topology",
    "kfd",
    "amd-smi-list",
    "infiniband",
    "ibv-devinfo",
    "ibdev2netdev",
    "rdma-link",
    "pci",
    "lspci",
)
"""What tells of links first, as where two contradict each other the earlier one is kept."""
_NO_TOPOLOGY = ("nvidia-smi-version", "amd-smi-version", "driver-versions")
_SUPPLEMENT = ("pci", "lspci")
"""They list devices whether or not a driver has them, display adapters too."""


@dataclass(frozen=True)
class Merged:
    topology: NodeTopology | None
    warnings: tuple[str, ...] = ()
    fabric: Fabric | None = None


def read(name: str, text: str) -> NodeTopology | Fabric | None:
    """What a collector's text says; None where it says nothing about topology. Raises FormatError and TopologyError."""
    if name in _NO_TOPOLOGY:
        return None
    if name == "nvml":
        try:
            return NodeTopology.from_dict(decode_mapping(text, longest_chars=LONGEST_CHARS))
        except ValueError as error:
            raise FormatError(f"not a topology: {error}") from error
    result = parse(text, _load_yaml)
    if not isinstance(result, NodeTopology | Fabric):
        raise FormatError(f"this is a {type(result).__name__}, not the topology of a node")
    return result


def _load_yaml(text: str) -> Any:
    try:
        return load_yaml(text)
    except YamlError as error:
        raise FormatError(f"not YAML: {error}") from error


def merge(parts: Sequence[tuple[str, NodeTopology | Fabric]], details: HostDetails) -> Merged:
    """One topology. A part that contradicts those before it is left out, with a warning."""
    by_name: dict[str, NodeTopology] = {name: part for name, part in parts if isinstance(part, NodeTopology)}
    fabric = next((part for _, part in parts if isinstance(part, Fabric)), None)
    whole: NodeTopology | None = None
    warnings: list[str] = []
    for name in [*(item for item in ORDER if item in by_name), *(item for item in by_name if item not in ORDER)]:
        part = _with_addresses(by_name[name], details.cards)
        if name in _SUPPLEMENT:
            part = _on_listed_devices(part, whole)
        try:
            whole = part if whole is None else merged([whole, part])
        except TopologyError as error:
            warnings.append(f"{name} was left out: {error}")
    if whole is None or not whole.gpus:
        return Merged(None, tuple(warnings), fabric)
    warnings = [*whole.warnings, *warnings]
    whole = with_affinity(replace(whole, tool=_first_tool(by_name), warnings=()), details.paths)
    return Merged(whole, tuple(dict.fromkeys(warnings)), fabric)


def _first_tool(parts: Mapping[str, NodeTopology]) -> str:
    return next(parts[name].tool for name in [*ORDER, *parts] if name in parts and parts[name].gpus)


def _with_addresses(part: NodeTopology, cards: Mapping[str, tuple[str, int | None]]) -> NodeTopology:
    """Tools name network cards; where they are stands in /sys."""
    nics = []
    for nic in part.nics:
        pci, numa = cards.get(nic.name.partition(":")[0], ("", None))
        nics.append(replace(nic, pci=nic.pci or pci, numa=numa if nic.numa is None else nic.numa))
    return replace(part, nics=tuple(nics))


def _on_listed_devices(part: NodeTopology, whole: NodeTopology | None) -> NodeTopology:
    """A list of PCI devices without those that nothing else knows."""
    addresses = {gpu.pci for gpu in whole.gpus} if whole is not None else set()
    cards = {nic.pci for nic in whole.nics} if whole is not None else set()
    gpus = tuple(replace(gpu, name="") for gpu in part.gpus if gpu.pci in addresses)
    nics = tuple(nic for nic in part.nics if nic.pci in cards)
    return replace(part, gpus=gpus, links=(), nics=nics, nic_affinity=(), switches=(), peers=())
