"""Which XIDs are news: a counter from boot on, and a last code that stays, would say the same of a GPU for ever."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from kopt.formats.gpu_metrics.device_reading import DeviceReading

_MOST_GPUS, _MOST_CODES = 128, 64


class RecentXids:
    """XIDs of each GPU that are younger than ``window_s`` seconds.

    An XID is as old as the kernel log says; else it came when its count grew, or the last code became another one. What
    is there at the first look counts as new: nobody knows since when, and a fault that nobody hears of costs more.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._counts: dict[str, dict[str, float]] = {}
        self._at_s: dict[str, dict[str, float]] = {}

    def added_to(
        self,
        devices: Sequence[DeviceReading],
        now_s: float,
        logged_s: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
        counted: Sequence[DeviceReading] | None = None,
    ) -> tuple[DeviceReading, ...]:
        """The readings with their field ``recent_xid_errors``. ``logged_s``: when codes came last by the kernel log, by
        the PCI address of the reading, on the clock of ``now_s`` (monotonic). ``counted``: the same readings, in the
        same order, with the counts to go by where they are not those to show."""
        return tuple(
            device if device.partition else self._with_recent(device, counts, now_s, logged_s.get(device.pci, {}))
            for device, counts in zip(devices, devices if counted is None else counted, strict=True)
        )

    def _with_recent(
        self, device: DeviceReading, counted: DeviceReading, now_s: float, logged_s: Mapping[str, float]
    ) -> DeviceReading:
        gpu = device.uuid or device.gpu
        if gpu not in self._at_s and len(self._at_s) >= _MOST_GPUS:
            return device
        at_s = self._at_s.setdefault(gpu, {})
        counts = _counts(counted)
        before = self._counts.get(gpu, {})
        for code, count in counts.items():
            if count > before.get(code, 0.0) and (code in at_s or len(at_s) < _MOST_CODES):
                at_s[code] = logged_s.get(code, now_s)
        if counts or counted.values:
            # One that does not answer says nothing of what it counted.
            self._counts[gpu] = counts
        for code in [code for code, then_s in at_s.items() if now_s - then_s >= self._window_s]:
            del at_s[code]
        if not at_s:
            return device
        return replace(device, labelled={**device.labelled, "recent_xid_errors": dict.fromkeys(at_s, 1.0)})


def _counts(device: DeviceReading) -> dict[str, float]:
    """By code. An exporter that gives the last code alone has counted it once."""
    counts = dict(device.labelled.get("xid_errors_total", {}))
    last = int(device.values.get("last_xid", 0.0))
    if last:
        counts.setdefault(str(last), 1.0)
    return counts
