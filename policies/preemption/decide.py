"""Selects victims by lost work, now or at a cheaper time within the waiting budget.

For now, and for every time at which a gang is expected to have a fresh checkpoint, the search finds the set that loses
least then; waiting has a price. The cheapest of these is the plan. The plan is made anew at every call, so a wrong
expectation never costs more than the wait, and no victim is preempted before its checkpoint exists.
"""

from collections.abc import Iterable
from dataclasses import replace

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.policies.preemption.decision import PreemptionAction, PreemptionDecision
from kopt.policies.preemption.evidence import Outlook, outlook
from kopt.policies.preemption.model import RunningGang, Snapshot
from kopt.policies.preemption.native import OUT_OF_REACH, gangs_to_guard, native_choice
from kopt.policies.preemption.plan import Evaluation, Plan, aside_reason, claims_of, decision_for, victims_reason
from kopt.policies.preemption.rules import forbidden, too_soon
from kopt.policies.preemption.search import Need, Option, VictimSet, cheapest
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState, observe


def decide(
    snapshot: Snapshot, state: PreemptionState | None = None, settings: PreemptionSettings | None = None
) -> tuple[PreemptionDecision, PreemptionState]:
    """What to do about ``snapshot.preemptor`` now, and the state for the next call.

    The returned state counts the victims as evicted: apply the decision, or keep the old state.
    """
    settings = settings or PreemptionSettings()
    current = observe(state or PreemptionState(), snapshot.gangs, snapshot.now_s)
    evaluation = _evaluate(snapshot, current, settings)
    decision = _decided(evaluation, current, settings)
    return decision, current.evicted(snapshot.now_s, decision.victims, snapshot.preemptor.name)


def _evaluate(snapshot: Snapshot, state: PreemptionState, settings: PreemptionSettings) -> Evaluation:
    gangs = sorted(snapshot.gangs, key=lambda gang: gang.name)
    rhythms = {rhythm.gang: rhythm for rhythm in state.rhythms}
    barred = {gang.name: why for gang in gangs if (why := forbidden(gang, snapshot, state, settings))}
    outlooks = {gang.name: outlook(gang, rhythms.get(gang.name), snapshot.now_s, settings) for gang in gangs}
    slack = {name: share.borrowed for name, share in snapshot.queues.items()}
    for gang in gangs:
        # A gang that is terminating still counts as used.
        for name in snapshot.lenders(gang) if gang.name in barred and barred[gang.name].code == "GOING" else ():
            slack[name] -= gang.gpus
    need = Need(snapshot.preemptor.pods, snapshot.preemptor.gpus_per_pod, snapshot.free, slack, snapshot.rooms)
    return Evaluation(
        snapshot, barred, outlooks, need, *gangs_to_guard(outlooks.values(), state, snapshot.now_s, settings)
    )


def _decided(evaluation: Evaluation, state: PreemptionState, settings: PreemptionSettings) -> PreemptionDecision:
    snapshot, need = evaluation.snapshot, evaluation.need
    again_s = snapshot.now_s + settings.recheck_s
    if need.met_by(snapshot.free):
        gpus = counted(format_gpus(need.gpus), "GPU")
        text = f"{snapshot.preemptor.name} asks for {gpus}, which {'is' if need.gpus == WHOLE_GPU else 'are'} free."
        return decision_for(evaluation, PreemptionAction.FITS, Reason("FITS", text))
    if reason := _over_limit(snapshot):
        return decision_for(evaluation, PreemptionAction.LEAVE, reason)
    if need.met_by(_with_leavers(snapshot, state, settings)):
        text = f"Gangs that were preempted for {snapshot.preemptor.name} are terminating."
        return decision_for(evaluation, PreemptionAction.WAIT, Reason("GOING", text), until_s=again_s)
    plan = _plan(evaluation, settings)
    if plan is None:
        return _no_victims(evaluation, settings)
    if plan.at_s > snapshot.now_s:
        return _wait(evaluation, plan, settings)
    if hope := _hope(evaluation, plan, settings):
        return decision_for(evaluation, PreemptionAction.WAIT, hope, plan, until_s=again_s)
    if plan.aside and (soon := _soon(evaluation, plan, settings)):
        return decision_for(evaluation, PreemptionAction.WAIT, soon, plan, until_s=again_s)
    if plan.aside:
        return decision_for(evaluation, PreemptionAction.LEAVE, aside_reason(evaluation, plan), plan)
    if held := too_soon(snapshot, state, len(plan.victims.names), settings):
        return decision_for(evaluation, PreemptionAction.WAIT, held[0], plan, until_s=held[1])
    return decision_for(evaluation, PreemptionAction.PREEMPT, victims_reason(evaluation, plan), plan)


def _over_limit(snapshot: Snapshot) -> Reason | None:
    """A reason if the workload would exceed the limit of its queue or of an ancestor."""
    for share in snapshot.lineage(snapshot.preemptor.queue):
        if share.limit is not None and share.used + snapshot.preemptor.gpus > share.limit:
            limit = counted(format_gpus(share.limit), "GPU")
            text = (
                f"Queue {share.name} uses {format_gpus(share.used)} of at most {limit}; "
                f"{snapshot.preemptor.name} asks for {format_gpus(snapshot.preemptor.gpus)} more. Raise the limit or "
                "wait for the queue's own jobs."
            )
            return Reason("QUEUE_LIMIT", text, {"used_milli_gpu": share.used, "limit_milli_gpu": share.limit})
    return None


def _with_leavers(snapshot: Snapshot, state: PreemptionState, settings: PreemptionSettings) -> dict[str, int]:
    """Free GPUs, including those of this workload's victims that should terminate shortly."""
    free = dict(snapshot.free)
    evicted_at_s = {
        eviction.gang: eviction.at_s
        for eviction in state.evictions
        if eviction.by == snapshot.preemptor.name and snapshot.now_s - eviction.at_s < settings.settle_s
    }
    for gang in snapshot.gangs:
        if evicted_at_s.get(gang.name, float("-inf")) >= gang.started_at_s:
            for node, amount in gang.freed:
                free[node] = free.get(node, 0) + amount
    return free


def _plan(evaluation: Evaluation, settings: PreemptionSettings) -> Plan | None:
    """The cheapest time and its victims, or the native scheduler's own choice now; the earliest of equals."""
    snapshot = evaluation.snapshot
    ends_s = snapshot.preemptor.since_s + snapshot.preemptor.budget_s
    moments = {
        phase.from_s
        for outlook in evaluation.allowed
        for phase in outlook.phases
        if snapshot.now_s < phase.from_s <= ends_s
    }
    plans = []
    for at_s in (snapshot.now_s, *sorted(moments)):
        if result := _victims(evaluation, evaluation.allowed, at_s, settings):
            wait_cost = settings.wait_price * snapshot.preemptor.gpus * (at_s - snapshot.now_s)
            plans.append(Plan(at_s, result, result.cost + wait_cost))
    patient = settings.stands_aside and snapshot.now_s <= ends_s + settings.settle_s
    if patient and (result := _native(evaluation, settings)):
        plans.append(Plan(snapshot.now_s, result, result.cost, aside=True))
    return min(plans, key=lambda plan: (plan.price, plan.at_s, plan.aside), default=None)


def _native(evaluation: Evaluation, settings: PreemptionSettings) -> VictimSet | None:
    """The native scheduler's own choice; None if it contains a gang that must not be left to it.

    Those are gangs that may be writing a checkpoint although they are no longer guarded, and gangs that our rules
    protect from being preempted again.
    """
    beyond = {name for name, why in evaluation.barred.items() if why.code in OUT_OF_REACH} | set(evaluation.guarded)
    reach = [outlook for name, outlook in evaluation.outlooks.items() if name not in beyond]
    result = native_choice(evaluation.snapshot, evaluation.need, reach, settings)
    spared = {*evaluation.barred, *evaluation.unguarded}
    return result if result and spared.isdisjoint(result.names) else None


def _hope(evaluation: Evaluation, plan: Plan, settings: PreemptionSettings) -> Reason | None:
    """A reason to decide again shortly: a gang with an unknown checkpoint interval may have a checkpoint by then.

    Compares what a second of waiting is expected to save with what it adds to the loss and to the price of waiting.
    """
    snapshot = evaluation.snapshot
    if snapshot.now_s + settings.recheck_s > snapshot.preemptor.since_s + snapshot.preemptor.budget_s:
        return None
    gain = 0.0
    for hoped in (victim for victim in evaluation.allowed if victim.hazard):
        costs = [
            (outlook.gang, outlook.fresh_cost if outlook is hoped else outlook.cost_at(snapshot.now_s))
            for outlook in evaluation.allowed
        ]
        result = _cheapest(evaluation, costs, settings)
        gain += hoped.hazard * max(0, plan.victims.cost - result.cost) if result else 0.0
    grows = plan.victims.gpus + settings.wait_price * snapshot.preemptor.gpus
    if gain <= grows:
        return None
    text = (
        f"Checkpoints that may complete at any time should save {gain / WHOLE_GPU:.1f} GPU-seconds per second of "
        f"waiting, which costs {grows / WHOLE_GPU:.1f}."
    )
    return Reason("MAY_GET_CHEAPER", text, {"saves_per_s": gain / WHOLE_GPU, "costs_per_s": grows / WHOLE_GPU})


def _soon(evaluation: Evaluation, plan: Plan, settings: PreemptionSettings) -> Reason | None:
    """A reason to decide again before leaving it to the native scheduler: cheaper gangs may become safe to kill."""
    snapshot = evaluation.snapshot
    if snapshot.now_s + settings.recheck_s > snapshot.preemptor.since_s + snapshot.preemptor.budget_s:
        return None
    fresh = [
        (outlook.gang, outlook.fresh_cost)
        for outlook in evaluation.allowed
        if outlook.spared is None or outlook.temporary
    ]
    result = _cheapest(evaluation, fresh, settings)
    if result is None or settings.aside * result.cost >= plan.victims.cost:
        return None
    theirs, native = result.cost / WHOLE_GPU, plan.victims.cost / WHOLE_GPU
    text = (
        f"{', '.join(result.names)} would lose {theirs:.0f} GPU-seconds after fresh checkpoints; the native "
        f"scheduler's expected victims would lose {native:.0f} now."
    )
    return Reason("NOT_YET", text, {"lost_fresh_gpu_s": theirs, "lost_native_gpu_s": native})


def _victims(
    evaluation: Evaluation, outlooks: Iterable[Outlook], at_s: float, settings: PreemptionSettings
) -> VictimSet | None:
    return _cheapest(evaluation, [(outlook.gang, outlook.cost_at(at_s)) for outlook in outlooks], settings)


def _cheapest(
    evaluation: Evaluation, costs: Iterable[tuple[RunningGang, int | None]], settings: PreemptionSettings
) -> VictimSet | None:
    options = [_option(evaluation.snapshot, gang, cost) for gang, cost in costs if cost is not None]
    return cheapest(options, evaluation.need, settings.search_steps)


def _option(snapshot: Snapshot, gang: RunningGang, cost: int) -> Option:
    return Option(gang.name, cost, gang.gpus, gang.freed, snapshot.lenders(gang))


def _wait(evaluation: Evaluation, plan: Plan, settings: PreemptionSettings) -> PreemptionDecision:
    now_s = evaluation.snapshot.now_s
    lost = plan.victims.cost / WHOLE_GPU
    text = (
        f"In {plan.at_s - now_s:.0f} s {', '.join(plan.victims.names)} should have fresh checkpoints and lose "
        f"{lost:.0f} GPU-seconds"
    )
    numbers = {"in_s": plan.at_s - now_s, "lost_gpu_s": lost}
    now = _victims(evaluation, evaluation.allowed, now_s, settings)
    if now:
        numbers["lost_now_gpu_s"] = now.cost / WHOLE_GPU
        text += f"; preempting now would lose {now.cost / WHOLE_GPU:.0f}"
    until_s = min(plan.at_s, now_s + settings.recheck_s)
    save_requests = _save_requests(evaluation, plan)
    if save_requests:
        text += f"; {', '.join(save_requests)} can be asked to save"
    reason = Reason("CHEAPER_LATER", f"{text}.{claims_of(evaluation, plan.victims.names)}", numbers)
    return replace(decision_for(evaluation, PreemptionAction.WAIT, reason, plan, until_s), save_requests=save_requests)


def _save_requests(evaluation: Evaluation, plan: Plan) -> tuple[str, ...]:
    """Gangs that have to be asked now so that their checkpoint exists when the plan needs it, and no earlier."""
    saves = {name: outlook.gang.saves_s for name, outlook in evaluation.outlooks.items() if outlook.askable}
    return tuple(
        name
        for name in plan.victims.names
        if (after_s := saves.get(name)) is not None and plan.at_s <= evaluation.snapshot.now_s + after_s
    )


def _no_victims(evaluation: Evaluation, settings: PreemptionSettings) -> PreemptionDecision:
    """No allowed set suffices: wait if gangs may still become safe to kill, otherwise leave it to the scheduler."""
    snapshot = evaluation.snapshot
    remaining_s = snapshot.preemptor.since_s + snapshot.preemptor.budget_s - snapshot.now_s
    possible = [outlook.gang for outlook in evaluation.allowed if outlook.spared is None or outlook.temporary]
    enough = (
        cheapest([_option(snapshot, gang, 0) for gang in possible], evaluation.need, settings.search_steps) is not None
    )
    missing = evaluation.need.gpus - sum(snapshot.free.values())
    numbers = {"missing_milli_gpu": missing, "budget_left_s": remaining_s}
    if enough and remaining_s > 0:
        text = (
            f"Gangs that could make room for {snapshot.preemptor.name} are not safe to kill yet; "
            f"{remaining_s:.0f} s of its budget are left."
        )
        until_s = min(snapshot.now_s + settings.recheck_s, snapshot.now_s + remaining_s)
        return decision_for(evaluation, PreemptionAction.WAIT, Reason("NOT_YET", text, numbers), until_s=until_s)
    code, why = ("BUDGET_SPENT", "its waiting budget is spent") if enough else ("NOT_ENOUGH", "they never free enough")
    text = (
        f"{snapshot.preemptor.name} lacks {counted(format_gpus(missing), 'GPU')}; the gangs that may be "
        f"preempted do not free enough, and {why}. The native scheduler applies its own rules. A larger budget, or "
        "logs that show checkpoints, would make more gangs eligible."
    )
    return decision_for(evaluation, PreemptionAction.LEAVE, Reason(code, text, numbers))
