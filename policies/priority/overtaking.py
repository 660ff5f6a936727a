"""Who is before another that would be admitted first by another rule, and by what."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from kopt.core.units import counted, format_span
from kopt.policies.priority.formula import PendingWorkload


@dataclass(frozen=True)
class Overtaking:
    """``first`` is before ``second`` in its queue, although it was submitted later, or is of a lower class; ``others``
    more are overtaken."""

    first: PendingWorkload
    second: PendingWorkload
    others: int
    gpus_count: bool = False
    """Whether the order prefers more GPUs."""

    @property
    def sentence(self) -> str:
        younger_s = self.first.submitted_s - self.second.submitted_s
        more = f" and {counted(self.others, 'other')}" if self.others else ""
        age = f"{format_span(abs(younger_s))} {'younger' if younger_s < 0 else 'older'}"
        return f"before {self.second.name}{more}, {age}: {self._why}"

    @property
    def _why(self) -> str:
        first, second = self.first.class_points, self.second.class_points
        if self.first.submitted_s < self.second.submitted_s:
            return f"its age, in place of priority {second:g} over {first:g}"
        if first > second:
            return f"priority {first:g} over {second:g}"
        if self.gpus_count and self.first.gpus > self.second.gpus:
            return f"it needs {self.first.gpus:g} GPUs, the other {self.second.gpus:g}"
        return "the other was put back later, or its queue has another order"


def overtakings(
    order: Sequence[PendingWorkload], *, gpus_count: bool = False, by_class: bool = False
) -> dict[str, Overtaking]:
    """By name, for each of a queue in its ``order`` that is before earlier ones: the oldest of these. ``by_class``:
    before those that would be ahead of it by class and then by age, the first of these."""
    result: dict[str, Overtaking] = {}
    behind: list[tuple[float, float]] = []
    first: PendingWorkload | None = None
    for workload in reversed(order):
        rank = _rank(workload, by_class)
        overtaken = bisect_left(behind, rank)
        if overtaken and first is not None:
            result[workload.name] = Overtaking(workload, first, overtaken - 1, gpus_count)
        insort(behind, rank)
        if first is None or rank <= _rank(first, by_class):
            first = workload
    return result


def _rank(workload: PendingWorkload, by_class: bool) -> tuple[float, float]:
    return (-workload.class_points if by_class else 0.0), workload.submitted_s
