"""Exposition text of NVIDIA's dcgm-exporter and of AMD's device-metrics-exporter: the GPUs that it tells of."""

import re
from collections.abc import Mapping

from kopt.core.hardware.node_topology import NodeTopology, TopologyGpu
from kopt.core.units import Bytes
from kopt.formats.gpu_metrics.exporters import Series, samples_of
from kopt.formats.gpu_metrics.samples import MetricsError
from kopt.formats.topology.parser import TextParser
from kopt.formats.topology.text import FormatError, Line, Source, unbroken
from kopt.formats.topology.values import pci_address

DCGM_TOOL = "dcgm-exporter"
AMD_TOOL = "device-metrics-exporter"

_OURS = re.compile(r"\s*(?:DCGM_\w+|(?:amd_)?gpu_\w+)\s*(?:\{|[-+\d])")
_NAME = re.compile(r"\s*([A-Za-z_:][\w:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+))?\s*$")
_LABEL = re.compile(r'\s*([A-Za-z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)')
_ESCAPE = re.compile(r"\\(.)")
_EXCERPT = re.compile(r"\s*(?:\.\.\.|\[\.\.\.\]|…)\s*$")


def recognises(source: Source) -> bool:
    return source.has(_OURS)


def read(source: Source) -> list[Series]:
    """Every sample in the order of the lines. Raises FormatError for a line that is none."""
    return [item for _, item in _samples(source)]


def parse(source: Source) -> NodeTopology:
    """Raises FormatError, also for series of several nodes."""
    result: dict[int, list[Series]] = {}
    hosts: set[str] = set()
    is_dcgm = False
    for line, series in _samples(source):
        name, labels, _ = series
        number = labels.get("gpu", labels.get("gpu_id", ""))
        if not _OURS.match(line.text) or not (name.startswith("DCGM_") or "gpu_id" in labels or "gpu" in labels):
            continue
        if not number.isascii() or not number.isdigit() or len(number) > 4:
            raise line.error(f"{number[:40]!r} is no number of a GPU")
        is_dcgm = is_dcgm or name.startswith("DCGM_")
        hosts |= {labels[key] for key in ("Hostname", "hostname") if labels.get(key)}
        result.setdefault(int(number), []).append(series)
    if not result:
        raise FormatError("no series of a GPU in it")
    if len(hosts) > 1:
        raise FormatError(f"series of {len(hosts)} nodes; give those of one")
    gpus = tuple([_gpu(index, own) for index, own in sorted(result.items())])
    uuids = [gpu.uuid for gpu in gpus if gpu.uuid]
    if len(set(uuids)) != len(uuids):
        raise FormatError("two GPUs have one UUID")
    warnings = [
        f"an excerpt: line {line.number} says that something was left out"
        for line in source.lines
        if _EXCERPT.match(line.text)
    ]
    if sorted(result) != list(range(len(result))) and len(result) > 1:
        warnings.append(f"there are series of the GPUs {', '.join(map(str, sorted(result)))} only")
    tool, vendor = (DCGM_TOOL, "nvidia") if is_dcgm else (AMD_TOOL, "amd")
    return NodeTopology(next(iter(hosts), ""), gpus, tool=tool, vendor=vendor, warnings=tuple(warnings))


def _samples(source: Source) -> list[tuple[Line, Series]]:
    samples = []
    for line in source.lines:
        text = line.text
        if not line or text.lstrip().startswith("#"):
            continue
        match = _NAME.match(text)
        value = _value(match[3]) if match else None
        if match is None or value is None:
            if "{" in text or _OURS.match(text):
                raise line.error("this is no sample of a series")
            continue
        unbroken(line, "the last sample")
        samples.append((line, (match[1], _labels(line, match[2] or ""), value)))
    keys: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    for line, (name, labels, _) in samples:
        key = (name, tuple(sorted(labels.items())))
        if key in keys:
            raise line.error(f"a series of {name} stands twice; give one scrape")
        keys.add(key)
    return samples


def _value(text: str) -> float | None:
    try:
        return float(text) if "_" not in text else None
    except ValueError:
        return None


def _labels(line: Line, text: str) -> Mapping[str, str]:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip()):
        match = _LABEL.match(text, at)
        if match is None or match[1] in labels:
            raise line.error(f"the labels are damaged at {text[at : at + 40]!r}")
        labels[match[1]] = _ESCAPE.sub(lambda item: {"n": "\n"}.get(item[1], item[1]), match[2])
        at = match.end()
    return labels


def _gpu(index: int, series: list[Series]) -> TopologyGpu:
    labels: dict[str, str] = {}
    instances: dict[str, str] = {}
    for _, own, _ in series:
        for name in (
            "UUID",
            "gpu_uuid",
            "pci_bus_id",
            "modelName",
            "card_series",
            "card_model",
            "gpu_compute_partition_type",
        ):
            if own.get(name) and labels.setdefault(name, own[name]) != own[name]:
                raise FormatError(f"GPU {index} has two values of {name}: {labels[name][:60]!r} and {own[name][:60]!r}")
        if own.get("GPU_I_ID"):
            instances[own["GPU_I_ID"]] = own.get("GPU_I_PROFILE", "")
    bus = labels.get("pci_bus_id", "")
    return TopologyGpu(
        index,
        labels.get("modelName") or labels.get("card_series") or labels.get("card_model", ""),
        pci_address(bus) if bus else "",
        None,
        Bytes(0) if instances else _memory(series),
        "MIG" if instances else labels.get("gpu_compute_partition_type", "").upper(),
        labels.get("UUID") or labels.get("gpu_uuid", ""),
        tuple(instances.values()),
    )


def _memory(series: list[Series]) -> Bytes:
    try:
        samples = samples_of(series)
    except MetricsError as error:
        raise FormatError(str(error)) from error
    return next((sample.total_bytes for sample in samples if sample.total_bytes), Bytes(0))


PARSER = TextParser((DCGM_TOOL, AMD_TOOL), recognises, parse, is_expected=True)
