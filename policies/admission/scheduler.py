"""Which scheduler a workload should use (K2): pack small pods, gang-schedule distributed jobs, spread services.

A scheduler is named only if it is known to run; otherwise pods would stay pending forever. A scheduler that the user
names is kept, and all other workloads keep the scheduler they have.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from kopt.core.reason import Reason
from kopt.core.scheduling.submission import DEFAULT_SCHEDULER, Framework, WorkloadShape
from kopt.core.scheduling.workload_class import ClassPlacement, WorkloadClass
from kopt.core.units import WHOLE_GPU, MilliGpu, format_gpus

SPREAD_KEYS = ("topology.kubernetes.io/zone", "kubernetes.io/hostname")


class Placement(StrEnum):
    """How a workload's pods should be placed."""

    PACK = "pack"
    GANG = "gang"
    SPREAD = "spread"
    AS_WRITTEN = "as-written"


@dataclass(frozen=True)
class PackingClass:
    """Single pods of up to ``max_gpus`` go to ``scheduler``, on the nodes of ``node_selector`` if it is given."""

    scheduler: str
    max_gpus: MilliGpu = WHOLE_GPU
    node_selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class GangClass:
    """Trainings of at least ``min_pods`` pods go to ``scheduler``; ``framework`` says how gangs are marked for it.

    ``queue`` is this scheduler's queue; empty for the workload's own.
    """

    scheduler: str
    framework: Framework = Framework.KAI
    min_pods: int = 2
    queue: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SpreadClass:
    """Services of at least two pods are spread over the domains of these node labels, with soft constraints."""

    topology_keys: tuple[str, ...] = SPREAD_KEYS


@dataclass(frozen=True)
class SchedulerSettings:
    """A class that is None is disabled."""

    packing: PackingClass | None = None
    gang: GangClass | None = None
    spread: SpreadClass | None = None


@dataclass(frozen=True)
class SchedulerChoice:
    """What to write; an empty ``scheduler`` keeps the existing one."""

    placement: Placement
    reasons: tuple[Reason, ...]
    scheduler: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    topology_keys: tuple[str, ...] = ()
    gang: GangClass | None = None


def choose_scheduler(shape: WorkloadShape, settings: SchedulerSettings, running: Collection[str]) -> SchedulerChoice:
    """The class of a workload and its scheduler; ``running`` are the schedulers observed to run."""
    if shape.scheduler not in ("", DEFAULT_SCHEDULER):
        return _as_written("WRITTEN", f"It names scheduler {shape.scheduler!r} itself.")
    if shape.placement is ClassPlacement.SPREAD:
        return _spread(shape, settings.spread)
    gang, packing = settings.gang, settings.packing
    if gang is not None and shape.role is WorkloadClass.UNATTENDED and shape.pods >= gang.min_pods:
        if not shape.settable:
            return _as_written("NO_FIELD", f"A {shape.kind} has no field for a scheduler; name it in its runtime.")
        why = f"{shape.pods} pods must start together (gangs from {gang.min_pods} pods on)."
        numbers = {"pods": shape.pods, "min_pods": gang.min_pods}
        choice = SchedulerChoice(
            Placement.GANG, (Reason("DISTRIBUTED", why, numbers),), gang.scheduler, gang.node_selector, gang=gang
        )
        return _if_running(choice, running)
    if packing is not None and shape.settable and shape.pods == 1 and 0 < shape.gpus <= packing.max_gpus:
        why = f"{format_gpus(shape.gpus)} GPU(s) in one pod is small (up to {format_gpus(packing.max_gpus)})."
        numbers = {"milli_gpus": int(shape.gpus), "max_milli_gpus": int(packing.max_gpus)}
        choice = SchedulerChoice(
            Placement.PACK, (Reason("SMALL", why, numbers),), packing.scheduler, packing.node_selector
        )
        return _if_running(choice, running)
    return _as_written("NO_CLASS", f"{shape.pods} pod(s) with {format_gpus(shape.gpus)} GPU(s): no class applies.")


def _spread(shape: WorkloadShape, spread: SpreadClass | None) -> SchedulerChoice:
    if spread is None or shape.pods < 2:
        return _as_written("NO_CLASS", f"A service of {shape.pods} pod(s) is not spread.")
    if shape.spreads:
        return _as_written("WRITTEN", "It has topology spread constraints of its own.")
    why = f"{shape.pods} replicas of a service are spread over {', '.join(spread.topology_keys)}."
    reason = Reason("SERVICE", why, {"pods": shape.pods})
    return SchedulerChoice(Placement.SPREAD, (reason,), topology_keys=spread.topology_keys)


def _if_running(choice: SchedulerChoice, running: Collection[str]) -> SchedulerChoice:
    if choice.scheduler in running:
        return choice
    text = f"Scheduler {choice.scheduler!r} is not running; the pods keep the scheduler they have."
    return SchedulerChoice(Placement.AS_WRITTEN, (Reason("NOT_RUNNING", text), *choice.reasons))


def _as_written(code: str, text: str) -> SchedulerChoice:
    return SchedulerChoice(Placement.AS_WRITTEN, (Reason(code, text),))
