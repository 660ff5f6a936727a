"""``NodeSelectionPolicy`` objects (``kaiwo.ai/v1alpha1``) as core types, and which of several is in force."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.resources import Object
from kopt.cluster.objects.fields import at, mapping, text
from kopt.core.hardware.node_selection import (
    LONGEST_WINDOW_S,
    SHORTEST_WINDOW_S,
    NodeSelectionPolicy,
    SelectionWeights,
)

_SPAN = re.compile(r"([1-9][0-9]{0,4})([mhd])")
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPEC, _WEIGHTS = frozenset({"weights", "utilisationHistory"}), SelectionWeights().by_field()


@dataclass(frozen=True)
class StoredPolicy:
    """A policy as it is stored: what it says, or ``error`` where it cannot be meant."""

    name: str
    uid: str
    created: str
    generation: int
    version: str
    status: Object
    policy: NodeSelectionPolicy | None
    error: str = ""


def stored_of(document: Object) -> StoredPolicy:
    """Also of a spec that cannot be meant, as its status has to say so."""
    metadata = mapping(document, "metadata")
    policy, error = None, ""
    try:
        policy = policy_of(document)
    except ValueError as problem:
        error = str(problem)
    generation = at(metadata, "generation")
    return StoredPolicy(
        text(metadata, "name"),
        text(metadata, "uid"),
        text(metadata, "creationTimestamp"),
        generation if isinstance(generation, int) else 0,
        text(metadata, "resourceVersion"),
        dict(mapping(document, "status")),
        policy,
        error,
    )


def policy_of(document: Object) -> NodeSelectionPolicy:
    """The spec. Raises ValueError for one that cannot be meant; the message names the field."""
    spec, weights = mapping(document, "spec"), mapping(document, "spec", "weights")
    _refuse_unknown("spec", spec, _SPEC)
    _refuse_unknown("spec.weights", weights, _WEIGHTS)
    _refuse_unknown("spec.utilisationHistory", mapping(spec, "utilisationHistory"), ("window",))
    numbers = [_number(name, weights.get(name, default)) for name, default in _WEIGHTS.items()]
    return NodeSelectionPolicy(
        text(document, "metadata", "name"),
        SelectionWeights(*numbers),
        _window_s(at(spec, "utilisationHistory", "window")),
    )


def in_force(policies: Iterable[StoredPolicy]) -> StoredPolicy | None:
    """The oldest that can be meant, by its name among those of one second; None without any."""
    valid = [stored for stored in policies if stored.policy is not None]
    return min(valid, key=lambda stored: (stored.created, stored.name), default=None)


def _refuse_unknown(where: str, written: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(written) - set(known)):
        raise ValueError(f"{where}.{unknown[0]} is no field of a NodeSelectionPolicy; there are {', '.join(known)}")


def _number(name: str, written: Any) -> float:
    if isinstance(written, bool) or not isinstance(written, int | float):
        raise ValueError(f"spec.weights.{name} is a number of GPUs, not {str(written)[:40]!r}")
    return float(written)


def _window_s(written: Any) -> float:
    if written is None:
        return NodeSelectionPolicy("").window_s
    match = _SPAN.fullmatch(written) if isinstance(written, str) else None
    window_s = int(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not SHORTEST_WINDOW_S <= window_s <= LONGEST_WINDOW_S:
        raise ValueError(f"spec.utilisationHistory.window is 5m to 7d, such as 90m or 6h, not {str(written)[:40]!r}")
    return window_s
