"""What was decided about a waiting workload, with a reason for every candidate."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kopt.core.decision import Action, Decision, Mode
from kopt.core.prediction import ModelVersion
from kopt.core.reason import Reason

POLICY = "preemption"


class Verdict(StrEnum):
    """What to do about the waiting workload."""

    FITS = "fits"
    """It needs nobody's room."""
    PREEMPT = "preempt"
    """The victims make room now."""
    WAIT = "wait"
    """Ask again at ``until_s`` at the latest."""
    LEAVE = "leave"
    """We choose nobody; the native scheduler goes by its own rules."""


@dataclass(frozen=True)
class CandidateNote:
    """One running gang: chosen, or spared and why. ``lost_gpu_s`` is what killing it now loses, where that is known."""

    gang: str
    gpus: int
    chosen: bool
    reason: Reason
    lost_gpu_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"gang": self.gang, "gpus_milli": self.gpus, "chosen": self.chosen, "lost_gpu_seconds": self.lost_gpu_s,
                "reason": self.reason.to_dict()}  # fmt: skip


@dataclass(frozen=True)
class PreemptionDecision:
    """``victims`` only with PREEMPT, ``until_s`` only with WAIT. ``lost_gpu_s`` is what the victims lose, or would.

    With LEAVE it is what the native scheduler is expected to lose. ``guarded`` are to be kept from that too, for a
    write that is or may be under way; ``unguarded`` were guarded for longer than is allowed and are its to take.
    ``exact``: no cheaper set exists at that moment. ``asks``, only with WAIT: who is to be asked to save now, as the
    plan counts on it.
    """

    verdict: Verdict
    reasons: tuple[Reason, ...]
    notes: tuple[CandidateNote, ...]
    victims: tuple[str, ...] = ()
    lost_gpu_s: float | None = None
    until_s: float | None = None
    guarded: tuple[str, ...] = ()
    unguarded: tuple[str, ...] = ()
    exact: bool = True
    asks: tuple[str, ...] = ()

    def as_decision(self, mode: Mode, models: tuple[ModelVersion, ...] = ()) -> Decision:
        """As actions on objects: pre-empt each victim, guard and unguard gangs."""
        gpus = {note.gang: note.gpus for note in self.notes}
        actions = (
            *(Action("preempt", name, gpus[name], "milli-gpu") for name in self.victims),
            *(Action("ask-to-save", name) for name in self.asks),
            *(Action("guard", name) for name in self.guarded),
            *(Action("unguard", name) for name in self.unguarded),
        )
        return Decision(POLICY, mode, actions, self.reasons, models)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value, "victims": list(self.victims), "lost_gpu_seconds": self.lost_gpu_s,
            "until": self.until_s, "reasons": [one.to_dict() for one in self.reasons],
            "candidates": [one.to_dict() for one in self.notes], "guarded": list(self.guarded),
            "unguarded": list(self.unguarded), "exact": self.exact, "asks": list(self.asks),
        }  # fmt: skip
