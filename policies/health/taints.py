"""Which nodes and GPUs may be kept free of new pods: the worst first, and never more than a share of each pool."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A node of a pool, or a GPU that is allocated by claims. ``condemned``: it should be kept free; ``closed``: by us,
    so far; ``unavailable``: it takes no pods anyway, for others' reasons; ``load``: how much speaks against it."""

    name: str
    pool: str
    condemned: bool = False
    closed: bool = False
    unavailable: bool = False
    load: float = 0.0


def kept_free(candidates: Iterable[Candidate], most_share: float) -> frozenset[str]:
    """Names of what to keep free. What is unavailable anyway counts against the share and needs no taint of ours; what
    is closed stays so while it is condemned, so that two of them do not take turns.

    Raises ValueError for a share that is none.
    """
    if not 0 <= most_share <= 1:
        raise ValueError(f"a share is 0 to 1, not {most_share}")
    pools: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        pools[candidate.pool].append(candidate)
    result: set[str] = set()
    for pool in pools.values():
        # Of 10 nodes 0.3 are 3, also in binary.
        room = int(most_share * len(pool) + 1e-9) - sum(each.unavailable and not each.closed for each in pool)
        wanted = [each for each in pool if each.condemned and (each.closed or not each.unavailable)]
        wanted.sort(key=lambda each: (not each.closed, -each.load, each.name))
        result.update(each.name for each in wanted[: max(0, room)])
    return frozenset(result)
