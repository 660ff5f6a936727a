"""What every GPU has been given, whole or as MIG instances, as the API server has it, and what was just selected and is
not allocated.

What a claim was allocated counts, never what was selected for it: the books are corrected by the event that brings the
claim's status.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from kopt.cluster.client.resources import Key
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.custom.mig_strategy import MigStrategy
from kopt.cluster.workloads.requests.devices import (
    CHOICE_ANNOTATION,
    DeviceRequest,
    ObservedClaim,
    PublishedDevice,
    PublishedSlice,
    choice_selector,
    set_selector,
)
from kopt.controllers.devices.sets import LinkedGpus, choose_set
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.mig import MigError, mig_geometry
from kopt.core.units import counted
from kopt.core.workload.gpu_share import MOST_GPUS
from kopt.policies.partitions.layouts import Instance, Layouts, layouts_of
from kopt.policies.partitions.placement import UsableSlices

Devices = Mapping[tuple[str, str, str], PublishedDevice]
"""By driver, pool and name."""
RESERVED_S = 10.0
"""A selection that is not allocated for so long was allocated otherwise, or its pod cannot start."""


@dataclass(frozen=True, slots=True)
class Selection:
    """An instance; ``start``: its first memory slot."""

    node: str
    driver: str
    gpu: str
    profile: str
    start: int

    def __str__(self) -> str:
        return f"{self.profile} on GPU {self.gpu} of node {self.node} from memory slot {self.start} on"

    def document(self) -> dict[str, Any]:
        return {"node": self.node, "gpu": self.gpu, "profile": self.profile, "start": self.start}

    @property
    def parts(self) -> tuple[tuple[str, str, int], ...]:
        """UUID of the GPU, profile and start of each device."""
        return ((self.gpu, self.profile, self.start),)

    @property
    def selector(self) -> str:
        return choice_selector(self.driver, self.gpu, self.start)


@dataclass(frozen=True, slots=True)
class SelectedSet:
    """Whole GPUs of one node, by their UUIDs."""

    node: str
    driver: str
    gpus: tuple[str, ...]

    def __str__(self) -> str:
        return f"{counted(len(self.gpus), 'GPU')} of node {self.node}: {', '.join(self.gpus)}"

    def document(self) -> dict[str, Any]:
        return {"node": self.node, "gpus": list(self.gpus)}

    @property
    def parts(self) -> tuple[tuple[str, str, int], ...]:
        return tuple((gpu, "", 0) for gpu in self.gpus)

    @property
    def selector(self) -> str:
        return set_selector(self.driver, self.gpus)


AnySelection = Selection | SelectedSet


@dataclass
class _Gpu:
    node: str
    driver: str
    uuid: str
    model: str
    is_closed: bool = False
    is_shared: bool = False
    is_taken: bool = False
    published: set[tuple[str, int]] = field(default_factory=set)
    """Profile and start of each device, the GPU itself without a profile."""
    instances: list[Instance] = field(default_factory=list)


@dataclass(frozen=True)
class _Group:
    """GPUs of one model for which the same instances are expected: a policy learns from requests for each."""

    model: str
    expected: tuple[tuple[str, int], ...] = ()


class Books:
    """``slices``, ``claims`` and ``linked``, by node, are live views of informers; ``strategy_of`` names what is
    expected on a node."""

    def __init__(
        self,
        slices: Mapping[Key, PublishedSlice],
        claims: Mapping[Key, ObservedClaim],
        clock: Callable[[], float] = time.monotonic,
        strategy_of: Callable[[str], MigStrategy | None] = lambda _: None,
        linked: Mapping[Key, LinkedGpus] = MappingProxyType({}),
    ) -> None:
        self._slices, self._claims, self._clock = slices, claims, clock
        self._strategy_of, self._linked = strategy_of, linked
        self._layouts: dict[str, Layouts | None] = {}
        self._learned: dict[_Group, UsableSlices] = {}
        self._reserved: dict[str, tuple[float, AnySelection]] = {}
        """By the key of the claim: until when."""

    def select(self, request: DeviceRequest, key: str, nodes: Callable[[str], bool]) -> AnySelection | None:
        """The instance after which most of the slices stay usable, or whole GPUs of one node; kept for the claim with
        this key (``made_for``) from now on. None where there is no room, or the request is for something else than
        whole GPUs and instances that are cut on demand. ``nodes``: which may be used."""
        groups = self._by_group(request, nodes)
        selection = self._instance(groups, request) if request.count == 1 else None
        if selection is None and request.is_whole_gpu:
            selection = self._set(groups, request)
        if selection is not None:
            self._reserved[key] = self._clock() + RESERVED_S, selection
        return selection

    def _instance(self, groups: "Mapping[_Group, list[_Gpu]]", request: DeviceRequest) -> AnySelection | None:
        options = [
            option for group, gpus in groups.items() if (option := self._option(group, gpus, request)) is not None
        ]
        return min(options, key=lambda option: option[0])[1] if options else None

    def _set(self, groups: "Mapping[_Group, list[_Gpu]]", request: DeviceRequest) -> SelectedSet | None:
        free: dict[str, list[str]] = {}
        for gpu in (gpu for gpus in groups.values() for gpu in gpus):
            if ("", 0) in gpu.published and not gpu.is_taken and not gpu.is_shared:
                free.setdefault(gpu.node, []).append(gpu.uuid)
        linked = {node: links for node in free if (links := self._linked.get(("", node))) is not None}
        choice = choose_set(free, request.count, linked)
        return None if choice is None else SelectedSet(choice[0], request.driver, choice[1])

    def _option(self, group: _Group, gpus: list[_Gpu], request: DeviceRequest) -> tuple[float, AnySelection] | None:
        """By how much the cost of a group grows, and where."""
        layouts, whole = self._layouts_of(group.model), request.is_whole_gpu
        profile = None if layouts is None else _profile(layouts, request)
        if layouts is None or profile is None:
            return None
        policy = self._policy(group, layouts)
        policy.observe(profile)
        open_gpus = [gpu for gpu in gpus if (("", 0) in gpu.published if whole else _is_cut_on_demand(gpu, layouts))]
        numbers = [(gpu, layouts.number(gpu.instances)) for gpu in open_gpus]
        numbered = [(gpu, number) for gpu, number in numbers if number is not None]
        pool = np.array([number for _, number in numbered], dtype=np.int64)
        placement = policy.placement(profile, pool) if numbered else None
        if placement is None:
            return None
        gpu, name = numbered[placement.gpu][0], layouts.geometry.profiles[profile].name
        selection: AnySelection = Selection(gpu.node, gpu.driver, gpu.uuid, name, placement.start)
        if whole:
            selection = SelectedSet(gpu.node, gpu.driver, (gpu.uuid,))
        return float(policy.growth[pool[placement.gpu], profile]), selection

    def forget(self, key: str) -> None:
        """The selection for this claim is not used."""
        self._reserved.pop(key, None)

    def instances(self) -> dict[tuple[str, str], list[Instance]]:
        """What lies on each GPU, by node and UUID; selections included."""
        gpus = (gpu for group in self._by_group(None, lambda _: True).values() for gpu in group)
        return {(gpu.node, gpu.uuid): sorted(gpu.instances) for gpu in gpus}

    def _layouts_of(self, model: str) -> Layouts | None:
        """None for a model without MIG."""
        if model not in self._layouts:
            try:
                self._layouts[model] = layouts_of(mig_geometry(find_gpu(model)))
            except (MigError, UnknownGpuError):
                self._layouts[model] = None
        return self._layouts[model]

    def _policy(self, group: _Group, layouts: Layouts) -> UsableSlices:
        if group not in self._learned:
            self._learned[group] = UsableSlices(layouts, dict(group.expected))
        return self._learned[group]

    def _by_group(self, request: DeviceRequest | None, nodes: Callable[[str], bool]) -> dict[_Group, list[_Gpu]]:
        devices: dict[tuple[str, str, str], PublishedDevice] = {}
        gpus: dict[tuple[str, str], _Gpu] = {}
        for part in self._newest():
            for device in part.devices:
                devices[part.driver, part.pool, device.name] = device
                if device.gpu and device.model:
                    gpu = gpus.setdefault(
                        (part.node, device.gpu), _Gpu(part.node, part.driver, device.gpu, device.model)
                    )
                    gpu.is_closed |= device.is_closed
                    gpu.is_shared |= device.is_shared
                    gpu.published.add((device.profile, device.start))
        self._occupy(devices, gpus)
        result: dict[_Group, list[_Gpu]] = {}
        for _, gpu in sorted(gpus.items()):
            wanted = request is None or (gpu.driver == request.driver and request.matches(gpu.model))
            if wanted and not gpu.is_closed and nodes(gpu.node):
                strategy = self._strategy_of(gpu.node)
                expected = () if strategy is None else tuple(sorted(strategy.shares.items()))
                result.setdefault(_Group(gpu.model, expected), []).append(gpu)
        return result

    def _newest(self) -> Iterator[PublishedSlice]:
        """Slices of the newest generation of each pool, where it is complete."""
        pools: dict[tuple[str, str], list[PublishedSlice]] = {}
        for part in self._slices.values():
            pools.setdefault((part.driver, part.pool), []).append(part)
        for parts in pools.values():
            newest = max(part.generation for part in parts)
            current = [part for part in parts if part.generation == newest]
            # Counters are in slices of their own, which have no devices but count.
            if len(current) == current[0].parts:
                yield from current

    def _occupy(self, devices: Devices, gpus: Mapping[tuple[str, str], _Gpu]) -> None:
        by_uuid = {uuid: gpu for (_, uuid), gpu in gpus.items()}
        for claim in self._claims.values():
            for name in claim.allocated:
                device = devices.get(name)
                if device is not None and device.gpu in by_uuid:
                    self._put(by_uuid[device.gpu], device.profile, device.start)
            if claim.allocated:
                self._reserved.pop(claim.made_for, None)
        now_s = self._clock()
        for key, (until_s, selection) in list(self._reserved.items()):
            if until_s < now_s:
                del self._reserved[key]
                continue
            for uuid, profile, start in selection.parts:
                if (gpu := by_uuid.get(uuid)) is not None:
                    self._put(gpu, profile, start)

    def _put(self, gpu: _Gpu, profile: str, start: int) -> None:
        gpu.is_taken = True
        layouts = self._layouts_of(gpu.model)
        if layouts is None:
            return
        names = [item.name for item in layouts.geometry.profiles]
        if profile and profile not in names:
            # Nobody knows what it leaves free.
            gpu.is_closed = True
            return
        gpu.instances.append((names.index(profile) if profile else len(names) - 1, start))

    def observe(self, claim: ObservedClaim) -> None:
        """A claim that another replica gave a choice to: what it selected is kept here, too."""
        choice = mapping_of({CHOICE_ANNOTATION: claim.choice}, CHOICE_ANNOTATION)
        if not choice or not claim.made_for or claim.allocated or claim.made_for in self._reserved:
            return
        node, gpu, profile, start = (choice.get(name) for name in ("node", "gpu", "profile", "start"))
        until_s, gpus = self._clock() + RESERVED_S, choice.get("gpus")
        if isinstance(node, str) and isinstance(gpus, list) and 0 < len(gpus) <= MOST_GPUS:
            self._reserved[claim.made_for] = until_s, SelectedSet(node, "", tuple(map(str, gpus)))
        elif isinstance(node, str) and isinstance(gpu, str) and isinstance(profile, str) and isinstance(start, int):
            self._reserved[claim.made_for] = until_s, Selection(node, "", gpu, profile, start)


def _profile(layouts: Layouts, request: DeviceRequest) -> int | None:
    """The number of what is requested; a whole GPU counts as the largest instance."""
    profiles = layouts.geometry.profiles
    if request.is_whole_gpu and not request.profile:
        return len(profiles) - 1
    if request.attributes.get("type", "mig") != "mig":
        return None
    return next((at for at, profile in enumerate(profiles) if profile.name == request.profile), None)


def _is_cut_on_demand(gpu: _Gpu, layouts: Layouts) -> bool:
    """Whether every instance that can be cut is published: else those that are were cut by somebody."""
    profiles = layouts.geometry.profiles
    return all((profile.name, start) in gpu.published for profile in profiles for start in profile.starts)
