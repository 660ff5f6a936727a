"""Where the drawing of a node puts its network cards: beside the GPUs that reach them best."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kopt.core.hardware.node_topology import LinkType, NodeTopology, TopologyNic

_NEAR = (LinkType.C2C, LinkType.PIX, LinkType.PXB, LinkType.PHB, LinkType.NODE)
BEHIND_SWITCH = (LinkType.PIX, LinkType.PXB)
_MOST_NAMED = 8
_APART = 0.032
"""Turns between two cards, where there is room."""


@dataclass(frozen=True)
class Beside:
    """One card at ``turn``; ``foot`` is where it hangs at its GPUs' way to the host, None where it has its own."""

    name: str
    pci: str
    turn: float
    foot: tuple[float, float] | None
    """Between these two turns: along a PCIe switch, or beside one GPU."""
    description: str


@dataclass(frozen=True)
class Cards:
    beside: tuple[Beside, ...]
    remarks: tuple[str, ...]


def lay_out_cards(
    node: NodeTopology,
    at: Mapping[int, float],
    numas: Mapping[int, tuple[float, float]],
    homes: Mapping[int, tuple[int, int]],
    switches: Mapping[int, tuple[float, float]],
) -> Cards:
    """Cards of unknown position are named in the remarks."""
    wanted: dict[int, list[Beside]] = {}
    lost = []
    for nic in node.nics:
        near, kind = nearest(node, nic.name)
        numa = homes[near[0]][0] if near else nic.numa
        if numa is None or numa not in numas:
            lost.append(nic.name)
            continue
        start, end = numas[numa]
        turn = sum(at[gpu] for gpu in near) / len(near) if near else (start + end) / 2
        foot = None
        if near and kind in BEHIND_SWITCH:
            foot = switches.get(homes[near[0]][1], (turn, turn))
        wanted.setdefault(numa, []).append(Beside(nic.name, nic.pci, turn, foot, _card_text(nic, near, kind)))
    placed = [beside for numa, cards in wanted.items() for beside in _spread(cards, *numas[numa])]
    more = f" and {len(lost) - _MOST_NAMED} more" if len(lost) > _MOST_NAMED else ""
    remark = f"network cards that are attached to no known GPU: {', '.join(lost[:_MOST_NAMED])}{more}"
    return Cards(tuple(placed), (remark,) if lost else ())


def nearest(node: NodeTopology, nic: str) -> tuple[list[int], LinkType | None]:
    """The GPUs that reach the card best, and how; none where all go through the processors' link."""
    ways = [
        (_NEAR.index(nic_affinity.type), nic_affinity.gpu)
        for nic_affinity in node.nic_affinity
        if nic_affinity.nic == nic and nic_affinity.type in _NEAR
    ]
    best = min((way for way, _ in ways), default=None)
    return ([], None) if best is None else ([gpu for way, gpu in ways if way == best], _NEAR[best])


def _card_text(nic: TopologyNic, near: list[int], kind: LinkType | None) -> str:
    speed = f"{nic.gbit_per_s:g} Gbit/s" if nic.gbit_per_s else ""
    way = f"{kind} from GPU {', '.join(map(str, near))}" if kind else ""
    return ", ".join(filter(None, [nic.name, speed, nic.state, nic.link_layer, way, nic.pci]))


def _spread(cards: list[Beside], start: float, end: float) -> list[Beside]:
    """Apart from one another, as near to where they belong as that allows."""
    cards = sorted(cards, key=lambda beside: (beside.turn, beside.name))
    apart = min(_APART, 0.96 * (end - start) / max(1, len(cards) - 1))
    # Equal wishes share the place evenly around it.
    turns = [beside.turn + apart * _offset(cards, number) for number, beside in enumerate(cards)]
    for number in range(1, len(turns)):
        turns[number] = max(turns[number], turns[number - 1] + apart)
    last = end
    for number in reversed(range(len(turns))):
        turns[number] = min(turns[number], last)
        last = turns[number] - apart
    return [replace(beside, turn=turn) for beside, turn in zip(cards, turns, strict=True)]


def _offset(cards: list[Beside], number: int) -> float:
    same = [n for n, beside in enumerate(cards) if abs(beside.turn - cards[number].turn) < 1e-9]
    # None of them stands on the way of its GPUs to the host.
    aside = 0.6 if len(same) % 2 and cards[number].foot is not None else 0.0
    return number - same[0] - (len(same) - 1) / 2 + aside
