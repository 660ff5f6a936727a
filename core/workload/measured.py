"""What pods really used of their GPUs, as an exporter measured it."""

from collections.abc import Iterable
from dataclasses import dataclass

from kopt.core.units import Bytes


@dataclass(frozen=True)
class MeasuredUse:
    """Use of each GPU by ``pods`` pods that run.

    ``peak_bytes`` is the most that any of their GPUs held, ``measured_s`` the time with readings, in seconds, of the
    pod with most of it: gaps are left out. ``activity`` is the mean share, 0 to 1, of time in which kernels ran, and
    ``activity_high`` that of the busiest step of the window. ``gpu`` is the model as the exporter calls it. A
    ``partition`` is a MIG device or a partition of an AMD GPU. Of a ``shared`` GPU the figures are those of all its
    pods together. ``jobs`` are Prometheus' scrape jobs that reported the memory.
    """

    peak_bytes: Bytes
    measured_s: float
    pods: int = 1
    activity: float | None = None
    activity_high: float | None = None
    gpu: str = ""
    partition: bool = False
    shared: bool = False
    jobs: tuple[str, ...] = ()


def together(uses: Iterable[MeasuredUse]) -> MeasuredUse | None:
    """The use of several pods of one kind: the highest peak and activity of any. None without any pod."""
    pods = list(uses)
    if not pods:
        return None
    longest = max(pods, key=lambda use: use.measured_s)
    means = [use.activity for use in pods if use.activity is not None]
    models = {use.gpu for use in pods}
    return MeasuredUse(
        max(use.peak_bytes for use in pods),
        longest.measured_s,
        sum(use.pods for use in pods),
        sum(means) / len(means) if means else None,
        max((use.activity_high for use in pods if use.activity_high is not None), default=None),
        models.pop() if len(models) == 1 else "",
        any(use.partition for use in pods),
        any(use.shared for use in pods),
        tuple(sorted({job for use in pods for job in use.jobs})),
    )
