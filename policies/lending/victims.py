"""Which gangs give back lent GPUs, and when: least lost work, at the best time before the deadline.

The gangs of all queues of a pool compete with each other.

For now, and for every time until the deadline at which a gang is expected to have a fresh checkpoint, the search finds
the set that loses least then; gangs that can be asked to save count as if they had. Past the deadline all eligible
gangs are stopped at once; the rest is left to the native scheduler, which makes room for pods of higher priority. A
gang that is writing a checkpoint, or whose checkpoints are unknown, is never selected.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.core.workload.save_state import USUAL_S, SaveState
from kopt.policies.preemption import PreemptionSettings, PreemptionState, RunningGang
from kopt.policies.preemption.evidence import Outlook, claims_sentence, outlook
from kopt.policies.preemption.search import Need, Option, VictimSet, cheapest

MOST_CANDIDATES = 24
"""Gangs that the search considers."""
_SAVE_RECHECK_S = 5.0


class VictimAction(StrEnum):
    """``LEAVE``: no gang is eligible, the native scheduler applies its own rules."""

    STOP = "take"
    REQUEST_SAVE = "ask"
    WAIT = "wait"
    LEAVE = "leave"


@dataclass(frozen=True)
class Candidate:
    """A gang on borrowed GPUs. ``idle``: none of its pods runs, so nothing can be lost.

    ``barred`` says why it is not eligible, None if it is. ``save`` is the state of its save request.
    """

    gang: RunningGang
    idle: bool = False
    barred: Reason | None = None
    save: SaveState = SaveState.UNASKABLE


@dataclass(frozen=True)
class Choice:
    """``victims`` by name, for ``lost_gpu_s`` of work; with ``REQUEST_SAVE`` those that are asked to save.

    ``candidate_reasons`` has a reason for every candidate. ``until_s``: when to decide again.
    """

    action: VictimAction
    reason: Reason
    victims: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0
    until_s: float | None = None
    candidate_reasons: tuple[tuple[str, Reason], ...] = ()


@dataclass(frozen=True)
class _Weighed:
    """A candidate with what it would lose now and later."""

    candidate: Candidate
    outlook: Outlook

    @property
    def name(self) -> str:
        return self.candidate.gang.name

    @property
    def spared(self) -> Reason | None:
        return self.candidate.barred or (None if self.candidate.idle else self.outlook.spared)

    def cost_at(self, at_s: float) -> int | None:
        """Milli-GPU-seconds; None if it must not be stopped then."""
        if self.candidate.barred:
            return None
        return 0 if self.candidate.idle else self.outlook.cost_at(at_s)

    @property
    def saved_cost(self) -> int | None:
        """What it would lose once it has saved; None if it cannot be asked, or the request has expired."""
        if self.candidate.barred or self.candidate.save not in (SaveState.ASKABLE, SaveState.ASKED):
            return None
        return self.outlook.saved_cost


@dataclass(frozen=True)
class _Case:
    """``missing`` milli-GPU have to be free by ``deadline_s``. A queue gives back at most its ``spare`` GPUs, those
    beyond its own quota; queues that are not in ``spare`` give back all that they use."""

    every: Sequence[_Weighed]
    missing: int
    now_s: float
    deadline_s: float
    settings: PreemptionSettings
    spare: Mapping[str, int]

    def at(self, at_s: float) -> VictimSet | None:
        """The set that loses least at ``at_s``."""
        return self.cheapest((weighed, weighed.cost_at(at_s)) for weighed in self.every)

    def cheapest(self, costs: Iterable[tuple[_Weighed, int | None]]) -> VictimSet | None:
        """A gang counts at most as its queue's spare GPUs. If such a set would give back too little, no queue is taken
        below its own quota, unless that is impossible."""
        options = [self._option(weighed, cost) for weighed, cost in costs if cost is not None]
        need, steps = Need(1, self.missing, {"": 0}), self.settings.search_steps
        result = cheapest(options, need, steps)
        if (
            result is None
            or _freed([weighed for weighed in self.every if weighed.name in result.names], self.spare) >= self.missing
        ):
            return result
        return cheapest(options, replace(need, slack=self.spare), steps) or result

    def _option(self, weighed: _Weighed, cost: int) -> Option:
        gang = weighed.candidate.gang
        gpus = min(gang.gpus, self.spare.get(gang.queue, gang.gpus))
        return Option(weighed.name, cost, gpus, (("", gpus),), (gang.queue,))


def _freed(victims: Iterable[_Weighed], spare: Mapping[str, int]) -> int:
    """What the pool gets back if these are stopped."""
    total = Counter[str]()
    for weighed in victims:
        total[weighed.candidate.gang.queue] += weighed.candidate.gang.gpus
    return sum(min(gpus, spare.get(queue, gpus)) for queue, gpus in total.items())


def choose(
    candidates: Sequence[Candidate],
    state: PreemptionState,
    missing: int,
    now_s: float,
    deadline_s: float,
    settings: PreemptionSettings | None = None,
    spare: Mapping[str, int] | None = None,
) -> Choice:
    """Selects victims from any queues for ``missing`` milli-GPU (above 0) that have to be free by ``deadline_s``.

    ``spare`` is what each queue uses beyond its own quota (milli-GPU), by the gangs' ``queue``; without it all usage
    counts.
    """
    settings, spare = settings or PreemptionSettings(), spare or {}
    rhythms = {rhythm.gang: rhythm for rhythm in state.rhythms}
    weighed = [
        _Weighed(candidate, outlook(candidate.gang, rhythms.get(candidate.gang.name), now_s, settings))
        for candidate in candidates
    ]
    case = _Case(_shortlist(weighed, missing, now_s, spare), missing, now_s, deadline_s, settings, spare)
    moments = {
        phase.from_s for item in case.every for phase in item.outlook.phases if now_s < phase.from_s <= deadline_s
    }
    # Waiting costs nothing before the deadline: the GPUs keep training.
    plans = [(result.cost, at_s, result) for at_s in (now_s, *sorted(moments)) if (result := case.at(at_s))]
    saving = _after_saving(case)
    if saving and (not plans or saving[0].cost < min(plans, key=lambda plan: plan[:2])[0]):
        return _request_saves(case, *saving)
    if not plans:
        return _partly(case)
    return _planned(case, *min(plans, key=lambda plan: plan[:2]))


def _planned(case: _Case, cost: int, at_s: float, result: VictimSet) -> Choice:
    """The set that loses least, now or at ``at_s``."""
    lost, remaining_s = cost / WHOLE_GPU, case.deadline_s - case.now_s
    names, free = ", ".join(result.names), counted(format_gpus(case.missing), "GPU")
    numbers = {"lost_gpu_s": lost, "missing_milli_gpu": case.missing, "left_s": remaining_s}
    claims = claims_sentence(
        weighed.outlook.gang for weighed in case.every if weighed.outlook.gang.name in result.names
    )
    if at_s > case.now_s:
        later = f"Reclaiming {free} from {names} in {at_s - case.now_s:.0f} s"
        text = f"{later} loses {lost:.0f} GPU-seconds, less than now.{claims}"
        until_s = min(at_s, case.now_s + case.settings.recheck_s)
        return Choice(
            VictimAction.WAIT, Reason("CHEAPER_LATER", text, numbers), (), lost, until_s, _candidate_reasons(case.every)
        )
    text = f"Reclaiming {free} from {names} loses {lost:.0f} GPU-seconds, the least of all eligible sets.{claims}"
    reason = Reason("LEAST_LOST", text, numbers)
    return Choice(VictimAction.STOP, reason, result.names, lost, None, _candidate_reasons(case.every, result))


def _after_saving(case: _Case) -> tuple[VictimSet, tuple[str, ...]] | None:
    """The set that loses least if askable gangs save first, and the gangs of it to ask; None if there is no time left
    for that. Gangs that were asked before are waited for until their own request expires."""
    any_requested = any(weighed.candidate.save is SaveState.ASKED for weighed in case.every)
    if case.now_s >= case.deadline_s or (case.now_s + USUAL_S > case.deadline_s and not any_requested):
        return None
    result = case.cheapest(
        (weighed, weighed.cost_at(case.now_s) if weighed.saved_cost is None else weighed.saved_cost)
        for weighed in case.every
    )
    selected = [
        weighed for weighed in case.every if result and weighed.name in result.names and weighed.saved_cost is not None
    ]
    return (result, tuple(sorted(weighed.name for weighed in selected))) if result and selected else None


def _request_saves(case: _Case, result: VictimSet, names: tuple[str, ...]) -> Choice:
    free = counted(format_gpus(case.missing), "GPU")
    text = (
        f"Asked to save before {free} are taken back: {', '.join(names)}; "
        f"{case.deadline_s - case.now_s:.0f} s are left."
    )
    until_s = min(case.deadline_s, case.now_s + _SAVE_RECHECK_S)
    lost = result.cost / WHOLE_GPU
    return Choice(
        VictimAction.REQUEST_SAVE, Reason("SAVE_FIRST", text), names, lost, until_s, _candidate_reasons(case.every)
    )


def _partly(case: _Case) -> Choice:
    """The eligible gangs do not suffice now: wait for the others; past the deadline stop those that are eligible."""
    every, now_s, needed = case.every, case.now_s, counted(format_gpus(case.missing), "GPU")
    able = [weighed for weighed in every if weighed.cost_at(now_s) is not None]
    until_s = now_s + case.settings.recheck_s
    if now_s < case.deadline_s and len(able) < len(every):
        text = (
            f"{needed} missing; gangs that could give them back are not safe to stop yet, "
            f"{case.deadline_s - now_s:.0f} s are left."
        )
        return Choice(
            VictimAction.WAIT,
            Reason("NOT_YET", text),
            until_s=min(until_s, case.deadline_s),
            candidate_reasons=_candidate_reasons(every),
        )
    if able:
        lost = sum(weighed.cost_at(now_s) or 0 for weighed in able) / WHOLE_GPU
        names = tuple(sorted(weighed.name for weighed in able))
        text = f"All GPUs of {', '.join(names)} are reclaimed; that is less than the {needed} needed."
        candidate_reasons = tuple((weighed.name, weighed.spared or Reason("CHOSEN", text)) for weighed in every)
        return Choice(VictimAction.STOP, Reason("PARTLY", text), names, lost, until_s, candidate_reasons)
    text = (
        f"{needed} have to be reclaimed and no gang is eligible; the native scheduler makes room for pods of higher "
        "priority by its own rules."
    )
    return Choice(
        VictimAction.LEAVE, Reason("NATIVE", text), until_s=until_s, candidate_reasons=_candidate_reasons(every)
    )


def _shortlist(every: Sequence[_Weighed], missing: int, now_s: float, spare: Mapping[str, int]) -> list[_Weighed]:
    """The gangs that are cheapest per GPU now, at least as many as are needed; all gangs if they are few."""
    if len(every) <= MOST_CANDIDATES:
        return list(every)

    def price(weighed: _Weighed) -> tuple[bool, float, str]:
        cost = weighed.cost_at(now_s)
        return cost is None, (cost or weighed.outlook.fresh_cost) / max(1, weighed.candidate.gang.gpus), weighed.name

    weigheds: list[_Weighed] = []
    freed, remaining = 0, dict(spare)
    for weighed in sorted(every, key=price):
        if len(weigheds) >= MOST_CANDIDATES and freed >= missing:
            break
        weigheds.append(weighed)
        gang = weighed.candidate.gang
        counts = min(gang.gpus, remaining.get(gang.queue, gang.gpus))
        freed += counts
        if gang.queue in remaining:
            remaining[gang.queue] -= counts
    return weigheds


def _candidate_reasons(every: Iterable[_Weighed], result: VictimSet | None = None) -> tuple[tuple[str, Reason], ...]:
    victims = result.names if result else ()
    return tuple(
        (weighed.name, weighed.spared or _candidate_reason(weighed.name, weighed.name in victims)) for weighed in every
    )


def _candidate_reason(name: str, selected: bool) -> Reason:
    if selected:
        return Reason("CHOSEN", f"{name} gives its GPUs back.")
    return Reason("NOT_CHOSEN", f"{name} could give its GPUs back; others lose less.")
