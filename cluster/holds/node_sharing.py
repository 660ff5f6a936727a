"""A node whose device plugin is to share its GPUs in another way: which configuration it had, and how far we are.

Kept in the marks of ``cluster.holds.hold`` on the node, as ``{"sharing": {"own": its own, "set": ours, "before": ...,
"wanted": ..., "phase": ..., "since": ..., "cordoned": ..., "gpus": ..., "wait": ..., "raised": ...}}``. Each phase is
one write with its mark:

* ``cordoned``: nothing new comes to the node, its label is what it was, and its pods end, or are evicted;
* ``applying``: the label is the wanted one, and the plugin starts anew with it;
* ``shared``: the node takes pods again; the label stays until the node is given back, or moves on;
* ``restoring``: it did not come to that, and the label is again what it was before this change;
* ``failed``: as before this change. The next attempt is later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, mapping, text
from kopt.formats.sharing_terms import CONFIGURATION_LABEL

SHARING = "sharing"
"""The name of the holder, and of the entry among what releasing restores."""
PROPOSAL = "kaiwo.ai/sharing-proposal"
"""An annotation of a node: how its GPUs should be shared, and what keeps it from that; for people and pages alone."""
_LONGEST = 63
"""Of the value of a label."""
MOST_GPUS, _LONGEST_S = 64, 1e12


class SharingPhase(StrEnum):
    CORDONED = "cordoned"
    APPLYING = "applying"
    SHARED = "shared"
    RESTORING = "restoring"
    FAILED = "failed"


CHANGING = (SharingPhase.CORDONED, SharingPhase.APPLYING, SharingPhase.RESTORING)


@dataclass(frozen=True)
class SharingHold:
    """Values of the label: ``own`` before us, ``ours`` as we have set it (empty for never), ``before`` and ``wanted``
    of this change. ``since_s``: when the phase began, in Unix seconds. ``is_cordoned``: by us. ``gpus``: physical ones.
    ``wait_s``: how long a calm has to last; ``raised_s``: when the last step up was, None for none."""

    own: str
    ours: str
    before: str
    wanted: str
    phase: SharingPhase
    since_s: float
    is_cordoned: bool
    gpus: int
    wait_s: float = 0.0
    raised_s: float | None = None

    @property
    def label(self) -> str:
        """What the label is while nobody else writes it."""
        return self.ours or self.own

    def undo(self) -> dict[str, Any]:
        """For ``kaiwo.ai/held-undo``."""
        entry: dict[str, Any] = {"own": self.own, "set": self.ours, "before": self.before, "wanted": self.wanted}
        entry |= {"phase": self.phase.value, "since": self.since_s, "cordoned": self.is_cordoned, "gpus": self.gpus}
        return {SHARING: entry | {"wait": self.wait_s, "raised": self.raised_s}}


def read_sharing(undo: Mapping[str, Any]) -> SharingHold | None:
    """None where it cannot be read."""
    entry = mapping(undo, SHARING)
    labels = [text(entry, name) for name in ("own", "set", "before", "wanted")]
    since_s, gpus, wait_s = (_number(entry.get(name)) for name in ("since", "gpus", "wait"))
    if entry.get("phase") not in set(SharingPhase) or not labels[0] or any(len(each) > _LONGEST for each in labels):
        return None
    if since_s is None or gpus is None or not 1 <= gpus <= MOST_GPUS:
        return None
    own, ours, before, wanted = labels
    phase, cordoned = SharingPhase(entry["phase"]), entry.get("cordoned") is True
    raised_s = _number(entry.get("raised"))
    return SharingHold(own, ours, before, wanted, phase, since_s, cordoned, int(gpus), wait_s or 0.0, raised_s)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _LONGEST_S else None


def own_sharing(node: Object, undo: Mapping[str, Any] | None) -> Object:
    """The changes that give a node back: its label where it is still ours, and pods where we have cordoned it."""
    hold = read_sharing(undo or {})
    if hold is None:
        return {}
    changes: Object = {}
    if hold.ours not in ("", hold.own) and at(node, "metadata", "labels", CONFIGURATION_LABEL) == hold.ours:
        changes["metadata"] = {"labels": {CONFIGURATION_LABEL: hold.own}}
    if hold.is_cordoned and at(node, "spec", "unschedulable") is True:
        changes["spec"] = {"unschedulable": None}
    return changes
