"""What a configuration comes to: the instances that a node has once its GPUs are cut so, or why they cannot be."""

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.hardware.mig import MigGeometry
from kopt.policies.partitions.layouts import layouts_of

WHOLE = "gpu"
"""Stands beside profiles for a GPU that is not cut."""


class InfeasibleError(ValueError):
    """Instances that do not lie on one GPU; the message has the sum."""


@dataclass(frozen=True)
class NodeOption:
    """``instances``: of a whole node, by profile; ``WHOLE`` for GPUs that are not cut."""

    name: str
    instances: Mapping[str, int] = field(hash=False)


Rules = Sequence[tuple[tuple[int, ...] | None, Mapping[str, int] | None]]
"""GPUs by index, None for all; and instances by profile on each, None where MIG is off. Later rules go before."""


def node_option(geometry: MigGeometry, gpus: int, name: str, rules: Rules) -> NodeOption:
    """Of a node with so many GPUs of one model. Raises InfeasibleError, MigError for profiles of other models."""
    cut: dict[int, Mapping[str, int] | None] = {}
    for indices, instances in rules:
        if instances is not None:
            require_feasible(geometry, instances)
        own = range(gpus) if indices is None else indices
        if beyond := [index for index in own if index >= gpus]:
            raise InfeasibleError(f"{name} is for GPU {beyond[0]}, and the node has {gpus}")
        cut |= dict.fromkeys(own, instances)
    if len(cut) < gpus:
        raise InfeasibleError(f"{name} leaves {gpus - len(cut)} of {gpus} GPUs as they are")
    total: Counter[str] = Counter()
    for instances in cut.values():
        total.update({WHOLE: 1} if instances is None else instances)
    return NodeOption(name, dict(total))


def require_feasible(geometry: MigGeometry, instances: Mapping[str, int]) -> None:
    """Raises InfeasibleError with the sum where these do not lie on one GPU together, MigError for other models'."""
    counts = tuple(instances.get(profile.name, 0) for profile in geometry.profiles)
    for profile in instances:
        geometry.index(profile)
    if counts in _feasible(geometry):
        return
    profiles = list(zip(counts, geometry.profiles, strict=True))
    profile_counts = " + ".join(f"{count} x {profile.name}" for count, profile in profiles if count)
    compute = sum(count * profile.compute_slices for count, profile in profiles)
    memory = sum(count * profile.memory_slots for count, profile in profiles)
    sums = f"{compute} of {geometry.compute_slices} compute slices and {memory} of {geometry.memory_slots} memory slots"
    raise InfeasibleError(f"{profile_counts} do not fit on one {geometry.model}: they are {sums}")


@functools.cache
def _feasible(geometry: MigGeometry) -> frozenset[tuple[int, ...]]:
    """How many of each profile lie on one GPU together, of every layout."""
    result = set()
    for layout in layouts_of(geometry).layouts:
        counted = Counter(profile for profile, _ in layout)
        result.add(tuple(counted[profile] for profile in range(len(geometry.profiles))))
    return frozenset(result)


def smallest_profile(geometry: MigGeometry, memory: Mapping[str, int], needed_bytes: int) -> str | None:
    """The profile with the least memory that suffices, and of those the fewest slices; ``memory`` in bytes by profile.
    None where not even the largest has so much."""
    able = [profile for profile in geometry.profiles if memory.get(profile.name, 0) >= needed_bytes]
    best = min(able, key=lambda profile: (memory[profile.name], profile.compute_slices), default=None)
    return None if best is None else best.name


def model_rules(
    geometry: MigGeometry, rules: Sequence[tuple[tuple[int, ...] | None, Mapping[str, int] | None, bool]]
) -> Rules | None:
    """Those of a configuration that can be meant for a model: of rules that are for some models only, the ones with its
    profiles. None where several say different things about the same GPUs."""
    names = {profile.name for profile in geometry.profiles}
    kept: dict[tuple[int, ...] | None, Mapping[str, int] | None] = {}
    for gpus, instances, is_filtered in rules:
        if is_filtered and instances is not None and not instances.keys() <= names:
            continue
        if gpus in kept and kept[gpus] != instances:
            return None
        kept[gpus] = instances
    return list(kept.items())
