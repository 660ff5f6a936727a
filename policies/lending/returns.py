"""Which evicted workloads return when there is room again, and how much of it is open to new workloads.

Workloads return in the order of their evictions. Others may overtake a workload that does not fit for ``PATIENCE_S``.
After that neither workloads behind it nor new workloads of its queue may overtake it, until it fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE_S = 3600.0
"""How long a workload that does not fit may be overtaken; after that, others wait for it."""


@dataclass(frozen=True)
class HeldWorkload:
    """An evicted workload. ``order`` is that of its eviction, smaller first; ``gpus`` in milli-GPU."""

    name: str
    gpus: int
    order: int
    since_s: float


@dataclass(frozen=True)
class Room:
    """Of a queue, in milli-GPU: its quota, its usage, and the quota that keeps it closed to new workloads.

    No workload waits for one that requests more than ``most``, which is all that the queue can ever have.
    """

    usable: int
    used: int
    closed: int
    most: int


@dataclass(frozen=True)
class Turn:
    """The workloads that return now, in order, and the milli-GPU open to the queue once they are released."""

    names: tuple[str, ...]
    open: int


def turn(room: Room, held: Sequence[HeldWorkload], returning: Sequence[HeldWorkload], now_s: float) -> Turn:
    """``returning`` were released before and do not run yet: their room stays reserved."""
    remaining = room.usable - room.used
    entering = late = 0
    for workload in sorted(returning, key=_order):
        if workload.gpus <= remaining:
            remaining, entering = remaining - workload.gpus, entering + workload.gpus
        else:
            late += _is_late(workload, room.most, now_s)
    names = () if late else tuple(resumed(held, remaining, room.most, now_s))
    entering += sum(workload.gpus for workload in held if workload.name in names)
    late += sum(_is_late(workload, room.most, now_s) for workload in held if workload.name not in names)
    if not late:
        return Turn(names, room.usable)
    return Turn(names, max(room.closed, room.used + entering) if entering else min(room.closed, room.usable))


def resumed(workloads: Sequence[HeldWorkload], room: int, most: int, now_s: float) -> list[str]:
    """The workloads that return now into ``room`` milli-GPU, in order."""
    result = []
    for item in sorted(workloads, key=_order):
        if item.gpus <= room:
            result.append(item.name)
            room -= item.gpus
        elif _is_late(item, most, now_s):
            break
    return result


def overdue(workloads: Sequence[HeldWorkload], most: int, now_s: float) -> HeldWorkload | None:
    """The first of the workloads that must not be overtaken any more."""
    return min((item for item in workloads if _is_late(item, most, now_s)), key=_order, default=None)


def _is_late(workload: HeldWorkload, most: int, now_s: float) -> bool:
    return workload.gpus <= most and now_s - workload.since_s > PATIENCE_S


def _order(workload: HeldWorkload) -> tuple[int, str]:
    return workload.order, workload.name
