"""Which GPU of a pool gets the next partition, and at which memory slot.

Every policy gives each layout a cost; a partition goes where the cost of the pool grows least. Partitions are never
refused where one fits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from kopt.policies.partitions.layouts import Layouts

Array = NDArray[np.float64]
Pool = NDArray[np.int64]
"""The number of the layout of each GPU (gpus,)."""
_FORGET = 0.999
"""Share of its weight that a request keeps with each later one: the mix is that of about the last thousand."""
_MEMORY = 1 / (1 - _FORGET)
"""The weight of all requests that are remembered."""
_PACKING = 0.6
"""Of the root of the slices in use; from .3 to 4 it makes less than .1 points of difference on random mixes."""
_RELEARN = 200
"""Requests after which costs are computed anew."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A partition on GPU number ``gpu`` of the pool from memory slot ``start`` on, which then has ``layout``."""

    gpu: int
    start: int
    layout: int


class PlacementPolicy:
    """By a cost of layouts (n,), which ``costs`` gives; a subclass may change it as requests come."""

    name: ClassVar[str]

    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self._set(self.costs())

    def costs(self) -> Array:
        raise NotImplementedError

    def observe(self, profile: int) -> None:
        """A partition of this profile was asked for, whether or not there was room."""

    def placement(self, profile: int, pool: Pool) -> Placement | None:
        """None where no GPU has room."""
        growth = self.growth[pool, profile]
        gpu = int(growth.argmin())
        if not np.isfinite(growth[gpu]):
            return None
        layout = int(pool[gpu])
        return Placement(gpu, int(self.start[layout, profile]), int(self.following[layout, profile]))

    def _set(self, cost: Array) -> None:
        """``growth`` (n, profiles): by how much the cost grows with an instance at the best start; ``start`` and
        ``following`` of the same shape."""
        options = self.layouts.following
        growth = np.where(options >= 0, cost[options] - cost[:, None, None], np.inf)
        best = growth.argmin(axis=2)[:, :, None]
        self.cost = cost
        self.growth = np.take_along_axis(growth, best, axis=2)[:, :, 0]
        self.start = np.take_along_axis(self.layouts.starts, best, axis=2)[:, :, 0]
        self.following = np.take_along_axis(options, best, axis=2)[:, :, 0]


class FirstFit(PlacementPolicy):
    """The first GPU with room, at the first slot: what the kube-scheduler does with the devices of ResourceSlices in
    their order (kubernetes/enhancements#4970)."""

    name: ClassVar[str] = "first-fit"

    def costs(self) -> Array:
        return np.zeros(len(self.layouts))


class BestFit(PlacementPolicy):
    """The GPU with the fewest compute slices left over."""

    name: ClassVar[str] = "best-fit"

    def costs(self) -> Array:
        # Growth has to fall with the slices that are used already; any concave function of them does that.
        cost: Array = np.sqrt(self.layouts.used_slices.astype(float))
        return cost


class BlockedPlacements(PlacementPolicy):
    """Placements that a layout blocks, by memory slots, for all profiles with as many free compute slices: the
    fragmentation that MFI minimises ("An online fragmentation-aware scheduler for MIG", arXiv 2511.18906)."""

    name: ClassVar[str] = "blocked-placements"

    def costs(self) -> Array:
        geometry, free = self.layouts.geometry, self.layouts.free_slices
        cost = np.zeros(len(self.layouts))
        for at, profile in enumerate(geometry.profiles):
            open_starts = (self.layouts.following[:, at] >= 0).sum(axis=1)
            blocked = (len(profile.starts) - open_starts) * profile.memory_slots
            cost += np.where(free >= profile.compute_slices, blocked, 0)
        return cost


class UsableSlices(PlacementPolicy):
    """Free compute slices that are left over once as many of one profile as fit lie on them, on average over the mix of
    recent requests; and, as in best fit, GPUs that are in use before those that are not.

    The first alone leaves nearly empty GPUs about, the second alone does not see which slots a profile needs.
    """

    name: ClassVar[str] = "kopt"

    def __init__(self, layouts: Layouts, expected: Mapping[str, float] | None = None) -> None:
        """``expected``: shares of requests by profile, which count as much as all that is remembered later; without
        them every profile is as likely as another."""
        names = [profile.name for profile in layouts.geometry.profiles]
        total = sum((expected or {}).get(name, 0.0) for name in names)
        prior = [_MEMORY * (expected or {}).get(name, 0.0) / total if total else 0.0 for name in names]
        self._weights = np.ones(len(names)) + np.array(prior)
        self._requests = 0
        super().__init__(layouts)

    def observe(self, profile: int) -> None:
        self._weights *= _FORGET
        self._weights[profile] += 1
        self._requests += 1
        if self._requests % _RELEARN == 0:
            self._set(self.costs())

    def costs(self) -> Array:
        slices = np.array([profile.compute_slices for profile in self.layouts.geometry.profiles])
        mix = self._weights / self._weights.sum()
        unusable = self.layouts.free_slices[:, None] - self.layouts.capacity * slices
        cost: Array = (mix * unusable).sum(axis=1) + _PACKING * np.sqrt(self.layouts.used_slices)
        return cost


POLICIES: dict[str, type[PlacementPolicy]] = {
    policy.name: policy for policy in (UsableSlices, FirstFit, BestFit, BlockedPlacements)
}
