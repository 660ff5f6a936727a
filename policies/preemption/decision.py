"""The decision about a waiting workload, with a reason for every candidate."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.decision import Action, Decision, Mode
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason

POLICY = "preemption"


class PreemptionAction(StrEnum):
    """What to do about the waiting workload."""

    FITS = "fits"
    """It fits without preemption."""
    PREEMPT = "preempt"
    """Preempt the victims now."""
    WAIT = "wait"
    """Decide again at ``until_s`` at the latest."""
    LEAVE = "leave"
    """No victims; the native scheduler applies its own rules."""


@dataclass(frozen=True)
class CandidateResult:
    """One running gang: selected, or spared and why. ``lost_gpu_s`` is what killing it now would lose, if known."""

    gang: str
    gpus: int
    selected: bool
    reason: Reason
    lost_gpu_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "gang": self.gang,
            "gpus_milli": self.gpus,
            "chosen": self.selected,
            "lost_gpu_seconds": self.lost_gpu_s,
            "reason": self.reason.to_dict(),
        }


@dataclass(frozen=True)
class PreemptionDecision:
    """``victims`` only with PREEMPT, ``until_s`` only with WAIT. ``lost_gpu_s`` is the work that the victims lose.

    With LEAVE it is what the native scheduler is expected to lose. ``guarded`` gangs have to be protected from the
    native scheduler, because a checkpoint write is or may be under way; ``unguarded`` gangs were protected for longer
    than allowed. ``exact``: no cheaper set exists. ``save_requests``, only with WAIT: the gangs to ask for a
    checkpoint now, as the plan counts on it.
    """

    action: PreemptionAction
    reasons: tuple[Reason, ...]
    candidates: tuple[CandidateResult, ...]
    victims: tuple[str, ...] = ()
    lost_gpu_s: float | None = None
    until_s: float | None = None
    guarded: tuple[str, ...] = ()
    unguarded: tuple[str, ...] = ()
    exact: bool = True
    save_requests: tuple[str, ...] = ()

    def as_decision(self, mode: Mode, models: tuple[ModelVersion, ...] = ()) -> Decision:
        """As actions on objects: preempt each victim, guard and unguard gangs."""
        gpus = {candidate.gang: candidate.gpus for candidate in self.candidates}
        actions = (
            *(Action("preempt", name, gpus[name], "milli-gpu") for name in self.victims),
            *(Action("ask-to-save", name) for name in self.save_requests),
            *(Action("guard", name) for name in self.guarded),
            *(Action("unguard", name) for name in self.unguarded),
        )
        return Decision(POLICY, mode, actions, self.reasons, models)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.action.value,
            "victims": list(self.victims),
            "lost_gpu_seconds": self.lost_gpu_s,
            "until": self.until_s,
            "reasons": [reason.to_dict() for reason in self.reasons],
            "candidates": [item.to_dict() for item in self.candidates],
            "guarded": list(self.guarded),
            "unguarded": list(self.unguarded),
            "exact": self.exact,
            "asks": list(self.save_requests),
        }
