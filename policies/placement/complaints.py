"""What is wrong with nodes, by node and by who says so."""

from collections.abc import Iterator, Mapping

from kopt.core.hardware.complaint import Complaint
from kopt.core.hardware.pairwise import Pair


class Complaints:
    """Those of all nodes, by where they come from."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Complaint]] = {}
        self._slow: dict[Pair, float] | None = None

    def set(self, node: str, source: str, complaint: Complaint | None) -> None:
        """Note what a source says of a node now."""
        self._slow = None
        if complaint is not None:
            self._of.setdefault(node, {})[source] = complaint
        elif complaints_by_name := self._of.get(node):
            complaints_by_name.pop(source, None)
            if not complaints_by_name:
                del self._of[node]

    def text(self, node: str) -> str:
        """What is wrong with a node; empty where nothing is known to be."""
        return "; ".join(complaint.text for complaint in self._bad(node))

    def of_slot(self, node: str, slot: int) -> list[str]:
        """Those of one GPU, and those of the node that name none."""
        return [complaint.text for complaint in self._bad(node) if slot in complaint.gpus or not complaint.gpus]

    def degraded(self, node: str) -> bool:
        return any(True for _ in self._bad(node))

    def score(self, node: str) -> float:
        """The lowest health that a source gives a node, 0-1; 1 where nothing is known."""
        return min((complaint.score for complaint in self._of.get(node, {}).values()), default=1.0)

    def poor(self, node: str, gpus: int) -> int:
        """Bits of the slots whose own part is worse, of a node that offers so many GPUs."""
        return sum(
            1 << slot
            for slot in {slot for complaint in self._bad(node) if complaint.of == gpus for slot in complaint.gpus}
        )

    def slow_with(self, node: str) -> Mapping[str, float]:
        """Nodes that were slow with this one, and their common bandwidth (GB/s); one of a pair reports it."""
        return {b if a == node else a: gbps for (a, b), gbps in self.slow_bandwidths().items() if node in (a, b)}

    def slow_bandwidths(self) -> Mapping[Pair, float]:
        """Every slow pair, its names in order, and what it reached (GB/s)."""
        if self._slow is None:
            self._slow = {
                (min(node, other), max(node, other)): gbps
                for node, by_source in self._of.items()
                for complaint in by_source.values()
                for other, gbps in complaint.slow.items()
            }
        return self._slow

    def _bad(self, node: str) -> Iterator[Complaint]:
        return (complaint for complaint in self._of.get(node, {}).values() if complaint.degraded)
