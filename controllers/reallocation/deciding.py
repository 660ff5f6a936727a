"""What is to be done about a pool, from what the cluster shows now; writes nothing.

The state of the policies is kept here and written into the pools' status, so that a new leader goes on with it; rhythms
of checkpoints are learned at every look.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kopt.cluster.lending_pools import LONGEST_LEAD_S
from kopt.controllers.reallocation.forecasts import Forecasts
from kopt.controllers.reallocation.given import ControllerSettings
from kopt.controllers.reallocation.live import LiveCluster
from kopt.controllers.reallocation.turns import Queued, most_lent
from kopt.controllers.reallocation.views import Borrowing, Pool, QueueView, SeenPod
from kopt.core.decision import Mode
from kopt.core.lending_pools import Borrower, ForecastState, LendingPool, Memory, PoolService
from kopt.core.reason import Reason
from kopt.core.units import WHOLE_GPU
from kopt.policies.lending import LendingState
from kopt.policies.lending_caution import Caution
from kopt.policies.preemption import PreemptionState, observe
from kopt.policies.reallocation import Candidate, Choice, LeadTime, Plan, Turn, choose, lead_time, plan, shares
from kopt.policies.reallocation.plan import learned

_MOST_STARTS, _MOST_SAVES, _SEEN_TICKS = 40, 20, 2
_GRACE_S, _LOOKS_EVERY_S, _REFUSED_S = 30.0, 5.0, 60.0


class QueueOf(Protocol):
    """Reads a borrower's queue; ``weigh`` with what each workload would lose."""

    def __call__(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> QueueView: ...


@dataclass(frozen=True)
class Judged:
    """A pool at a moment: its queues in the order of its borrowers, what each may use beyond its own, and the state
    once that is carried out."""

    pool: LendingPool
    now_s: float
    queues: tuple[QueueView, ...]
    lead: LeadTime
    plan: Plan
    shares: tuple[int, ...]
    service_gpus: int
    forecast: ForecastState
    memory: Memory
    needy: str
    """namespace/name of the service that asks for most."""
    queued: tuple[Queued, ...] = ()
    """Who of each queue was told to go."""

    @property
    def borrowed(self) -> int:
        return sum(one.borrowed for one in self.queues)

    @property
    def by_s(self) -> float:
        """When GPUs that are to be taken back have to be free."""
        need_in_s = min(self.plan.need_in_s, self.lead.seconds)
        return self.now_s + max(0.0, need_in_s - self.lead.needed_s)

    @property
    def missing(self) -> int:
        """Thousandths of GPUs that all queues use beyond what is lent, without what is on its way out."""
        return max(0, sum(one.beyond for one in self.queues if one.problem is None) - self.plan.lent * WHOLE_GPU)

    def after(self, victims: Collection[str]) -> "Judged":
        """With the shares that the queues have once these are told to go."""
        queues = tuple(one.without(victims) for one in self.queues)
        return replace(self, queues=queues, shares=_shares(self.plan.lent, queues, self.queued, self.now_s))

    def turn(self, place: int) -> Turn:
        """Who returns in a queue, and what it may use then; not while others have to go."""
        return self.queued[place].turn(self.queues[place], self.shares[place], self.now_s)


class Deciding:
    """``queue_of`` reads a borrower's queue, whatever system it is of."""

    def __init__(self, cluster: LiveCluster, forecasts: Forecasts, settings: ControllerSettings,
                 queue_of: QueueOf) -> None:  # fmt: skip
        self._cluster, self._forecasts, self._settings, self._queue_of = cluster, forecasts, settings, queue_of
        self._memories: dict[str, Memory] = {}
        self._rhythms = PreemptionState()
        self._looked_s: dict[str, float] = {}
        self._refused: dict[str, float] = {}

    def judge(self, pool: Pool, now_s: float) -> Judged:
        """``pool`` has a spec. Keeps nothing; ``applied`` does, once what was decided is written."""
        spec = pool.spec
        assert spec is not None
        pods = self._cluster.pods()
        # On a grid: what is promised for a moment is learned from at that very moment.
        tick_s = math.floor(now_s / self._settings.refresh_s) * self._settings.refresh_s
        memory = _until(self._memories.get(pool.uid, pool.status.memory), tick_s)
        queues = tuple(self._borrowing(pool, place, now_s) for place in range(len(spec.borrowers)))
        memory = _with_starts(memory, [pod for one in spec.services for pod in _pods_of(one, pods)])
        lead = lead_time(spec.lead_time_s, [took_s for _, took_s in memory.starts], _grace_s(queues), memory.saves)
        asked = {one.name: _gpus(_pods_of(one, pods), spec.resource) for one in spec.services}
        state = LendingState(memory.recent, pool.status.lent_gpus, Caution(memory.level, memory.promised))
        state = learned(spec, state, sum(asked.values()), tick_s, _SEEN_TICKS * self._settings.refresh_s)
        borrowed = sum(one.borrowed for one in queues)
        views = self._forecasts.views(spec, asked)
        found = plan(spec, views, borrowed, lead.seconds, state, tick_s)
        memory = replace(memory, recent=found.state.recent, level=found.state.caution.level,
                         promised=found.state.caution.promised)  # fmt: skip
        lines = self._cluster.waiting() if any(one.held or one.returning for one in queues) else {}
        lendable = most_lent(spec, pool.status.history, found.lent, now_s)
        queued = tuple(Queued.of(one, lines, lendable) for one in queues)
        needy = max(spec.services, key=lambda one: asked[one.name])
        return Judged(spec, now_s, queues, lead, found, _shares(found.lent, queues, queued, now_s),
                      sum(asked.values()), self._forecasts.state(spec), memory, f"{needy.namespace}/{needy.name}",
                      queued)  # fmt: skip

    def applied(self, pool: Pool, judged: Judged) -> None:
        before = self._memories.get(pool.uid, judged.memory)
        self._memories[pool.uid] = replace(judged.memory, saves=before.saves)

    def saved(self, pool: Pool, took_s: float) -> None:
        """A borrower that was asked to save took so long."""
        before = self._memories.get(pool.uid, pool.status.memory)
        self._memories[pool.uid] = replace(before, saves=(*before.saves, took_s)[-_MOST_SAVES:])

    def look(self, judged: Judged) -> None:
        """Learn how often borrowers make checkpoints; now and then is often enough."""
        if not 0 <= judged.now_s - self._looked_s.get(judged.pool.name, float("-inf")) < _LOOKS_EVERY_S:
            self._looked_s[judged.pool.name] = judged.now_s
            for place, queue in enumerate(judged.queues):
                if queue.problem is None:
                    self._learn(self._weighed(judged, place), judged.now_s)

    def victims(self, judged: Judged, by_s: float) -> tuple[Choice, list[Borrowing]]:
        """Who of all queues gives back what is missing: those who lose least."""
        queues = [self._weighed(judged, place) for place, queue in enumerate(judged.queues) if queue.beyond]
        for queue in queues:
            self._learn(queue, judged.now_s)
        running = [one for queue in queues for one in queue.running]
        candidates = [self._able(one.candidate, judged.now_s) for one in running if one.candidate]
        spare = {one.name: one.beyond for one in queues}
        choice = choose(candidates, self._rhythms, judged.missing, judged.now_s, by_s, self._settings.policy, spare)
        return choice, [one for one in running if one.name in choice.victims]

    def refused(self, name: str, now_s: float) -> None:
        """The API server lets nobody change it: for a while the others are looked at alone."""
        self._refused[name] = now_s

    def _is_refused(self, name: str, now_s: float) -> bool:
        return 0 <= now_s - self._refused.get(name, float("-inf")) < _REFUSED_S

    def _able(self, one: Candidate, now_s: float) -> Candidate:
        if not self._is_refused(one.gang.name, now_s):
            return one
        return replace(one, barred=Reason("REFUSED", f"The API server does not let {one.gang.name} be changed."))

    def _borrowing(self, pool: Pool, place: int, now_s: float) -> QueueView:
        """The queue of a borrower, unless another pool lends to it, or this one in another place."""
        assert pool.spec is not None
        borrower = pool.spec.borrowers[place]
        found = self._queue_of(borrower, pool.spec.resource, now_s, weigh=False)
        held = tuple(one for one in found.held if not self._is_refused(one.name, now_s))
        if found.problem is not None:
            return found
        for other, number, its in self._claims(borrower):
            if (other.uid, number) == (pool.uid, place):
                return replace(found, held=held)
            assert other.spec is not None
            if self._queue_of(its, other.spec.resource, now_s, weigh=False).values.keys() & found.values.keys():
                why = f"{borrower.system} queue {borrower.queue} borrows of LendingPool {other.name} already."
                return QueueView(borrower, found.resource, None, problem=Reason("CLAIMED", why))
        return replace(found, held=held)

    def _claims(self, borrower: Borrower) -> list[tuple[Pool, int, Borrower]]:
        """Who lends to a queue: pools that act before those that watch, the oldest first."""
        pools = [(pool, pool.spec) for pool in self._cluster.pools() if pool.spec is not None]
        pools.sort(key=lambda it: (it[1].mode is not Mode.ENFORCE, it[0].created, it[0].name))
        return [(pool, number, its) for pool, spec in pools for number, its in enumerate(spec.borrowers)
                if its.key == borrower.key]  # fmt: skip

    def _weighed(self, judged: Judged, place: int) -> QueueView:
        return self._queue_of(judged.pool.borrowers[place], judged.pool.resource, judged.now_s, weigh=True)

    def _learn(self, queue: QueueView, now_s: float) -> None:
        gangs = [one.candidate.gang for one in queue.running if one.candidate]
        self._rhythms = observe(self._rhythms, gangs, now_s)

    def lead_s(self, pool: Pool) -> float:
        """How far ahead forecasts are needed, before anything else is known of a pool."""
        assert pool.spec is not None
        memory = self._memories.get(pool.uid, pool.status.memory)
        given = pool.spec.lead_time_s or pool.status.lead_time_s or None
        return lead_time(given, [took_s for _, took_s in memory.starts], _GRACE_S, memory.saves).seconds

    def forget(self, pools: Sequence[Pool]) -> None:
        there = {one.uid for one in pools}
        self._memories = {uid: one for uid, one in self._memories.items() if uid in there}


def _shares(lent: int, queues: Sequence[QueueView], queued: Sequence[Queued], now_s: float) -> tuple[int, ...]:
    return shares(lent, [its.claim(queue, now_s) for queue, its in zip(queues, queued, strict=True)])


def _pods_of(service: PoolService, pods: Sequence[SeenPod]) -> list[SeenPod]:
    wanted = service.labels.items()
    return [one for one in pods if one.key[0] == service.namespace and wanted <= one.labels.items()]


def _gpus(pods: Sequence[SeenPod], resource: str) -> int:
    """What pods ask for that run, or wait: a pod that waits is a need."""
    return math.ceil(sum(one.amounts.get(resource, 0) for one in pods if not one.leaving) / WHOLE_GPU)


def _until(memory: Memory, now_s: float) -> Memory:
    """Without what a clock said that was ahead: such a need is of now, and nobody waits until such a promise is due."""
    recent = tuple((min(at_s, now_s), gpus) for at_s, gpus in memory.recent)
    promised = tuple(one for one in memory.promised if one[0] <= now_s + LONGEST_LEAD_S)
    return replace(memory, recent=recent, promised=promised)


def _with_starts(memory: Memory, pods: Sequence[SeenPod]) -> Memory:
    known = dict(memory.starts)
    new = {one.view.uid: one.start_s for one in pods if one.start_s is not None and one.view.uid not in known}
    if not new:
        return memory
    # Pods that are there are not counted twice when older ones are dropped.
    return replace(memory, starts=(*memory.starts, *new.items())[-max(_MOST_STARTS, len(pods)) :])


def _grace_s(queues: Sequence[QueueView]) -> float:
    found = [pod.grace_s for queue in queues for one in queue.running for pod in one.pods]
    return max(found, default=_GRACE_S)
