"""Whether what was recorded is what was there: by the nodes' GPU time, and by what pods themselves say of theirs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kopt.core.cost.metering import GPU_HOUR, MeteredPod, MilliGpuMs, Milliseconds


@dataclass(frozen=True)
class Reconciliation:
    """Of one window. ``used`` is of pods and idleness, ``capacity`` of nodes; ``recorded_ms`` and ``listed_ms``: for
    how long pods that are listed now held GPUs, by the records and by their own times; ``apart_ms``: the
    differences."""

    start_ms: Milliseconds
    end_ms: Milliseconds
    used: MilliGpuMs
    capacity: MilliGpuMs
    recorded_ms: Milliseconds
    listed_ms: Milliseconds
    apart_ms: Milliseconds

    @property
    def unreconciled(self) -> MilliGpuMs:
        return abs(self.used - self.capacity)

    @property
    def attribution_error(self) -> float:
        """Share of pods' time that is recorded otherwise than they themselves say."""
        return self.apart_ms / self.listed_ms if self.listed_ms else 0.0

    @property
    def sentence(self) -> str:
        difference = f"{self.unreconciled / GPU_HOUR:.6f} GPU-hours apart"
        return (
            f"reconciled: {self.used / GPU_HOUR:.3f} GPU-hours of pods and idleness, {self.capacity / GPU_HOUR:.3f} of "
            f"nodes, {difference}; pods' times differ by {self.attribution_error:.3%}"
        )


def reconciled(
    totals: tuple[MilliGpuMs, MilliGpuMs],
    lengths: Mapping[str, Milliseconds],
    pods: Iterable[MeteredPod],
    start_ms: Milliseconds,
    end_ms: Milliseconds,
) -> Reconciliation:
    """``totals``: used and capacity; ``lengths``: of the segments of each subject in the window."""
    recorded = listed = apart = 0
    for pod in pods:
        until_ms = end_ms if pod.ended_ms is None else min(end_ms, pod.ended_ms)
        own = max(0, until_ms - max(start_ms, pod.started_ms))
        recorded += lengths.get(pod.uid, 0)
        listed += own
        apart += abs(lengths.get(pod.uid, 0) - own)
    return Reconciliation(start_ms, end_ms, *totals, recorded, listed, apart)
