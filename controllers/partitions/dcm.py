"""AMD's device config manager as an executor: it divides the GPUs of a node by the label of a profile.

The memory mode is the node's, and changing it loads the driver anew, so that a node is empty meanwhile: cordoned, its
pods evicted or waited for, then tainted as the manager wants it. What the manager says is not believed alone: the node
takes pods again once the device plugin, and amd-smi where our agent reads it, have what was wanted. Else the profile
that the node was in before is put back, in the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from kopt.cluster.client.resources import Object
from kopt.cluster.holds.node_layout import LayoutPhase, LayoutState
from kopt.cluster.objects.dcm_profiles import (
    DONE,
    FAILED,
    PROFILE_LABEL,
    PROFILE_STATE_LABEL,
    with_dcm_taint,
    without_dcm_taint,
)
from kopt.controllers.partitions.executors import Executor, Step, abandoned, marked, since_s
from kopt.controllers.partitions.views import ObservedNode
from kopt.core.times import seconds_or_none, stamp
from kopt.policies.partitions.configurations import NodeOption

SHORT_OF = 64
"""DRM has 64 render nodes for all drivers of a node (ROCm SMI's changelog), so that of 64 partitions the plugin may
offer 63 (ROCm/k8s-device-plugin#167)."""


@dataclass(frozen=True)
class NodeOrder:
    """What is to become of a node. ``back``: the profile of what it is now. ``evicts``: its pods; else they end by
    themselves ``within_s``, 0 for a node that is idle."""

    back: str
    gpus: int
    evicts: bool = False
    within_s: float = 0.0


@dataclass(frozen=True)
class DeviceConfigManager(Executor):
    """``settle_s``: so long after the cordon a pod may still be bound that was scheduled before. ``cut_s``: the manager
    tries for half an hour; after so long it has failed, and ``refused_s`` after it has said so. ``verify_s``: the
    device plugin takes so long to come back. ``actual``, ``reported``: partitions by mode, as the device plugin has
    them and as our agent reads them from amd-smi, by node."""

    settle_s: float = 3.0
    cut_s: float = 900.0
    refused_s: float = 180.0
    verify_s: float = 300.0
    reported: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    actual: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    name: ClassVar[str] = "device-config-manager"
    cuts: ClassVar[bool] = True

    def start(self, node: ObservedNode, option: NodeOption, now_s: float) -> Step:
        raise ValueError(f"{node.name}: what its modes are now has to be known (start_order)")

    def start_order(self, node: ObservedNode, option: NodeOption, order: NodeOrder, now_s: float) -> Step:
        """Begin to empty a node, or to divide one that is."""
        before = node.layout
        own = node.labels.get(PROFILE_LABEL) if before is None else before.own
        until = stamp(now_s + order.within_s) if order.within_s else ""
        layout = LayoutState(
            own,
            None if before is None else before.ours,
            option.name,
            LayoutPhase.CORDONED,
            stamp(now_s),
            True,
            PROFILE_LABEL,
            order.back,
            order.gpus,
            order.evicts,
            until,
        )
        why = "its pods are evicted" if order.evicts else "its pods are waited for" if until else "it is idle"
        sentence = f"{node.name} takes no pods for now: it is to be divided as {option.name}; {why}."
        return Step(marked(layout) | {"spec": {"unschedulable": True}}, "PartitionsCordon", sentence)

    def proceed(self, node: ObservedNode, wanted: NodeOption | None, is_idle: bool, now_s: float) -> Step | None:
        layout = node.layout
        if layout is None:
            return None
        age_s, state = now_s - since_s(layout), node.labels.get(PROFILE_STATE_LABEL, "")
        match layout.phase:
            case LayoutPhase.CORDONED if age_s >= self.settle_s:
                return self._cordoned(node, layout, wanted, is_idle, now_s)
            case LayoutPhase.CUTTING:
                return self._cutting(node, layout, state, age_s, now_s)
            case LayoutPhase.VERIFYING:
                return self._verifying(node, layout, wanted, age_s, now_s)
            case LayoutPhase.RESTORING:
                return self._restoring(node, layout, state, age_s, now_s)
        return None

    def _cordoned(
        self, node: ObservedNode, layout: LayoutState, wanted: NodeOption | None, is_idle: bool, now_s: float
    ) -> Step | None:
        if wanted is None:
            return abandoned(node, layout, f"{node.name} stays as it is: there is no {layout.wanted} any more.")
        if not is_idle:
            if layout.until and now_s < (seconds_or_none(layout.until) or 0.0):
                return None
            why = "its pods have not ended in time" if layout.until else "a pod came meanwhile"
            return abandoned(node, layout, f"{node.name} stays as it is: {why}.")
        after = replace(layout, ours=wanted.name, phase=LayoutPhase.CUTTING, since=stamp(now_s))
        sentence = f"{node.name} is being divided as {wanted.name}."
        return Step(_ordered(node, after, wanted.name), "PartitionsCut", sentence)

    def _cutting(self, node: ObservedNode, layout: LayoutState, state: str, age_s: float, now_s: float) -> Step | None:
        if state == DONE:
            after = replace(layout, phase=LayoutPhase.VERIFYING, since=stamp(now_s))
            sentence = f"{node.name} is divided as {layout.wanted}, says its manager; what it has is compared."
            return Step(marked(after) | {"spec": without_dcm_taint(node.document)}, "PartitionsVerify", sentence)
        if (state == FAILED and age_s >= self.refused_s) or age_s >= self.cut_s:
            why = "says that it failed" if state == FAILED else f"has said nothing for {self.cut_s:.0f} s"
            return self._restore(node, layout, f"the device config manager {why}", now_s)
        return None

    def _verifying(
        self, node: ObservedNode, layout: LayoutState, wanted: NodeOption | None, age_s: float, now_s: float
    ) -> Step | None:
        differs = "there is no such profile any more" if wanted is None else self.difference(node, wanted)
        if not differs:
            after = replace(layout, phase=LayoutPhase.CUT, since=stamp(now_s), is_cordoned=False)
            sentence = f"{node.name} is divided as {layout.wanted} and takes pods again."
            return Step(marked(after) | {"spec": {"unschedulable": None}}, "PartitionsReady", sentence)
        return self._restore(node, layout, differs, now_s) if age_s >= self.verify_s else None

    def difference(self, node: ObservedNode, wanted: NodeOption) -> str:
        """What the node has instead of what was wanted; empty where that is what it has."""
        plugin = self.actual.get(node.name, {})
        if not _agree(plugin, wanted.instances):
            return f"the device plugin offers {_words(plugin)}, not {_words(wanted.instances)}"
        tool = self.reported.get(node.name)
        if tool and dict(tool) != dict(wanted.instances):
            return f"amd-smi shows {_words(tool)}, not {_words(wanted.instances)}"
        return ""

    def _restore(self, node: ObservedNode, layout: LayoutState, why: str, now_s: float) -> Step:
        after = replace(layout, ours=layout.back, phase=LayoutPhase.RESTORING, since=stamp(now_s))
        sentence = f"{node.name} gets {layout.back} back: {why} ({layout.wanted})."
        return Step(_ordered(node, after, layout.back), "PartitionsFailed", sentence)

    def _restoring(
        self, node: ObservedNode, layout: LayoutState, state: str, age_s: float, now_s: float
    ) -> Step | None:
        opened = without_dcm_taint(node.document)
        if state == DONE:
            after = replace(layout, phase=LayoutPhase.FAILED, since=stamp(now_s), is_cordoned=False)
            sentence = f"{node.name} is as before ({layout.back}) and takes pods again."
            return Step(marked(after) | {"spec": opened | {"unschedulable": None}}, "PartitionsRestored", sentence)
        if age_s >= self.cut_s:
            after = replace(layout, phase=LayoutPhase.STUCK, since=stamp(now_s))
            sentence = (
                f"{node.name} stays cordoned: neither {layout.wanted} nor {layout.back} could be made. Look at it."
            )
            return Step(marked(after) | {"spec": opened}, "PartitionsStuck", sentence)
        return None


def _ordered(node: ObservedNode, layout: LayoutState, profile: str) -> Object:
    """The label and the taint in one write; what the manager said of the profile before goes with it."""
    labels = {PROFILE_LABEL: profile, PROFILE_STATE_LABEL: None}
    return marked(layout, labels) | {"spec": with_dcm_taint(node.document)}


def _agree(plugin: Mapping[str, int], wanted: Mapping[str, int]) -> bool:
    if dict(plugin) == dict(wanted):
        return True
    (name, count), *others = [*wanted.items()] or [("", 0)]
    return not others and count == SHORT_OF and dict(plugin) == {name: SHORT_OF - 1}


def _words(partitions: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in sorted(partitions.items())) or "nothing"
