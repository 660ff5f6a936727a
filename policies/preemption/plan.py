"""The parts of a decision: the evaluated gangs, the plan, and the reasons given for both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.policies.preemption.decision import CandidateResult, PreemptionAction, PreemptionDecision
from kopt.policies.preemption.evidence import Outlook, claims_sentence
from kopt.policies.preemption.model import Snapshot
from kopt.policies.preemption.search import Need, VictimSet


@dataclass(frozen=True)
class Plan:
    """The victims at ``at_s``; ``price`` is the work lost plus the price of waiting, in milli-GPU-seconds.

    ``aside``: these are the native scheduler's expected victims, not ours.
    """

    at_s: float
    victims: VictimSet
    price: float
    aside: bool = False


@dataclass(frozen=True)
class Evaluation:
    """The snapshot's gangs after applying the rules, then the evidence of those that the rules allow."""

    snapshot: Snapshot
    barred: Mapping[str, Reason]
    outlooks: Mapping[str, Outlook]
    need: Need
    guarded: tuple[str, ...]
    unguarded: tuple[str, ...]

    @property
    def allowed(self) -> tuple[Outlook, ...]:
        return tuple(outlook for name, outlook in self.outlooks.items() if name not in self.barred)


def victims_reason(evaluation: Evaluation, plan: Plan) -> Reason:
    """Why these victims."""
    preemptor = evaluation.snapshot.preemptor
    waited_s = evaluation.snapshot.now_s - preemptor.since_s
    lost = plan.victims.cost / WHOLE_GPU
    text = (
        f"{', '.join(plan.victims.names)} {'frees' if len(plan.victims.names) == 1 else 'free'} "
        f"{counted(format_gpus(plan.victims.gpus), 'GPU')} for {preemptor.name} and "
        f"{'loses' if len(plan.victims.names) == 1 else 'lose'} {counted(f'{lost:.0f}', 'GPU-second')}, "
        "the least of all eligible sets."
    )
    return Reason(
        "LEAST_LOST",
        text + claims_of(evaluation, plan.victims.names),
        {"lost_gpu_s": lost, "waited_s": waited_s, "victims": len(plan.victims.names)},
    )


def aside_reason(evaluation: Evaluation, plan: Plan) -> Reason:
    """Why it is left to the native scheduler."""
    lost = plan.victims.cost / WHOLE_GPU
    text = (
        f"{evaluation.snapshot.preemptor.name} is left to the native scheduler, which is expected to preempt "
        f"{', '.join(plan.victims.names)} and lose {lost:.0f} GPU-seconds, less than the eligible gangs."
    )
    return Reason("NATIVE_LOSES_LESS", text + claims_of(evaluation, plan.victims.names), {"lost_gpu_s": lost})


def claims_of(evaluation: Evaluation, names: Sequence[str]) -> str:
    """A sentence if figures of these gangs are claims of their owners, otherwise empty."""
    return claims_sentence(evaluation.outlooks[name].gang for name in names if name in evaluation.outlooks)


def decision_for(
    evaluation: Evaluation,
    action: PreemptionAction,
    reason: Reason,
    plan: Plan | None = None,
    until_s: float | None = None,
) -> PreemptionDecision:
    """The decision, with a reason for every gang."""
    victims = plan.victims.names if plan and action is PreemptionAction.PREEMPT else ()
    candidates = tuple(_candidate(evaluation, name, victims, plan) for name in evaluation.outlooks)
    lost = plan.victims.cost / WHOLE_GPU if plan else None
    exact = plan.victims.exact if plan else True
    return PreemptionDecision(
        action, (reason,), candidates, victims, lost, until_s, evaluation.guarded, evaluation.unguarded, exact
    )


def _candidate(evaluation: Evaluation, name: str, victims: Sequence[str], plan: Plan | None) -> CandidateResult:
    outlook = evaluation.outlooks[name]
    cost = outlook.cost_at(evaluation.snapshot.now_s)
    lost = None if cost is None else cost / WHOLE_GPU
    return CandidateResult(
        name, outlook.gang.gpus, name in victims, _why(evaluation, outlook, victims, plan, lost), lost
    )


def _why(
    evaluation: Evaluation, outlook: Outlook, victims: Sequence[str], plan: Plan | None, lost: float | None
) -> Reason:
    name = outlook.gang.name
    if reason := evaluation.barred.get(name) or outlook.spared:
        return reason
    numbers, claims = {"lost_gpu_s": lost or 0.0}, claims_sentence([outlook.gang])
    if name in victims:
        return Reason("CHOSEN", f"{name} is preempted and loses {lost:.0f} GPU-seconds.{claims}", numbers)
    if plan is None or not victims:
        text = f"{name} is eligible and would lose {lost:.0f} GPU-seconds now.{claims}"
        return Reason("NOT_NOW", text, numbers)
    total = plan.victims.cost / WHOLE_GPU
    text = f"{name} would lose {lost:.0f} GPU-seconds; the victims lose {total:.0f} in total.{claims}"
    return Reason("DEARER", text, numbers)
