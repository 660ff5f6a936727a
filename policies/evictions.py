"""Arithmetic of evictions: what an eviction cost, the order in which workloads return, which old records to delete."""

from collections.abc import Iterable
from dataclasses import dataclass

from kopt.core.scheduling.eviction import Entry, LastReport, Phase
from kopt.core.units import WHOLE_GPU
from kopt.core.workload.checkpoint import LONGEST_START_S

_TIES = 1000


def lost_gpu_s(
    report: LastReport | None, gpus: int, evicted_at_s: float, began_at_s: float | None = None
) -> float | None:
    """GPU-seconds of work that an eviction of ``gpus`` milli-GPU lost; None if unknown.

    The work at risk by the last report plus what was computed since, bounded by what its GPUs can have computed since
    ``began_at_s`` plus a restart: the report may be a claim of the workload's user.
    """
    lost = _reported_loss_gpu_s(report, gpus, evicted_at_s)
    if lost is None or began_at_s is None:
        return lost
    return min(lost, (max(0.0, evicted_at_s - began_at_s) + LONGEST_START_S) * gpus / WHOLE_GPU)


def _reported_loss_gpu_s(report: LastReport | None, gpus: int, evicted_at_s: float) -> float | None:
    if report is None:
        return None
    since_durable_s = None if report.durable_at_s is None else max(0.0, evicted_at_s - report.durable_at_s)
    if report.risk_gpu_s is None:
        return None if since_durable_s is None else since_durable_s * gpus / WHOLE_GPU
    return report.risk_gpu_s + max(0.0, evicted_at_s - report.observed_at_s) * gpus / WHOLE_GPU


def order_of_return(evicted_at_s: float, lost: float | None, gpus: int) -> int:
    """Workloads return in the order of their evictions; within a second, the highest loss per GPU first."""
    hours_each = (lost or 0.0) / 3600 / max(1e-3, gpus / WHOLE_GPU)
    return int(evicted_at_s) * _TIES + _TIES - 1 - min(_TIES - 1, round(hours_each * 10))


@dataclass(frozen=True)
class Keeping:
    """How long records are kept, and how many; records of waiting workloads are always kept."""

    age_s: float = 30 * 86_400.0
    most: int = 5000

    def __post_init__(self) -> None:
        if self.age_s <= 0 or self.most < 1:
            raise ValueError("age_s must be positive, and most at least 1")


def outlived(entries: Iterable[Entry], now_s: float, keeping: Keeping) -> list[Entry]:
    """Records to delete, the oldest first.

    Records older than ``age_s`` go, except those of waiting workloads. To stay below ``most``, final records go, and
    those that are not the newest of a workload: the newest tells which of its evictions are recorded already.
    """
    ordered = sorted(entries, key=lambda entry: (entry.eviction.evicted_at_s, entry.eviction.name))
    newest = {entry.eviction.workload.uid: entry for entry in ordered}
    past = {id(entry) for entry in ordered if newest[entry.eviction.workload.uid] is not entry}
    stays = {id(entry) for entry in ordered if entry.outcome.phase is Phase.WAITING and id(entry) not in past}
    old = [entry for entry in ordered if entry.eviction.evicted_at_s < now_s - keeping.age_s and id(entry) not in stays]
    expired = set(map(id, old))
    spare = [entry for entry in ordered if id(entry) not in expired and (entry.outcome.final or id(entry) in past)]
    over = max(0, len(ordered) - len(old) - keeping.most)
    return old + spare[:over]
