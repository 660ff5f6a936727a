"""A node whose GPUs NVIDIA's mig-manager is to cut anew: which configuration it had, and how far we are.

Kept in the marks of ``cluster.holds.hold`` on the node: ``{"migConfig": its own, "set": ours, "wanted": ..., "phase":
..., "since": ..., "cordoned": ...}``. Each phase is one write with its mark:

* ``cordoned``: nothing new comes to the node, and its label is what it was;
* ``cutting``: the label is ours, and mig-manager is at it;
* ``cut``: the node takes pods again; the label stays ours until it is given back;
* ``failed``: mig-manager could not do it, so that the label is the node's own again. The next attempt is later.

Cordoning is ``spec.unschedulable``: DaemonSets tolerate that taint, so that the device plugin, which mig-manager ends
and starts again, comes back. They do not tolerate taints of ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, text
from kopt.cluster.objects.mig_configurations import CONFIGURATION_LABEL

OWN, SET, WANTED, PHASE, SINCE, CORDONED = "migConfig", "set", "wanted", "phase", "since", "cordoned"

_LONGEST = 63
"""Of the value of a label."""


class LayoutPhase(StrEnum):
    CORDONED = "cordoned"
    CUTTING = "cutting"
    CUT = "cut"
    FAILED = "failed"


@dataclass(frozen=True)
class LayoutMarks:
    """``own``: the configuration that the node had before us, None for no label. ``ours``: the one that we have written
    instead, None for none. ``wanted``: the one that is to be next. ``since``: when the phase began, as an RFC 3339
    time."""

    own: str | None
    ours: str | None
    wanted: str
    phase: LayoutPhase
    since: str
    is_cordoned: bool

    def undo(self) -> dict[str, Any]:
        """For ``kaiwo.ai/held-undo``."""
        layout = {OWN: self.own, SET: self.ours, WANTED: self.wanted}
        return {**layout, PHASE: self.phase.value, SINCE: self.since, CORDONED: self.is_cordoned}


def layout_marks(undo: Mapping[str, Any]) -> LayoutMarks | None:
    """None where they cannot be read."""
    own, ours, phase = undo.get(OWN), undo.get(SET), text(undo, PHASE)
    known = all(label is None or (isinstance(label, str) and len(label) <= _LONGEST) for label in (own, ours))
    if phase not in set(LayoutPhase) or not known:
        return None
    wanted, since = text(undo, WANTED), text(undo, SINCE)
    return LayoutMarks(own, ours, wanted, LayoutPhase(phase), since, undo.get(CORDONED) is True)


def own_layout(node: Object, undo: Mapping[str, Any] | None) -> Object:
    """The changes that give a node back: its label where it is still ours, and pods where we have cordoned it."""
    marks = layout_marks(undo or {})
    if marks is None:
        return {}
    changes: Object = {}
    if marks.ours not in (None, marks.own) and at(node, "metadata", "labels", CONFIGURATION_LABEL) == marks.ours:
        changes["metadata"] = {"labels": {CONFIGURATION_LABEL: marks.own}}
    if marks.is_cordoned and at(node, "spec", "unschedulable") is True:
        changes["spec"] = {"unschedulable": None}
    return changes
