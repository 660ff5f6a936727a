"""Who gives back what was lent, and when: least lost work, at the best moment that the deadline leaves.

The gangs of all queues of a pool are weighed against each other.

Every moment until the deadline at which a gang is expected to have a fresh checkpoint, and the present one, gets the
set that loses least then; so do gangs that can be asked to save, as if they had. Past the deadline those go at once who
may; the rest is the native scheduler's, which takes room for pods of higher priority. Nobody in a checkpoint write, or
of whose checkpoints nothing is known, is ever chosen.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU, counted, format_gpus
from kopt.policies.preemption import PreemptionSettings, PreemptionState, RunningGang
from kopt.policies.preemption.evidence import Outlook, outlook
from kopt.policies.preemption.search import Found, Need, Option, cheapest
from kopt.policies.saving import USUAL_S, SaveState

MOST_CANDIDATES = 24
"""That are weighed against each other."""
_ASKED_LOOK_S = 5.0


class Verdict(StrEnum):
    """``LEAVE``: nobody may be chosen, the native scheduler goes by its own rules."""

    TAKE = "take"
    ASK = "ask"
    WAIT = "wait"
    LEAVE = "leave"


@dataclass(frozen=True)
class Candidate:
    """A gang that runs on borrowed GPUs. ``idle``: none of its pods runs, so nothing can be lost.

    ``barred`` says why it is not ours to choose, None where it is. ``save`` is how a request to save stands.
    """

    gang: RunningGang
    idle: bool = False
    barred: Reason | None = None
    save: SaveState = SaveState.UNASKABLE


@dataclass(frozen=True)
class Choice:
    """``victims`` by name, for ``lost_gpu_s`` of work; with ``ASK`` those who are asked to save. ``notes`` has a reason
    for every candidate. ``until_s``: when to look again."""

    verdict: Verdict
    reason: Reason
    victims: tuple[str, ...] = ()
    lost_gpu_s: float = 0.0
    until_s: float | None = None
    notes: tuple[tuple[str, Reason], ...] = ()


@dataclass(frozen=True)
class _Weighed:
    """A candidate with what it would lose now and later."""

    candidate: Candidate
    view: Outlook

    @property
    def name(self) -> str:
        return self.candidate.gang.name

    @property
    def spared(self) -> Reason | None:
        return self.candidate.barred or (None if self.candidate.idle else self.view.spared)

    def cost_at(self, at_s: float) -> int | None:
        """Milli-GPU-seconds; None where it may not be told to go then."""
        if self.candidate.barred:
            return None
        return 0 if self.candidate.idle else self.view.cost_at(at_s)

    @property
    def saved_cost(self) -> int | None:
        """What it would lose once it has saved; None where it cannot be asked, or its time to answer is over."""
        if self.candidate.barred or self.candidate.save not in (SaveState.ASKABLE, SaveState.ASKED):
            return None
        return self.view.saved_cost


@dataclass(frozen=True)
class _Case:
    """``missing`` milli-GPU have to be free by ``deadline_s``. A queue gives back no more than ``spare`` says, what it
    has beyond its own; queues that are not named there give back all that they use."""

    every: Sequence[_Weighed]
    missing: int
    now_s: float
    deadline_s: float
    settings: PreemptionSettings
    spare: Mapping[str, int]

    def at(self, at_s: float) -> Found | None:
        """The set that loses least then."""
        return self.cheapest((one, one.cost_at(at_s)) for one in self.every)

    def cheapest(self, costs: Iterable[tuple[_Weighed, int | None]]) -> Found | None:
        """Gangs count as what their queue has to spare at most; where together they would give back too little, none
        takes a queue below its own, if that is possible at all."""
        options = [self._option(one, cost) for one, cost in costs if cost is not None]
        need, steps = Need(1, self.missing, {"": 0}), self.settings.search_steps
        found = cheapest(options, need, steps)
        if found is None or _given([one for one in self.every if one.name in found.names], self.spare) >= self.missing:
            return found
        return cheapest(options, replace(need, slack=self.spare), steps) or found

    def _option(self, one: _Weighed, cost: int) -> Option:
        gang = one.candidate.gang
        gpus = min(gang.gpus, self.spare.get(gang.queue, gang.gpus))
        return Option(one.name, cost, gpus, (("", gpus),), (gang.queue,))


def _given(chosen: Iterable[_Weighed], spare: Mapping[str, int]) -> int:
    """What a pool gets back when they go."""
    total = Counter[str]()
    for one in chosen:
        total[one.candidate.gang.queue] += one.candidate.gang.gpus
    return sum(min(gpus, spare.get(queue, gpus)) for queue, gpus in total.items())


def choose(candidates: Sequence[Candidate], state: PreemptionState, missing: int, now_s: float, deadline_s: float,
           settings: PreemptionSettings | None = None, spare: Mapping[str, int] | None = None) -> Choice:  # fmt: skip
    """For ``missing`` milli-GPU (above 0) that have to be free by ``deadline_s``, from whatever queues; ``spare`` has
    what each queue uses beyond its own (milli-GPU), by the gangs' ``queue``. Without it all counts."""
    settings, spare = settings or PreemptionSettings(), spare or {}
    rhythms = {one.gang: one for one in state.rhythms}
    weighed = [_Weighed(one, outlook(one.gang, rhythms.get(one.gang.name), now_s, settings)) for one in candidates]
    case = _Case(_shortlist(weighed, missing, now_s, spare), missing, now_s, deadline_s, settings, spare)
    moments = {phase.from_s for one in case.every for phase in one.view.phases if now_s < phase.from_s <= deadline_s}
    # Waiting costs nothing before the deadline: the GPUs go on training.
    plans = [(found.cost, at_s, found) for at_s in (now_s, *sorted(moments)) if (found := case.at(at_s))]
    asked = _asked(case)
    if asked and (not plans or asked[0].cost < min(plans, key=lambda one: one[:2])[0]):
        return _ask(case, *asked)
    if not plans:
        return _partly(case)
    return _planned(case, *min(plans, key=lambda one: one[:2]))


def _planned(case: _Case, cost: int, at_s: float, found: Found) -> Choice:
    """The set that loses least, now or when it is time."""
    lost, left_s = cost / WHOLE_GPU, case.deadline_s - case.now_s
    names, free = ", ".join(found.names), counted(format_gpus(case.missing), "GPU")
    numbers = {"lost_gpu_s": lost, "missing_milli_gpu": case.missing, "left_s": left_s}
    if at_s > case.now_s:
        later = f"In {at_s - case.now_s:.0f} s taking {free} back from {names}"
        text = f"{later} loses {lost:.0f} GPU-seconds, less than now."
        until_s = min(at_s, case.now_s + case.settings.recheck_s)
        return Choice(Verdict.WAIT, Reason("CHEAPER_LATER", text, numbers), (), lost, until_s, _notes(case.every))
    text = f"Taking {free} back from {names} loses {lost:.0f} GPU-seconds, the least of all who may be chosen."
    reason = Reason("LEAST_LOST", text, numbers)
    return Choice(Verdict.TAKE, reason, found.names, lost, None, _notes(case.every, found))


def _asked(case: _Case) -> tuple[Found, tuple[str, ...]] | None:
    """The set that loses least if those who can be asked save first, and whom of it to ask; None where there is no time
    to answer. Who was asked already is waited for until its own time is over."""
    asked = any(one.candidate.save is SaveState.ASKED for one in case.every)
    if case.now_s >= case.deadline_s or (case.now_s + USUAL_S > case.deadline_s and not asked):
        return None
    found = case.cheapest(
        (one, one.cost_at(case.now_s) if one.saved_cost is None else one.saved_cost) for one in case.every
    )
    chosen = [one for one in case.every if found and one.name in found.names and one.saved_cost is not None]
    return (found, tuple(sorted(one.name for one in chosen))) if found and chosen else None


def _ask(case: _Case, found: Found, asked: tuple[str, ...]) -> Choice:
    free = counted(format_gpus(case.missing), "GPU")
    text = (f"Asked to save before {free} are taken back: {', '.join(asked)}; "
            f"{case.deadline_s - case.now_s:.0f} s are left.")  # fmt: skip
    until_s = min(case.deadline_s, case.now_s + _ASKED_LOOK_S)
    lost = found.cost / WHOLE_GPU
    return Choice(Verdict.ASK, Reason("SAVE_FIRST", text), asked, lost, until_s, _notes(case.every))


def _partly(case: _Case) -> Choice:
    """Those who may be chosen do not suffice now: wait for the others, and past the deadline take those there are."""
    every, now_s, needed = case.every, case.now_s, counted(format_gpus(case.missing), "GPU")
    able = [one for one in every if one.cost_at(now_s) is not None]
    until_s = now_s + case.settings.recheck_s
    if now_s < case.deadline_s and len(able) < len(every):
        text = (f"Missing: {needed}; gangs that could give them back are not safe to stop yet, "
                f"{case.deadline_s - now_s:.0f} s are left.")  # fmt: skip
        return Choice(Verdict.WAIT, Reason("NOT_YET", text), until_s=min(until_s, case.deadline_s), notes=_notes(every))
    if able:
        lost = sum(one.cost_at(now_s) or 0 for one in able) / WHOLE_GPU
        names = tuple(sorted(one.name for one in able))
        text = f"All of {', '.join(names)} is taken back; that is less than the {needed} needed."
        notes = tuple((one.name, one.spared or Reason("CHOSEN", text)) for one in every)
        return Choice(Verdict.TAKE, Reason("PARTLY", text), names, lost, until_s, notes)
    text = (f"{needed} GPUs are to be given back and nobody may be chosen; the native scheduler "
            "takes room for pods of higher priority by its own rules.")  # fmt: skip
    return Choice(Verdict.LEAVE, Reason("NATIVE", text), until_s=until_s, notes=_notes(every))


def _shortlist(every: Sequence[_Weighed], missing: int, now_s: float, spare: Mapping[str, int]) -> list[_Weighed]:
    """The cheapest now of each GPU, and as many as are needed; everybody where they are few."""
    if len(every) <= MOST_CANDIDATES:
        return list(every)

    def price(one: _Weighed) -> tuple[bool, float, str]:
        cost = one.cost_at(now_s)
        return cost is None, (cost or one.view.fresh_cost) / max(1, one.candidate.gang.gpus), one.name

    found: list[_Weighed] = []
    freed, left = 0, dict(spare)
    for one in sorted(every, key=price):
        if len(found) >= MOST_CANDIDATES and freed >= missing:
            break
        found.append(one)
        gang = one.candidate.gang
        counts = min(gang.gpus, left.get(gang.queue, gang.gpus))
        freed, left[gang.queue] = freed + counts, left.get(gang.queue, gang.gpus) - counts
    return found


def _notes(every: Iterable[_Weighed], found: Found | None = None) -> tuple[tuple[str, Reason], ...]:
    chosen = found.names if found else ()
    return tuple((one.name, one.spared or _note(one.name, one.name in chosen)) for one in every)


def _note(name: str, chosen: bool) -> Reason:
    if chosen:
        return Reason("CHOSEN", f"{name} gives back its GPUs.")
    return Reason("NOT_CHOSEN", f"{name} could give back its GPUs; others lose less.")
