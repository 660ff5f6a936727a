"""Where the pages read what GPU-hours were used for."""

from typing import Protocol

from kopt.core.workload.gpu_hours import GpuHourHistory


class GpuHoursError(Exception):
    """They cannot be read now; the message is a sentence for the reader."""


class GpuHourSource(Protocol):
    """What was recorded of GPU-hours, such as a Prometheus."""

    def history(self, window_s: float) -> GpuHourHistory:
        """Of the last ``window_s`` seconds. Blocks; raises GpuHoursError."""
