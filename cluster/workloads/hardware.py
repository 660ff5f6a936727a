"""The accelerators of nodes, read from whatever shows them: ResourceSlices, device plugins, labels of discovery.

Labels of Node Feature Discovery count only where nothing hands the device out: they say that it is there, not how many.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, items, mapping, text
from kopt.cluster.workloads.requests.gpus import GPU_DRIVERS
from kopt.cluster.workloads.requests.pods import is_gpu, quantity, quantity_or_zero
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.inventory import MODEL_LABELS, Hardware, Kind, Source
from kopt.core.units import MIB, Bytes

_FPGA = re.compile(r"(fpga\.intel\.com|xilinx\.com|amd\.com/xilinx|fpga\.amd\.com)")
_PCI = re.compile(r"feature\.node\.kubernetes\.io/pci-(?:([0-9a-f]{4})_)?([0-9a-f]{4})\.present")
_VENDORS = {"10de": ("NVIDIA", Kind.GPU), "1002": ("AMD", Kind.GPU), "10ee": ("Xilinx", Kind.FPGA)}
_ACCELERATOR_CLASSES = ("0300", "0302", "0380", "1200")
"""VGA, 3D and other display controllers, and processing accelerators: these vendors make other devices as well."""


@dataclass(frozen=True)
class NodeHardware:
    """A node with what it offers; ``labels`` are those of the node."""

    name: str
    labels: Mapping[str, str]
    hardware: tuple[Hardware, ...]


def node_hardware(node: Object) -> NodeHardware | None:
    """What a node's own object shows; None for one without accelerators."""
    labels = {str(key): str(value) for key, value in mapping(node, "metadata", "labels").items()}
    name = text(node, "metadata", "name")
    listed = tuple(_allocatable(name, labels, mapping(node, "status", "allocatable")))
    listed = listed or tuple(_discovered(name, labels))
    return NodeHardware(name, labels, listed) if listed else None


def slice_hardware(resource_slice: Object) -> tuple[Hardware, ...] | None:
    """The whole devices of a ResourceSlice of one node; None for drivers of anything else."""
    driver = text(resource_slice, "spec", "driver")
    kind = _kind_of_driver(driver)
    if kind is None:
        return None
    node = text(resource_slice, "spec", "nodeName") or text(resource_slice, "spec", "pool", "name")
    counted: Counter[tuple[str, int]] = Counter()
    for _, device in items(resource_slice, "spec", "devices"):
        if at(device, "consumesCounters") is None or _attribute(device, "type") == "gpu":
            counted[_attribute(device, "productName") or _attribute(device, "model"), _memory_of_device(device)] += 1
    return tuple(
        Hardware(node, kind, model, count, Bytes(size), driver, Source.SLICE)
        for (model, size), count in sorted(counted.items())
    )


def current_slices(slices: Iterable[Object]) -> list[Object]:
    """Without those of an older generation of their pool, which a driver is about to delete."""
    every = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for item in every:
        newest[_pool(item)] = max(newest.get(_pool(item), 0), _generation(item))
    return [item for item in every if _generation(item) >= newest[_pool(item)]]


def inventory(nodes: Iterable[NodeHardware], slices: Iterable[Hardware]) -> list[NodeHardware]:
    """Both of each node, by its name. What discovery labels alone show gives way to devices of the same kind."""
    by_node = {node.name: node for node in nodes}
    of_slices: dict[str, list[Hardware]] = {}
    for item in slices:
        of_slices.setdefault(item.node, []).append(item)
    result = []
    for name in sorted({*by_node, *of_slices}):
        node, devices = by_node.get(name, NodeHardware(name, {}, ())), of_slices.get(name, [])
        kinds = {device.kind for device in devices}
        kept = [each for each in node.hardware if each.source is not Source.LABEL or each.kind not in kinds]
        result.append(NodeHardware(name, node.labels, (*kept, *devices)))
    return result


def inventory_of(nodes: Iterable[Object], slices: Iterable[Object]) -> list[NodeHardware]:
    """The same from the objects."""
    of_nodes = [labelled(node) for node in nodes]
    devices = [item for each in current_slices(slices) for item in slice_hardware(each) or ()]
    return [node for node in inventory(of_nodes, devices) if node.hardware]


def labelled(node: Object) -> NodeHardware:
    """As ``node_hardware``, and a node without accelerators of its own object with its labels: slices may have some."""
    labels = {str(key): str(value) for key, value in mapping(node, "metadata", "labels").items()}
    return node_hardware(node) or NodeHardware(text(node, "metadata", "name"), labels, ())


def _allocatable(node: str, labels: Mapping[str, str], amounts: Mapping[str, object]) -> Iterator[Hardware]:
    model_labels = _model_labels(labels)
    for resource, amount in sorted(amounts.items()):
        kind = _kind_of_resource(resource)
        count = quantity_or_zero(amount) if kind is not None else 0
        if kind is None or not count:
            continue
        named = model_labels if kind is not Kind.FPGA else ()
        model = named[0][1] if named else resource.rpartition("/")[2]
        memory = _memory(labels, model) if kind is Kind.GPU else Bytes(0)
        yield Hardware(node, kind, model, count, memory, resource, Source.ALLOCATABLE, named)


def _discovered(node: str, labels: Mapping[str, str]) -> Iterator[Hardware]:
    named, vendors = _model_labels(labels), set[str]()
    for label, value in sorted(labels.items()):
        match = _PCI.fullmatch(label)
        if match is None or value != "true" or match[1] not in (None, *_ACCELERATOR_CLASSES):
            continue
        if match[2] not in _VENDORS or match[2] in vendors:
            continue
        vendors.add(match[2])
        vendor, kind = _VENDORS[match[2]]
        own = named if kind is Kind.GPU else ()
        model = own[0][1] if own else f"{vendor} device"
        yield Hardware(node, kind, model, 0, _memory(labels, model), "", Source.LABEL, own)


def _kind_of_resource(resource: str) -> Kind | None:
    if is_gpu(resource) or resource.startswith("gpu.intel.com/"):
        return Kind.GPU
    if resource == "google.com/tpu":
        return Kind.TPU
    return Kind.FPGA if _FPGA.match(resource) else None


def _kind_of_driver(driver: str) -> Kind | None:
    if driver in GPU_DRIVERS:
        return Kind.GPU
    if driver == "tpu.google.com":
        return Kind.TPU
    return Kind.FPGA if "fpga" in driver else None


def _model_labels(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, labels[name]) for name in MODEL_LABELS if labels.get(name))


def _memory(labels: Mapping[str, str], model: str) -> Bytes:
    """Of one GPU, from feature discovery's labels or the catalogue; 0 where neither knows."""
    try:
        if labels.get("nvidia.com/gpu.memory"):
            return Bytes(quantity(labels["nvidia.com/gpu.memory"]) * MIB)
        if vram := labels.get("amd.com/gpu.vram"):
            return Bytes(quantity(f"{vram}i" if vram.endswith("G") else vram))
        return find_gpu(model).memory_bytes
    except (UnknownGpuError, ValueError):
        return Bytes(0)


def _memory_of_device(device: Object) -> int:
    return quantity_or_zero(at(device, "capacity", "memory", "value"))


def _attribute(device: Object, name: str) -> str:
    return text(mapping(device, "attributes", name), "string")


def _pool(resource_slice: Object) -> tuple[str, str]:
    return text(resource_slice, "spec", "driver"), text(resource_slice, "spec", "pool", "name")


def _generation(resource_slice: Object) -> int:
    value = mapping(resource_slice, "spec", "pool").get("generation", 0)
    return value if isinstance(value, int) else 0
