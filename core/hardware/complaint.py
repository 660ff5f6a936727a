"""What somebody says is wrong with a node."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Complaint:
    """``text`` is for people. ``gpus`` are the slots, of ``of`` in all, whose own part is worse than it was; ``slow``
    are nodes with which a collective is slow, and what it reached (GB/s of bus bandwidth; 0 where it failed)."""

    text: str
    gpus: tuple[int, ...] = ()
    of: int = 0
    slow: Mapping[str, float] = field(default_factory=dict)
    degraded: bool = True
    """False where only pairs are slow for which another node is to blame."""
    score: float = 1.0
    """Of the node's health, 0-1; what placement weighs."""
