"""Which borrowers make room for a queue that takes its quota back: those without whom their own queue still uses its
quota, of these those whose checkpoints are safe before all others, by the work that they lose, and no more than it
takes.

A queue that borrows one GPU with a job of 16 would be 15 below its own quota without that job, and the job may never
fit beside what its queue starts meanwhile: one guarantee would be kept by breaking another. So a selection that breaks
none is searched for, with a bounded number of looks, as there are more selections than can be tried.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kopt.core.workload.save_state import SaveState

_MOST_LOOKS = 2000
"""Workloads that are looked at, all together, while other selections than the first are tried."""


class Safety(IntEnum):
    """How a workload's checkpoint stands, the best first."""

    SAFE = 0
    SAVES = 1
    """It writes one now, or will where it is asked: it is waited for."""
    UNSAFE = 2
    """Nothing is known of a checkpoint, or it was asked and has not saved."""


@dataclass(frozen=True)
class BorrowedRun:
    """A workload of a queue that uses more than its quota: since when it runs, and for how long it is left alone.

    ``lost_s``: the work that it would lose now, in seconds of each of its GPUs. ``was_evicted``: before it was admitted
    this time. ``terminating``: it was evicted and has its quota still.
    """

    name: str
    started_s: float
    min_runtime_s: int = 0
    safety: Safety = Safety.UNSAFE
    lost_s: float = 0.0
    save: SaveState = SaveState.UNASKABLE
    was_evicted: bool = False
    terminating: bool = False


class Gone(Collection[str]):
    """Workloads that are gone from the tree, of which more are tried and given up in turn. ``changes`` has each that
    was added or removed, in order: a room that followed it to some point looks at what comes after it alone, so that a
    question costs the same among ten borrowers as among ten thousand."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = set(names)
        self.changes = list(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> None:
        self._names.add(name)
        self.changes.append(name)

    def remove(self, name: str) -> None:
        self._names.remove(name)
        self.changes.append(name)


class Room(Protocol):
    """The quota of the tree, with workloads that are gone from it."""

    def fits(self, evicted: Collection[str]) -> bool:
        """Whether the workload that waits has its quota then."""
        ...

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        """Whether the queue of a workload, and those above it that the owner is not in, still use more than theirs."""
        ...

    def shortfall(self, name: str, evicted: Collection[str]) -> float:
        """The part of its quota that the queue of a workload that lends would lack without it; 0 where it has all."""
        ...


def victims_of(runs: Sequence[BorrowedRun], room: Room) -> tuple[BorrowedRun, ...] | None:
    """The victims, beside those that are terminating already; empty where nobody else has to go, None where all of them
    together do not free enough.

    No queue is taken below its own quota while others would do; and among those who leave their queue its quota nobody
    whose checkpoint is not safe goes while others would do.
    """
    gone = Gone(run.name for run in runs if run.terminating)
    if room.fits(gone):
        return ()
    alive = sorted((run for run in runs if not run.terminating), key=order)
    looks = _MOST_LOOKS
    for worst in sorted({run.safety for run in alive}):
        victims, looks = _keeping_quotas([run for run in alive if run.safety <= worst], gone, room, looks)
        if victims is not None:
            return needed(victims, gone, room)
    if not room.fits([run.name for run in runs]):
        return None
    picked: list[BorrowedRun] = []
    # Whoever would take its queue below its quota still would when others have gone from it.
    below = list[BorrowedRun]()
    for run in alive:
        if not room.lends(run.name, gone):
            continue
        if room.shortfall(run.name, gone) > 0:
            below.append(run)
        elif _picked(run, picked, gone, room):
            return needed(picked, gone, room)
    lacks = {run.name: room.shortfall(run.name, gone) for run in below}
    for run in sorted(below, key=lambda run: (lacks[run.name], *order(run))):
        if room.lends(run.name, gone) and _picked(run, picked, gone, room):
            return needed(picked, gone, room)
    return None


def _keeping_quotas(
    runs: Sequence[BorrowedRun], gone: Gone, room: Room, looks: int
) -> tuple[list[BorrowedRun] | None, int]:
    """The first selection, in order, that is enough and leaves all queues their quota, and the looks that are left.
    Where the first that was begun ends without being enough its last one is left out, and so on. Who was selected is
    in ``gone`` then; without a selection nobody is."""
    picked, start, is_first = list[int](), 0, True
    while is_first or looks > 0:
        for index in range(start, len(runs)):
            looks -= 0 if is_first else 1
            name = runs[index].name
            if room.lends(name, gone) and room.shortfall(name, gone) <= 0:
                picked.append(index)
                gone.add(name)
                if room.fits(gone):
                    return [runs[each] for each in picked], looks
        if is_first and not room.fits([*gone, *(run.name for run in runs if run.name not in gone)]):
            break
        is_first = False
        start = _left_out(runs, picked, gone, room)
        if start == len(runs):
            break
    for index in picked:
        gone.remove(runs[index].name)
    return None, looks


def _left_out(runs: Sequence[BorrowedRun], picked: list[int], gone: Gone, room: Room) -> int:
    """Takes the last one out of a selection until all that come after it would be enough, and where these begin; at the
    end of ``runs`` where nothing is."""
    added, end = list[str](), len(runs)
    while picked:
        start = picked.pop() + 1
        gone.remove(runs[start - 1].name)
        # What came after the one before it is there already, so that each is added once.
        for index in range(start, end):
            added.append(runs[index].name)
            gone.add(runs[index].name)
        end = start
        if room.fits(gone):
            break
    else:
        start = len(runs)
    for name in added:
        gone.remove(name)
    return start


def _picked(run: BorrowedRun, picked: list[BorrowedRun], gone: Gone, room: Room) -> bool:
    """Whether it is enough with this one, too."""
    picked.append(run)
    gone.add(run.name)
    return room.fits(gone)


def needed(victims: Sequence[BorrowedRun], gone: Gone, room: Room) -> tuple[BorrowedRun, ...]:
    """Without those that were selected before the last ones made them needless; the worst are spared first. ``gone``
    has the victims, and those that are terminating."""
    for run in reversed(victims):
        gone.remove(run.name)
        if not room.fits(gone):
            gone.add(run.name)
    return tuple(run for run in victims if run.name in gone)


def order(run: BorrowedRun) -> tuple[Safety, float, float, str]:
    """Who goes first where nothing else counts."""
    return run.safety, run.lost_s, -run.started_s, run.name
