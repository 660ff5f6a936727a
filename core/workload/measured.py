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
    pods together. ``jobs`` are Prometheus' scrape jobs that reported the memory. ``idle_s``: for how many seconds of
    what was measured of each no kernel ran, the mean of the pods; None where ``measured_s`` and ``activity`` say it.
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
    idle_s: float | None = None

    @property
    def unused_s(self) -> float | None:
        """Seconds in which no kernel ran; None where that is not measured."""
        if self.idle_s is not None or self.activity is None:
            return self.idle_s
        return self.measured_s * (1 - self.activity)


def together(uses: Iterable[MeasuredUse]) -> MeasuredUse | None:
    """The use of several pods of one kind: the highest peak and activity of any. None without any pod."""
    pods = list(uses)
    if not pods:
        return None
    longest = max(pods, key=lambda use: use.measured_s)
    means = [use.activity for use in pods if use.activity is not None]
    # One that came back a moment ago was not idle for as long as the others were.
    idle_s = [use.unused_s for use in pods if use.unused_s is not None]
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
        sum(idle_s) / len(idle_s) if idle_s else None,
    )
