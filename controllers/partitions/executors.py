"""Who cuts the GPUs of a node, behind one interface: NVIDIA's mig-manager by a label, AMD's device config manager
(``dcm``), a person's signed plan, or a driver that cuts on demand.

A node has one executor, and nobody beside us may tell it what to do: ``executor_of`` says which one, or whose it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kopt.cluster.client.resources import NODES, Object
from kopt.cluster.holds.hold import hold_metadata, release
from kopt.cluster.holds.node_layout import LayoutPhase, LayoutState
from kopt.cluster.objects.mig_configurations import CONFIGURATION_LABEL, STATE_LABEL
from kopt.cluster.workloads.node_selection import matches_labels
from kopt.controllers.partitions.views import HOLDER, ObservedNode, ObservedPlan
from kopt.core.times import seconds, stamp
from kopt.policies.partitions.configurations import NodeOption

MANAGER_LABEL, STRATEGY_LABEL = "nvidia.com/gpu.deploy.mig-manager", "nvidia.com/mig.strategy"
_OURS = "kopt"
"""How the names begin that we have in ``managedFields``: our user agents, that of `kopt off` among them."""
OPERATORS = ("gpu-operator", "nvidia-gpu-operator")
"""Writers of the label that only put the default there where there is none."""
_CONTROL_PLANE = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_NEUTRAL = ("", "all-disabled", "all-enabled")
"""Configurations that leave the cutting to others."""


class Refused(Exception):
    """A node that is not ours to cut; ``reason`` in one word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Step:
    """A patch of a node, and what it does, as an event says it."""

    changes: Object
    reason: str
    sentence: str


class Executor(ABC):
    """``cuts``: whether we tell it how to cut; else it does so as claims are allocated."""

    name: ClassVar[str]
    cuts: ClassVar[bool]
    remark: ClassVar[str] = ""

    @abstractmethod
    def start(self, node: ObservedNode, option: NodeOption, now_s: float) -> Step:
        """Begin to cut an idle node."""

    @abstractmethod
    def proceed(self, node: ObservedNode, wanted: NodeOption | None, is_idle: bool, now_s: float) -> Step | None:
        """The next step of a node that was begun; None while there is nothing to do. ``wanted``: what it is to have."""


class DynamicDriver(Executor):
    """A DRA driver with partitionable devices, which cuts an instance as its claim is prepared."""

    name, cuts = "dra", False
    remark = "Its driver cuts on demand: nothing is cut anew, and the webhook selects GPU and slots of each claim."

    def start(self, node: ObservedNode, option: NodeOption, now_s: float) -> Step:
        raise ValueError(f"the driver of {node.name} cuts on demand")

    def proceed(self, node: ObservedNode, wanted: NodeOption | None, is_idle: bool, now_s: float) -> Step | None:
        return None


class SignedPlans(Executor):
    """The node executor of ours, which does what a person has signed. Nobody else may tell it anything."""

    name, cuts = "node-plan", False
    remark = "A person signs its plans (kopt nodes plan, sign, apply): what is planned is shown here, and not done."

    def start(self, node: ObservedNode, option: NodeOption, now_s: float) -> Step:
        raise ValueError(f"plans of {node.name} are signed by a person")

    def proceed(self, node: ObservedNode, wanted: NodeOption | None, is_idle: bool, now_s: float) -> Step | None:
        return None


@dataclass(frozen=True)
class MigManager(Executor):
    """By ``nvidia.com/mig.config``. ``settle_s``: so long after the cordon a pod may still be bound that was scheduled
    before; ``cut_s``: then cutting has failed."""

    settle_s: float = 3.0
    cut_s: float = 900.0
    name: ClassVar[str] = "mig-manager"
    cuts: ClassVar[bool] = True

    def start(self, node: ObservedNode, option: NodeOption, now_s: float) -> Step:
        before, own = node.layout, node.labels.get(CONFIGURATION_LABEL)
        own, ours = (before.own, before.ours) if before is not None else (own, None)
        layout = LayoutState(own, ours, option.name, LayoutPhase.CORDONED, stamp(now_s), True)
        sentence = f"{node.name} takes no pods for now: it is to be cut as {option.name}."
        return Step(marked(layout) | {"spec": {"unschedulable": True}}, "PartitionsCordon", sentence)

    def proceed(self, node: ObservedNode, wanted: NodeOption | None, is_idle: bool, now_s: float) -> Step | None:
        layout = node.layout
        if layout is None:
            return None
        age_s = now_s - since_s(layout)
        if layout.phase is LayoutPhase.CORDONED and age_s >= self.settle_s:
            if not is_idle or wanted is None:
                why = "a pod came meanwhile" if not is_idle else f"there is no {layout.wanted} any more"
                return abandoned(node, layout, f"{node.name} stays as it is: {why}.")
            labels = {CONFIGURATION_LABEL: wanted.name}
            after = replace(layout, ours=wanted.name, phase=LayoutPhase.CUTTING, since=stamp(now_s))
            return Step(marked(after, labels), "PartitionsCut", f"{node.name} is being cut as {wanted.name}.")
        if layout.phase is LayoutPhase.CUTTING:
            return self._followed(node, layout, wanted, age_s, now_s)
        return None

    def _followed(
        self, node: ObservedNode, layout: LayoutState, wanted: NodeOption | None, age_s: float, now_s: float
    ) -> Step | None:
        state = node.labels.get(STATE_LABEL, "")
        # Right after the write the state is still that of the configuration before.
        if state == "success" and wanted is not None and dict(node.instances) == dict(wanted.instances):
            after = replace(layout, phase=LayoutPhase.CUT, since=stamp(now_s), is_cordoned=False)
            sentence = f"{node.name} is cut as {layout.ours} and takes pods again."
            return Step(marked(after) | {"spec": {"unschedulable": None}}, "PartitionsReady", sentence)
        if (state == "failed" and age_s >= self.settle_s) or age_s >= self.cut_s:
            after = replace(layout, ours=None, phase=LayoutPhase.FAILED, since=stamp(now_s), is_cordoned=False)
            why = (
                "mig-manager says that it failed" if state == "failed" else f"it was not cut within {self.cut_s:.0f} s"
            )
            sentence = f"{node.name} gets its own configuration back: {why} ({layout.ours})."
            changes = marked(after, {CONFIGURATION_LABEL: layout.own}) | {"spec": {"unschedulable": None}}
            return Step(changes, "PartitionsFailed", sentence)
        return None


def since_s(layout: LayoutState) -> float:
    """Unix seconds; long ago where that cannot be read."""
    try:
        return seconds(layout.since)
    except (ValueError, OverflowError):
        return 0.0


def abandoned(node: ObservedNode, layout: LayoutState, sentence: str) -> Step:
    """As it was before this attempt: cut or divided by us earlier, or not ours at all."""
    if layout.ours is None:
        return released(node, sentence)
    after = replace(layout, wanted=layout.ours, phase=LayoutPhase.CUT, is_cordoned=False)
    return Step(marked(after) | {"spec": {"unschedulable": None}}, "PartitionsGiveBack", sentence)


def released(node: ObservedNode, sentence: str) -> Step:
    """The step by which a node is as it was before us."""
    return Step(release(NODES, node.document), "PartitionsGiveBack", sentence)


def marked(layout: LayoutState, labels: Mapping[str, str | None] | None = None) -> Object:
    """The part of a merge patch that has the marks and these labels."""
    metadata = hold_metadata(HOLDER, layout.undo())
    return {"metadata": metadata | {"labels": metadata["labels"] | dict(labels or {})}}


def executor_of(
    node: ObservedNode,
    strategies: Collection[str],
    plans: Sequence[ObservedPlan],
    is_dynamic: bool,
    manager: MigManager,
    *,
    signs: bool = False,
) -> Executor:
    """``strategies``: the names of all MIGStrategies that select the node. ``signs``: our node executor has reported
    its GPUs, and does what a person has signed. Raises Refused."""
    require_one_authority(node, strategies, plans)
    if is_dynamic:
        return dynamic_driver(node, CONFIGURATION_LABEL)
    has_manager = node.labels.get(MANAGER_LABEL) == "true" or STATE_LABEL in node.labels
    if not has_manager and not signs:
        raise Refused(
            "NoExecutor",
            f"{node.name} has neither mig-manager, a driver that cuts on demand, nor our node executor",
        )
    if node.labels.get(STRATEGY_LABEL, "mixed") != "mixed":
        strategy = node.labels[STRATEGY_LABEL]
        raise Refused("NotMixed", f"{node.name} publishes instances as whole GPUs ({STRATEGY_LABEL}={strategy})")
    if not has_manager:
        return SignedPlans()
    require_our_label(node, CONFIGURATION_LABEL)
    return manager


def require_one_authority(node: ObservedNode, strategies: Collection[str], plans: Sequence[ObservedPlan]) -> None:
    """Raises Refused where another strategy, a PartitioningPlan or another holder has the node."""
    if len(strategies) > 1:
        names = ", ".join(sorted(strategies))
        raise Refused("TwoAuthorities", f"several MIGStrategies select {node.name}: {names}; let one of them")
    is_control_plane = any(label in node.labels for label in _CONTROL_PLANE)
    for plan in plans:
        spared = plan.spares_control_plane and is_control_plane
        if not spared and any(matches_labels(selector, node.labels) for selector in plan.selectors):
            raise Refused(
                "TwoAuthorities", f"PartitioningPlan {plan.name} cuts {node.name}; take it out of one of them"
            )
    if node.holder not in ("", HOLDER):
        raise Refused("HeldByOthers", f"{node.name} is held by {node.holder}")


def dynamic_driver(node: ObservedNode, label: str) -> DynamicDriver:
    """Of a node whose driver cuts on demand. Raises Refused where its label tells a manager to cut it as well."""
    written = node.labels.get(label, "")
    if written not in _NEUTRAL and node.layout is None:
        raise Refused(
            "TwoAuthorities",
            f"the driver of {node.name} cuts on demand, and its label {label} says {written}: remove the label, or the "
            "driver's dynamic partitions",
        )
    return DynamicDriver()


def require_our_label(node: ObservedNode, label: str) -> None:
    """Raises Refused where somebody else writes the label that the manager of a node goes by."""
    layout, written = node.layout, node.labels.get(label)
    if layout is not None and layout.ours is not None:
        if written != layout.ours:
            raise Refused("TwoAuthorities", f"{node.writer or 'somebody'} has set {label} of {node.name} since we did")
    elif written is not None and node.writer not in ("", *OPERATORS) and not node.writer.startswith(_OURS):
        raise Refused(
            "TwoAuthorities",
            f"{node.writer} manages {label} of {node.name} ({written}): remove the label to leave the node to this "
            "strategy",
        )
