"""Which nodes may be kept free of new pods: the worst first, and never more than a share of each pool."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A node of a pool. ``condemned``: it should be kept free; ``closed``: by us, so far; ``unavailable``: it takes no
    pods anyway, for others' reasons; ``load``: how much speaks against it."""

    node: str
    pool: str
    condemned: bool = False
    closed: bool = False
    unavailable: bool = False
    load: float = 0.0


def closed_nodes(candidates: Iterable[Candidate], most_share: float) -> frozenset[str]:
    """Nodes to keep free. What is unavailable anyway counts against the share and needs no taint of ours; what is
    closed stays so while it is condemned, so that two nodes do not take turns.

    Raises ValueError for a share that is none.
    """
    if not 0 <= most_share <= 1:
        raise ValueError(f"a share is 0 to 1, not {most_share}")
    pools: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        pools[candidate.pool].append(candidate)
    result: set[str] = set()
    for nodes in pools.values():
        # Of 10 nodes 0.3 are 3, also in binary.
        room = int(most_share * len(nodes) + 1e-9) - sum(node.unavailable and not node.closed for node in nodes)
        wanted = [node for node in nodes if node.condemned and (node.closed or not node.unavailable)]
        wanted.sort(key=lambda node: (not node.closed, -node.load, node.node))
        result.update(node.node for node in wanted[: max(0, room)])
    return frozenset(result)
