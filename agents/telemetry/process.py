"""``kopt agent telemetry``: one process, from start to the end."""

import asyncio
import itertools
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.agents.runtime.running import beside, end_signals, text_server
from kopt.agents.telemetry.exposition import Exposed, GpuIdentity, expose
from kopt.agents.telemetry.holders import Holders, holders_of
from kopt.agents.telemetry.kernel_log import KernelLog, gives_xids, pci_device, silent_gpus, with_kernel_log
from kopt.agents.telemetry.recent_xids import RecentXids
from kopt.agents.telemetry.sources import Source, TelemetryError
from kopt.agents.topology.pod_resources import KubeletError, PodResources, pod_resources
from kopt.core.hardware.node_allocation import DeviceAllocation
from kopt.formats.gpu_metrics.device_reading import DeviceReading

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LOG = logging.getLogger(__name__)
_NOBODY = Holders({}, {})
_SELDOM = 6
"""Looks between two questions about what device plugins offer, and for hardware that is not there."""
_MOST_GPUS = 128
_RENDER = re.compile(r"^drm_render_minor (\d{2,6})$", re.MULTILINE)


@dataclass(frozen=True)
class ProcessSettings:
    """Times in seconds. The first of ``sources`` that answers is read from then on, and no other."""

    node: str
    sources: Callable[[], Sequence[Source]]
    socket: Path | None = None
    """The kubelet's; None: series say nothing of pods."""
    interval_s: float = 10.0
    stale_s: float = 60.0
    """Readings and answers of the kubelet that are older are not shown."""
    most_series: int = 2000
    root: Path = Path("/")
    """Where the node's /sys is, for names of AMD's partitions."""
    kernel_log: Path | None = None
    """The node's /dev/kmsg, for errors that no exporter gives; None: it is not read."""
    host: str = "127.0.0.1"
    port: int | None = None
    xid_window_s: float = 3600.0
    """For how long an XID is news."""
    fault_interval_s: float = 2.0
    """Between two looks for XIDs, where they are to be had without a reading."""


async def serve(settings: ProcessSettings, stop: asyncio.Event | None = None) -> None:
    """Until SIGTERM, SIGINT or ``stop``."""
    ending = end_signals(stop)
    telemetry = Telemetry(settings)
    more = {"/metrics/faults": telemetry.faults_text}
    async with text_server(telemetry.text, settings.host, settings.port, more):
        try:
            async with beside([telemetry.run()]):
                await ending.wait()
        finally:
            await telemetry.close()


@dataclass
class _Kubelet:
    """What it said last."""

    allocations: tuple[DeviceAllocation, ...] = ()
    offered: dict[str, tuple[str, ...]] = field(default_factory=dict)
    at_s: float = float("-inf")
    reads: Counter[str] = field(default_factory=Counter)


class Telemetry:
    """Readings of one node and their exposition, made once for each reading."""

    def __init__(self, settings: ProcessSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._sources = list(settings.sources())
        self._source: Source | None = None
        self._devices: tuple[DeviceReading, ...] = ()
        self._lost: tuple[DeviceReading, ...] = ()
        """GPUs that do not answer, of which the driver still tells XIDs."""
        self._recent = RecentXids(settings.xid_window_s)
        self._read_s = float("-inf")
        self._inventory: dict[str, GpuIdentity] = {}
        self._kubelet = _Kubelet()
        self._log = KernelLog(settings.kernel_log, clock=clock) if settings.kernel_log is not None else None
        self._exports_xids = False
        """Whether the exporter that is read gives them: then the kernel log would count them twice."""
        self._problem = ""
        self._is_absent = False
        self._text, self._faults_text, self._good_until_s = b"", b"", float("-inf")
        self.readings: Counter[tuple[str, str]] = Counter()
        """By source and outcome."""

    async def run(self) -> None:
        """Never ends by itself. The kubelet and the GPUs are asked at once, so that neither waits for the other."""
        if self._settings.socket is None:
            await self._run(None)
            return
        async with pod_resources(self._settings.socket) as kubelet:
            await self._run(kubelet)

    async def _run(self, kubelet: PodResources | None) -> None:
        for count in itertools.count():
            begin_s = self._clock()
            # Where there is no such hardware, starting a process every time would cost more than readings do.
            work = [] if self._is_absent and count % _SELDOM else [self.read()]
            if kubelet is not None:
                work.append(self.ask(kubelet, is_all=count % _SELDOM == 0))
            await asyncio.gather(*work)
            if self._log is not None:
                await asyncio.to_thread(self._log.read_new)
            self.make()
            end_s = max(begin_s + self._settings.interval_s, self._clock() + 0.1)
            while end_s - self._clock() > self._settings.fault_interval_s:
                await asyncio.sleep(self._settings.fault_interval_s)
                if await self.read_faults():
                    self.make()
            await asyncio.sleep(max(0.0, end_s - self._clock()))

    async def read_faults(self) -> bool:
        """Only XIDs, from the source that answered and the kernel log; whether there are new ones."""
        before = self._devices, self._lost, self._log and self._log.events
        if self._source is not None:
            try:
                xids = {device.uuid: device for device in await self._source.read_xids()}
            except TelemetryError as error:
                # The next reading says more.
                self.readings[self._source.name, error.reason] += 1
                xids = {}
            self._devices = tuple(_with_xids(device, xids) for device in self._devices)
            self._lost = tuple(_with_xids(device, xids) for device in self._lost)
        if self._log is not None:
            await asyncio.to_thread(self._log.read_new)
        return before != (self._devices, self._lost, self._log and self._log.events)

    async def read(self) -> None:
        """Once, from the source that answered before, or from the first that does."""
        problems, reasons = [], set()
        for source in [self._source] if self._source is not None else self._sources:
            try:
                every = await source.read()
            except TelemetryError as error:
                self.readings[source.name, error.reason] += 1
                problems.append(f"{source.name}: {error}")
                reasons.add(error.reason)
                continue
            self.readings[source.name, "ok"] += 1
            self._lost = tuple(device for device in every if not device.values and not device.partition)
            self._devices = tuple(device for device in every if device.values or device.partition)
            self._source, self._read_s = source, self._clock()
            self._remember()
            self._say("")
            self._is_absent = False
            return
        # What was read before is shown until it is too old.
        self._is_absent = reasons == {"absent"}
        self._say("; ".join(problems))

    def _remember(self) -> None:
        for device in self._devices:
            if not device.partition and len(self._inventory) < _MOST_GPUS:
                identity = GpuIdentity(device.gpu, device.uuid, device.model, device.pci)
                self._inventory[device.uuid or device.gpu] = identity
        self._exports_xids |= self._source is not None and self._source.name == "exporter" and gives_xids(self._devices)

    async def ask(self, kubelet: PodResources, *, is_all: bool) -> None:
        """Once; a kubelet that is away changes nothing until what it said is too old."""
        try:
            self._kubelet.allocations = await kubelet.allocations()
        except KubeletError as error:
            self._kubelet.reads["failed"] += 1
            _LOG.debug("the kubelet does not say what pods have: %s", error)
            return
        self._kubelet.reads["ok"] += 1
        self._kubelet.at_s = self._clock()
        if is_all:
            try:
                self._kubelet.offered = await kubelet.allocatable()
            except KubeletError as error:
                # Shares are absent then, not guessed.
                self._kubelet.offered = {}
                self._say(f"the kubelet does not say what device plugins offer: {error}")

    def _say(self, problem: str) -> None:
        if problem and problem != self._problem:
            _LOG.warning("%s", problem)
        self._problem = problem

    def make(self) -> None:
        """The text of what is known now, so that a scrape does not wait for it."""
        self._text, self._faults_text, self._good_until_s = self._made(self._clock())

    def text(self) -> bytes:
        """What ``/metrics`` answers; made anew where something has become too old since."""
        if self._clock() > self._good_until_s:
            self.make()
        return self._text

    def faults_text(self) -> bytes:
        """What ``/metrics/faults`` answers: of the same text the few series that alerts on faults go by."""
        self.text()
        return self._faults_text

    def _made(self, now_s: float) -> tuple[bytes, bytes, float]:
        ends = [at_s + self._settings.stale_s for at_s in (self._read_s, self._kubelet.at_s)]
        devices = self._devices if ends[0] >= now_s else ()
        holders = _NOBODY
        if ends[1] >= now_s:
            aliases = partition_names(self._settings.root)
            holders = holders_of(self._kubelet.allocations, self._kubelet.offered, devices, aliases)
        gpus = sorted(self._inventory.values(), key=lambda each: (len(each.gpu), each.gpu, each.uuid))
        devices, silent = (
            self._with_recent_xids(each, now_s) for each in (devices, silent_gpus(devices, gpus, self._lost))
        )
        # Where nothing is read, nobody knows which of them answer.
        known = gpus if ends[0] >= now_s else []
        exposed = expose(self._settings.node, devices, known, holders, self._settings.most_series, silent)
        text = _written((*exposed.metrics, *self._own(exposed, holders), *self._of_the_log(gpus)))
        good_until_s = min([end for end in ends if end >= now_s], default=float("inf"))
        return text, _written(exposed.faults), good_until_s

    def _with_recent_xids(self, devices: Sequence[DeviceReading], now_s: float) -> tuple[DeviceReading, ...]:
        """With what the kernel log says of them. Where an exporter gives XIDs its counts are left alone, but not which
        are news: it has the last code of each GPU, and 79 may be followed by another one."""
        if self._log is None:
            return self._recent.added_to(devices, now_s)
        logged_s = {each.pci: self._log.xid_at_s.get(pci_device(each.pci), {}) for each in devices}
        counted = with_kernel_log(devices, self._log)
        return self._recent.added_to(devices if self._exports_xids else counted, now_s, logged_s, counted)

    def _own(self, exposed: Exposed, holders: Holders) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        readings = CounterMetricFamily(
            "kopt_telemetry_readings", "Readings of the GPUs, by how they ended.", labels=["source", "outcome"]
        )
        for key, count in sorted(self.readings.items()):
            readings.add_metric(key, count)
        yield readings
        reads = CounterMetricFamily(
            "kopt_telemetry_kubelet_reads", "Questions to the kubelet about what pods have.", labels=["outcome"]
        )
        for outcome, count in sorted(self._kubelet.reads.items()):
            reads.add_metric([outcome], count)
        yield reads
        if self._read_s > float("-inf"):
            # A time, not an age: the text is made once for several scrapes.
            at_s = time.time() - (self._clock() - self._read_s)
            last = GaugeMetricFamily(
                "kopt_telemetry_last_reading_seconds", "When the GPUs last answered.", labels=["node"]
            )
            last.add_metric([self._settings.node], at_s)
            yield last
        yield GaugeMetricFamily("kopt_telemetry_series", "Series of GPUs that are shown.", value=exposed.series)
        yield GaugeMetricFamily(
            "kopt_telemetry_series_limit", "How many there may be.", value=self._settings.most_series
        )
        yield GaugeMetricFamily(
            "kopt_telemetry_series_dropped", "Series that are left out because of the limit.", value=exposed.dropped
        )
        unmapped = GaugeMetricFamily(
            "kopt_telemetry_unmapped_devices", "Devices of pods that no reading is of.", labels=["resource"]
        )
        for resource, count in sorted(holders.unmapped.items()):
            unmapped.add_metric([resource], count)
        yield unmapped

    def _of_the_log(self, gpus: Sequence[GpuIdentity]) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        log = self._log
        if log is None:
            return
        is_read = float(not log.problem)
        yield GaugeMetricFamily("kopt_telemetry_kernel_log_read", "1 while the kernel log can be read.", value=is_read)
        yield CounterMetricFamily("kopt_telemetry_kernel_log_records", "Records of it that were read.", log.records)
        yield CounterMetricFamily("kopt_telemetry_kernel_log_lost", "Records overwritten before that.", log.lost)
        unmatched = len(log.addresses - {pci_device(each.pci) for each in gpus})
        text = "GPUs with errors in it that have not answered since the agent began to look."
        yield GaugeMetricFamily("kopt_telemetry_kernel_log_unmatched_gpus", text, value=unmatched)

    async def close(self) -> None:
        """Ends what reads."""
        if self._log is not None:
            self._log.close()
        for source in self._sources:
            await source.close()


def _with_xids(device: DeviceReading, xids: Mapping[str, DeviceReading]) -> DeviceReading:
    newer = xids.get(device.uuid) if not device.partition else None
    if newer is None:
        return device
    # One that does not answer has no values, which is how it is known.
    values = {**device.values, **newer.values} if device.values else device.values
    return replace(device, values=values, labelled={**device.labelled, **newer.labelled})


def _written(metrics: Sequence["Metric"]) -> bytes:
    """As Prometheus reads it."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class Made(Collector):
        def collect(self) -> "Iterator[Metric]":
            return iter(metrics)

    registry = CollectorRegistry()
    registry.register(Made())
    return generate_latest(registry)


def partition_names(root: Path) -> dict[str, str]:
    """What AMD's device plugin (``amdgpu_xcp_N``) and driver for claims (``gpu-CARD-RENDER``) call a device, as
    readings have it: both go by its render node, and the kernel says which compute node has that."""
    folder = root / "sys/class/kfd/kfd/topology/nodes"
    names = {}
    for path in folder.glob("*/properties"):
        match = _RENDER.search(_read(path))
        if match is not None:
            names[f"gpu-render-{match[1]}"] = f"kfd-{path.parent.name}"
    for path in (root / "sys/devices/platform").glob("amdgpu_xcp_*/drm/renderD*"):
        render = f"gpu-render-{path.name.removeprefix('renderD')}"
        if render in names:
            names[path.parents[1].name] = names[render]
    return names


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
