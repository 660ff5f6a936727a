"""Several tools' views of one node as one topology.

GPUs are the same when their PCI addresses are, else their UUIDs, else their numbers where one side tells neither. What
a source does not know is taken from another one; contradictions about links are errors, others are told as warnings and
the first source is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.core.hardware.node_topology import (
    LinkType,
    NicAffinity,
    NodeTopology,
    PeerAccess,
    TopologyError,
    TopologyGpu,
    TopologyLink,
    TopologyNic,
    TopologySwitch,
)
from kopt.core.units import Bytes

_COMPARED = ("pci", "numa", "partition", "uuid", "instances", "ports", "port_gigabytes_per_s")


def merged(parts: Sequence[NodeTopology]) -> NodeTopology:
    """Raises TopologyError when the parts are not of one node."""
    whole = parts[0]
    for part in parts[1:]:
        whole = _two(whole, part)
    return replace(whole, links=tuple(_with_speed(link, whole.gpus) for link in whole.links))


def _two(first: NodeTopology, second: NodeTopology) -> NodeTopology:
    for what in ("node", "vendor"):
        a, b = getattr(first, what), getattr(second, what)
        if a and b and a != b:
            raise TopologyError(f"{first.tool} is of {what} {a!r}, {second.tool} of {b!r}: not the same machine")
    warnings = [*first.warnings, *second.warnings]
    numbers = _numbers(first, second, warnings)
    gpus = _gpus(first, second, numbers, warnings)
    nics, names = _nics(first, second, warnings)
    links = _links(first, second, numbers)
    affinity: dict[tuple[int, str], NicAffinity] = {
        (nic_affinity.gpu, nic_affinity.nic): nic_affinity for nic_affinity in first.nic_affinity
    }
    for nic_affinity in second.nic_affinity:
        moved = NicAffinity(numbers[nic_affinity.gpu], names.get(nic_affinity.nic, nic_affinity.nic), nic_affinity.type)
        affinity.setdefault((moved.gpu, moved.nic), moved)
    switches = {topology_switch.name: topology_switch for topology_switch in first.switches}
    for switch in second.switches:
        moved_gpus = tuple(sorted(numbers[gpu] for gpu in switch.gpus))
        switches.setdefault(switch.name, TopologySwitch(switch.name, moved_gpus))
    devices = {(pci_device.pci, pci_device.kind): pci_device for pci_device in (*second.devices, *first.devices)}
    return NodeTopology(
        first.node or second.node,
        gpus,
        links,
        nics,
        tuple(affinity.values()),
        tuple(switches.values()),
        f"{first.tool} + {second.tool}",
        first.vendor or second.vendor,
        tuple(dict.fromkeys(warnings)),
        _peers(first, second, numbers),
        tuple(devices.values()),
    )


def _numbers(first: NodeTopology, second: NodeTopology, warnings: list[str]) -> dict[int, int]:
    """The number in ``first`` of each GPU of ``second``; those that ``first`` lacks get a free one."""
    numbers: dict[int, int] = {}
    if not first.gpus or not second.gpus:
        return {gpu.index: gpu.index for gpu in second.gpus}
    for gpu in second.gpus:
        same = _same(gpu, first.gpus)
        if same is not None:
            if same in numbers.values():
                raise TopologyError(f"{second.tool}: two GPUs are GPU {same} of {first.tool}")
            numbers[gpu.index] = same
    if not numbers:
        raise TopologyError(f"{first.tool} and {second.tool} have no GPU in common: not the same machine")
    used = {gpu.index for gpu in first.gpus}
    for gpu in second.gpus:
        if gpu.index not in numbers:
            numbers[gpu.index] = gpu.index if gpu.index not in used else max(used) + 1
            used.add(numbers[gpu.index])
            warnings.append(
                f"GPU {numbers[gpu.index]} at {gpu.pci or 'an unknown address'} is known to {second.tool} only"
            )
    if missing := len(first.gpus) - sum(
        1 for number in numbers.values() if number in {gpu.index for gpu in first.gpus}
    ):
        warnings.append(f"{second.tool} does not show {missing} of the GPUs of {first.tool}")
    moved = [f"{counterpart} is {here}" for counterpart, here in numbers.items() if counterpart != here]
    if moved:
        warnings.append(f"{second.tool} numbers the GPUs otherwise: {', '.join(moved[:16])}")
    return numbers


def _same(gpu: TopologyGpu, candidates: Iterable[TopologyGpu]) -> int | None:
    candidates = tuple(candidates)
    for what in ("pci", "uuid"):
        value = getattr(gpu, what)
        if value and any(getattr(topology_gpu, what) for topology_gpu in candidates):
            matching = [topology_gpu.index for topology_gpu in candidates if getattr(topology_gpu, what) == value]
            if matching or what == "pci":
                return matching[0] if matching else None
    return next((topology_gpu.index for topology_gpu in candidates if topology_gpu.index == gpu.index), None)


def _gpus(
    first: NodeTopology, second: NodeTopology, numbers: Mapping[int, int], warnings: list[str]
) -> tuple[TopologyGpu, ...]:
    topology_gpus_by_index = {gpu.index: gpu for gpu in first.gpus}
    for gpu in second.gpus:
        index = numbers[gpu.index]
        here = topology_gpus_by_index.get(index)
        topology_gpus_by_index[index] = (
            replace(gpu, index=index) if here is None else _gpu(here, gpu, first.tool, second.tool, warnings)
        )
    return tuple(topology_gpus_by_index[index] for index in sorted(topology_gpus_by_index))


def _gpu(here: TopologyGpu, counterpart: TopologyGpu, a: str, b: str, warnings: list[str]) -> TopologyGpu:
    values: dict[str, Any] = {}
    for what in _COMPARED:
        item, other = getattr(here, what), getattr(counterpart, what)
        has_value = item not in (None, "", ())
        values[what] = item if has_value else other
        if has_value and other not in (None, "", ()) and item != other:
            warnings.append(f"GPU {here.index}: {what} is {_quoted(item)} by {a}, but {_quoted(other)} by {b}")
    sizes = [size for size in (here.memory_bytes, counterpart.memory_bytes) if size]
    if len(sizes) == 2 and abs(sizes[0] - sizes[1]) > 0.05 * max(sizes):
        warnings.append(f"GPU {here.index}: memory_bytes is {sizes[0]} by {a}, but {sizes[1]} by {b}")
    names = sorted((name for name in (here.name, counterpart.name) if name), key=_telling, reverse=True)
    return replace(here, name=names[0] if names else "", memory_bytes=Bytes(sizes[0] if sizes else 0), **values)


def _quoted(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _telling(name: str) -> tuple[bool, bool]:
    """Products before chips, whole names before shortened ones."""
    return (not name.startswith(("gfx", "sm_")), not name.endswith("..."))


def _links(first: NodeTopology, second: NodeTopology, numbers: Mapping[int, int]) -> tuple[TopologyLink, ...]:
    topology_links = {_key(link.a, link.b): link for link in first.links}
    for link in second.links:
        key = _key(numbers[link.a], numbers[link.b])
        moved = replace(link, a=key[0], b=key[1])
        here = topology_links.get(key)
        topology_links[key] = moved if here is None else _link(here, moved, first.tool, second.tool)
    return tuple(topology_links[key] for key in sorted(topology_links))


def _key(a: int, b: int) -> tuple[int, int]:
    return (min(a, b), max(a, b))


def _link(here: TopologyLink, counterpart: TopologyLink, a: str, b: str) -> TopologyLink:
    if here.type is not counterpart.type and (here.type.direct or counterpart.type.direct):
        raise TopologyError(f"GPU {here.a} to GPU {here.b} is {here.type} by {a}, but {counterpart.type} by {b}")
    if here.count and counterpart.count and here.count != counterpart.count and here.type is counterpart.type:
        raise TopologyError(
            f"GPU {here.a} to GPU {here.b} has {here.count} links by {a}, but {counterpart.count} by {b}"
        )
    # AMD's PCIE says less than the way through bridges and processors.
    kind = counterpart.type if here.type is LinkType.PCIE else here.type
    values = {
        what: getattr(here, what) if getattr(here, what) is not None else getattr(counterpart, what)
        for what in ("count", "weight", "hops", "gigabytes_per_s")
    }
    return replace(here, type=kind, **values)


def _with_speed(link: TopologyLink, gpus: Sequence[TopologyGpu]) -> TopologyLink:
    """Links of known number between GPUs whose ports are of one known speed."""
    speeds = {gpu.port_gigabytes_per_s for gpu in gpus if gpu.index in (link.a, link.b)}
    speed = next(iter(speeds)) if len(speeds) == 1 else None
    if link.gigabytes_per_s is not None or not link.count or not speed or link.type is not LinkType.NVLINK:
        return link
    return replace(link, gigabytes_per_s=round(link.count * speed, 3))


def _peers(first: NodeTopology, second: NodeTopology, numbers: Mapping[int, int]) -> tuple[PeerAccess, ...]:
    peer_accesses = {_key(peer.a, peer.b): peer for peer in first.peers}
    for peer in second.peers:
        key = _key(numbers[peer.a], numbers[peer.b])
        peer_accesses.setdefault(key, PeerAccess(*key, peer.status))
    return tuple(peer_accesses[key] for key in sorted(peer_accesses))


def _nics(
    first: NodeTopology, second: NodeTopology, warnings: list[str]
) -> tuple[tuple[TopologyNic, ...], dict[str, str]]:
    """Cards by name, else by address; those that a source names by their address only are the others' when these
    tell an address. Also the name here of each card of ``second``."""
    topology_nics_by_name = {nic.name: nic for nic in first.nics}
    names: dict[str, str] = {}
    for nic in second.nics:
        same = next(
            (
                topology_nic.name
                for topology_nic in topology_nics_by_name.values()
                if topology_nic.name == nic.name or (nic.pci and topology_nic.pci == nic.pci)
            ),
            None,
        )
        if same is None:
            topology_nics_by_name[nic.name] = nic
            names[nic.name] = nic.name
            continue
        here = topology_nics_by_name.pop(same)
        name = nic.name if here.name == here.pci else here.name
        names[nic.name] = name
        topology_nics_by_name[name] = _nic(here, nic, name, warnings)
    anonymous = [name for name, nic in topology_nics_by_name.items() if name == nic.pci]
    if anonymous and len(anonymous) < len(topology_nics_by_name):
        warnings.append(f"{len(anonymous)} network cards are known by their address only and were left out")
        topology_nics_by_name = {name: nic for name, nic in topology_nics_by_name.items() if name not in anonymous}
    return tuple(topology_nics_by_name.values()), names


def _nic(here: TopologyNic, counterpart: TopologyNic, name: str, warnings: list[str]) -> TopologyNic:
    values: dict[str, Any] = {"name": name}
    for what in ("pci", "numa", "gbit_per_s", "state", "link_layer", "interface"):
        item, other = getattr(here, what), getattr(counterpart, what)
        has_value = item not in (None, "")
        values[what] = item if has_value else other
        if has_value and other not in (None, "") and item != other:
            warnings.append(f"{name}: {what} is {item} by one source, but {other} by another")
    return TopologyNic(**values)
