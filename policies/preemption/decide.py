"""Victims by lost work, now or at a cheaper moment within the waiting budget.

Every moment at which a gang is expected to have a fresh checkpoint, and the present one, gets the set that loses least
then; waiting has a price. The cheapest of these is the plan. It is made anew at every call, so nothing rests on an
expectation that did not come true, and no victim is taken for it before it has.
"""

from collections.abc import Iterable
from dataclasses import replace

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, format_gpus
from kopt.policies.preemption.decision import PreemptionDecision, Verdict
from kopt.policies.preemption.evidence import Outlook, outlook
from kopt.policies.preemption.native import OUT_OF_REACH, kept_from_it, native_choice
from kopt.policies.preemption.plan import Plan, View, aside_reason, chosen_reason, say
from kopt.policies.preemption.rules import forbidden, too_soon
from kopt.policies.preemption.search import Found, Need, Option, cheapest
from kopt.policies.preemption.settings import PreemptionSettings
from kopt.policies.preemption.state import PreemptionState, observe
from kopt.policies.preemption.words import RunningGang, Scene


def decide(
    scene: Scene, state: PreemptionState | None = None, settings: PreemptionSettings | None = None
) -> tuple[PreemptionDecision, PreemptionState]:
    """What to do about ``scene.waiting`` now, and the state for the next call.

    The state that comes back counts the victims as told to go: apply the decision, or keep the state that went in.
    """
    settings = settings or PreemptionSettings()
    known = observe(state or PreemptionState(), scene.gangs, scene.now_s)
    view = _look(scene, known, settings)
    decision = _decided(view, known, settings)
    return decision, known.evicted(scene.now_s, decision.victims, scene.waiting.name)


def _look(scene: Scene, state: PreemptionState, settings: PreemptionSettings) -> View:
    gangs = sorted(scene.gangs, key=lambda gang: gang.name)
    rhythms = {one.gang: one for one in state.rhythms}
    barred = {gang.name: why for gang in gangs if (why := forbidden(gang, scene, state, settings))}
    outlooks = {gang.name: outlook(gang, rhythms.get(gang.name), scene.now_s, settings) for gang in gangs}
    slack = {name: share.borrowed for name, share in scene.queues.items()}
    for gang in gangs:
        # Who was told to go still counts as used.
        for name in scene.lenders(gang) if gang.name in barred and barred[gang.name].code == "GOING" else ():
            slack[name] -= gang.gpus
    need = Need(scene.waiting.pods, scene.waiting.gpus_per_pod, scene.free, slack)
    return View(scene, barred, outlooks, need, *kept_from_it(outlooks.values(), state, scene.now_s, settings))


def _decided(view: View, state: PreemptionState, settings: PreemptionSettings) -> PreemptionDecision:
    scene, need = view.scene, view.need
    again_s = scene.now_s + settings.recheck_s
    if need.met_by(scene.free):
        text = f"{scene.waiting.name} asks for {format_gpus(need.gpus)} GPUs, which are free."
        return say(view, Verdict.FITS, Reason("FITS", text))
    if reason := _over_limit(scene):
        return say(view, Verdict.LEAVE, reason)
    if need.met_by(_with_leavers(scene, state, settings)):
        text = f"Gangs that were told to make room for {scene.waiting.name} are on their way out."
        return say(view, Verdict.WAIT, Reason("GOING", text), until_s=again_s)
    plan = _plan(view, settings)
    if plan is None:
        return _nobody(view, settings)
    if plan.at_s > scene.now_s:
        return _wait(view, plan, settings)
    if hope := _hope(view, plan, settings):
        return say(view, Verdict.WAIT, hope, plan, until_s=again_s)
    if plan.aside and (soon := _soon(view, plan, settings)):
        return say(view, Verdict.WAIT, soon, plan, until_s=again_s)
    if plan.aside:
        return say(view, Verdict.LEAVE, aside_reason(view, plan), plan)
    if held := too_soon(scene, state, len(plan.found.names), settings):
        return say(view, Verdict.WAIT, held[0], plan, until_s=held[1])
    return say(view, Verdict.PREEMPT, chosen_reason(view, plan), plan)


def _over_limit(scene: Scene) -> Reason | None:
    """The workload's own queue, or one above it, may not use that much."""
    for share in scene.lineage(scene.waiting.queue):
        if share.limit is not None and share.used + scene.waiting.gpus > share.limit:
            text = (f"Queue {share.name} uses {format_gpus(share.used)} of at most {format_gpus(share.limit)} GPUs; "
                    f"{scene.waiting.name} asks for {format_gpus(scene.waiting.gpus)} more. Raise the limit or wait "
                    "for the queue's own jobs.")  # fmt: skip
            return Reason("QUEUE_LIMIT", text, {"used_milli_gpu": share.used, "limit_milli_gpu": share.limit})
    return None


def _with_leavers(scene: Scene, state: PreemptionState, settings: PreemptionSettings) -> dict[str, int]:
    """Free GPUs, with those of victims of this workload that should be gone in a moment."""
    free = dict(scene.free)
    told = {one.gang: one.at_s for one in state.evictions
            if one.by == scene.waiting.name and scene.now_s - one.at_s < settings.settle_s}  # fmt: skip
    for gang in scene.gangs:
        if told.get(gang.name, float("-inf")) >= gang.started_at_s:
            for node, amount in gang.by_node:
                free[node] = free.get(node, 0) + amount
    return free


def _plan(view: View, settings: PreemptionSettings) -> Plan | None:
    """The cheapest moment and its victims, or what the native scheduler would take now; the earliest of equals."""
    scene = view.scene
    ends_s = scene.waiting.since_s + scene.waiting.budget_s
    moments = {phase.from_s for one in view.allowed for phase in one.phases if scene.now_s < phase.from_s <= ends_s}
    plans = []
    for at_s in (scene.now_s, *sorted(moments)):
        if found := _victims(view, view.allowed, at_s, settings):
            waiting = settings.wait_price * scene.waiting.gpus * (at_s - scene.now_s)
            plans.append(Plan(at_s, found, found.cost + waiting))
    patient = settings.stands_aside and scene.now_s <= ends_s + settings.settle_s
    if patient and (found := _native(view, settings)):
        plans.append(Plan(scene.now_s, found, found.cost, aside=True))
    return min(plans, key=lambda plan: (plan.price, plan.at_s, plan.aside), default=None)


def _native(view: View, settings: PreemptionSettings) -> Found | None:
    """What the native scheduler would take, where there is nobody among them whom we would not leave to it.

    That is who may be in a write although it is no longer guarded, and whom our rules spare from going again.
    """
    beyond = {name for name, why in view.barred.items() if why.code in OUT_OF_REACH} | set(view.guarded)
    reach = [one for name, one in view.outlooks.items() if name not in beyond]
    found = native_choice(view.scene, view.need, reach, settings)
    spared = {*view.barred, *view.unguarded}
    return found if found and spared.isdisjoint(found.names) else None


def _hope(view: View, plan: Plan, settings: PreemptionSettings) -> Reason | None:
    """Worth looking again a moment later, because a gang whose rhythm is not known may have a checkpoint by then.

    What a second is expected to save, against what it adds to the loss and the price of waiting.
    """
    scene = view.scene
    if scene.now_s + settings.recheck_s > scene.waiting.since_s + scene.waiting.budget_s:
        return None
    gain = 0.0
    for hoped in (one for one in view.allowed if one.hazard):
        costs = [(one.gang, one.fresh_cost if one is hoped else one.cost_at(scene.now_s)) for one in view.allowed]
        found = _cheapest(view, costs, settings)
        gain += hoped.hazard * max(0, plan.found.cost - found.cost) if found else 0.0
    grows = plan.found.gpus + settings.wait_price * scene.waiting.gpus
    if gain <= grows:
        return None
    text = (f"Checkpoints that may come at any moment should save {gain / WHOLE_GPU:.1f} GPU-seconds with every second "
            f"of waiting, which costs {grows / WHOLE_GPU:.1f}.")  # fmt: skip
    return Reason("MAY_GET_CHEAPER", text, {"saves_per_s": gain / WHOLE_GPU, "costs_per_s": grows / WHOLE_GPU})


def _soon(view: View, plan: Plan, settings: PreemptionSettings) -> Reason | None:
    """Worth looking again before it is left to the native scheduler: others may become safe that lose much less."""
    scene = view.scene
    if scene.now_s + settings.recheck_s > scene.waiting.since_s + scene.waiting.budget_s:
        return None
    fresh = [(one.gang, one.fresh_cost) for one in view.allowed if one.spared is None or one.passes]
    found = _cheapest(view, fresh, settings)
    if found is None or settings.aside * found.cost >= plan.found.cost:
        return None
    theirs, native = found.cost / WHOLE_GPU, plan.found.cost / WHOLE_GPU
    text = (f"{', '.join(found.names)} would lose {theirs:.0f} GPU-seconds after fresh checkpoints, what the native "
            f"scheduler should choose now {native:.0f}.")  # fmt: skip
    return Reason("NOT_YET", text, {"lost_fresh_gpu_s": theirs, "lost_native_gpu_s": native})


def _victims(view: View, outlooks: Iterable[Outlook], at_s: float, settings: PreemptionSettings) -> Found | None:
    return _cheapest(view, [(one.gang, one.cost_at(at_s)) for one in outlooks], settings)


def _cheapest(
    view: View, costs: Iterable[tuple[RunningGang, int | None]], settings: PreemptionSettings
) -> Found | None:
    options = [_option(view.scene, gang, cost) for gang, cost in costs if cost is not None]
    return cheapest(options, view.need, settings.search_steps)


def _option(scene: Scene, gang: RunningGang, cost: int) -> Option:
    return Option(gang.name, cost, gang.gpus, gang.by_node, scene.lenders(gang))


def _wait(view: View, plan: Plan, settings: PreemptionSettings) -> PreemptionDecision:
    now_s = view.scene.now_s
    lost = plan.found.cost / WHOLE_GPU
    text = (f"In {plan.at_s - now_s:.0f} s {', '.join(plan.found.names)} should have fresh checkpoints and lose "
            f"{lost:.0f} GPU-seconds")  # fmt: skip
    numbers = {"in_s": plan.at_s - now_s, "lost_gpu_s": lost}
    now = _victims(view, view.allowed, now_s, settings)
    if now:
        numbers["lost_now_gpu_s"] = now.cost / WHOLE_GPU
        text += f"; now {now.cost / WHOLE_GPU:.0f} would be lost"
    until_s = min(plan.at_s, now_s + settings.recheck_s)
    asks = _asks(view, plan)
    if asks:
        text += f"; {', '.join(asks)} can be asked to save"
    return replace(say(view, Verdict.WAIT, Reason("CHEAPER_LATER", f"{text}.", numbers), plan, until_s), asks=asks)


def _asks(view: View, plan: Plan) -> tuple[str, ...]:
    """Who has to be asked now to have saved when the plan needs it; nobody earlier than that."""
    saves = {name: one.gang.saves_s for name, one in view.outlooks.items() if one.askable}
    return tuple(name for name in plan.found.names
                 if (after_s := saves.get(name)) is not None and plan.at_s <= view.scene.now_s + after_s)  # fmt: skip


def _nobody(view: View, settings: PreemptionSettings) -> PreemptionDecision:
    """Nothing that may be taken suffices: worth waiting where evidence may still come, else not ours to decide."""
    scene = view.scene
    left_s = scene.waiting.since_s + scene.waiting.budget_s - scene.now_s
    may_come = [one.gang for one in view.allowed if one.spared is None or one.passes]
    enough = cheapest([_option(scene, gang, 0) for gang in may_come], view.need, settings.search_steps) is not None
    missing = view.need.gpus - sum(scene.free.values())
    numbers = {"missing_milli_gpu": missing, "budget_left_s": left_s}
    if enough and left_s > 0:
        text = (f"Gangs that could make room for {scene.waiting.name} are not safe to kill yet; "
                f"{left_s:.0f} s of its budget are left.")  # fmt: skip
        until_s = min(scene.now_s + settings.recheck_s, scene.now_s + left_s)
        return say(view, Verdict.WAIT, Reason("NOT_YET", text, numbers), until_s=until_s)
    code, why = ("BUDGET_SPENT", "its waiting budget is spent") if enough else ("NOT_ENOUGH", "they never free enough")
    text = (f"{scene.waiting.name} lacks {format_gpus(missing)} GPUs; those who may be chosen do not free them, and "
            f"{why}. The native scheduler goes by its own rules; a larger budget, or logs that tell of checkpoints, "
            "would let more gangs be chosen.")  # fmt: skip
    return say(view, Verdict.LEAVE, Reason(code, text, numbers))
