"""GPU-hours of workloads and of a cluster: requested, allocated and used. Partitions of GPUs count one each."""

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
    def unused(self) -> float:
        """Held and not computing."""
        return max(0.0, self.measured - self.used)

    @property
    def waited(self) -> float:
        """Requested without a node."""
        return max(0.0, self.requested - self.allocated)


@dataclass(frozen=True)
class ClusterStep:
    """GPUs of a cluster at one time. ``installed`` has broken ones and those of cordoned nodes, ``available`` has not;
    the rest is as in ``GpuHours``, in GPUs."""

    installed: float
    available: float
    requested: float
    allocated: float
    measured: float
    used: float


@dataclass(frozen=True)
class Workload:
    """What owns pods: a kind in a namespace, by way of a queue; ``queue`` is empty without one that is known."""

    namespace: str
    kind: str
    queue: str = ""
