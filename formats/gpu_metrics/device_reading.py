"""What telemetry read of one device at one moment: a GPU, a MIG instance or a partition."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kopt.core.hardware.gpu_telemetry import BY_NAME
from kopt.formats.gpu_metrics.samples import MetricsError

_LONGEST_NAME = 128
_MOST_DEVICES = 1024
_MOST_LABELS = 64


@dataclass(frozen=True)
class DeviceReading:
    """``values`` by field (``core.hardware.gpu_telemetry``), ``labelled`` those whose series have a label of their own.

    ``aliases`` are what device plugins and drivers of claims may call the device, beside its ``uuid`` and ``pci``.
    """

    gpu: str
    uuid: str = ""
    model: str = ""
    partition: str = ""
    profile: str = ""
    pci: str = ""
    aliases: tuple[str, ...] = ()
    values: Mapping[str, float] = field(default_factory=dict)
    labelled: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the node's other devices."""
        return self.gpu, self.partition


def kept(values: Mapping[str, Any]) -> dict[str, float]:
    """The figures that can be true; others, and what is no number, are left out."""
    result = {}
    for name, value in values.items():
        figure = BY_NAME.get(name)
        if figure is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and 0 <= value <= figure.most:
            result[name] = float(value)
    return result


def readings_of(document: Any) -> tuple[DeviceReading, ...]:
    """Of the list that a reading process prints. Raises MetricsError."""
    if not isinstance(document, list) or len(document) > _MOST_DEVICES:
        raise MetricsError(f"a list of at most {_MOST_DEVICES} devices is expected")
    return tuple([_reading(item) for item in document])


def _reading(item: Any) -> DeviceReading:
    if not isinstance(item, dict) or not _text(item.get("gpu")):
        raise MetricsError("a device without the number of its GPU")
    aliases, values, labelled = item.get("aliases", []), item.get("values", {}), item.get("labelled", {})
    if not isinstance(aliases, list) or not isinstance(values, dict) or not isinstance(labelled, dict):
        raise MetricsError(f"the figures of GPU {_text(item['gpu'])} are damaged")
    names = ("gpu", "uuid", "model", "partition", "profile", "pci")
    return DeviceReading(
        **{name: _text(item.get(name, "")) for name in names},
        aliases=tuple(filter(None, map(_text, aliases[:_MOST_LABELS]))),
        values=kept(values),
        labelled={name: _by_label(name, own) for name, own in labelled.items() if name in BY_NAME},
    )


def _by_label(name: str, own: Any) -> dict[str, float]:
    if not isinstance(own, dict):
        return {}
    most = BY_NAME[name].most
    return {
        _text(label): float(value)
        for label, value in list(own.items())[:_MOST_LABELS]
        if isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= most
    }


def _text(value: Any) -> str:
    return value[:_LONGEST_NAME] if isinstance(value, str) else ""
