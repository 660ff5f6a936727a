"""Where the pages read what GPU-hours were used for."""

from collections.abc import Mapping
from typing import Protocol

from kopt.core.scheduling.queue_demand import QueueDemandHistory
from kopt.core.workload.gpu_hours import GpuHourHistory


class GpuHoursError(Exception):
    """They cannot be read now; the message is a sentence for the reader."""


class GpuHourSource(Protocol):
    """What was recorded of GPU-hours, such as a Prometheus."""

    def history(self, window_s: float) -> GpuHourHistory:
        """Of the last ``window_s`` seconds. Blocks; raises GpuHoursError."""

    def queue_waits(self, start_s: float, step_s: int, steps: int) -> Mapping[str, tuple[float | None, ...]]:
        """By queue, for how many milli-GPU its workloads waited, the mean of each step; None where nothing was
        recorded. Blocks; raises GpuHoursError."""

    def queue_demand(self, since_s: float) -> QueueDemandHistory:
        """What queues used and waited for in each hour of the last ``since_s`` seconds. Blocks; raises
        GpuHoursError."""
