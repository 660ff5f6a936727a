"""What a decision is made of: the gangs as rules and evidence show them, a plan, and what is said of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, format_gpus
from kopt.policies.preemption.decision import CandidateNote, PreemptionDecision, Verdict
from kopt.policies.preemption.evidence import Outlook
from kopt.policies.preemption.search import Found, Need
from kopt.policies.preemption.words import Scene


@dataclass(frozen=True)
class Plan:
    """Whom to take at ``at_s``; ``price`` is the work lost then and the waiting until then, in milli-GPU-seconds.

    ``aside``: not ours to take, but what the native scheduler is expected to.
    """

    at_s: float
    found: Found
    price: float
    aside: bool = False


@dataclass(frozen=True)
class View:
    """All that is known of the scene's gangs: the rules first, then the evidence of those that rules allow."""

    scene: Scene
    barred: Mapping[str, Reason]
    outlooks: Mapping[str, Outlook]
    need: Need
    guarded: tuple[str, ...]
    unguarded: tuple[str, ...]

    @property
    def allowed(self) -> tuple[Outlook, ...]:
        return tuple(one for name, one in self.outlooks.items() if name not in self.barred)


def chosen_reason(view: View, plan: Plan) -> Reason:
    """Why these victims."""
    waited_s = view.scene.now_s - view.scene.waiting.since_s
    lost = plan.found.cost / WHOLE_GPU
    text = (f"{', '.join(plan.found.names)} free {format_gpus(plan.found.gpus)} GPUs for {view.scene.waiting.name} and "
            f"lose {lost:.0f} GPU-seconds, the least of all sets that may be chosen.")  # fmt: skip
    return Reason("LEAST_LOST", text, {"lost_gpu_s": lost, "waited_s": waited_s, "victims": len(plan.found.names)})


def aside_reason(view: View, plan: Plan) -> Reason:
    """Why none of ours."""
    lost = plan.found.cost / WHOLE_GPU
    text = (
        f"It is left to the native scheduler to make room for {view.scene.waiting.name}: it should take "
        f"{', '.join(plan.found.names)} and lose {lost:.0f} GPU-seconds, less than those who may be chosen."
    )
    return Reason("NATIVE_LOSES_LESS", text, {"lost_gpu_s": lost})


def say(
    view: View, verdict: Verdict, reason: Reason, plan: Plan | None = None, until_s: float | None = None
) -> PreemptionDecision:
    """The decision, with a word about every gang."""
    victims = plan.found.names if plan and verdict is Verdict.PREEMPT else ()
    notes = tuple(_note(view, name, victims, plan) for name in view.outlooks)
    lost = plan.found.cost / WHOLE_GPU if plan else None
    exact = plan.found.exact if plan else True
    return PreemptionDecision(
        verdict, (reason,), notes, victims, lost, until_s, view.guarded, view.unguarded, exact
    )  # fmt: skip


def _note(view: View, name: str, victims: Sequence[str], plan: Plan | None) -> CandidateNote:
    one = view.outlooks[name]
    cost = one.cost_at(view.scene.now_s)
    lost = None if cost is None else cost / WHOLE_GPU
    return CandidateNote(name, one.gang.gpus, name in victims, _why(view, one, victims, plan, lost), lost)


def _why(view: View, one: Outlook, victims: Sequence[str], plan: Plan | None, lost: float | None) -> Reason:
    name = one.gang.name
    if reason := view.barred.get(name) or one.spared:
        return reason
    numbers = {"lost_gpu_s": lost or 0.0}
    if name in victims:
        return Reason("CHOSEN", f"{name} makes room and loses {lost:.0f} GPU-seconds.", numbers)
    if plan is None or not victims:
        return Reason("NOT_NOW", f"{name} could be chosen and would lose {lost:.0f} GPU-seconds now.", numbers)
    return Reason("DEARER", f"{name} would lose {lost:.0f} GPU-seconds; the chosen lose "
                  f"{plan.found.cost / WHOLE_GPU:.0f} in all.", numbers)  # fmt: skip
