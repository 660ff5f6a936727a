"""The pods to expect, learned from a history of requests."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.core.scheduling.placement import PodRequest

Kind = tuple[int, int, int, tuple[str, ...]]


@dataclass(frozen=True)
class TypicalPods:
    """Requests by how often they come: ``weights`` maps (milli-CPU, GPUs, milli-GPU each, models) to a share; they sum
    to 1 (or nothing is known). CPU-only pods are counted in ``cpu_only``, their share of all pods.

    Memory is left out, as in the paper: it rarely decides, and would split alike pods.
    """

    weights: Mapping[Kind, float]
    cpu_only: float = 0.0

    @classmethod
    def learn(cls, history: Iterable[PodRequest], most: int = 1000) -> "TypicalPods":
        """From requests seen so far; only the ``most`` frequent kinds are kept."""
        counts = Counter(map(kind, history))
        return cls.from_counts(counts, most)

    @classmethod
    def from_counts(cls, counts: Mapping[Kind, float], most: int = 1000) -> "TypicalPods":
        """From kinds and how often each came."""
        everything = sum(counts.values())
        frequent = sorted(((n, k) for k, n in counts.items() if k[1] and n > 0), reverse=True)[:most]
        total = sum(n for n, _ in frequent)
        without = sum(n for k, n in counts.items() if not k[1])
        return cls({k: n / total for n, k in frequent}, without / everything if everything else 0.0)


def kind(request: PodRequest) -> Kind:
    """What makes requests alike for fragmentation."""
    gpus = request.gpus
    return (request.cpu_milli, gpus.count, int(gpus.share) if gpus.count else 0, tuple(sorted(set(gpus.models))))


class History:
    """Counts requests as they come and says when enough is new to learn from: at ``first``, then at every doubling, and
    from ``every`` on each ``every`` requests. The caller holds it.
    """

    def __init__(self, first: int = 16, every: int = 4096) -> None:
        self._counts: Counter[Kind] = Counter()
        self._next, self._every = first, every
        self.total = 0

    def add(self, request: PodRequest) -> bool:
        """Count one; True where it is time to learn again."""
        self._counts[kind(request)] += 1
        self.total += 1
        if self.total < self._next:
            return False
        self._next += min(self._next, self._every)
        return True

    def typical(self) -> TypicalPods:
        """What has been seen so far."""
        return TypicalPods.from_counts(self._counts)
