"""Several tools' views of one node as one topology.

GPUs are the same when their PCI addresses are, else their UUIDs, else their numbers where one side tells neither. What
a source does not know is taken from another one; contradictions about links are errors, others are told as warnings and
the first source is kept.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kopt.core.topology import (
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

_TOLD = ("pci", "numa", "partition", "uuid", "instances", "ports", "port_gigabytes_per_s")


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
    affinity: dict[tuple[int, str], NicAffinity] = {(one.gpu, one.nic): one for one in first.nic_affinity}
    for one in second.nic_affinity:
        moved = NicAffinity(numbers[one.gpu], names.get(one.nic, one.nic), one.type)
        affinity.setdefault((moved.gpu, moved.nic), moved)
    switches = {one.name: one for one in first.switches}
    for switch in second.switches:
        moved_gpus = tuple(sorted(numbers[gpu] for gpu in switch.gpus))
        switches.setdefault(switch.name, TopologySwitch(switch.name, moved_gpus))
    devices = {(one.pci, one.kind): one for one in (*second.devices, *first.devices)}
    return NodeTopology(
        first.node or second.node, gpus, links, nics, tuple(affinity.values()), tuple(switches.values()),
        f"{first.tool} + {second.tool}", first.vendor or second.vendor, tuple(dict.fromkeys(warnings)),
        _peers(first, second, numbers), tuple(devices.values()),
    )  # fmt: skip


def _numbers(first: NodeTopology, second: NodeTopology, warnings: list[str]) -> dict[int, int]:
    """The number in ``first`` of each GPU of ``second``; those that ``first`` lacks get a free one."""
    found: dict[int, int] = {}
    if not first.gpus or not second.gpus:
        return {gpu.index: gpu.index for gpu in second.gpus}
    for gpu in second.gpus:
        same = _same(gpu, first.gpus)
        if same is not None:
            if same in found.values():
                raise TopologyError(f"{second.tool}: two GPUs are GPU {same} of {first.tool}")
            found[gpu.index] = same
    if not found:
        raise TopologyError(f"{first.tool} and {second.tool} have no GPU in common: not the same machine")
    taken = {gpu.index for gpu in first.gpus}
    for gpu in second.gpus:
        if gpu.index not in found:
            found[gpu.index] = gpu.index if gpu.index not in taken else max(taken) + 1
            taken.add(found[gpu.index])
            warnings.append(
                f"GPU {found[gpu.index]} at {gpu.pci or 'an unknown address'} is known to {second.tool} only"
            )
    if missing := len(first.gpus) - sum(1 for one in found.values() if one in {gpu.index for gpu in first.gpus}):
        warnings.append(f"{second.tool} does not show {missing} of the GPUs of {first.tool}")
    moved = [f"{there} is {here}" for there, here in found.items() if there != here]
    if moved:
        warnings.append(f"{second.tool} numbers the GPUs otherwise: {', '.join(moved[:16])}")
    return found


def _same(gpu: TopologyGpu, known: Iterable[TopologyGpu]) -> int | None:
    known = tuple(known)
    for what in ("pci", "uuid"):
        value = getattr(gpu, what)
        if value and any(getattr(one, what) for one in known):
            matching = [one.index for one in known if getattr(one, what) == value]
            if matching or what == "pci":
                return matching[0] if matching else None
    return next((one.index for one in known if one.index == gpu.index), None)


def _gpus(
    first: NodeTopology, second: NodeTopology, numbers: Mapping[int, int], warnings: list[str]
) -> tuple[TopologyGpu, ...]:
    found = {gpu.index: gpu for gpu in first.gpus}
    for gpu in second.gpus:
        index = numbers[gpu.index]
        here = found.get(index)
        found[index] = replace(gpu, index=index) if here is None else _gpu(here, gpu, first.tool, second.tool, warnings)
    return tuple(found[index] for index in sorted(found))


def _gpu(here: TopologyGpu, there: TopologyGpu, a: str, b: str, warnings: list[str]) -> TopologyGpu:
    values: dict[str, Any] = {}
    for what in _TOLD:
        one, other = getattr(here, what), getattr(there, what)
        known = one not in (None, "", ())
        values[what] = one if known else other
        if known and other not in (None, "", ()) and one != other:
            warnings.append(f"GPU {here.index}: {what} is {_shown(one)} by {a}, but {_shown(other)} by {b}")
    sizes = [size for size in (here.memory_bytes, there.memory_bytes) if size]
    if len(sizes) == 2 and abs(sizes[0] - sizes[1]) > 0.05 * max(sizes):
        warnings.append(f"GPU {here.index}: memory_bytes is {sizes[0]} by {a}, but {sizes[1]} by {b}")
    names = sorted((name for name in (here.name, there.name) if name), key=_telling, reverse=True)
    return replace(here, name=names[0] if names else "", memory_bytes=Bytes(sizes[0] if sizes else 0), **values)


def _shown(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _telling(name: str) -> tuple[bool, bool]:
    """Products before chips, whole names before shortened ones."""
    return (not name.startswith(("gfx", "sm_")), not name.endswith("..."))


def _links(first: NodeTopology, second: NodeTopology, numbers: Mapping[int, int]) -> tuple[TopologyLink, ...]:
    found = {_key(link.a, link.b): link for link in first.links}
    for link in second.links:
        key = _key(numbers[link.a], numbers[link.b])
        moved = replace(link, a=key[0], b=key[1])
        here = found.get(key)
        found[key] = moved if here is None else _link(here, moved, first.tool, second.tool)
    return tuple(found[key] for key in sorted(found))


def _key(a: int, b: int) -> tuple[int, int]:
    return (min(a, b), max(a, b))


def _link(here: TopologyLink, there: TopologyLink, a: str, b: str) -> TopologyLink:
    if here.type is not there.type and (here.type.direct or there.type.direct):
        raise TopologyError(f"GPU {here.a} to GPU {here.b} is {here.type} by {a}, but {there.type} by {b}")
    if here.count and there.count and here.count != there.count and here.type is there.type:
        raise TopologyError(f"GPU {here.a} to GPU {here.b} has {here.count} links by {a}, but {there.count} by {b}")
    # AMD's PCIE says less than the way through bridges and processors.
    kind = there.type if here.type is LinkType.PCIE else here.type
    values = {what: getattr(here, what) if getattr(here, what) is not None else getattr(there, what)
              for what in ("count", "weight", "hops", "gigabytes_per_s")}  # fmt: skip
    return replace(here, type=kind, **values)


def _with_speed(link: TopologyLink, gpus: Sequence[TopologyGpu]) -> TopologyLink:
    """Links of known number between GPUs whose ports are of one known speed."""
    speeds = {gpu.port_gigabytes_per_s for gpu in gpus if gpu.index in (link.a, link.b)}
    speed = next(iter(speeds)) if len(speeds) == 1 else None
    if link.gigabytes_per_s is not None or not link.count or not speed or link.type is not LinkType.NVLINK:
        return link
    return replace(link, gigabytes_per_s=round(link.count * speed, 3))


def _peers(first: NodeTopology, second: NodeTopology, numbers: Mapping[int, int]) -> tuple[PeerAccess, ...]:
    found = {_key(one.a, one.b): one for one in first.peers}
    for one in second.peers:
        key = _key(numbers[one.a], numbers[one.b])
        found.setdefault(key, PeerAccess(*key, one.status))
    return tuple(found[key] for key in sorted(found))


def _nics(
    first: NodeTopology, second: NodeTopology, warnings: list[str]
) -> tuple[tuple[TopologyNic, ...], dict[str, str]]:
    """Cards by name, else by address; those that a source names by their address only are the others' when these
    tell an address. Also the name here of each card of ``second``."""
    found = {nic.name: nic for nic in first.nics}
    names: dict[str, str] = {}
    for nic in second.nics:
        same = next(
            (one.name for one in found.values() if one.name == nic.name or (nic.pci and one.pci == nic.pci)), None
        )
        if same is None:
            found[nic.name] = nic
            names[nic.name] = nic.name
            continue
        here = found.pop(same)
        name = nic.name if here.name == here.pci else here.name
        names[nic.name] = name
        found[name] = _nic(here, nic, name, warnings)
    anonymous = [name for name, nic in found.items() if name == nic.pci]
    if anonymous and len(anonymous) < len(found):
        warnings.append(f"{len(anonymous)} network cards are known by their address only and were left out")
        found = {name: nic for name, nic in found.items() if name not in anonymous}
    return tuple(found.values()), names


def _nic(here: TopologyNic, there: TopologyNic, name: str, warnings: list[str]) -> TopologyNic:
    values: dict[str, Any] = {"name": name}
    for what in ("pci", "numa", "gbit_per_s", "state", "link_layer", "interface"):
        one, other = getattr(here, what), getattr(there, what)
        known = one not in (None, "")
        values[what] = one if known else other
        if known and other not in (None, "") and one != other:
            warnings.append(f"{name}: {what} is {one} by one source, but {other} by another")
    return TopologyNic(**values)
