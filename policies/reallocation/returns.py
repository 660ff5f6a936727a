"""Who returns when there is room again, by the ledger's order, and how much of it is open to those who are new.

Who does not fit is passed by others for ``PATIENCE_S``. From then on nobody passes it any more: neither those behind it
in the ledger's order nor new workloads of its queue, for which nothing more is opened until it fits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

PATIENCE_S = 3600.0
"""For so long a workload that does not fit is passed by others; from then on they wait for it."""


@dataclass(frozen=True)
class Waiting:
    """A workload that was told to go. ``order`` is the ledger's, the smaller first; ``gpus`` in milli-GPU."""

    name: str
    gpus: int
    order: int
    since_s: float


@dataclass(frozen=True)
class Room:
    """Of a queue, in milli-GPU: what it may use, what it uses, and what it may use while nobody new is to come.

    Of whom asks for more than ``most``, what the queue will ever have, nobody waits behind.
    """

    usable: int
    used: int
    closed: int
    most: int


@dataclass(frozen=True)
class Turn:
    """Who returns now, in order, and how many milli-GPU are open to the queue once they are let go."""

    names: tuple[str, ...]
    open: int


def turn(room: Room, held: Sequence[Waiting], returning: Sequence[Waiting], now_s: float) -> Turn:
    """``returning`` were let go before and do not run yet: their room is theirs."""
    left = room.usable - room.used
    entering = late = 0
    for one in sorted(returning, key=_place):
        if one.gpus <= left:
            left, entering = left - one.gpus, entering + one.gpus
        else:
            late += _is_late(one, room.most, now_s)
    names = () if late else tuple(resumed(held, left, room.most, now_s))
    entering += sum(one.gpus for one in held if one.name in names)
    late += sum(_is_late(one, room.most, now_s) for one in held if one.name not in names)
    if not late:
        return Turn(names, room.usable)
    return Turn(names, max(room.closed, room.used + entering) if entering else min(room.closed, room.usable))


def resumed(waiting: Sequence[Waiting], room: int, most: int, now_s: float) -> list[str]:
    """Those who return now into ``room`` milli-GPU, in order."""
    found = []
    for one in sorted(waiting, key=_place):
        if one.gpus <= room:
            found.append(one.name)
            room -= one.gpus
        elif _is_late(one, most, now_s):
            break
    return found


def overdue(waiting: Sequence[Waiting], most: int, now_s: float) -> Waiting | None:
    """The first of those that nobody passes any more."""
    return min((one for one in waiting if _is_late(one, most, now_s)), key=_place, default=None)


def _is_late(one: Waiting, most: int, now_s: float) -> bool:
    return one.gpus <= most and now_s - one.since_s > PATIENCE_S


def _place(one: Waiting) -> tuple[int, str]:
    return one.order, one.name
