"""Which GPU or instance a claim gets, by what every GPU has been given as the API server has it, and what was just
selected and is not allocated.

What a claim was allocated counts, never what was selected for it: the books are corrected by the event that brings the
claim's status.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from types import MappingProxyType
from typing import Any

from kopt.cluster.client.resources import Key
from kopt.cluster.objects.annotations import mapping_of
from kopt.cluster.objects.custom.mig_strategy import MigStrategy
from kopt.cluster.workloads.requests.devices import (
    CHOICE_ANNOTATION,
    DeviceRequest,
    ObservedClaim,
    PublishedSlice,
    choice_selector,
    set_selector,
)
from kopt.controllers.devices.gpus import layouts_of_model
from kopt.controllers.devices.index import Expected, FreeGpus, GpuIndex, Group, LaidOut, OpenGpus
from kopt.controllers.devices.sets import LinkedGpus
from kopt.core.units import counted
from kopt.core.workload.gpu_share import MOST_GPUS
from kopt.policies.partitions.layouts import Instance, Layouts
from kopt.policies.partitions.placement import UsableSlices

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


class Books:
    """Slices and claims are put in as informers deliver them. ``linked``, by node, is a live view, and ``strategy_of``
    names what is expected on a node: ``touch`` says that either has changed."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        strategy_of: Callable[[str], MigStrategy | None] = lambda _: None,
        linked: Mapping[Key, LinkedGpus] = MappingProxyType({}),
    ) -> None:
        self._clock, self._strategy_of = clock, strategy_of
        self.index = GpuIndex(self._expected, linked)
        self.learned: dict[Group, UsableSlices] = {}
        """What requests are expected, by each group that was asked for."""
        self._reserved: dict[str, tuple[float, AnySelection]] = {}
        """By the key of the claim: until when, in the order of that."""
        self._allocated: dict[str, set[Key]] = {}
        """Claims that have devices, by what they were made for."""
        self._made_for: dict[Key, str] = {}

    def put_slice(self, key: Key, part: PublishedSlice | None) -> None:
        """None: it is gone."""
        self.index.put_slice(key, part)

    def put_claim(self, key: Key, claim: ObservedClaim | None) -> None:
        """None: it is gone."""
        self.index.put_claim(key, claim)
        before = self._made_for.pop(key, "")
        if before:
            self._allocated[before].discard(key)
            if not self._allocated[before]:
                del self._allocated[before]
        if claim is not None and claim.allocated and claim.made_for:
            self._made_for[key] = claim.made_for
            self._allocated.setdefault(claim.made_for, set()).add(key)
            self.forget(claim.made_for)

    def touch(self, node: str | None = None) -> None:
        """Links or what is expected may have changed on a node, without a name on all."""
        self.index.touch(node)

    def settle(self, most: int | None = None) -> bool:
        """What has changed is read now and not by the next choice, on ``most`` nodes; whether that was all."""
        now_s = self._clock()
        while self._reserved and next(iter(self._reserved.values()))[0] < now_s:
            self.forget(next(iter(self._reserved)))
        return self.index.settle(most)

    def select(self, request: DeviceRequest, key: str, nodes: Callable[[str], bool]) -> AnySelection | None:
        """The instance after which most of the slices stay usable, or whole GPUs of one node; kept for the claim with
        this key (``made_for``) from now on. None where there is no room, or the request is for something else than
        whole GPUs and instances that are cut on demand. ``nodes``: which may be used."""
        self.settle()
        is_open = cache(nodes)
        policies = dict(self._observed(request, is_open))
        selection = self._instance(policies, request, is_open) if request.count == 1 else None
        if selection is None and request.is_whole_gpu:
            selection = self._set(request, is_open)
        if selection is not None:
            self._reserve(key, selection)
        return selection

    def _observed(
        self, request: DeviceRequest, is_open: Callable[[str], bool]
    ) -> Iterator[tuple[Group, tuple[UsableSlices, int]]]:
        """The policy of each group that may be meant, once it has learned of the request, and the profile."""
        for family in list(self.index.families()):
            if (
                isinstance(family, OpenGpus)
                and family.driver == request.driver
                and request.matches(family.group.model)
                and (layouts := layouts_of_model(family.group.model)) is not None
                and (profile := _profile(layouts, request)) is not None
                and any(map(is_open, self.index.numbers(family)[0]))
            ):
                policy = self._policy(family.group, layouts)
                for _ in range(request.count):
                    policy.observe(profile)
                yield family.group, (policy, profile)

    def _instance(
        self,
        policies: Mapping[Group, tuple[UsableSlices, int]],
        request: DeviceRequest,
        is_open: Callable[[str], bool],
    ) -> AnySelection | None:
        """Where the cost of a group grows least, among equals the first by node and GPU."""
        whole = request.is_whole_gpu
        options = [
            (float(policy.growth[layout, profile]), LaidOut(request.driver, group, whole), layout)
            for group, (policy, profile) in policies.items()
            for layout in self.index.numbers(LaidOut(request.driver, group, whole))
            if policy.following[layout, profile] >= 0
        ]
        for _, equals in groupby(sorted(options, key=lambda option: option[0]), key=lambda option: option[0]):
            gpus = [
                (node, self.index.node(node).laid_out(family, layout), family.group)
                for _, family, layout in equals
                if (node := next(filter(is_open, self.index.numbers(family)[layout]), None)) is not None
            ]
            if gpus:
                node, gpu, group = min(gpus, key=lambda each: (each[0], each[1].uuid))
                if whole:
                    return SelectedSet(node, gpu.driver, (gpu.uuid,))
                policy, profile = policies[group]
                assert gpu.layout is not None, "it is listed by its layout"
                name = policy.layouts.geometry.profiles[profile].name
                return Selection(node, gpu.driver, gpu.uuid, name, int(policy.start[gpu.layout, profile]))
        return None

    def _set(self, request: DeviceRequest, is_open: Callable[[str], bool]) -> SelectedSet | None:
        """On the node that then has fewest left, among equals the one whose free GPUs are linked best."""
        family, count = FreeGpus(request.driver, request.attributes.get("productName")), request.count
        by_number = self.index.numbers(family)
        for number in sorted(number for number in by_number if number >= count):
            best = {node: self.index.node(node).best(family, count) for node in by_number[number]}
            for node in sorted(best, key=lambda node: (-best[node][0], node)):
                if is_open(node):
                    return SelectedSet(node, request.driver, best[node][1])
        return None

    def _reserve(self, key: str, selection: AnySelection) -> None:
        self.forget(key)
        if key not in self._allocated:
            self._reserved[key] = self._clock() + RESERVED_S, selection
            self.index.put_selection(key, selection.node, selection.parts)

    def forget(self, key: str) -> None:
        """The selection for this claim is not used."""
        _, selection = self._reserved.pop(key, (0.0, None))
        if selection is not None:
            self.index.put_selection(key, selection.node, ())

    def instances(self) -> dict[tuple[str, str], list[Instance]]:
        """What lies on each GPU, by node and UUID; selections included."""
        self.settle()
        gpus = (gpu for _, node in sorted(self.index.nodes().items()) for gpu in node.gpus if not gpu.is_closed)
        return {(gpu.node, gpu.uuid): list(gpu.instances) for gpu in gpus}

    def _expected(self, node: str) -> Expected:
        strategy = self._strategy_of(node)
        return () if strategy is None else tuple(sorted(strategy.shares.items()))

    def _policy(self, group: Group, layouts: Layouts) -> UsableSlices:
        if group not in self.learned:
            self.learned[group] = UsableSlices(layouts, dict(group.expected))
        return self.learned[group]

    def observe(self, claim: ObservedClaim) -> None:
        """A claim that another replica gave a choice to: what it selected is kept here, too."""
        choice = mapping_of({CHOICE_ANNOTATION: claim.choice}, CHOICE_ANNOTATION)
        if not choice or not claim.made_for or claim.allocated or claim.made_for in self._reserved:
            return
        node, gpu, profile, start = (choice.get(name) for name in ("node", "gpu", "profile", "start"))
        gpus = choice.get("gpus")
        if isinstance(node, str) and isinstance(gpus, list) and 0 < len(gpus) <= MOST_GPUS:
            self._reserve(claim.made_for, SelectedSet(node, "", tuple(map(str, gpus))))
        elif isinstance(node, str) and isinstance(gpu, str) and isinstance(profile, str) and isinstance(start, int):
            self._reserve(claim.made_for, Selection(node, "", gpu, profile, start))


def _profile(layouts: Layouts, request: DeviceRequest) -> int | None:
    """The number of what is requested; a whole GPU counts as the largest instance."""
    profiles = layouts.geometry.profiles
    if request.is_whole_gpu and not request.profile:
        return len(profiles) - 1
    if request.attributes.get("type", "mig") != "mig":
        return None
    return next((at for at, profile in enumerate(profiles) if profile.name == request.profile), None)
