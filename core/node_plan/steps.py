"""The closed list of what may be done to a node, what each step makes of its state, and the steps between two states.

Everything here is pure: the same function says what a plan will do before it is signed, what has to be read back after
each step, and how a node returns to the state before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.mig import MigError, MigGeometry, MigProfile, mig_geometry
from kopt.core.node_plan.state import Compute, MigGpu, MigInstance, NodeState, PartitionedGpu
from kopt.core.untrusted import UnreadableError, whole, word

COMPUTE_MODES = ("SPX", "DPX", "QPX", "CPX")
MEMORY_MODES = ("NPS1", "NPS2", "NPS4", "NPS8")


class StepError(ValueError):
    """A step that the node's GPUs cannot make, or that could not be undone; the message says which and why."""


class UnknownVerbError(UnreadableError):
    """A verb that is not in the list."""


class Verb(StrEnum):
    """All that a node executor can do. There is none that runs a command or drains a node."""

    MIG_MODE = "mig-mode"
    MIG_CREATE = "mig-create"
    MIG_DESTROY = "mig-destroy"
    COMPUTE_PARTITION = "compute-partition"
    MEMORY_PARTITION = "memory-partition"


@dataclass(frozen=True)
class MigModeStep:
    gpu: str
    enabled: bool
    verb: Verb = Verb.MIG_MODE

    def __str__(self) -> str:
        return f"{self.verb} {'on' if self.enabled else 'off'} on {self.gpu}"


@dataclass(frozen=True)
class MigInstanceStep:
    """Creates or destroys one instance, with its one compute instance."""

    verb: Verb
    gpu: str
    profile: str
    start: int

    def __str__(self) -> str:
        return f"{self.verb} {self.profile} at {self.start} on {self.gpu}"


@dataclass(frozen=True)
class ComputePartitionStep:
    gpu: str
    mode: str
    verb: Verb = Verb.COMPUTE_PARTITION

    def __str__(self) -> str:
        return f"{self.verb} {self.mode} on {self.gpu}"


@dataclass(frozen=True)
class MemoryPartitionStep:
    """Of all GPUs: the driver has one memory mode for a hive."""

    mode: str
    verb: Verb = Verb.MEMORY_PARTITION

    def __str__(self) -> str:
        return f"{self.verb} {self.mode} on every GPU"


Step = MigModeStep | MigInstanceStep | ComputePartitionStep | MemoryPartitionStep


def step_document(step: Step) -> dict[str, Any]:
    """As it is signed."""
    fields = ("verb", "gpu", "enabled", "profile", "start", "mode")
    return {name: getattr(step, name) for name in fields if hasattr(step, name)} | {"verb": step.verb.value}


def step_of(document: Mapping[str, Any]) -> Step:
    """Raises UnknownVerbError, and UnreadableError for what is no step."""
    name = word(document, "verb", 64)
    if name not in list(Verb):
        raise UnknownVerbError(f"{name[:40]!r} is none of the verbs {', '.join(Verb)}")
    step = _read(Verb(name), document)
    extra = document.keys() - step_document(step).keys()
    if extra:
        raise UnreadableError(f"{name} has no {', '.join(sorted(map(repr, extra)))[:80]}")
    return step


def _read(verb: Verb, document: Mapping[str, Any]) -> Step:
    if verb is Verb.MEMORY_PARTITION:
        return MemoryPartitionStep(_mode(document, MEMORY_MODES))
    gpu = word(document, "gpu", 128)
    if verb is Verb.COMPUTE_PARTITION:
        return ComputePartitionStep(gpu, _mode(document, COMPUTE_MODES))
    if verb is Verb.MIG_MODE:
        enabled = document.get("enabled")
        if not isinstance(enabled, bool):
            raise UnreadableError("enabled is neither true nor false")
        return MigModeStep(gpu, enabled)
    return MigInstanceStep(verb, gpu, word(document, "profile", 32), whole(document, "start", high=64))


def _mode(document: Mapping[str, Any], modes: tuple[str, ...]) -> str:
    mode = word(document, "mode", 16)
    if mode not in modes:
        raise UnreadableError(f"mode {mode!r} is none of {', '.join(modes)}")
    return mode


def after(state: NodeState, step: Step) -> NodeState:
    """The state that a step leads to. Raises StepError."""
    if isinstance(step, MemoryPartitionStep):
        if not state.gpus or not all(isinstance(gpu, PartitionedGpu) for gpu in state.gpus):
            raise StepError("only AMD GPUs have memory partitions")
        gpus = tuple(replace(gpu, memory=step.mode) for gpu in state.gpus if isinstance(gpu, PartitionedGpu))
        return replace(state, gpus=gpus)
    try:
        gpu = state.gpu(step.gpu)
    except KeyError:
        raise StepError(f"the node has no GPU {step.gpu[:80]}") from None
    if isinstance(step, ComputePartitionStep):
        if not isinstance(gpu, PartitionedGpu):
            raise StepError(f"{gpu.uuid} is no AMD GPU: it has no compute partitions")
        return state.with_gpu(replace(gpu, compute=step.mode))
    if not isinstance(gpu, MigGpu):
        raise StepError(f"{gpu.uuid} is no NVIDIA GPU: it has no MIG")
    if isinstance(step, MigModeStep):
        return state.with_gpu(_with_mode(gpu, step))
    return state.with_gpu(_created(gpu, step) if step.verb is Verb.MIG_CREATE else _destroyed(gpu, step))


def all_after(state: NodeState, steps: tuple[Step, ...]) -> tuple[NodeState, ...]:
    """The state before, and after each step. Raises StepError that numbers the step."""
    states = [state]
    for number, step in enumerate(steps, start=1):
        try:
            states.append(after(states[-1], step))
        except StepError as error:
            raise StepError(f"step {number}, {step}: {error}") from None
    return tuple(states)


def _with_mode(gpu: MigGpu, step: MigModeStep) -> MigGpu:
    if gpu.instances:
        raise StepError("the MIG mode changes on a GPU without instances alone; destroy them before")
    _geometry(gpu)
    return replace(gpu, enabled=step.enabled, pending=step.enabled)


def _created(gpu: MigGpu, step: MigInstanceStep) -> MigGpu:
    if not gpu.enabled or not gpu.pending:
        raise StepError("MIG is off there; a step mig-mode comes before")
    geometry = _geometry(gpu)
    profile = _profile(geometry, step.profile)
    if step.start not in profile.starts:
        raise StepError(f"{profile.name} starts at {', '.join(map(str, profile.starts))} alone")
    slots = set(range(step.start, step.start + profile.memory_slots))
    used = profile.compute_slices
    for other in gpu.instances:
        shape = _profile(geometry, other.profile)
        used += shape.compute_slices
        if slots & set(range(other.start, other.start + shape.memory_slots)):
            raise StepError(f"{other.profile} at {other.start} is there")
    if used > geometry.compute_slices:
        raise StepError(f"{used} compute slices of {geometry.compute_slices}")
    return gpu.with_instances(*gpu.instances, MigInstance(step.profile, step.start))


def _destroyed(gpu: MigGpu, step: MigInstanceStep) -> MigGpu:
    instance = next((each for each in gpu.instances if each.position == (step.profile, step.start)), None)
    if instance is None:
        raise StepError("there is no such instance")
    if instance.compute is Compute.PARTS:
        raise StepError("its compute instances are not one over all of it, so that it could not be made again")
    _profile(_geometry(gpu), instance.profile)
    return gpu.with_instances(*(each for each in gpu.instances if each is not instance))


def _geometry(gpu: MigGpu) -> MigGeometry:
    try:
        return mig_geometry(find_gpu(gpu.model))
    except (MigError, UnknownGpuError) as error:
        raise StepError(str(error)) from None


def _profile(geometry: MigGeometry, name: str) -> MigProfile:
    try:
        return geometry.profiles[geometry.index(name)]
    except MigError as error:
        raise StepError(str(error)) from None


def steps_between(now: NodeState, wanted: NodeState) -> tuple[Step, ...]:
    """Steps from one state to another of the same GPUs. Raises StepError where the GPUs differ.

    Instances that both states have are not touched. An instance without a compute instance is what an interrupted step
    leaves: it is destroyed unless ``wanted`` has it, and never made.
    """
    if [gpu.uuid for gpu in now.gpus] != [gpu.uuid for gpu in wanted.gpus] or now.vendor is not wanted.vendor:
        raise StepError("the node has other GPUs than before")
    steps: list[Step] = []
    for gpu, goal in zip(now.gpus, wanted.gpus, strict=True):
        if isinstance(gpu, MigGpu) and isinstance(goal, MigGpu):
            steps += _mig_steps(gpu, goal)
    return tuple(steps) + _partition_steps(now, wanted)


def _mig_steps(gpu: MigGpu, goal: MigGpu) -> list[Step]:
    extra = [each for each in gpu.instances if each not in goal.instances]
    missing = [each for each in goal.instances if each not in gpu.instances and each.compute is not Compute.NONE]
    steps: list[Step] = [MigInstanceStep(Verb.MIG_DESTROY, gpu.uuid, *each.position) for each in extra]
    if (gpu.enabled, gpu.pending) != (goal.enabled, goal.enabled):
        steps.append(MigModeStep(gpu.uuid, goal.enabled))
    return steps + [MigInstanceStep(Verb.MIG_CREATE, gpu.uuid, *each.position) for each in missing]


def _partition_steps(now: NodeState, wanted: NodeState) -> tuple[Step, ...]:
    both = [
        (gpu, goal)
        for gpu, goal in zip(now.gpus, wanted.gpus, strict=True)
        if isinstance(gpu, PartitionedGpu) and isinstance(goal, PartitionedGpu)
    ]
    compute = tuple(ComputePartitionStep(gpu.uuid, goal.compute) for gpu, goal in both if gpu.compute != goal.compute)
    if all(gpu.memory == goal.memory for gpu, goal in both):
        return compute
    modes = {goal.memory for _, goal in both}
    if len(modes) > 1:
        raise StepError(f"all GPUs of a node have one memory mode, not {', '.join(sorted(modes))}")
    (mode,) = modes
    memory = (MemoryPartitionStep(mode),)
    # Every compute mode goes with NPS1; the others want theirs before.
    return memory + compute if mode == MEMORY_MODES[0] else compute + memory


def is_restored(now: NodeState, before: NodeState) -> bool:
    """Whether a node is as it was, but for instances without a compute instance that are gone: none can be made."""
    if now == before:
        return True
    try:
        return not steps_between(now, before)
    except StepError:
        return False
