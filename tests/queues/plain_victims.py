"""Who makes room, as ``policies.queues.victims`` selects it: with lists that are made anew for each question, which is
plain, and takes the square of the borrowers."""

from collections.abc import Sequence

from kopt.policies.queues.victims import BorrowedRun, Room, order

MOST_LOOKS = 2000


def plain_victims_of(runs: Sequence[BorrowedRun], room: Room) -> tuple[BorrowedRun, ...] | None:
    """The victims, beside those that are terminating already; empty where nobody else has to go, None where all of them
    together do not free enough.

    No queue is taken below its own quota while others would do; and among those who leave their queue its quota nobody
    whose checkpoint is not safe goes while others would do.
    """
    terminating = [run.name for run in runs if run.terminating]
    if room.fits(terminating):
        return ()
    alive = sorted((run for run in runs if not run.terminating), key=order)
    looks = MOST_LOOKS
    for worst in sorted({run.safety for run in alive}):
        victims, looks = _keeping_quotas([run for run in alive if run.safety <= worst], terminating, room, looks)
        if victims is not None:
            return _needed(victims, terminating, room)
    if not room.fits([run.name for run in runs]):
        return None
    picked: list[BorrowedRun] = []
    evicted = list(terminating)
    # Whoever would take its queue below its quota still would when others have gone from it.
    below = list[BorrowedRun]()
    for run in alive:
        if not room.lends(run.name, evicted):
            continue
        if room.shortfall(run.name, evicted) > 0:
            below.append(run)
        elif _picked(run, picked, evicted, room):
            return _needed(picked, terminating, room)
    lacks = {run.name: room.shortfall(run.name, evicted) for run in below}
    for run in sorted(below, key=lambda run: (lacks[run.name], *order(run))):
        if room.lends(run.name, evicted) and _picked(run, picked, evicted, room):
            return _needed(picked, terminating, room)
    return None


def _keeping_quotas(
    runs: Sequence[BorrowedRun], terminating: Sequence[str], room: Room, looks: int
) -> tuple[list[BorrowedRun] | None, int]:
    """The first selection, in order, that is enough and leaves all queues their quota, and the looks that are left.
    Where the first that was begun ends without being enough its last one is left out, and so on."""
    picked, start, is_first = list[int](), 0, True

    def gone(more: Sequence[BorrowedRun] = ()) -> list[str]:
        return [*terminating, *(runs[index].name for index in picked), *(run.name for run in more)]

    while is_first or looks > 0:
        evicted = gone()
        for index in range(start, len(runs)):
            looks -= 0 if is_first else 1
            name = runs[index].name
            if room.lends(name, evicted) and room.shortfall(name, evicted) <= 0:
                picked.append(index)
                evicted.append(name)
                if room.fits(evicted):
                    return [runs[each] for each in picked], looks
        if is_first and not room.fits(gone([run for index, run in enumerate(runs) if index not in picked])):
            return None, looks
        is_first = False
        while picked:
            start = picked.pop() + 1
            if room.fits(gone(runs[start:])):
                break
        else:
            return None, looks
    return None, looks


def _picked(run: BorrowedRun, picked: list[BorrowedRun], evicted: list[str], room: Room) -> bool:
    """Whether it is enough with this one, too."""
    picked.append(run)
    evicted.append(run.name)
    return room.fits(evicted)


def _needed(victims: list[BorrowedRun], terminating: list[str], room: Room) -> tuple[BorrowedRun, ...]:
    """Without those that were selected before the last ones made them needless; the worst are spared first."""
    result = list(victims)
    for run in reversed(victims):
        remaining = [*terminating, *(other.name for other in result if other is not run)]
        if room.fits(remaining):
            result.remove(run)
    return tuple(result)
