"""``kopt queue --by-score``: what waits, in the order of the priority formula, beside the order of its queue."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.cli.cluster.evictions import span
from kopt.cli.output import Answer, column
from kopt.core.units import counted

if TYPE_CHECKING:
    from kopt.core.reason import Reason
    from kopt.core.scheduling.queued import Queued
    from kopt.policies.priority import PendingWorkload


@dataclass(frozen=True)
class ScoreRow:
    """A workload that waits, and its score in points. ``overtaken_for_s``: after so long in the queue nothing that is
    submitted later is before it any more."""

    queue: str = column("queue")
    rank: int = column("#")
    position: int | None = column("now at")
    workload: str = column("workload")
    score: float = column("score", show=lambda points: f"{points:.1f}")
    class_points: float = column("class", show=lambda points: f"{points:g}")
    workload_class: str = column("of class", drop=0)
    age_points: float = column("age", show=lambda points: f"{points:+.1f}")
    gpu_points: float = column("GPUs", show=lambda points: f"{points:+.1f}", drop=1)
    waited_s: float = column("for", show=span, drop=2)
    overtaken_for_s: float = column("overtaken for at most", show=span)
    why: str = column("why", drop=3)


def scores(
    listed: "list[Queued]",
    now_s: float,
    age_per_hour: float,
    per_doubling: float,
    refusals: "Mapping[str, Reason] | None" = None,
) -> Answer:
    """Queue by queue. The highest priority that waits counts as the highest class; usage plays no part. ``refusals``:
    by ClusterQueue why its order may not be written."""
    from kopt.policies.priority import PriorityFormula, overtakings

    rows = []
    for queue, pending in _by_queue(listed).items():
        workloads = [workload_of(queued, by_class=True) for queued in pending]
        classes = {queued.full_name: queued.workload_class for queued in pending}
        highest = max(workload.class_points for workload in workloads)
        formula = PriorityFormula(highest, age_per_hour, per_doubling, usage_weight=0.0)
        ranked = formula.ranked(workloads, now_s)
        overtaking_of = overtakings([scored.workload for scored in ranked], gpus_count=True)
        positions = {queued.full_name: queued.position for queued in pending}
        for scored in ranked:
            name = scored.workload.name
            rows.append(
                ScoreRow(
                    queue,
                    scored.rank,
                    positions[name],
                    name,
                    scored.score,
                    scored.workload.class_points,
                    classes[name],
                    scored.age_points,
                    scored.gpu_points,
                    max(0.0, now_s - scored.workload.submitted_s),
                    formula.overtaken_for_s(scored.workload),
                    overtaking_of[name].sentence if name in overtaking_of else "",
                )
            )
    remark = (
        "class = priority + what its class counts (`kopt classes --table`); "
        f"score = class + {age_per_hour:g} × hours + {per_doubling:g} × log2(GPUs), at most that of the highest class; "
        "of equal scores the first submitted. Nothing is changed in the cluster."
    )
    shown = {row.queue for row in rows}
    refused = dict.fromkeys(
        f"{reason.message} ({reason.code})" for queue, reason in (refusals or {}).items() if queue in shown
    )
    written = sum(queued.order is not None and bool(queued.position) for queued in listed)
    remarks = [remark, *([f"The order of {counted(written, 'workload')} is written."] if written else []), *refused]
    return Answer("workloads", rows, remarks=remarks if rows else [], empty="nothing waits")


def overtaken(listed: "list[Queued]") -> dict[str, str]:
    """By uid: which older one a workload is before in the order of its queue, and why; where its order is written also
    which one of a higher class."""
    from kopt.policies.priority import overtakings

    result: dict[str, str] = {}
    for pending in _by_queue(listed).values():
        is_ordered = any(queued.order is not None for queued in pending)
        order = [workload_of(queued, by_class=is_ordered) for queued in pending]
        kinds = [overtakings(order, gpus_count=is_ordered)]
        kinds += [overtakings(order, gpus_count=True, by_class=True)] if is_ordered else []
        for queued in pending:
            sentences = [kind[queued.full_name].sentence for kind in kinds if queued.full_name in kind]
            if sentences:
                result[queued.uid] = "; ".join(dict.fromkeys(sentences))
    return result


def workload_of(queued: "Queued", *, by_class: bool = False) -> "PendingWorkload":
    """``by_class``: with what its class counts, which no queue's own order knows."""
    from kopt.policies.priority import PendingWorkload

    points = float(queued.priority or 0)
    if by_class and queued.classified is not None:
        points += queued.classified.traits.queue_points
    return PendingWorkload(queued.full_name, points, queued.gpus / 1000, queued.created_s)


def _by_queue(listed: "list[Queued]") -> "dict[str, list[Queued]]":
    """Those with a position, in its order."""
    result: dict[str, list[Queued]] = {}
    for queued in sorted((each for each in listed if each.position), key=lambda each: (each.queue, each.position)):
        result.setdefault(queued.queue, []).append(queued)
    return result
