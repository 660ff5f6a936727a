"""Policies to compare: what schedulers have, oracles that see the truth, and ours, which sees what can be seen."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.core.units import WHOLE_GPU, MilliGpu
from kopt.policies.preemption import PreemptionSettings, PreemptionState, Scene, Verdict, Waiting, decide
from kopt.policies.preemption.search import Found, Need, Option, cheapest
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
class Told:
    """Who makes room now; or nobody, and when to ask again; or neither: left to the native scheduler."""

    victims: tuple[Run, ...] = ()
    until_s: float | None = None
    guarded: frozenset[int] = frozenset()


Rival = Callable[[Ask], Told]


def in_order(ask: Ask, key: Callable[[Run], float]) -> Told:
    """As Kueue does it: candidates in order until they suffice, then those that are not needed after all are spared."""
    chosen: list[Run] = []
    freed = 0
    for run in sorted(ask.pool, key=lambda run: (key(run), ask.order[run.index])):
        if freed >= ask.missing:
            break
        chosen.append(run)
        freed += run.job.gpus
    if freed < ask.missing:
        return Told()
    for run in tuple(chosen[:-1]):
        if freed - run.job.gpus >= ask.missing:
            chosen.remove(run)
            freed -= run.job.gpus
    return Told(tuple(chosen))


def priority_only(ask: Ask) -> Told:
    """All have the same lower priority: an arbitrary order."""
    return in_order(ask, lambda run: ask.order[run.index])


def newest_first(ask: Ask) -> Told:
    return in_order(ask, lambda run: -run.started_s)


@dataclass
class Foresight:
    """Knows the truth, about the future too: the cheapest set at the best moment within the budget; the floor.

    ``promised``: as kopt promises, it takes nobody whose log is silent or who has no checkpoint yet, and leaves it to
    the newest-first rule where that loses less now.
    """

    budget_s: float
    promised: bool = False
    moments: dict[str, float] = field(default_factory=dict)

    def __call__(self, ask: Ask) -> Told:
        ends_s = ask.since_s + self.budget_s
        if ask.name not in self.moments:
            later = (run.next_durable_s(ask.now_s) + 0.001 for run in ask.pool)
            tried = [ask.now_s, *(at for at in later if at <= ends_s)]
            costs = [(found.cost, at) for at in tried if (found := self._cheapest(ask, at))]
            self.moments[ask.name] = min([*costs, *self._aside(ask)], default=(0, ends_s))[1]
        if ask.now_s < self.moments[ask.name]:
            return Told(until_s=self.moments[ask.name])
        found, aside = self._cheapest(ask, ask.now_s), self._aside(ask)
        if found is None or (aside and aside[0][0] < found.cost):
            return Told()
        return Told(tuple(run for run in ask.pool if str(run.index) in found.names))

    def _aside(self, ask: Ask) -> list[tuple[int, float]]:
        taken = newest_first(ask).victims if self.promised else ()
        return [(sum(round(1000 * run.lost_gpu_s(ask.now_s)) for run in taken), ask.now_s)] if taken else []

    def _cheapest(self, ask: Ask, at_s: float) -> Found | None:
        options = [Option(str(run.index), round(1000 * run.lost_gpu_s(at_s)), run.job.gpus, (("", run.job.gpus),))
                   for run in ask.pool if run.finishes_s > at_s and self._may(run, at_s)]  # fmt: skip
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

    def __call__(self, ask: Ask) -> Told:
        gangs = tuple(gang(run, ask.now_s, self.sight) for run in ask.pool)
        rhythms = tuple(sorted((rhythm(run, ask.now_s, self.sight) for run in ask.pool), key=lambda one: one.gang))
        waiting = Waiting(ask.name, "", 1, MilliGpu(ask.missing * WHOLE_GPU), ask.since_s, self.budget_s)
        before = PreemptionState(rhythms, self.state.evictions)
        said, after = decide(Scene(waiting, gangs, ask.now_s), before, self.settings)
        self.state = PreemptionState(evictions=after.evictions)
        by_name = {one.name: run for one, run in zip(gangs, ask.pool, strict=True)}
        guarded = frozenset(by_name[name].index for name in said.guarded)
        if said.verdict is Verdict.PREEMPT:
            return Told(tuple(by_name[name] for name in said.victims))
        return Told((), said.until_s if said.verdict is Verdict.WAIT else None, guarded)
