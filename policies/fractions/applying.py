"""The steps by which a node's GPUs get shared in another way, or in the way of before: from its state alone.

Nothing is remembered between steps, so that whoever finds a node with a recorded change goes on, or takes it back, from
wherever it was left.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from kopt.core.sharing.change import ChangeOutcome, ReplicaState, SharingChange
from kopt.core.sharing.modes import SharingMode


class Step(StrEnum):
    """Each but ``DRAIN`` and ``WAIT`` is one write. ``FOREIGN``: others have set the label, and it is left to them."""

    CORDON = "cordon"
    DRAIN = "drain"
    CONFIGURE = "configure"
    LABEL = "label"
    WAIT = "wait"
    RELEASE = "release"
    FINISH = "finish"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class NodeState:
    """``offered``: GPUs or replicas that are allocatable. ``discovered``: by the labels of feature discovery, None
    where it sets none. ``mps_ready``: None where no daemon of MPS runs on it. ``pods``: those with GPUs, by name.
    ``is_configured``: the ConfigMap has the change's configuration, held for this node; ``holds``: it has one of any
    content that is held for this node."""

    label: str | None
    is_cordoned: bool
    offered: int
    discovered: tuple[SharingMode, int] | None = None
    mps_ready: bool | None = None
    pods: tuple[str, ...] = ()
    is_configured: bool = False
    holds: bool = False


def next_step(state: NodeState, change: SharingChange) -> Step:
    """What to do now. Raises ValueError for a change that has ended."""
    match change.outcome:
        case ChangeOutcome.OPEN:
            return _forward(state, change)
        case ChangeOutcome.UNDOING:
            return _back(state, change)
    raise ValueError(f"a change that is {change.outcome} has no next step")


def _forward(state: NodeState, change: SharingChange) -> Step:
    if state.label not in (change.before.label, change.after.label):
        return Step.FOREIGN
    if not state.is_cordoned:
        return Step.CORDON
    if state.label != change.after.label:
        # The plugin starts anew with the label, and pods would lose the devices that they have.
        if state.pods:
            return Step.DRAIN
        return Step.LABEL if state.is_configured else Step.CONFIGURE
    return Step.FINISH if in_force(state, change.after, change.gpus) else Step.WAIT


def _back(state: NodeState, change: SharingChange) -> Step:
    if state.label == change.after.label:
        if not state.is_cordoned:
            return Step.CORDON
        return Step.DRAIN if state.pods else Step.LABEL
    if state.label == change.before.label and not in_force(state, change.before, change.gpus):
        return Step.WAIT
    # Whatever others have set instead needs no configuration of ours.
    return Step.RELEASE if state.holds else Step.FINISH


def in_force(state: NodeState, wanted: ReplicaState, gpus: int) -> bool:
    """Whether the node offers what a configuration says. With MPS the plugin offers nothing without its daemon."""
    if state.offered != gpus * wanted.replicas:
        return False
    if state.discovered not in (None, (wanted.mode, wanted.replicas)):
        return False
    return wanted.mode is not SharingMode.MPS or state.mps_ready is True


def missing(state: NodeState, wanted: ReplicaState, gpus: int) -> str:
    """What a node is waited for, in a few words."""
    if wanted.mode is SharingMode.MPS and state.mps_ready is not True:
        return "the control daemon of MPS is not ready" if state.mps_ready is False else "no control daemon of MPS runs"
    if state.offered != gpus * wanted.replicas:
        return f"{state.offered} of {gpus * wanted.replicas} are allocatable"
    return "feature discovery still labels the node with what was before"


def after_step(state: NodeState, change: SharingChange, step: Step) -> NodeState:
    """The state that a step leads to, where nothing goes wrong."""
    goal = change.goal
    match step:
        case Step.CORDON:
            return replace(state, is_cordoned=True)
        case Step.DRAIN:
            return replace(state, pods=())
        case Step.CONFIGURE:
            return replace(state, is_configured=True, holds=True)
        case Step.LABEL:
            return replace(state, label=goal.label)
        case Step.WAIT:
            discovered = None if state.discovered is None else (goal.mode, goal.replicas)
            ready = True if goal.mode is SharingMode.MPS else state.mps_ready
            return replace(state, offered=change.gpus * goal.replicas, discovered=discovered, mps_ready=ready)
        case Step.RELEASE:
            return replace(state, is_configured=False, holds=False)
        case Step.FINISH:
            return replace(state, is_cordoned=change.was_cordoned)
    return state


def steps(state: NodeState, change: SharingChange) -> list[tuple[Step, NodeState]]:
    """All that are left, each with the state that it begins with: what a dry run shows."""
    result: list[tuple[Step, NodeState]] = []
    while True:
        step = next_step(state, change)
        result.append((step, state))
        if step in (Step.FINISH, Step.FOREIGN):
            return result
        state = after_step(state, change, step)
