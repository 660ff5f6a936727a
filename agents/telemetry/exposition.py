"""The text of ``/metrics``: every series of the node's GPUs, in the order of the table, up to a limit; and which are
those of faults.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kopt.agents.telemetry.holders import Holder, Holders
from kopt.core.hardware.gpu_telemetry import (
    FAULTS,
    FIELDS,
    HELD,
    HELD_DESCRIPTION,
    HOLDER_LABELS,
    LABELS,
    SHARE,
    SHARE_DESCRIPTION,
    UP,
    UP_DESCRIPTION,
    FieldKind,
    GpuField,
)
from kopt.formats.gpu_metrics.device_reading import DeviceReading

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_Row = tuple[list[str], float]


@dataclass(frozen=True)
class GpuIdentity:
    """A GPU that was read at some time, whether or not it answers now."""

    gpu: str
    uuid: str
    model: str
    pci: str = ""


@dataclass(frozen=True)
class Exposed:
    """Metrics of one reading, and how many series there are and were left out."""

    metrics: tuple["Metric", ...]
    series: int
    dropped: int

    @property
    def faults(self) -> tuple["Metric", ...]:
        """Those that may be scraped more often than the rest."""
        return tuple(metric for metric in self.metrics if metric.name in FAULTS)


def expose(
    node: str,
    devices: Sequence[DeviceReading],
    gpus: Sequence[GpuIdentity],
    holders: Holders,
    most_series: int,
    silent: Sequence[DeviceReading] = (),
) -> Exposed:
    """``devices`` is what answers now, of the node's ``gpus``; ``silent`` what others say of the rest."""
    answering = {(device.gpu, device.uuid) for device in devices if not device.partition}
    # An exporter may show only the instances of a GPU.
    answering |= {(each.gpu, each.uuid) for each in gpus if any(device.gpu == each.gpu for device in devices)}
    cap = _Cap(most_series)
    up = [
        ([node, each.gpu, each.uuid, each.model, "", "", "", ""], float((each.gpu, each.uuid) in answering))
        for each in gpus
    ]
    metrics = [cap.family(UP, UP_DESCRIPTION, LABELS, up)]
    every = [*devices, *silent]
    labels = {device.key: _labels(node, device, holders.alone(device.key)) for device in every}
    metrics += cap.families(HELD, HELD_DESCRIPTION, _held(node, devices, holders))
    metrics += cap.families(SHARE, SHARE_DESCRIPTION, _shares(node, devices, holders))
    for each in FIELDS:
        rows = [row for device in every for row in _rows(each, device, labels[device.key])]
        if rows:
            names = (*LABELS, each.label) if each.label else LABELS
            metrics.append(cap.family(each.metric, each.description, names, rows, each.kind))
    return Exposed(tuple(metrics), cap.series, cap.dropped)


class _Cap:
    """Makes families until the limit is reached, and counts what does not fit."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.series = self.dropped = 0

    def families(self, name: str, description: str, rows: list[_Row]) -> "list[Metric]":
        return [self.family(name, description, HOLDER_LABELS, rows)] if rows else []

    def family(
        self,
        name: str,
        description: str,
        labels: Sequence[str],
        rows: Sequence[_Row],
        kind: FieldKind = FieldKind.GAUGE,
    ) -> "Metric":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        fit = max(0, min(len(rows), self._most - self.series))
        self.series += fit
        self.dropped += len(rows) - fit
        family = GaugeMetricFamily if kind is FieldKind.GAUGE else CounterMetricFamily
        result = family(name.removesuffix("_total"), description, labels=labels)
        for values, value in rows[:fit]:
            result.add_metric(values, value)
        return result


def _rows(field: GpuField, device: DeviceReading, labels: list[str]) -> Iterator[_Row]:
    if field.label:
        own: Mapping[str, float] = device.labelled.get(field.name, {})
        yield from (([*labels, label], value) for label, value in sorted(own.items()))
    elif field.name in device.values:
        yield labels, device.values[field.name]


def _labels(node: str, device: DeviceReading, holder: Holder | None) -> list[str]:
    own = [node, device.gpu, device.uuid, device.model, device.partition, device.profile]
    return [*own, holder.namespace, holder.pod] if holder is not None else [*own, "", ""]


def _of_holders(node: str, devices: Sequence[DeviceReading], holders: Holders) -> Iterator[tuple[list[str], Holder]]:
    for device in devices:
        for holder in holders.by_device.get(device.key, ()):
            yield [*_labels(node, device, holder), holder.resource, holder.claim], holder


def _held(node: str, devices: Sequence[DeviceReading], holders: Holders) -> list[_Row]:
    return [(labels, 1.0) for labels, _ in _of_holders(node, devices, holders)]


def _shares(node: str, devices: Sequence[DeviceReading], holders: Holders) -> list[_Row]:
    every = _of_holders(node, devices, holders)
    return [(labels, holder.share) for labels, holder in every if holder.share is not None]
