"""Policies to compare: what schedulers have, oracles that see the truth, and ours, which sees what can be seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.policies.preemption import PreemptionAction, PreemptionSettings, PreemptionState, Preemptor, Snapshot, decide
from kopt.policies.preemption.search import Need, Option, VictimSet, cheapest
from kopt.simulator.preemption.runs import Run
from kopt.simulator.preemption.sight import Sight, gang, rhythm


@dataclass(frozen=True)
class Ask:
    """An urgent arrival that lacks ``missing`` GPUs, and the runs that may make room for it.

    ``order`` is a number for each of them that means nothing.
    """

    name: str
    now_s: float
    since_s: float
    missing: int
    pool: Sequence[Run]
    order: Mapping[int, float]


@dataclass(frozen=True)
class Answer:
    """The victims now; or none, and when to ask again; or neither: left to the native scheduler."""

    victims: tuple[Run, ...] = ()
    until_s: float | None = None
    guarded: frozenset[int] = frozenset()


Rival = Callable[[Ask], Answer]


def in_order(ask: Ask, key: Callable[[Run], float]) -> Answer:
    """As Kueue does it: candidates in order until they suffice, then those that are not needed after all are spared."""
    victims: list[Run] = []
    freed = 0
    for run in sorted(ask.pool, key=lambda run: (key(run), ask.order[run.index])):
        if freed >= ask.missing:
            break
        victims.append(run)
        freed += run.job.gpus
    if freed < ask.missing:
        return Answer()
    for run in tuple(victims[:-1]):
        if freed - run.job.gpus >= ask.missing:
            victims.remove(run)
            freed -= run.job.gpus
    return Answer(tuple(victims))


def priority_only(ask: Ask) -> Answer:
    """All have the same lower priority: an arbitrary order."""
    return in_order(ask, lambda run: ask.order[run.index])


def newest_first(ask: Ask) -> Answer:
    return in_order(ask, lambda run: -run.started_s)


@dataclass
class Foresight:
    """Knows the truth, about the future too: the cheapest set at the best moment within the budget; the floor.

    ``promised``: as kopt promises, it preempts no job with a silent log or without a checkpoint, and leaves it to
    the newest-first rule where that loses less now.
    """

    budget_s: float
    promised: bool = False
    moments: dict[str, float] = field(default_factory=dict)

    def __call__(self, ask: Ask) -> Answer:
        ends_s = ask.since_s + self.budget_s
        if ask.name not in self.moments:
            later = (run.next_durable_s(ask.now_s) + 0.001 for run in ask.pool)
            tried = [ask.now_s, *(at for at in later if at <= ends_s)]
            costs = [(result.cost, at) for at in tried if (result := self._cheapest(ask, at))]
            self.moments[ask.name] = min([*costs, *self._aside(ask)], default=(0, ends_s))[1]
        if ask.now_s < self.moments[ask.name]:
            return Answer(until_s=self.moments[ask.name])
        result, aside = self._cheapest(ask, ask.now_s), self._aside(ask)
        if result is None or (aside and aside[0][0] < result.cost):
            return Answer()
        return Answer(tuple(run for run in ask.pool if str(run.index) in result.names))

    def _aside(self, ask: Ask) -> list[tuple[int, float]]:
        newest = newest_first(ask).victims if self.promised else ()
        return [(sum(round(1000 * run.lost_gpu_s(ask.now_s)) for run in newest), ask.now_s)] if newest else []

    def _cheapest(self, ask: Ask, at_s: float) -> VictimSet | None:
        options = [
            Option(str(run.index), round(1000 * run.lost_gpu_s(at_s)), run.job.gpus, (("", run.job.gpus),))
            for run in ask.pool
            if run.finishes_s > at_s and self._may(run, at_s)
        ]
        return cheapest(options, Need(1, ask.missing), 20_000)

    def _may(self, run: Run, at_s: float) -> bool:
        evidence = run.habits.observable and (run.number > 0 or run.last_durable(at_s) >= 0)
        return not run.writing(at_s) and (evidence or not self.promised)


@dataclass
class Ours:
    """The product's policy, on statuses as they can be had."""

    sight: Sight
    settings: PreemptionSettings
    budget_s: float
    state: PreemptionState = field(default_factory=PreemptionState)

    def __call__(self, ask: Ask) -> Answer:
        gangs = tuple(gang(run, ask.now_s, self.sight) for run in ask.pool)
        rhythms = tuple(sorted((rhythm(run, ask.now_s, self.sight) for run in ask.pool), key=lambda item: item.gang))
        preemptor = Preemptor(ask.name, "", 1, MilliGpu(ask.missing * WHOLE_GPU), ask.since_s, self.budget_s)
        before = PreemptionState(rhythms, self.state.evictions)
        decision, after = decide(Snapshot(preemptor, gangs, ask.now_s), before, self.settings)
        self.state = PreemptionState(evictions=after.evictions)
        by_name = {running_gang.name: run for running_gang, run in zip(gangs, ask.pool, strict=True)}
        guarded = frozenset(by_name[name].index for name in decision.guarded)
        if decision.action is PreemptionAction.PREEMPT:
            return Answer(tuple(by_name[name] for name in decision.victims))
        return Answer((), decision.until_s if decision.action is PreemptionAction.WAIT else None, guarded)
