"""Answers at random moments, and how they compare with what was true."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.live_checkpoints.truth import Write


@dataclass(frozen=True)
class Status:
    """Whether a job could be stopped, and why (not)."""

    safe: bool
    reason: str = ""


@dataclass(frozen=True)
class Moment:
    """The statuses by job that were requested at ``began_s`` and had come at ``ended_s`` (monotonic seconds)."""

    began_s: float
    ended_s: float
    statuses: Mapping[str, Status]

    def safe(self, job: str) -> bool:
        return job in self.statuses and self.statuses[job].safe


@dataclass(frozen=True)
class Figures:
    """Of one job: ``moments`` once a checkpoint existed; ``in_write`` of them fell into a write, ``unsafe`` of these
    it was called safe; ``share`` of all of them it could be stopped, after ``wait_s`` in the median."""

    moments: int
    in_write: int
    unsafe: int
    writes: int
    unsafe_writes: int
    share: float
    wait_s: float
    reasons: tuple[tuple[str, int], ...]
    wrong: tuple[tuple[float, str], ...]
    """Unsafe answers: seconds since the write began, and the reason that was given."""


def figures(job: str, moments: Sequence[Moment], writes: Sequence[Write]) -> Figures:
    first_s = min((write.durable_s for write in writes), default=math.inf)
    counted = [moment for moment in moments if moment.began_s >= first_s]
    writing = [
        (moment, write) for moment in counted for write in writes if write.is_under_way(moment.began_s, moment.ended_s)
    ]
    unsafe = [(moment, write) for moment, write in writing if moment.safe(job)]
    waits, safe_s = list[float](), math.inf
    for moment in reversed(counted):
        safe_s = moment.began_s if moment.safe(job) else safe_s
        waits.append(safe_s - moment.began_s)
    reasons = Counter(moment.statuses[job].reason[:60] for moment in counted if job in moment.statuses)
    return Figures(
        len(counted),
        len(writing),
        len(unsafe),
        len({write for _, write in writing}),
        len({write for _, write in unsafe}),
        sum(moment.safe(job) for moment in counted) / len(counted) if counted else math.nan,
        statistics.median(waits) if waits else math.nan,
        tuple(reasons.most_common(4)),
        tuple((moment.began_s - write.began_s, moment.statuses[job].reason) for moment, write in unsafe),
    )
