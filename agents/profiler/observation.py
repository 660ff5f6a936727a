"""From readings to what a run needed: memory of its processes, activity, whether it was steady."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopt.agents.profiler.readings import Reading
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.units import MIB, Bytes, format_bytes
from kopt.core.workload.profile import DryRun, Spread
from kopt.core.workload.sizing import WorkloadProfile
from kopt.formats.gpu_metrics import GpuSample

_IN_USE = 16 * MIB
"""Less than this on top of the idle GPU is no use of it: drivers breathe."""


@dataclass(frozen=True)
class SteadySettings:
    """When a run has shown enough. Times in seconds."""

    window_s: float = 60.0
    """The peak must have held for at least this long, and for as long as it took to get there."""
    growth: float = 0.01
    """A peak that rises by no more than this share holds."""
    drift: float = 0.10
    """Difference of the mean activity of the last two windows at most."""
    capped_share: float = 0.97
    """From this share of the GPU's memory on, the GPU may have been the limit."""


@dataclass
class Observation:
    """Takes readings in the order of time; ``steady`` and ``result`` are of what was taken so far.

    ``idle`` is what each GPU's memory held before the command ran. Memory is that of the command's processes where the
    source tells them apart, else all that came on top of the idle GPU.
    """

    settings: SteadySettings = field(default_factory=SteadySettings)
    idle: Mapping[str, int] = field(default_factory=dict)
    samples: int = 0
    _peaks: dict[str, int] = field(default_factory=dict)
    _samples: dict[str, GpuSample] = field(default_factory=dict)
    _first_s: float | None = None
    _began_s: float | None = None
    _grew_s: float = 0.0
    _held: int = 0
    _last_s: float = 0.0
    _device_peak: int = 0
    _matched: bool = False
    _activity: list[float] = field(default_factory=list)
    _bandwidth: list[float] = field(default_factory=list)
    _recent: deque[tuple[float, float]] = field(default_factory=deque)

    def take(self, reading: Reading, pids: frozenset[int] = frozenset()) -> None:
        """One reading; ``pids`` are the command's processes."""
        self._began_s = reading.at_s if self._began_s is None else self._began_s
        self._last_s = reading.at_s
        used = self._used(reading, pids)
        for gpu, amount in used.items():
            self._peaks[gpu] = max(self._peaks.get(gpu, 0), amount)
        mine = [gpu_sample for gpu_sample in reading.gpus if used.get(gpu_sample.gpu)]
        if not mine and self._first_s is None:
            return
        self.samples += 1
        self._first_s = reading.at_s if self._first_s is None else self._first_s
        self._samples |= {gpu_sample.gpu: gpu_sample for gpu_sample in mine}
        self._record_peak(reading.at_s)
        self._device_peak = max([self._device_peak, *(gpu_sample.used_bytes or 0 for gpu_sample in mine)])
        users = [gpu_sample for gpu_sample in reading.gpus if gpu_sample.gpu in self._samples]
        self._record_shares(reading.at_s, users)

    @property
    def by_process(self) -> bool:
        """Whether memory is that of the command's processes, and not all that came on top of the idle GPU."""
        return self._matched

    @property
    def peak_bytes(self) -> Bytes:
        """The most on one GPU."""
        return Bytes(max(self._peaks.values(), default=0))

    @property
    def steady(self) -> bool:
        """The peak has held for long enough, and the GPUs do what they did before."""
        if self._first_s is None:
            return False
        needed_s = max(self.settings.window_s, self._grew_s - self._first_s)
        return self._last_s - self._grew_s >= needed_s and self._repeats()

    def result(
        self,
        *,
        source: str,
        exit_status: int | None = None,
        out_of_memory: bool = False,
        job_type: str = "",
        world_size: int = 1,
    ) -> DryRun:
        """What was seen. A run that never touched a GPU has a peak of 0."""
        gpu, unknown = self._model()
        total = max((gpu_sample.total_bytes or 0 for gpu_sample in self._samples.values()), default=0)
        profile = WorkloadProfile(
            gpu,
            self.peak_bytes,
            round(self._last_s - (self._began_s or 0.0), 3),
            self.samples,
            self.steady,
            _mean(self._activity),
            _mean(self._bandwidth),
            None,
            source,
        )
        capped = bool(total) and self._device_peak >= self.settings.capped_share * total
        return DryRun(
            profile,
            job_type,
            max(1, len(self._samples)),
            world_size,
            Bytes(total) if total else None,
            max(
                (
                    gpu_sample.reserved_bytes
                    for gpu_sample in self._samples.values()
                    if gpu_sample.reserved_bytes is not None
                ),
                default=None,
            ),
            _spread(self._activity),
            _spread(self._bandwidth),
            capped,
            out_of_memory,
            exit_status,
            tuple(self._warnings(unknown, capped)),
        )

    def _used(self, reading: Reading, pids: frozenset[int]) -> dict[str, int]:
        """Bytes by GPU that count as the command's; only GPUs of which it has some."""
        own = [process for process in reading.processes or () if process.pid in pids]
        if own and all(process_sample.used_bytes is not None and process_sample.gpu for process_sample in own):
            self._matched = True
            by_gpu: dict[str, int] = {}
            for process_sample in own:
                by_gpu[process_sample.gpu] = by_gpu.get(process_sample.gpu, 0) + (process_sample.used_bytes or 0)
            return by_gpu
        if self._matched:
            # Once processes were told apart, a reading without them is one in which they held nothing.
            return {}
        grown = {
            gpu_sample.gpu: (gpu_sample.used_bytes or 0) - self.idle.get(gpu_sample.gpu, 0)
            for gpu_sample in reading.gpus
        }
        return {gpu: amount for gpu, amount in grown.items() if amount >= _IN_USE}

    def _record_peak(self, at_s: float) -> None:
        largest = max(self._peaks.values(), default=0)
        if largest > self._held * (1 + self.settings.growth):
            self._held, self._grew_s = largest, at_s

    def _record_shares(self, at_s: float, users: Sequence[GpuSample]) -> None:
        for result, store in (
            ([gpu_sample.activity for gpu_sample in users if gpu_sample.activity is not None], self._activity),
            ([gpu_sample.bandwidth for gpu_sample in users if gpu_sample.bandwidth is not None], self._bandwidth),
        ):
            if result:
                store.append(sum(result) / len(result))
        if self._activity:
            self._recent.append((at_s, self._activity[-1]))
        while self._recent and self._recent[0][0] < at_s - 2 * self.settings.window_s:
            self._recent.popleft()

    def _repeats(self) -> bool:
        middle = self._last_s - self.settings.window_s
        before = [share for at_s, share in self._recent if at_s < middle]
        after = [share for at_s, share in self._recent if at_s >= middle]
        if not before or not after:
            return True
        return abs(sum(before) / len(before) - sum(after) / len(after)) <= self.settings.drift

    def _model(self) -> tuple[str, str]:
        name = next((gpu_sample.name for gpu_sample in self._samples.values() if gpu_sample.name), "")
        try:
            return (find_gpu(name).name, "") if name else ("", "")
        except UnknownGpuError:
            return name[:100], name[:100]

    def _warnings(self, unknown: str, capped: bool) -> list[str]:
        warnings = []
        if unknown:
            warnings.append(f"{unknown} is not in the catalogue of GPUs")
        if not self._samples:
            warnings.append("no GPU was used")
        elif not self._matched:
            warnings.append("the driver did not tell the command's processes apart: all use of its GPUs is counted")
        if capped:
            warnings.append(
                f"memory of the GPU was nearly full ({format_bytes(self._device_peak)}): the need may be larger"
            )
        return warnings


def _mean(shares: Sequence[float]) -> float | None:
    return min(1.0, sum(shares) / len(shares)) if shares else None


def _spread(shares: Sequence[float]) -> Spread | None:
    if not shares:
        return None
    ordered = sorted(shares)
    middle, high = ordered[(len(ordered) - 1) // 2], ordered[round(0.95 * (len(ordered) - 1))]
    return Spread(middle, high, ordered[-1])
