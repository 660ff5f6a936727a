"""Plans what is to be done about a pool, from what the cluster shows now; writes nothing.

The state of the policies is kept here and written into the pools' status, so that a new leader goes on with it; how
often borrowers make checkpoints is learned along the way.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Protocol

from kopt.cluster.objects.custom.lending_pool import LONGEST_LEAD_S
from kopt.cluster.workloads.kueue.queues import allows
from kopt.controllers.lending.forecasts import Forecasts
from kopt.controllers.lending.plan import Evaluation, Outcome, PoolPlan, QueuePlan
from kopt.controllers.lending.ports import ControllerSettings
from kopt.controllers.lending.return_order import Queued, most_lent
from kopt.controllers.lending.state import LiveCluster
from kopt.controllers.lending.views import Borrowing, BorrowingQueue, ObservedPod, Pool
from kopt.core.decision import Mode
from kopt.core.reason import Reason
from kopt.core.scheduling.lending_pool import Borrower, Memory, PoolService
from kopt.core.units import WHOLE_GPU
from kopt.policies.lending import Candidate, Choice, Turn, VictimAction, choose, lead_time, plan, shares
from kopt.policies.lending.caution import Caution
from kopt.policies.lending.plan import learned
from kopt.policies.lending.policy import LendingState
from kopt.policies.preemption import PreemptionState, observe

_MOST_STARTS, _MOST_SAVES, _OBSERVED_TICKS = 40, 20, 2
_GRACE_S, _OBSERVE_EVERY_S, _REFUSED_S = 30.0, 5.0, 60.0


class QueueOf(Protocol):
    """Reads a borrower's queue; ``weigh``: with what each workload would lose."""

    def __call__(self, borrower: Borrower, gpu: str, now_s: float, *, weigh: bool) -> BorrowingQueue: ...


class Planner:
    """``queue_of`` reads a borrower's queue in any queueing system."""

    def __init__(
        self, cluster: LiveCluster, forecasts: Forecasts, settings: ControllerSettings, queue_of: QueueOf
    ) -> None:
        self._cluster, self._forecasts, self._settings, self._queue_of = cluster, forecasts, settings, queue_of
        self._memories: dict[str, Memory] = {}
        self._rhythms = PreemptionState()
        self._observed_s: dict[str, float] = {}
        self._refused: dict[str, float] = {}

    def evaluate(self, pool: Pool, now_s: float) -> Evaluation:
        """``pool`` has a spec. Its new state is kept by ``applied``, once the plan is carried out."""
        spec = pool.spec
        assert spec is not None
        # On a grid: a promise is evaluated at exactly its time.
        tick_s = math.floor(now_s / self._settings.refresh_s) * self._settings.refresh_s
        memory = _until(self._memories.get(pool.uid, pool.status.memory), tick_s)
        queues = tuple(self._borrowing(pool, index, now_s) for index in range(len(spec.borrowers)))
        pods = self._pods_of_flavors(queues)
        memory = _with_starts(memory, [pod for service in spec.services for pod in _pods_of(service, pods)])
        lead = lead_time(spec.lead_time_s, [took_s for _, took_s in memory.starts], _grace_s(queues), memory.saves)
        requested_gpus = {service.name: _gpus(_pods_of(service, pods), spec.resource) for service in spec.services}
        state = LendingState(memory.recent, pool.status.lent_gpus, Caution(memory.level, memory.promised))
        state = learned(spec, state, sum(requested_gpus.values()), tick_s, _OBSERVED_TICKS * self._settings.refresh_s)
        borrowed = sum(queue.borrowed for queue in queues)
        views = self._forecasts.views(spec, requested_gpus)
        result = plan(spec, views, borrowed, lead.seconds, state, tick_s)
        memory = replace(
            memory, recent=result.state.recent, level=result.state.caution.level, promised=result.state.caution.promised
        )
        lines = self._cluster.pending_evictions() if any(queue.held or queue.returning for queue in queues) else {}
        lendable = most_lent(spec, pool.status.history, result.lent, now_s)
        queued = tuple(Queued.of(queue, lines, lendable) for queue in queues)
        needy = max(spec.services, key=lambda service: requested_gpus[service.name])
        return Evaluation(
            spec,
            now_s,
            queues,
            lead,
            result,
            sum(requested_gpus.values()),
            self._forecasts.state(spec),
            memory,
            f"{needy.namespace}/{needy.name}",
            queued,
        )

    def plan(self, pool: Pool, evaluation: Evaluation) -> PoolPlan:
        self._observe(evaluation)
        before = pool.status.reclaiming
        # The deadline never moves away once GPUs are being taken back.
        by_s = min(before.by_s, evaluation.by_s) if before else evaluation.by_s
        choice, victims = self._victims(evaluation, by_s) if evaluation.missing else (None, ())
        queues: tuple[QueuePlan, ...] = ()
        if evaluation.pool.mode is Mode.ENFORCE:
            stopped = choice.victims if choice and choice.action is VictimAction.STOP else ()
            queues = _queue_plans(evaluation, stopped)
        return PoolPlan(evaluation, by_s, queues, choice, victims)

    def applied(self, pool: Pool, evaluation: Evaluation) -> None:
        before = self._memories.get(pool.uid, evaluation.memory)
        self._memories[pool.uid] = replace(evaluation.memory, saves=before.saves)

    def record(self, pool: Pool, outcome: Outcome, now_s: float) -> None:
        """Learn from an outcome: how long saves took, and which workloads cannot be changed."""
        if outcome.saves_s:
            before = self._memories.get(pool.uid, pool.status.memory)
            self._memories[pool.uid] = replace(before, saves=(*before.saves, *outcome.saves_s)[-_MOST_SAVES:])
        self._refused |= dict.fromkeys(outcome.refused, now_s)

    def _observe(self, evaluation: Evaluation) -> None:
        """Learn how often borrowers make checkpoints; now and then is often enough."""
        if not 0 <= evaluation.now_s - self._observed_s.get(evaluation.pool.name, float("-inf")) < _OBSERVE_EVERY_S:
            self._observed_s[evaluation.pool.name] = evaluation.now_s
            for index, queue in enumerate(evaluation.queues):
                if queue.problem is None:
                    self._learn(self._weighed(evaluation, index), evaluation.now_s)

    def _victims(self, evaluation: Evaluation, by_s: float) -> tuple[Choice, tuple[Borrowing, ...]]:
        """The workloads of all queues that give back what is missing: those that lose least."""
        queues = [self._weighed(evaluation, index) for index, queue in enumerate(evaluation.queues) if queue.beyond]
        for queue in queues:
            self._learn(queue, evaluation.now_s)
        running = [borrowing for queue in queues for borrowing in queue.running]
        candidates = [self._able(borrowing.candidate, evaluation.now_s) for borrowing in running if borrowing.candidate]
        spare = {item.name: item.beyond for item in queues}
        choice = choose(
            candidates, self._rhythms, evaluation.missing, evaluation.now_s, by_s, self._settings.policy, spare
        )
        return choice, tuple(borrowing for borrowing in running if borrowing.name in choice.victims)

    def _is_refused(self, name: str, now_s: float) -> bool:
        return 0 <= now_s - self._refused.get(name, float("-inf")) < _REFUSED_S

    def _able(self, candidate: Candidate, now_s: float) -> Candidate:
        if not self._is_refused(candidate.gang.name, now_s):
            return candidate
        return replace(
            candidate, barred=Reason("REFUSED", f"The API server does not let {candidate.gang.name} be changed.")
        )

    def _borrowing(self, pool: Pool, index: int, now_s: float) -> BorrowingQueue:
        """The queue of a borrower, with a problem if another pool, or another entry of this one, lends to it."""
        assert pool.spec is not None
        borrower = pool.spec.borrowers[index]
        queue = self._queue_of(borrower, pool.spec.resource, now_s, weigh=False)
        held = tuple(borrowing for borrowing in queue.held if not self._is_refused(borrowing.name, now_s))
        if queue.problem is not None:
            return queue
        for other, number, its in self._claims(borrower):
            if (other.uid, number) == (pool.uid, index):
                return replace(queue, held=held)
            assert other.spec is not None
            if self._queue_of(its, other.spec.resource, now_s, weigh=False).values.keys() & queue.values.keys():
                why = f"{borrower.system} queue {borrower.queue} borrows from LendingPool {other.name} already."
                return BorrowingQueue(borrower, queue.resource, None, problem=Reason("CLAIMED", why))
        return replace(queue, held=held)

    def _pods_of_flavors(self, queues: Sequence[BorrowingQueue]) -> list[ObservedPod]:
        """Without the pods that can only run on nodes of flavours that the pool does not lend."""
        flavors = self._cluster.flavors()
        lent = {path[0] for queue in queues for path in queue.values if path[0] in flavors}
        return [
            pod
            for pod in self._cluster.pods()
            if not lent or any(allows(flavors[name], pod.placement, flavors[name].labels) for name in lent)
        ]

    def _claims(self, borrower: Borrower) -> list[tuple[Pool, int, Borrower]]:
        """Entries that lend to a queue: pools in mode enforce before others, the oldest first."""
        pools = [(pool, pool.spec) for pool in self._cluster.pools() if pool.spec is not None]
        pools.sort(key=lambda it: (it[1].mode is not Mode.ENFORCE, it[0].created, it[0].name))
        return [
            (pool, number, its)
            for pool, spec in pools
            for number, its in enumerate(spec.borrowers)
            if its.key == borrower.key
        ]

    def _weighed(self, evaluation: Evaluation, index: int) -> BorrowingQueue:
        return self._queue_of(evaluation.pool.borrowers[index], evaluation.pool.resource, evaluation.now_s, weigh=True)

    def _learn(self, queue: BorrowingQueue, now_s: float) -> None:
        gangs = [borrowing.candidate.gang for borrowing in queue.running if borrowing.candidate]
        self._rhythms = observe(self._rhythms, gangs, now_s)

    def lead_s(self, pool: Pool) -> float:
        """How far ahead forecasts are needed, before anything else is known of a pool."""
        assert pool.spec is not None
        memory = self._memories.get(pool.uid, pool.status.memory)
        configured_s = pool.spec.lead_time_s or pool.status.lead_time_s or None
        return lead_time(configured_s, [took_s for _, took_s in memory.starts], _GRACE_S, memory.saves).seconds

    def forget(self, pools: Sequence[Pool]) -> None:
        present = {pool.uid for pool in pools}
        self._memories = {uid: memory for uid, memory in self._memories.items() if uid in present}


def _queue_plans(evaluation: Evaluation, stopped: Collection[str]) -> tuple[QueuePlan, ...]:
    """For the queues without a problem, with the shares that they have once these workloads are asked to stop."""
    queues = [queue.without(stopped) for queue in evaluation.queues]
    claims = [its.claim(queue, evaluation.now_s) for queue, its in zip(queues, evaluation.queued, strict=True)]
    owed = shares(evaluation.plan.lent, claims)
    return tuple(
        _queue_plan(queue, before.running, share, queued, evaluation.now_s)
        for before, queue, share, queued in zip(evaluation.queues, queues, owed, evaluation.queued, strict=True)
        if queue.problem is None
    )


def _queue_plan(
    queue: BorrowingQueue, running: tuple[Borrowing, ...], share: int, queued: Queued, now_s: float
) -> QueuePlan:
    turn = queued.turn(queue, share, now_s)
    if queue.barred is not None:
        # Workloads that may not be stopped may not borrow, and the queueing system chooses which it admits.
        turn = Turn((), min(turn.open, max(queue.own * WHOLE_GPU, queue.used)))
    held = {borrowing.name: borrowing for borrowing in queue.held}
    lent = math.ceil(turn.open / WHOLE_GPU) - queue.own
    return QueuePlan(queue, running, share, lent, tuple(held[name] for name in turn.names))


def _pods_of(service: PoolService, pods: Sequence[ObservedPod]) -> list[ObservedPod]:
    wanted = service.labels.items()
    return [pod for pod in pods if pod.key[0] == service.namespace and wanted <= pod.labels.items()]


def _gpus(pods: Sequence[ObservedPod], resource: str) -> int:
    """What running and pending pods request: a pending pod is a need."""
    return math.ceil(sum(pod.amounts.get(resource, 0) for pod in pods if not pod.terminating) / WHOLE_GPU)


def _until(memory: Memory, now_s: float) -> Memory:
    """Without times from a clock that was ahead: such a need is of now, and such a promise is dropped."""
    recent = tuple((min(at_s, now_s), gpus) for at_s, gpus in memory.recent)
    promised = tuple(item for item in memory.promised if item[0] <= now_s + LONGEST_LEAD_S)
    return replace(memory, recent=recent, promised=promised)


def _with_starts(memory: Memory, pods: Sequence[ObservedPod]) -> Memory:
    recorded = dict(memory.starts)
    new = {pod.gpu_pod.uid: pod.start_s for pod in pods if pod.start_s is not None and pod.gpu_pod.uid not in recorded}
    if not new:
        return memory
    # Existing pods are not counted twice when older ones are dropped.
    return replace(memory, starts=(*memory.starts, *new.items())[-max(_MOST_STARTS, len(pods)) :])


def _grace_s(queues: Sequence[BorrowingQueue]) -> float:
    result = [pod.grace_s for queue in queues for borrowing in queue.running for pod in borrowing.pods]
    return max(result, default=_GRACE_S)
