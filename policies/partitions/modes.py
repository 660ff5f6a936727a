"""What a profile of AMD's device config manager comes to: partitions of a node by mode, or why they cannot be."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kopt.core.gpu import GpuModel
from kopt.core.hardware.amd_modes import DIES, AmdMode, ModelModes, modes_of
from kopt.policies.partitions.configurations import InfeasibleError, NodeOption


@dataclass(frozen=True, slots=True)
class ModeProfile:
    """A partition; its slices are dies."""

    name: str
    compute_slices: int


@dataclass(frozen=True, slots=True)
class ModeGeometry:
    """The partitions that a model can have."""

    model: str
    profiles: tuple[ModeProfile, ...]
    compute_slices: int = DIES


def mode_geometry(model: GpuModel) -> ModeGeometry:
    """Of every pair that AMD has validated. Raises ModeError for a GPU without modes."""
    modes = sorted({each.mode for each in modes_of(model).validated}, key=lambda mode: (mode.dies, mode.memory))
    return ModeGeometry(model.name, tuple(ModeProfile(mode.name, mode.dies) for mode in modes))


Parts = Sequence[tuple[AmdMode, int | None]]
"""A mode and for how many GPUs, None for the rest."""


def mode_option(modes: ModelModes, gpus: int, name: str, parts: Parts, driver: str, *, skips: int = 0) -> NodeOption:
    """Of a node with so many GPUs; ``driver``: the version of amdgpu. Raises ModeError for a mode that AMD has not
    validated on that model or that the driver is too old for, InfeasibleError for what does not come to all GPUs."""
    memory = {mode.memory for mode, _ in parts}
    if len(memory) > 1:
        raise InfeasibleError(f"{name} has {' and '.join(sorted(memory))}: all GPUs of a node have one memory mode")
    named = sum(count for _, count in parts if count is not None)
    rest = [mode for mode, count in parts if count is None]
    if len(rest) > 1:
        raise InfeasibleError(f"{name} gives the rest of the GPUs to {len(rest)} modes; one can have it")
    if skips or named > gpus or (not rest and named < gpus):
        raise InfeasibleError(f"{name} is for {named} GPUs and leaves {skips} as they are; the node has {gpus}")
    total: Counter[str] = Counter()
    for mode, count in parts:
        modes.require(mode, driver)
        total[mode.name] += mode.partitions * (gpus - named if count is None else count)
    return NodeOption(name, {mode: count for mode, count in total.items() if count})


def smallest_mode(modes: ModelModes, offered: Collection[str], needed_bytes: int, share: int = 0) -> str | None:
    """The offered mode with the least memory that suffices, and at least ``share`` thousandths of a GPU; None where not
    even the largest has so much."""
    able = [
        each.mode
        for each in modes.validated
        if each.mode.name in offered and modes.partition_bytes(each.mode) >= needed_bytes and each.mode.share >= share
    ]
    return min(able, key=lambda mode: (mode.dies, mode.memory)).name if able else None
