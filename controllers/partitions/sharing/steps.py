"""The next step of a node that changes how its GPUs are shared, as a patch with its mark. Pure."""

from dataclasses import dataclass, replace

from kopt.cluster.client.resources import NODES, Object
from kopt.cluster.holds.hold import hold_metadata, release
from kopt.cluster.holds.node_sharing import PROPOSAL, SHARING, SharingHold, SharingPhase
from kopt.controllers.partitions.executors import Step
from kopt.controllers.partitions.sharing.reading import PluginNode
from kopt.core.sharing.change import ReplicaState
from kopt.core.sharing.modes import SharingMode
from kopt.formats.sharing_terms import CONFIGURATION_LABEL
from kopt.policies.fractions.applying import in_force, missing
from kopt.policies.fractions.configured import Rung, RungChange


@dataclass(frozen=True)
class StepSettings:
    """Seconds. ``settle_s``: after the cordon a pod may still be bound that was scheduled before. ``drain_s``: evicted
    pods have so long to end. ``in_force_s``: the plugin has so long to offer what its configuration says. ``calm_s``
    and ``most_calm_s``: the shortest and the longest pause after a change that failed."""

    settle_s: float = 3.0
    drain_s: float = 600.0
    in_force_s: float = 300.0
    calm_s: float = 900.0
    most_calm_s: float = 3600.0


def start(node: PluginNode, own: str, change: RungChange, now_s: float) -> Step:
    """Cordons the node, and says for what."""
    ours = "" if node.hold is None else node.hold.ours
    state = change.state
    hold = SharingHold(
        own,
        ours,
        node.state.label or "",
        change.rung.name,
        SharingPhase.CORDONED,
        now_s,
        True,
        node.gpus,
        state.wait_s,
        state.raised_s,
    )
    changes = marked(hold)
    changes["metadata"]["annotations"][PROPOSAL] = None
    sentence = f"{node.name} takes no pods for now: its GPUs are to be shared as {change.rung.name}. "
    return Step(changes | {"spec": {"unschedulable": True}}, "SharingCordon", sentence + change.reason.message)


def proceed(
    node: PluginNode, hold: SharingHold, wanted: Rung | None, before: Rung | None, settings: StepSettings, now_s: float
) -> Step | None:
    """None while there is nothing to do but to wait, or to evict. ``wanted`` and ``before``: as the ConfigMap has them
    now, None where it has not."""
    age_s = now_s - hold.since_s
    match hold.phase:
        case SharingPhase.CORDONED:
            if wanted is None:
                return _abandoned(node, hold, f"there is no configuration {hold.wanted} any more", settings, now_s)
            if node.state.pods:
                if age_s < settings.drain_s:
                    return None
                names = ", ".join(node.state.pods[:3])
                return _abandoned(node, hold, f"{names} did not end within {settings.drain_s:.0f} s", settings, now_s)
            if age_s < settings.settle_s:
                return None
            after = replace(hold, ours=wanted.name, phase=SharingPhase.APPLYING, since_s=now_s)
            sentence = f"{node.name} is to share its GPUs as {wanted.name}."
            return Step(marked(after, wanted.name), "SharingApply", sentence)
        case SharingPhase.APPLYING:
            if wanted is not None and in_force(node.state, _state(wanted), hold.gpus):
                after = replace(hold, phase=SharingPhase.SHARED, since_s=now_s, is_cordoned=False)
                sentence = f"{node.name} shares its GPUs as {wanted.name}, and takes pods again."
                return Step(marked(after) | _open(), "SharingApplied", sentence)
            if wanted is not None and age_s < settings.in_force_s:
                return None
            why = "its configuration is gone" if wanted is None else missing(node.state, _state(wanted), hold.gpus)
            after = replace(hold, ours=hold.before, phase=SharingPhase.RESTORING, since_s=now_s)
            sentence = f"{node.name} gets {hold.before} again: as {hold.wanted} {why}."
            return Step(marked(after, hold.before), "SharingFailed", sentence)
        case SharingPhase.RESTORING:
            is_back = before is not None and in_force(node.state, _state(before), hold.gpus)
            if not is_back and age_s < settings.in_force_s:
                return None
            after = _failed(hold, settings, now_s)
            how = "as before" if is_back else "with its configuration of before, which is not in force"
            return Step(marked(after) | _open(), "SharingRestored", f"{node.name} takes pods again, {how}.")
    return None


def given_back(node: PluginNode, why: str) -> Step:
    """As it was before us; a label that others have written since stays."""
    return Step(release(NODES, node.document), "SharingGiveBack", f"{node.name} is given back: {why}.")


def marked(hold: SharingHold, label: str = "") -> Object:
    """The part of a merge patch that has the marks and, where it is to change, the label."""
    metadata = hold_metadata(SHARING, hold.undo())
    labels = metadata["labels"] | ({CONFIGURATION_LABEL: label} if label else {})
    return {"metadata": metadata | {"labels": labels}}


def outrun(node: PluginNode, hold: SharingHold, now_s: float) -> Step:
    """Ends a change that a pod was faster than: the node keeps the label that it has."""
    if hold.label == hold.own:
        return given_back(node, "a pod came meanwhile")
    after = replace(hold, phase=SharingPhase.SHARED, since_s=now_s, is_cordoned=False)
    return Step(marked(after) | _open(), "SharingAbandoned", f"{node.name} stays as it is: a pod came meanwhile.")


def _abandoned(node: PluginNode, hold: SharingHold, why: str, settings: StepSettings, now_s: float) -> Step:
    after = _failed(hold, settings, now_s)
    return Step(marked(after) | _open(), "SharingAbandoned", f"{node.name} stays as it is: {why}.")


def _failed(hold: SharingHold, settings: StepSettings, now_s: float) -> SharingHold:
    """The next attempt comes after twice the pause that this one came after."""
    wait_s = min(settings.most_calm_s, 2 * max(settings.calm_s, hold.wait_s))
    return replace(hold, phase=SharingPhase.FAILED, since_s=now_s, is_cordoned=False, wait_s=wait_s, raised_s=None)


def _open() -> Object:
    return {"spec": {"unschedulable": None}}


def _state(rung: Rung) -> ReplicaState:
    return ReplicaState(rung.name, rung.setting.mode, max(1, rung.setting.replicas))


def lost_mps(node: PluginNode, now: Rung) -> bool:
    """Whether the plugin offers nothing as the daemon of MPS is away."""
    return now.setting.mode is SharingMode.MPS and not node.state.offered and node.state.mps_ready is not True
