"""The MIG instances on every GPU as the API server has them, and those that were just selected and are not allocated.

What a claim was allocated counts, never what was selected for it: the books are corrected by the event that brings the
claim's status.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from kopt.cluster.client.resources import Key
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.workloads.device_requests import (
    CHOICE_ANNOTATION,
    DeviceRequest,
    ObservedClaim,
    PublishedDevice,
    PublishedSlice,
)
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.mig import MigError, mig_geometry
from kopt.policies.partitions.layouts import Instance, Layouts, layouts_of
from kopt.policies.partitions.placement import UsableSlices

Devices = Mapping[tuple[str, str, str], PublishedDevice]
"""By driver, pool and name."""
RESERVED_S = 10.0
"""A selection that is not allocated for so long was allocated otherwise, or its pod cannot start."""


@dataclass(frozen=True, slots=True)
class Selection:
    """``start``: the first memory slot of the instance; a whole GPU starts at 0."""

    node: str
    driver: str
    gpu: str
    profile: str
    start: int
    is_whole: bool = False

    def document(self) -> dict[str, str | int]:
        return {"node": self.node, "gpu": self.gpu, "profile": self.profile, "start": self.start}


@dataclass
class _Gpu:
    node: str
    driver: str
    uuid: str
    model: str
    is_closed: bool = False
    published: set[tuple[str, int]] = field(default_factory=set)
    """Profile and start of each device, the GPU itself without a profile."""
    instances: list[Instance] = field(default_factory=list)


@dataclass
class _Model:
    """The GPUs of one model, and the policy that has learned from requests for it."""

    layouts: Layouts
    policy: UsableSlices


class Books:
    """``slices`` and ``claims`` are live views of informers."""

    def __init__(
        self,
        slices: Mapping[Key, PublishedSlice],
        claims: Mapping[Key, ObservedClaim],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slices, self._claims, self._clock = slices, claims, clock
        self._models: dict[str, _Model | None] = {}
        self._reserved: dict[str, tuple[float, Selection]] = {}
        """By the key of the claim: until when."""

    def select(self, request: DeviceRequest, key: str, nodes: Callable[[str], bool]) -> Selection | None:
        """The instance after which most of the slices stay usable; kept for the claim with this key
        (``made_for``) from now on. None where no GPU has room, or the request is for something else than instances
        that are cut on demand. ``nodes``: which may be used."""
        best: tuple[float, Selection] | None = None
        for model, gpus in self._by_model(request, nodes).items():
            learned = self._model(model)
            profile = self._profile(learned, request)
            if learned is None or profile is None:
                continue
            learned.policy.observe(profile)
            whole = request.is_whole_gpu
            cut = [gpu for gpu in gpus if (("", 0) in gpu.published if whole else _is_cut_on_demand(gpu, learned))]
            numbers = [(gpu, learned.layouts.number(gpu.instances)) for gpu in cut]
            known = [(gpu, number) for gpu, number in numbers if number is not None]
            if not known:
                continue
            pool = np.array([number for _, number in known])
            placement = learned.policy.placement(profile, pool)
            if placement is None:
                continue
            gpu = known[placement.gpu][0]
            growth = float(learned.policy.growth[pool[placement.gpu], profile])
            name = learned.layouts.geometry.profiles[profile].name
            selection = Selection(gpu.node, gpu.driver, gpu.uuid, name, placement.start, whole)
            if best is None or growth < best[0]:
                best = growth, selection
        if best is None:
            return None
        self._reserved[key] = self._clock() + RESERVED_S, best[1]
        return best[1]

    def forget(self, key: str) -> None:
        """The selection for this claim is not used."""
        self._reserved.pop(key, None)

    def instances(self) -> dict[tuple[str, str], list[Instance]]:
        """What lies on each GPU, by node and UUID; selections included."""
        gpus = (gpu for group in self._by_model(None, lambda _: True).values() for gpu in group)
        return {(gpu.node, gpu.uuid): sorted(gpu.instances) for gpu in gpus}

    def _profile(self, learned: _Model | None, request: DeviceRequest) -> int | None:
        if learned is None:
            return None
        profiles = learned.layouts.geometry.profiles
        if request.is_whole_gpu and not request.profile:
            return len(profiles) - 1
        if request.attributes.get("type", "mig") != "mig":
            return None
        return next((at for at, profile in enumerate(profiles) if profile.name == request.profile), None)

    def _model(self, name: str) -> _Model | None:
        if name not in self._models:
            try:
                layouts = layouts_of(mig_geometry(find_gpu(name)))
                self._models[name] = _Model(layouts, UsableSlices(layouts))
            except (MigError, UnknownGpuError):
                self._models[name] = None
        return self._models[name]

    def _by_model(self, request: DeviceRequest | None, nodes: Callable[[str], bool]) -> dict[str, list[_Gpu]]:
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
                    gpu.published.add((device.profile, device.start))
        self._occupy(devices, gpus)
        result: dict[str, list[_Gpu]] = {}
        for _, gpu in sorted(gpus.items()):
            wanted = request is None or (gpu.driver == request.driver and request.matches(gpu.model))
            if wanted and not gpu.is_closed and nodes(gpu.node):
                result.setdefault(gpu.model, []).append(gpu)
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
            gpu = by_uuid.get(selection.gpu)
            if until_s < now_s:
                del self._reserved[key]
            elif gpu is not None:
                self._put(gpu, selection.profile, selection.start)

    def _put(self, gpu: _Gpu, profile: str, start: int) -> None:
        learned = self._model(gpu.model)
        if learned is None:
            return
        names = [item.name for item in learned.layouts.geometry.profiles]
        if profile and profile not in names:
            # Nobody knows what it leaves free.
            gpu.is_closed = True
            return
        gpu.instances.append((names.index(profile) if profile else len(names) - 1, start))

    def observe(self, claim: ObservedClaim) -> None:
        """A claim that another replica gave a choice to: what it selected is kept here, too."""
        choice = mapping_of({CHOICE_ANNOTATION: claim.choice}, CHOICE_ANNOTATION)
        if not choice or claim.allocated or claim.made_for in self._reserved:
            return
        node, gpu, profile, start = (choice.get(name) for name in ("node", "gpu", "profile", "start"))
        if isinstance(node, str) and isinstance(gpu, str) and isinstance(profile, str) and isinstance(start, int):
            self._reserved[claim.made_for] = self._clock() + RESERVED_S, Selection(node, "", gpu, profile, start)


def _is_cut_on_demand(gpu: _Gpu, learned: _Model) -> bool:
    """Whether every instance that can be cut is published: else those that are were cut by somebody."""
    profiles = learned.layouts.geometry.profiles
    return all((profile.name, start) in gpu.published for profile in profiles for start in profile.starts)
