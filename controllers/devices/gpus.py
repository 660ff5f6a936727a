"""The GPUs of one node: what its slices publish, and what has been given of them. Pure: the index asks for one node
whenever something of it has changed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from kopt.cluster.client.resources import Key
from kopt.cluster.workloads.requests.devices import PublishedDevice, PublishedSlice
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.mig import MigError, mig_geometry
from kopt.policies.partitions.layouts import EMPTY, Instance, Layouts, layouts_of

DeviceName = tuple[str, str, str]
"""Driver, pool and name."""
Part = tuple[str, str, int]
"""UUID of a GPU, profile and start of what is given of it; no profile for the whole."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """``is_closed``: nothing of it may be selected. ``is_whole``, ``is_cut``: whether it is published as a whole, and
    with every instance that can be cut from it (else those that are were cut by somebody). ``layout``: the number of
    what lies on it; None for a model without MIG, and where it cannot lie on one GPU."""

    node: str
    driver: str
    uuid: str
    model: str
    is_closed: bool
    is_whole: bool
    is_cut: bool
    is_taken: bool = False
    instances: tuple[Instance, ...] = ()
    layout: int | None = None


@dataclass(frozen=True, slots=True)
class NodeDevices:
    """What a node's slices publish. ``gpus``: in the order of their UUIDs, with nothing given."""

    gpus: tuple[Gpu, ...]
    parts: Mapping[DeviceName, Part]


@lru_cache(maxsize=1024)
def layouts_of_model(model: str) -> Layouts | None:
    """None for a model without MIG."""
    try:
        return layouts_of(mig_geometry(find_gpu(model)))
    except (MigError, UnknownGpuError):
        return None


@lru_cache(maxsize=1024)
def _instances_of(model: str) -> frozenset[tuple[str, int]]:
    """Profile and start of every instance that can be cut from a GPU."""
    layouts = layouts_of_model(model)
    profiles = () if layouts is None else layouts.geometry.profiles
    return frozenset((profile.name, start) for profile in profiles for start in profile.starts)


def newest(slices: Mapping[Key, PublishedSlice]) -> Sequence[PublishedSlice]:
    """Slices of a pool's newest generation, in the order of their names; none where it is not complete."""
    generation = max((part.generation for part in slices.values()), default=0)
    current = [part for _, part in sorted(slices.items()) if part.generation == generation]
    # Counters are in slices of their own, which have no devices but count.
    return current if all(part.parts == len(current) for part in current) else ()


def devices_of(node: str, slices: Iterable[PublishedSlice]) -> NodeDevices:
    """Of the newest slices of all pools of a node."""
    devices: dict[str, list[PublishedDevice]] = {}
    drivers: dict[str, str] = {}
    parts: dict[DeviceName, Part] = {}
    for each in slices:
        for device in each.devices:
            if device.gpu and device.model:
                devices.setdefault(device.gpu, []).append(device)
                drivers.setdefault(device.gpu, each.driver)
                parts[each.driver, each.pool, device.name] = device.gpu, device.profile, device.start
    gpus = tuple(_gpu(node, drivers[uuid], uuid, devices[uuid]) for uuid in sorted(devices))
    return NodeDevices(gpus, parts)


def _gpu(node: str, driver: str, uuid: str, devices: Sequence[PublishedDevice]) -> Gpu:
    model, published = devices[0].model, {(device.profile, device.start) for device in devices}
    instances = _instances_of(model)
    # Of a shared GPU others may have parts, which no layout counts.
    is_closed = any(device.is_closed or device.is_shared for device in devices)
    layout = EMPTY if instances else None
    is_cut = bool(instances) and instances <= published
    return Gpu(node, driver, uuid, model, is_closed, ("", 0) in published, is_cut, layout=layout)


def given(gpus: Sequence[Gpu], parts: Iterable[Part]) -> tuple[Gpu, ...]:
    """The same GPUs once these parts of them are given."""
    by_gpu: dict[str, list[tuple[str, int]]] = {}
    for uuid, profile, start in parts:
        by_gpu.setdefault(uuid, []).append((profile, start))
    return tuple(_given(gpu, by_gpu[gpu.uuid]) if gpu.uuid in by_gpu else gpu for gpu in gpus)


def _given(gpu: Gpu, parts: Sequence[tuple[str, int]]) -> Gpu:
    layouts = layouts_of_model(gpu.model)
    if layouts is None:
        return replace(gpu, is_taken=True)
    # A whole GPU counts as the largest instance.
    numbers = {profile.name: at for at, profile in enumerate(layouts.geometry.profiles)}
    numbers[""] = len(numbers) - 1
    instances = tuple(sorted((numbers[profile], start) for profile, start in parts if profile in numbers))
    # Nobody knows what an unknown profile leaves free.
    is_closed = gpu.is_closed or any(profile not in numbers for profile, _ in parts)
    number = layouts.number(instances)
    return replace(gpu, is_taken=True, is_closed=is_closed, instances=instances, layout=number)
