"""What people write of a GPU's layout, as the state that a plan leads to."""

import re
from collections.abc import Sequence
from dataclasses import replace

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.mig import MigError, MigGeometry, mig_geometry
from kopt.core.node_plan.state import Compute, MigGpu, MigInstance, NodeState, PartitionedGpu
from kopt.core.node_plan.steps import COMPUTE_MODES, MEMORY_MODES, StepError

OFF, EMPTY = "off", "empty"
_PART = re.compile(r"(?:(\d{1,2})x)?(\d{1,2}g\.\d{1,4}gb)(?:@(\d{1,2}))?")
_MODES = re.compile(r"([A-Z]{3})(?:/(NPS\d))?")


def with_layout(state: NodeState, which: str, text: str) -> NodeState:
    """``state`` with one GPU, by uuid or number, or ``all``, cut as ``text`` says. Raises StepError.

    ``text`` is ``3g.40gb@4,2x1g.10gb``, ``empty`` or ``off`` for MIG, and ``CPX/NPS4`` or ``CPX`` for AMD. Instances
    without a start stay where one like them is, else they start where all fit.
    """
    selected = [gpu for at, gpu in enumerate(state.gpus) if which in ("all", str(at), gpu.uuid)]
    if not selected:
        raise StepError(f"there is no GPU {which[:40]!r}; GPUs are 0 to {len(state.gpus) - 1}, their uuids, or all")
    for gpu in selected:
        state = state.with_gpu(_mig(gpu, text) if isinstance(gpu, MigGpu) else _partitioned(gpu, text))
    modes = {gpu.memory for gpu in state.gpus if isinstance(gpu, PartitionedGpu)}
    if len(modes) > 1:
        raise StepError(f"all GPUs of a node have one memory mode, not {', '.join(sorted(modes))}; write all=…")
    return state


def _partitioned(gpu: PartitionedGpu, text: str) -> PartitionedGpu:
    match = _MODES.fullmatch(text)
    if match is None or match[1] not in COMPUTE_MODES or (match[2] or MEMORY_MODES[0]) not in MEMORY_MODES:
        raise StepError(f"{text[:40]!r} is no layout of an AMD GPU; write it like CPX/NPS4")
    return replace(gpu, compute=match[1], memory=match[2] or gpu.memory)


def _mig(gpu: MigGpu, text: str) -> MigGpu:
    if text == OFF:
        return replace(gpu, enabled=False, pending=False, instances=())
    try:
        geometry = mig_geometry(find_gpu(gpu.model))
    except (MigError, UnknownGpuError) as error:
        raise StepError(str(error)) from None
    enabled = replace(gpu, enabled=True, pending=True)
    wanted = [] if text == EMPTY else _parts(geometry, text)
    fixed = tuple((profile, start) for profile, start in wanted if start is not None)
    free = [profile for profile, start in wanted if start is None]
    kept: list[tuple[str, int]] = []
    for each in gpu.instances:
        if each.compute is Compute.WHOLE and each.profile in free and each.position not in fixed:
            free.remove(each.profile)
            kept.append(each.position)
    for base in ((*fixed, *kept), fixed):
        rest = free if len(base) > len(fixed) or not kept else free + [profile for profile, _ in kept]
        layout = _fitted(geometry, base, sorted(rest, key=lambda name: -_slots(geometry, name)))
        if layout is not None:
            return enabled.with_instances(*(MigInstance(*position) for position in layout))
    raise StepError(f"{text[:60]} does not fit on a {geometry.model}")


def _parts(geometry: MigGeometry, text: str) -> list[tuple[str, int | None]]:
    result: list[tuple[str, int | None]] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or (match[1] and match[3]):
            raise StepError(f"{part[:40]!r} is no MIG instance; write it like 3g.40gb@4, 2x1g.10gb, or off")
        try:
            geometry.index(match[2])
        except MigError as error:
            raise StepError(str(error)) from None
        result += [(match[2], int(match[3]) if match[3] else None)] * int(match[1] or 1)
    return result


def _slots(geometry: MigGeometry, name: str) -> int:
    return geometry.profiles[geometry.index(name)].memory_slots


def _fitted(
    geometry: MigGeometry, placed: Sequence[tuple[str, int]], rest: Sequence[str]
) -> Sequence[tuple[str, int]] | None:
    """All instances with their starts, or None; tries at most the few layouts that a GPU has."""
    occupied, slices = 0, 0
    for name, start in placed:
        profile = geometry.profiles[geometry.index(name)]
        bits = ((1 << profile.memory_slots) - 1) << start
        slices += profile.compute_slices
        if start not in profile.starts or occupied & bits or slices > geometry.compute_slices:
            return None
        occupied |= bits
    if not rest:
        return placed
    for start in geometry.profiles[geometry.index(rest[0])].starts:
        if (result := _fitted(geometry, (*placed, (rest[0], start)), rest[1:])) is not None:
            return result
    return None
