"""Every way in which instances can lie on one GPU, and the steps between them.

A layout is what lies on a GPU: (profile, start) of each instance. An H100 has 723 of them, so all are numbered once and
policies look costs up in arrays.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kopt.core.hardware.mig import MigGeometry

Instance = tuple[int, int]
"""The number of its profile, and the memory slot that it starts at."""
Layout = tuple[Instance, ...]
EMPTY = 0
"""The number of the layout without instances."""


@dataclass(frozen=True, eq=False)
class Layouts:
    """``following`` (n, profiles, options): the layout with one more instance, -1 where there is none; ``starts`` of
    the same shape: the slot that the instance starts at. ``used_slices`` (n,), ``capacity`` (n, profiles): how many
    instances of a profile still fit."""

    geometry: MigGeometry
    layouts: tuple[Layout, ...]
    following: NDArray[np.int64]
    starts: NDArray[np.int64]
    used_slices: NDArray[np.int64]
    capacity: NDArray[np.int64]
    _numbers: dict[Layout, int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.layouts)

    @property
    def free_slices(self) -> NDArray[np.int64]:
        """Compute slices that no instance has (n,)."""
        return self.geometry.compute_slices - self.used_slices

    def number(self, instances: Iterable[Instance]) -> int | None:
        """Of the layout with these instances, in any order; None where they cannot lie on one GPU."""
        return self._numbers.get(tuple(sorted(instances)))

    def without(self, layout: int, instance: Instance) -> int:
        """The layout once ``instance`` is gone. Raises KeyError where it is not there."""
        rest = list(self.layouts[layout])
        if instance not in rest:
            raise KeyError(instance)
        rest.remove(instance)
        return self._numbers[tuple(rest)]


@functools.cache
def layouts_of(geometry: MigGeometry) -> Layouts:
    """All layouts that can be reached from an empty GPU, it being the first."""
    numbers: dict[Layout, int] = {(): EMPTY}
    layouts: list[Layout] = [()]
    steps: list[list[list[tuple[int, int]]]] = []
    at = 0
    while at < len(layouts):
        layout = layouts[at]
        row = []
        for profile in range(len(geometry.profiles)):
            options = []
            for start in _free_starts(geometry, layout, profile):
                following = tuple(sorted((*layout, (profile, start))))
                if following not in numbers:
                    numbers[following] = len(layouts)
                    layouts.append(following)
                options.append((start, numbers[following]))
            row.append(options)
        steps.append(row)
        at += 1
    next_layouts, starts = _padded(steps)
    used = np.array([sum(geometry.profiles[profile].compute_slices for profile, _ in layout) for layout in layouts])
    return Layouts(geometry, tuple(layouts), next_layouts, starts, used, _capacity(next_layouts), numbers)


def _free_starts(geometry: MigGeometry, layout: Layout, profile: int) -> list[int]:
    occupied, used = 0, 0
    for other, start in layout:
        occupied |= _slots(geometry, other, start)
        used += geometry.profiles[other].compute_slices
    wanted = geometry.profiles[profile]
    if used + wanted.compute_slices > geometry.compute_slices:
        return []
    return [start for start in wanted.starts if not occupied & _slots(geometry, profile, start)]


def _slots(geometry: MigGeometry, profile: int, start: int) -> int:
    """The memory slots of an instance as bits."""
    return ((1 << geometry.profiles[profile].memory_slots) - 1) << start


def _padded(steps: list[list[list[tuple[int, int]]]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    most = max((len(options) for row in steps for options in row), default=0)
    following = np.full((len(steps), len(steps[0]), most), -1)
    starts = np.full_like(following, -1)
    for at, row in enumerate(steps):
        for profile, options in enumerate(row):
            for option, (start, number) in enumerate(options):
                starts[at, profile, option], following[at, profile, option] = start, number
    return following, starts


def _capacity(following: NDArray[np.int64]) -> NDArray[np.int64]:
    """Instances of each profile that still fit: layouts with more instances have higher numbers."""
    count, profiles, _ = following.shape
    capacity = np.zeros((count, profiles), dtype=np.int64)
    for at in range(count - 1, -1, -1):
        for profile in range(profiles):
            options = following[at, profile]
            options = options[options >= 0]
            if len(options):
                capacity[at, profile] = 1 + capacity[options, profile].max()
    return capacity
