"""Who is before an older one, and by what."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.units import counted, format_span
from kopt.policies.priority.formula import PendingWorkload


@dataclass(frozen=True)
class Overtaking:
    """``first`` is before ``second`` in its queue, although it was submitted later; ``others`` more are overtaken."""

    first: PendingWorkload
    second: PendingWorkload
    others: int
    gpus_count: bool = False
    """Whether the order prefers more GPUs."""

    @property
    def sentence(self) -> str:
        younger_s = self.first.submitted_s - self.second.submitted_s
        more = f" and {counted(self.others, 'other')}" if self.others else ""
        return f"before {self.second.name}{more}, {format_span(younger_s)} older: {self._why}"

    @property
    def _why(self) -> str:
        first, second = self.first.class_points, self.second.class_points
        if first > second:
            return f"priority {first:g} over {second:g}"
        if self.gpus_count and self.first.gpus > self.second.gpus:
            return f"it needs {self.first.gpus:g} GPUs, the other {self.second.gpus:g}"
        return "the other was put back later, or its queue has another order"


def overtakings(order: Sequence[PendingWorkload], *, gpus_count: bool = False) -> dict[str, Overtaking]:
    """By name, for each of a queue in its ``order`` that is before earlier ones: the oldest of these."""
    result: dict[str, Overtaking] = {}
    behind_s: list[float] = []
    oldest: PendingWorkload | None = None
    for workload in reversed(order):
        older = bisect_left(behind_s, workload.submitted_s)
        if older and oldest is not None:
            result[workload.name] = Overtaking(workload, oldest, older - 1, gpus_count)
        insort(behind_s, workload.submitted_s)
        if oldest is None or workload.submitted_s <= oldest.submitted_s:
            oldest = workload
    return result
