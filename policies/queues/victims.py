"""Which borrowers make room for a queue that takes its quota back: those whose checkpoints are safe before all others,
by the work that they lose, and no more than it takes."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kopt.core.workload.save_state import SaveState


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


class Room(Protocol):
    """The quota of the tree, with workloads that are gone from it."""

    def fits(self, evicted: Collection[str]) -> bool:
        """Whether the workload that waits has its quota then."""
        ...

    def lends(self, name: str, evicted: Collection[str]) -> bool:
        """Whether the queue of a workload, and those above it that the owner is not in, still use more than theirs."""
        ...


def victims_of(runs: Sequence[BorrowedRun], room: Room) -> tuple[BorrowedRun, ...] | None:
    """The victims, beside those that are terminating already; empty where nobody else has to go, None where all of them
    together do not free enough.

    No workload whose checkpoint is not safe is among them while others would do.
    """
    terminating = [run.name for run in runs if run.terminating]
    if room.fits(terminating):
        return ()
    result: list[BorrowedRun] = []
    evicted = list(terminating)
    for run in sorted((run for run in runs if not run.terminating), key=_order):
        if room.lends(run.name, evicted):
            result.append(run)
            evicted.append(run.name)
            if room.fits(evicted):
                return _needed(result, terminating, room)
    return None


def _needed(victims: list[BorrowedRun], terminating: list[str], room: Room) -> tuple[BorrowedRun, ...]:
    """Without those that were selected before the last ones made them needless; the worst are spared first."""
    result = list(victims)
    for run in reversed(victims):
        remaining = [*terminating, *(other.name for other in result if other is not run)]
        if room.fits(remaining):
            result.remove(run)
    return tuple(result)


def _order(run: BorrowedRun) -> tuple[Safety, float, float, str]:
    return run.safety, run.lost_s, -run.started_s, run.name
