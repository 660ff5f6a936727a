"""The ledger's arithmetic: what an eviction cost, in which order workloads return, which old lines may go."""

from collections.abc import Iterable
from dataclasses import dataclass

from kopt.core.evictions import Entry, Phase
from kopt.core.units import WHOLE_GPU

_TIES = 1000


@dataclass(frozen=True)
class LastWord:
    """What was last known of a workload's checkpoints while it ran. Times are Unix seconds.

    ``risk_gpu_s``: work that would have been lost at ``observed_at_s``, of all its GPUs.
    """

    observed_at_s: float
    step: int | None = None
    durable_at_s: float | None = None
    risk_gpu_s: float | None = None
    first_step: int | None = None
    """Of the pod that told."""


def lost_gpu_s(word: LastWord | None, gpus: int, evicted_at_s: float) -> float | None:
    """GPU-seconds of work that an eviction of ``gpus`` milli-GPU threw away; None when nothing is known.

    What was at risk when it was last said, and what was computed since; never more than since the last checkpoint.
    """
    if word is None:
        return None
    since_durable_s = None if word.durable_at_s is None else max(0.0, evicted_at_s - word.durable_at_s)
    if word.risk_gpu_s is None:
        return None if since_durable_s is None else since_durable_s * gpus / WHOLE_GPU
    return word.risk_gpu_s + max(0.0, evicted_at_s - word.observed_at_s) * gpus / WHOLE_GPU


def order_of_return(evicted_at_s: float, lost: float | None, gpus: int) -> int:
    """Who was evicted first returns first; of the same second, who lost most of each of its GPUs."""
    hours_each = (lost or 0.0) / 3600 / max(1e-3, gpus / WHOLE_GPU)
    return int(evicted_at_s) * _TIES + _TIES - 1 - min(_TIES - 1, round(hours_each * 10))


@dataclass(frozen=True)
class Keeping:
    """How long lines are kept, and how many; those of workloads that wait are kept."""

    age_s: float = 30 * 86_400.0
    most: int = 5000

    def __post_init__(self) -> None:
        if self.age_s <= 0 or self.most < 1:
            raise ValueError("lines are kept for some time, and one at least")


def outlived(entries: Iterable[Entry], now_s: float, keeping: Keeping) -> list[Entry]:
    """Lines that may go, the oldest first.

    For their number those go that are not the newest of a workload which may be evicted again: that line says which of
    its evictions are written down already. Nobody asks about what is as old as ``age_s``.
    """
    lines = sorted(entries, key=lambda one: (one.eviction.evicted_at_s, one.eviction.name))
    newest = {one.eviction.workload.uid: one for one in lines}
    past = {id(one) for one in lines if newest[one.eviction.workload.uid] is not one}
    stays = {id(one) for one in lines if one.outcome.phase is Phase.WAITING and id(one) not in past}
    old = [one for one in lines if one.eviction.evicted_at_s < now_s - keeping.age_s and id(one) not in stays]
    going = set(map(id, old))
    spare = [one for one in lines if id(one) not in going and (one.outcome.final or id(one) in past)]
    over = max(0, len(lines) - len(old) - keeping.most)
    return old + spare[:over]
