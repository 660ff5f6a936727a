"""XIDs of NVIDIA's driver and memory errors of AMD's from the kernel log, for GPUs of which no exporter gives them.

The log has what an agent that starts later has missed, and the last words about a GPU that fell off the bus. It is read
from its beginning, so that counts are those since boot, as far as the log reaches, whenever the agent starts.

Format: Linux, ``Documentation/ABI/testing/dev-kmsg``. Lines: NVIDIA, "XID Errors"; Linux, ``amdgpu_ras.c``.
"""

import errno
import logging
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kopt.agents.telemetry.exposition import GpuIdentity
from kopt.formats.gpu_metrics.device_reading import DeviceReading

_LOG = logging.getLogger(__name__)
_RECORD_BYTES = 8192
"""The longest that the kernel makes (CONSOLE_EXT_LOG_MAX); for a smaller buffer it answers EINVAL."""
_MOST_RECORDS = 50_000
"""In one look; the rest follows in the next."""
_MOST_CODES, _MOST_GPUS = 32, 128
_MOST_ERRORS = 1_000_000
"""A driver that reads a GPU which sleeps says 1048560 errors for each channel."""
_PREFIX = re.compile(r"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]{0,64}", re.ASCII)
_XID = re.compile(
    r"NVRM: (?:GPU\d{1,4} )?Xid \((?:PCI:)?(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(?:\.[0-7])?"
    r"(?: GPU-I:[0-9a-f]{1,4})?\): (?P<code>\d{1,5})\b",
    re.ASCII | re.IGNORECASE,
)
_RAS = re.compile(
    r"amdgpu (?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]: (?:amdgpu: )?(?:\{\d{1,20}\})?"
    r"(?:socket: \d{1,4}, (?:die: \d{1,4}, )?)?(?P<count>\d{1,18}) (?P<new>new )?(?P<kind>un)?correctable "
    r"hardware errors? detected in (?:total in )?(?P<block>\w{1,32}) block",
    re.ASCII | re.IGNORECASE,
)
_KERNEL = 0
"""The facility of the kernel's own messages. Processes may write to the log too, but not with this one."""


def _raw_s() -> float:
    """Seconds since boot that NTP has not corrected, as in records."""
    return time.clock_gettime(time.CLOCK_MONOTONIC_RAW)


@dataclass(frozen=True)
class Record:
    """``sequence`` counts up by one from boot on; ``at_s`` is seconds of the processor's clock, which NTP does not
    correct: over months it may be minutes away from the monotonic one."""

    facility: int
    sequence: int
    message: str
    at_s: float


def read_record(raw: bytes) -> Record | None:
    """Of one read of /dev/kmsg; None for what is no record. Lines after the first are the kernel's notes on it."""
    prefix, separator, message = raw.partition(b"\n")[0].decode(errors="replace").partition(";")
    match = _PREFIX.fullmatch(prefix)
    if match is None or not separator:
        return None
    return Record(int(match[1]) >> 3, int(match[2]), message, int(match[3]) / 1e6)


class KernelLog:
    """What was read so far, by PCI address without function. ``problem``: why nothing is read, empty while it is."""

    def __init__(
        self,
        path: Path = Path("/dev/kmsg"),
        read: Callable[[int, int], bytes] = os.read,
        clock: Callable[[], float] = time.monotonic,
        raw_clock: Callable[[], float] = _raw_s,
    ) -> None:
        self._path, self._read, self._clock, self._raw_clock = path, read, clock, raw_clock
        self._file: int | None = None
        self._is_backlog = True
        """Until the end of the log was reached once: what is read then came before, what comes later came just now."""
        self._next = 0
        self.xids: dict[str, Counter[str]] = {}
        self.last_xid: dict[str, float] = {}
        self.xid_at_s: dict[str, dict[str, float]] = {}
        """When each code came last, on ``clock`` (monotonic)."""
        self._errors: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self.events = 0
        """XIDs so far."""
        self.records = self.lost = 0
        """Records that were read, and those that the kernel had overwritten before."""
        self.problem = ""

    def read_new(self) -> None:
        """Read what is new. Never waits, and never raises."""
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            for raw in self._news(self._file):
                self._count(raw)
        except OSError as error:
            # Opened anew it begins again: records that were counted are known by their number.
            self.close()
            problem = f"the kernel log {self._path} cannot be read: {error.strerror}"
            if problem != self.problem:
                _LOG.warning("%s", problem)
            self.problem = problem
            return
        self.problem = ""

    def _news(self, file: int) -> Iterator[bytes]:
        for _ in range(_MOST_RECORDS):
            try:
                raw = self._read(file, _RECORD_BYTES)
            except BlockingIOError:
                self._is_backlog = False
                return
            except OSError as error:
                # EPIPE: overwritten before it was read, the next read has the oldest. EINVAL: longer than can be.
                if error.errno not in (errno.EPIPE, errno.EINVAL):
                    raise
                continue
            if not raw:
                return
            yield raw

    def _count(self, raw: bytes) -> None:
        record = read_record(raw)
        if record is None or record.sequence < self._next:
            return
        # Of what the log no longer had at the start nobody knows whether it mattered.
        self.lost += record.sequence - self._next if self.records else 0
        self._next = record.sequence + 1
        self.records += 1
        if record.facility != _KERNEL:
            return
        if (xid := _XID.match(record.message)) is not None:
            self._count_xid(pci_device(xid["pci"]), str(int(xid["code"])), self._clock() - self._age_s(record))
        elif (ras := _RAS.match(record.message)) is not None and int(ras["count"]) < _MOST_ERRORS:
            kind = "uncorrectable" if ras["kind"] else "correctable"
            self._count_errors(pci_device(ras["pci"]), kind, ras["block"].lower(), int(ras["count"]), ras["new"])

    def _age_s(self, record: Record) -> float:
        """Only of what was there before does the log's own time count; the raw clock drifts as it does."""
        return max(0.0, self._raw_clock() - record.at_s) if self._is_backlog else 0.0

    def _count_xid(self, pci: str, code: str, at_s: float) -> None:
        if pci not in self.xids and len(self.xids) >= _MOST_GPUS:
            return
        counts = self.xids.setdefault(pci, Counter())
        known = code if code in counts or len(counts) < _MOST_CODES else "other"
        counts[known] += 1
        self.xid_at_s.setdefault(pci, {})[known] = at_s
        self.last_xid[pci] = float(code)
        self.events += 1

    def _count_errors(self, pci: str, kind: str, block: str, count: int, new: str | None) -> None:
        if (pci, kind) not in self._errors and len(self._errors) >= 2 * _MOST_GPUS:
            return
        blocks = self._errors[pci, kind]
        if block in blocks or len(blocks) < _MOST_CODES:
            # Without that word it is how many there were in all.
            blocks[block] = blocks[block] + count if new else max(blocks[block], count)

    def errors(self, pci: str) -> dict[str, float]:
        """Memory errors of a GPU by the name of their field."""
        kinds = ("correctable", "uncorrectable")
        return {
            f"ecc_{kind}_errors_total": float(sum(self._errors[pci, kind].values()))
            for kind in kinds
            if (pci, kind) in self._errors
        }

    @property
    def addresses(self) -> frozenset[str]:
        """Of GPUs that it speaks of."""
        return frozenset(self.xids) | {pci for pci, _ in self._errors}

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file, self._is_backlog = None, True


def pci_device(written: str) -> str:
    """Domain, bus and device, without the function: ``0000:3b:00`` of ``00000000:3B:00.0``; else empty."""
    domain, _, rest = written.lower().partition(".")[0].partition(":")
    return f"{domain[-4:] if not domain[:-4].strip('0') else domain}:{rest}" if rest.count(":") == 1 else ""


def gives_xids(devices: Sequence[DeviceReading]) -> bool:
    return any("xid_errors_total" in device.labelled or "last_xid" in device.values for device in devices)


def silent_gpus(
    devices: Sequence[DeviceReading], gpus: Sequence[GpuIdentity], last: Sequence[DeviceReading] = ()
) -> tuple[DeviceReading, ...]:
    """GPUs that have answered before and do not now, with what NVML had of them at the ``last``: one that fell off the
    bus says no more."""
    answering, labelled = {device.gpu for device in devices}, {device.uuid: device.labelled for device in last}
    return tuple(
        DeviceReading(each.gpu, each.uuid, each.model, pci=each.pci, labelled=labelled.get(each.uuid, {}))
        for each in gpus
        if each.gpu not in answering
    )


def with_kernel_log(devices: Sequence[DeviceReading], log: KernelLog) -> tuple[DeviceReading, ...]:
    """The readings with what the log says of their GPUs. XIDs that a driver's library has counted since the agent began
    to look are the same events, so the larger count holds; memory errors count only where nothing else counts them."""
    return tuple(device if device.partition else _with_log(device, log) for device in devices)


def _with_log(device: DeviceReading, log: KernelLog) -> DeviceReading:
    pci = pci_device(device.pci)
    values, labelled = log.errors(pci) | dict(device.values), dict(device.labelled)
    if pci in log.xids:
        counted: Mapping[str, float] = device.labelled.get("xid_errors_total", {})
        codes = log.xids[pci]
        labelled["xid_errors_total"] = {
            code: max(counted.get(code, 0.0), float(codes[code])) for code in {*counted, *codes}
        }
        values["last_xid"] = log.last_xid[pci]
    return replace(device, values=values, labelled=labelled)
