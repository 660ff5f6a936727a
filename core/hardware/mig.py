"""Where the instances of a partitioned NVIDIA GPU (MIG) can lie: compute slices, memory slots, and the slots that each
profile may start at.

As NVIDIA's MIG User Guide documents it, and `nvidia-smi mig -lgipp` prints it (placements there are memory slots): a
GPU of seven compute slices has eight memory slots, an A30 has four of each. The largest profile takes every slot.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kopt.core.gpu import GpuModel

_NAME = re.compile(r"(\d)g\.\d+gb")
_SEVEN_SLICES: Mapping[tuple[int, int], tuple[int, tuple[int, ...]]] = {
    (1, 7): (1, (0, 1, 2, 3, 4, 5, 6)),
    (1, 4): (2, (0, 2, 4, 6)),
    (2, 3): (2, (0, 2, 4)),
    (3, 2): (4, (0, 4)),
    (4, 1): (4, (0,)),
    (7, 1): (8, (0,)),
}
"""Compute slices of a profile and how many of it fit → memory slots, and where it may start."""
_FOUR_SLICES: Mapping[tuple[int, int], tuple[int, tuple[int, ...]]] = {
    (1, 4): (1, (0, 1, 2, 3)),
    (2, 2): (2, (0, 2)),
    (4, 1): (4, (0,)),
}
_GEOMETRIES = {7: _SEVEN_SLICES, 4: _FOUR_SLICES}


class MigError(ValueError):
    """A GPU that cannot be partitioned so, or a profile that it does not have; the message says what there is."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of instance: ``3g.40gb`` has three compute slices, and takes four memory slots from 0 or 4 on."""

    name: str
    compute_slices: int
    memory_slots: int
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigGeometry:
    """The profiles of a GPU model, and what they share."""

    model: str
    compute_slices: int
    memory_slots: int
    profiles: tuple[MigProfile, ...]

    def index(self, name: str) -> int:
        """Of a profile in ``profiles``. Raises MigError."""
        for at, profile in enumerate(self.profiles):
            if profile.name == name:
                return at
        names = ", ".join(profile.name for profile in self.profiles)
        raise MigError(f"a {self.model} has no partitions {name[:40]!r}; there are {names}")


@functools.cache
def mig_geometry(model: GpuModel) -> MigGeometry:
    """Of a model of the catalogue. Raises MigError for one that has no MIG."""
    slices = {profile.name: int(match[1]) for profile in model.partitions if (match := _NAME.fullmatch(profile.name))}
    geometry = _GEOMETRIES.get(max(slices.values(), default=0))
    if geometry is None:
        raise MigError(f"a {model.name} cannot be partitioned by MIG")
    profiles = []
    for profile in model.partitions:
        slots, starts = geometry[slices[profile.name], profile.count]
        profiles.append(MigProfile(profile.name, slices[profile.name], slots, starts))
    whole = profiles[-1]
    return MigGeometry(model.name, whole.compute_slices, whole.memory_slots, tuple(profiles))
