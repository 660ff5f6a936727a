"""A LocalQueue of Kueue's that admits nothing for a time: ``stopPolicy: Hold``. What it has admitted runs on.

Kept in the marks of ``cluster.holds.hold`` on the queue: ``{"stopPolicy": ...}``, what its owner has written there.
"""

from collections.abc import Mapping
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import text

HOLD = "Hold"
FIELD = "stopPolicy"
_OPEN = "None"


def is_stopped(queue: Object) -> bool:
    """Whether somebody has stopped it, us included."""
    return text(queue, "spec", FIELD) not in ("", _OPEN)


def opened(queue: Object, undo: Mapping[str, Any] | None) -> Object:
    """The changes that give the queue back; none where its owner has written something else since."""
    if text(queue, "spec", FIELD) != HOLD:
        return {}
    before = (undo or {}).get(FIELD)
    return {"spec": {FIELD: before if before in (_OPEN, HOLD, "HoldAndDrain") else _OPEN}}
