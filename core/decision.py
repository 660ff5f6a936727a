"""A decision: what a policy wants done, in which mode, and why."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason


class Mode(StrEnum):
    """How far a decision may go; the nearest ``kaiwo.ai/mode`` annotation wins."""

    OBSERVE = "observe"
    ANNOTATE = "annotate"
    ENFORCE = "enforce"


_WORKLOAD_MODES: dict[str, bool | None] = {"": None, "Any": True, "NotLower": False}


def may_lower(text: str) -> bool | None:
    """``Any``, ``NotLower`` or empty, as ``workload_may_lower``. Raises ValueError for anything else."""
    if text not in _WORKLOAD_MODES:
        raise ValueError(f"{text!r} is neither Any nor NotLower")
    return _WORKLOAD_MODES[text]


@dataclass(frozen=True)
class Action:
    """One change to one object: ``verb`` (lend, reclaim, patch, bind …) on ``target`` by ``amount`` of ``unit``."""

    verb: str
    target: str
    amount: int = 0
    unit: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {"verb": self.verb, "target": self.target, "amount": self.amount, "unit": self.unit}


@dataclass(frozen=True)
class Decision:
    """Actions of one policy at one moment. No action means: leave things as they are, for these reasons."""

    policy: str
    mode: Mode
    actions: tuple[Action, ...]
    reasons: tuple[Reason, ...]
    models: tuple[ModelVersion, ...] = ()

    def __post_init__(self) -> None:
        if not self.reasons:
            raise ValueError(f"policy {self.policy} decided without a reason")

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "mode": self.mode.value,
            "actions": [action.to_dict() for action in self.actions],
            "reasons": [reason.to_dict() for reason in self.reasons],
            "models": [model.to_dict() for model in self.models],
        }
