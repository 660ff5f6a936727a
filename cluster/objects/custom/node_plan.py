"""``NodePlan`` objects: a signed plan for the node of the same name, and what its executor reports."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, mapping, text
from kopt.core.node_plan.state import NodeState, state_of
from kopt.core.untrusted import LARGEST, UnreadableError

PUBLISHED_STATE, SEQUENCE = "state", "sequence"


@dataclass(frozen=True)
class ReportedNode:
    """``state`` is None where the executor has reported none that can be read. ``digest`` names the envelope that
    ``phase`` and ``reason`` are about; ``sequence`` is the highest that has begun on the node, 0 where none has."""

    node: str
    uid: str
    state: NodeState | None
    phase: str = ""
    reason: str = ""
    message: str = ""
    digest: str = ""
    sequence: int = 0


def envelope_in(document: Object) -> Any:
    """What stands there as the envelope, unread; None where there is none."""
    return at(document, "spec", "envelope")


def reported_of(document: Object) -> ReportedNode:
    """Nothing here raises: what cannot be read counts as not reported."""
    status = mapping(document, "status")
    return ReportedNode(
        text(document, "metadata", "name"),
        text(status, "nodeUid"),
        _state(mapping(status, PUBLISHED_STATE)),
        text(status, "phase"),
        text(status, "reason"),
        text(status, "message"),
        text(status, "envelope"),
        _sequence(at(status, SEQUENCE)),
    )


def _state(document: Mapping[str, Any]) -> NodeState | None:
    try:
        return state_of(document)
    except UnreadableError:
        return None


def _sequence(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST else 0
