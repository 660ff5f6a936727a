"""GPU-hours of workloads and of a cluster: requested, allocated and used. Partitions of GPUs count one each."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class GpuHours:
    """``requested``: of pods, whether or not they had a node; ``allocated``: of pods that had one; ``measured``: where
    something says how busy the GPU was; ``used``: the measured ones, each weighted by the share of time it computed."""

    requested: float = 0.0
    allocated: float = 0.0
    measured: float = 0.0
    used: float = 0.0

    def __add__(self, other: "GpuHours") -> "GpuHours":
        return GpuHours(
            self.requested + other.requested,
            self.allocated + other.allocated,
            self.measured + other.measured,
            self.used + other.used,
        )

    @property
    def efficiency(self) -> float | None:
        """Share of the measured time in which GPUs computed, 0 to 1; None where nothing was measured."""
        return min(1.0, self.used / self.measured) if self.measured > 0 else None

    @property
    def measured_share(self) -> float | None:
        """Of what was allocated, 0 to 1; None where nothing was."""
        return min(1.0, self.measured / self.allocated) if self.allocated else None

    @property
    def unused(self) -> float:
        """Held and not computing."""
        return max(0.0, self.measured - self.used)

    @property
    def waited(self) -> float:
        """Requested without a node."""
        return max(0.0, self.requested - self.allocated)


@dataclass(frozen=True)
class ClusterStep:
    """GPUs of a cluster at Unix time ``at_s``. ``installed`` has broken ones and those of cordoned nodes, ``available``
    leaves out those of them that no pod has; the rest is as in ``GpuHours``, in GPUs."""

    installed: float
    available: float
    requested: float
    allocated: float
    measured: float
    used: float
    at_s: float


@dataclass(frozen=True)
class Workload:
    """What owns pods: a kind in a namespace, by way of a queue; ``queue`` is empty without one that is known."""

    namespace: str
    kind: str
    queue: str = ""


@dataclass(frozen=True)
class GpuHourHistory:
    """``steps`` of the cluster, each ``step_s`` seconds long; hours by workload and node; GPU-hours that workloads
    waited for in Kueue, by pool. ``window_s`` is what was asked about."""

    step_s: int
    window_s: float
    steps: tuple[ClusterStep, ...]
    by_workload: Mapping[Workload, GpuHours]
    by_node: Mapping[str, GpuHours]
    waited_by_pool: Mapping[str, float]

    @property
    def recorded_s(self) -> int:
        """Seconds of the window with samples."""
        return len(self.steps) * self.step_s

    @property
    def coverage(self) -> float:
        """Share of the window with samples."""
        return min(1.0, self.recorded_s / self.window_s)
