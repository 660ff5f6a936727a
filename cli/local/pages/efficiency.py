"""Where the pages read what GPU-hours were used for: their Prometheus, or the example's."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kopt.cli.local.example.gpu_hours import ExampleGpuHours
from kopt.cli.local.pages.prometheus import prometheus_of
from kopt.core.scheduling.queue_demand import QueueDemandHistory
from kopt.core.workload.gpu_hours import GpuHourHistory
from kopt.dashboard.data.gpu_hours import GpuHoursError, GpuHourSource
from kopt.data.queue_demand import read_queue_demand

if TYPE_CHECKING:
    from kopt.data.demand.prometheus import Server


class RecordedGpuHours:
    """The sums that our rules record in a Prometheus."""

    def __init__(self, server: "Callable[[], Server]") -> None:
        self._server = server

    def history(self, window_s: float) -> GpuHourHistory:
        from kopt.data.gpu_hours import read_gpu_hours

        with self._answering("GPU-hours cannot be read") as server:
            return read_gpu_hours(server, window_s)

    def queue_waits(self, start_s: float, step_s: int, steps: int) -> Mapping[str, tuple[float | None, ...]]:
        from kopt.data.gpu_hours import read_queue_waits

        with self._answering("How many GPUs queues waited for cannot be read") as server:
            return read_queue_waits(server, start_s, step_s, steps)

    def queue_demand(self, since_s: float) -> QueueDemandHistory:
        with self._answering("What queues demanded cannot be read") as server:
            return read_queue_demand(server, since_s)

    @contextmanager
    def _answering(self, otherwise: str) -> "Iterator[Server]":
        try:
            with self._server() as server:
                yield server
        except (ValueError, OSError) as error:
            raise GpuHoursError(f"{otherwise}: {error}") from error


def gpu_hours_of(environ: Mapping[str, str]) -> GpuHourSource | None:
    """None where the environment names no Prometheus."""
    if environ.get("KOPT_PAGES_EXAMPLE", "") == "true":
        return ExampleGpuHours()
    prometheus = prometheus_of(environ)
    return None if prometheus is None else RecordedGpuHours(prometheus)
