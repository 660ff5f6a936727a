"""Whether links are worse than the best that was seen of them: fewer lanes or links, slower ports, a GPU that is gone.

The best is kept in the object itself, so that it outlives the agent; who deletes the object has the next reading taken
for healthy. What degraded stays listed until it has been healthy for ``recover_s``: a link that comes and goes is one
entry that counts its falls.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kopt.agents.topology.facts import HostDetails
from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu

MOST_PARTS = 1024
"""Links of 16 GPUs in one mesh, and what else is there, are well below; more would be partitions of GPUs."""


@dataclass(frozen=True)
class Degraded:
    """``part`` (``link 0000:3b:00.0 0000:5e:00.0``) had ``was`` and has ``now``; ``since_s`` is Unix time."""

    part: str
    was: float
    now: float
    since_s: float
    falls: int = 1


@dataclass(frozen=True)
class Health:
    """``best`` by part; ``boards`` says of which GPU (UUID, partition) that is, by PCI address."""

    best: Mapping[str, float]
    boards: Mapping[str, str]
    degraded: tuple[Degraded, ...] = ()


def measure(topology: NodeTopology, details: HostDetails) -> dict[str, float]:
    """What there is of each part now; more is better. Parts begin with gpu, link (their number, or GB/s where no tool
    counts them), ports, port-speed (GB/s), lanes, pcie-speed (GT/s) or nic (Gbit/s)."""
    return dict(_measured(topology, details))


def evaluate(
    now: Mapping[str, float],
    boards: Mapping[str, str],
    before: Health | None,
    at_s: float,
    healthy_since: Mapping[str, float],
    recover_s: float,
) -> Health:
    """The health after a reading. ``healthy_since``: when a part that is listed was first seen healthy again."""
    before = before or Health({}, {})
    changed = {board for board, what in before.boards.items() if _is_another(what, boards.get(board, ""))}
    best = {part: value for part, value in before.best.items() if not changed & _names(part)}
    removed = set(before.boards) - set(boards)
    listed = {item.part: item for item in before.degraded}
    degraded = []
    for part, most in best.items():
        value, entry = _value_now(part, now, removed), listed.get(part)
        if value is None:
            # Not reported this time: neither worse nor recovered. A GPU that is gone is reported as such.
            degraded += [entry] if entry is not None and not removed & _names(part) else []
        elif is_less(value, most):
            degraded.append(_fallen(part, value, most, entry, at_s))
        elif entry is not None and at_s - healthy_since.get(part, at_s) < recover_s:
            degraded.append(replace(entry, now=value))
    highest = {part: max(best.get(part, 0.0), now.get(part, 0.0)) for part in {**best, **now}}
    kept = [(part, value) for part, value in highest.items() if value]
    return Health(
        dict(kept[:MOST_PARTS]), {**before.boards, **boards}, tuple(sorted(degraded, key=lambda item: item.part))
    )


def is_less(value: float, than: float) -> bool:
    """By more than rounding."""
    return value < than and not math.isclose(value, than, rel_tol=0.01)


def _value_now(part: str, now: Mapping[str, float], removed: set[str]) -> float | None:
    """The current value of a part; None if it is not reported."""
    if part.startswith("gpu "):
        return now.get(part, 0.0)
    return None if removed & _names(part) else now.get(part)


def _fallen(part: str, value: float, most: float, entry: Degraded | None, at_s: float) -> Degraded:
    if entry is None:
        return Degraded(part, most, value, at_s)
    again = not is_less(entry.now, most)
    return replace(entry, was=most, now=value, falls=entry.falls + again)


def _names(part: str) -> set[str]:
    return set(part.split()[1:])


def boards_of(topology: NodeTopology) -> dict[str, str]:
    """UUID and partition of each GPU: one that was replaced or divided anew is not compared with what was there."""
    return {name_of(gpu): f"{gpu.uuid}|{gpu.partition}" for gpu in topology.gpus}


def _is_another(before: str, now: str) -> bool:
    """Compares only what both readings report."""
    changes = zip(before.split("|"), now.split("|"), strict=False)
    return any(name and other and name != other for name, other in changes)


def name_of(gpu: TopologyGpu) -> str:
    """Its PCI address; its number if no tool reports an address."""
    return gpu.pci or f"GPU{gpu.index}"


def _measured(topology: NodeTopology, details: HostDetails) -> Iterator[tuple[str, float]]:
    names = {gpu.index: name_of(gpu) for gpu in topology.gpus}
    for gpu in topology.gpus:
        name = names[gpu.index]
        yield f"gpu {name}", 1.0
        if gpu.ports is not None:
            yield f"ports {name}", float(gpu.ports)
        if gpu.port_gigabytes_per_s:
            yield f"port-speed {name}", gpu.port_gigabytes_per_s
    for link in topology.links:
        # Of a link that is down tools show the way around it: then there is nothing of it.
        count = link.count or link.gigabytes_per_s or 1.0
        yield f"link {names[link.a]} {names[link.b]}", float(count) if link.type.direct else 0.0
    addresses = set(names.values()) | {nic.pci for nic in topology.nics}
    for pcie in details.pcie:
        if pcie.pci in addresses:
            yield f"lanes {pcie.pci}", float(pcie.width)
            if not pcie.idles:
                yield f"pcie-speed {pcie.pci}", pcie.gt_per_s
    for nic in topology.nics:
        if nic.gbit_per_s is not None:
            yield f"nic {nic.name}", nic.gbit_per_s
