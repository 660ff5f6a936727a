"""A node whose GPUs NVIDIA's mig-manager or AMD's device config manager is to cut anew: which configuration it had, and
how far we are.

Kept in the marks of ``cluster.holds.hold`` on the node: ``{"migConfig": its own, "set": ours, "wanted": ..., "phase":
..., "since": ..., "cordoned": ...}``, and with AMD's manager ``"label"``, ``"back"``, ``"gpus"``, ``"drained"`` and
``"until"``. Each phase is one write with its mark:

* ``cordoned``: nothing new comes to the node, and its label is what it was; pods are evicted where it is drained;
* ``cutting``: the label is ours, and the manager is at it;
* ``verifying``: AMD's manager has done it; what the device plugin offers is compared with what was wanted;
* ``cut``: the node takes pods again; the label stays ours until it is given back;
* ``restoring``: AMD's manager is to make the modes as they were before;
* ``failed``: the manager could not do it, so that the node is as before. The next attempt is later;
* ``stuck``: nor could it be made as before: the node stays cordoned, and somebody has to look.

Cordoning is ``spec.unschedulable``: DaemonSets tolerate that taint, so that the device plugin, which mig-manager ends
and starts again, comes back. They do not tolerate taints of ours. AMD's manager
needs its own taint beside, which ends the device plugin and the metrics exporter: the driver does not change while they
have it open. The modes of a node stay when it is given back, as no label undoes them while its plugin runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.dcm_profiles import PROFILE_LABEL, without_dcm_taint
from kopt.cluster.objects.fields import at, text
from kopt.cluster.objects.mig_configurations import CONFIGURATION_LABEL

OWN, SET, WANTED, PHASE, SINCE, CORDONED = "migConfig", "set", "wanted", "phase", "since", "cordoned"
LABEL, BACK, GPUS, DRAINED, UNTIL = "label", "back", "gpus", "drained", "until"

_LONGEST = 63
"""Of the value of a label."""
_MOST_GPUS = 64


class LayoutPhase(StrEnum):
    CORDONED = "cordoned"
    CUTTING = "cutting"
    VERIFYING = "verifying"
    CUT = "cut"
    RESTORING = "restoring"
    FAILED = "failed"
    STUCK = "stuck"


IN_PROGRESS = (LayoutPhase.CORDONED, LayoutPhase.CUTTING, LayoutPhase.VERIFYING, LayoutPhase.RESTORING)


@dataclass(frozen=True)
class LayoutState:
    """``own``: the configuration that the node had before us, None for no label. ``ours``: the one that we have written
    instead, None for none. ``wanted``: the one that is to be next. ``since``: when the phase began, as an RFC 3339
    time. ``label``: which manager's. With AMD's: ``back`` is the profile that makes the modes as they were, ``gpus``
    how many the node has, as partitions come and go; ``is_drained``: its pods are evicted; ``until``: they may take so
    long to end, empty for a node that was idle."""

    own: str | None
    ours: str | None
    wanted: str
    phase: LayoutPhase
    since: str
    is_cordoned: bool
    label: str = CONFIGURATION_LABEL
    back: str = ""
    gpus: int = 0
    is_drained: bool = False
    until: str = ""

    def undo(self) -> dict[str, Any]:
        """For ``kaiwo.ai/held-undo``."""
        layout: dict[str, Any] = {OWN: self.own, SET: self.ours, WANTED: self.wanted}
        layout |= {PHASE: self.phase.value, SINCE: self.since, CORDONED: self.is_cordoned}
        if self.label == CONFIGURATION_LABEL:
            return layout
        layout |= {LABEL: self.label, BACK: self.back, GPUS: self.gpus}
        return layout | {DRAINED: self.is_drained, UNTIL: self.until}


def read_layout(undo: Mapping[str, Any]) -> LayoutState | None:
    """None where they cannot be read."""
    own, ours, phase = undo.get(OWN), undo.get(SET), text(undo, PHASE)
    is_valid = all(label is None or (isinstance(label, str) and len(label) <= _LONGEST) for label in (own, ours))
    manager, gpus = undo.get(LABEL, CONFIGURATION_LABEL), undo.get(GPUS, 0)
    if phase not in set(LayoutPhase) or not is_valid or manager not in (CONFIGURATION_LABEL, PROFILE_LABEL):
        return None
    wanted, since = text(undo, WANTED), text(undo, SINCE)
    layout = LayoutState(own, ours, wanted, LayoutPhase(phase), since, undo.get(CORDONED) is True, manager)
    count = gpus if isinstance(gpus, int) and not isinstance(gpus, bool) and 0 <= gpus <= _MOST_GPUS else 0
    drained, until = undo.get(DRAINED) is True, text(undo, UNTIL)
    return replace(layout, back=text(undo, BACK)[:_LONGEST], gpus=count, is_drained=drained, until=until)


def own_layout(node: Object, undo: Mapping[str, Any] | None) -> Object:
    """The changes that give a node back: its label where it is still ours, and pods where we have cordoned it. With
    AMD's manager the taint goes and the label stays, as the modes do."""
    layout = read_layout(undo or {})
    if layout is None:
        return {}
    changes: Object = {}
    if layout.label == PROFILE_LABEL:
        spec = without_dcm_taint(node) if layout.is_cordoned else {}
        if layout.is_cordoned and at(node, "spec", "unschedulable") is True:
            spec["unschedulable"] = None
        return {"spec": spec} if spec else {}
    if layout.ours not in (None, layout.own) and at(node, "metadata", "labels", CONFIGURATION_LABEL) == layout.ours:
        changes["metadata"] = {"labels": {CONFIGURATION_LABEL: layout.own}}
    if layout.is_cordoned and at(node, "spec", "unschedulable") is True:
        changes["spec"] = {"unschedulable": None}
    return changes
