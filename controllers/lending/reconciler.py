"""One reconcile of all pools, from the state on them and on the queues: nothing that matters is only in memory.

In this order: victims are selected; quotas that have to fall are lowered, so that no new workload is admitted; victims
are asked to save, then stopped. Once all is taken back, held workloads return in the order of their evictions, and a
quota that may rise is raised once they are back in the queue. Then the status is written.
Wherever this is interrupted, the next reconcile does the rest.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence
from functools import partial

from kopt.cluster.client.api import Invalid
from kopt.cluster.client.resources import LENDING_POOLS
from kopt.cluster.holds.hold import holder_of
from kopt.cluster.objects.custom.lending_pool import status_document
from kopt.cluster.runtime.events import EmitEvent
from kopt.cluster.runtime.isolation import Isolation, Subject
from kopt.cluster.runtime.retry import SOON_S, Retrying
from kopt.controllers.lending.executor import Executor
from kopt.controllers.lending.forecasts import Forecasts
from kopt.controllers.lending.leftovers import stray_quotas, stray_workloads
from kopt.controllers.lending.plan import Evaluation, Outcome, PoolPlan
from kopt.controllers.lending.planner import Planner
from kopt.controllers.lending.ports import ControllerSettings, Errors, Writer
from kopt.controllers.lending.state import LiveCluster
from kopt.controllers.lending.status import is_news, refused, status_after
from kopt.controllers.lending.views import HOLDER, Pool
from kopt.core.decision import Mode
from kopt.core.scheduling.lending_pool import PoolStatus, Reclaiming, Verb

_LOG = logging.getLogger(__name__)
DECISIONS = logging.getLogger("kopt.decisions")
_IDLE_S = 30.0


class Reconciler(Retrying):
    """``step`` does what there is to do and returns in how many seconds to run again if nothing changes before."""

    def __init__(
        self,
        cluster: LiveCluster,
        writer: Writer,
        forecasts: Forecasts,
        planner: Planner,
        executor: Executor,
        settings: ControllerSettings,
        emit_event: EmitEvent,
        clock: Callable[[], float] = time.time,
        isolation: Isolation | None = None,
    ) -> None:
        super().__init__(isolation or Isolation("reallocation"))
        self._cluster, self._writer, self._forecasts, self._planner = cluster, writer, forecasts, planner
        self._executor, self._settings, self._emit_event, self._clock = executor, settings, emit_event, clock
        self._evaluations: list[Evaluation] = []

    async def step(self) -> float:
        """Raises Deposed."""
        pools = self._cluster.pools()
        self._evaluations.clear()
        again_s = [await self._guarded(pool) for pool in pools]
        again_s.append(await self._tried(partial(self._tidied, pools)))
        self._planner.forget(pools)
        return min(_IDLE_S, *again_s)

    async def _guarded(self, pool: Pool) -> float:
        return await self._tried(partial(self._reconcile, pool), Subject.of(LENDING_POOLS, pool.document))

    async def _reconcile(self, pool: Pool) -> float:
        now_s = self._clock()
        if pool.spec is None:
            await self._write(pool, refused(pool, now_s))
            return _IDLE_S
        evaluation = self._planner.evaluate(pool, now_s)
        self._evaluations.append(evaluation)
        plan = self._planner.plan(pool, evaluation)
        outcome = await self._executor.apply(pool, plan)
        self._planner.record(pool, outcome, now_s)
        if outcome.error is not None:
            raise outcome.error
        forecasts, reclaiming = self._forecasts.of(pool.spec), _reclaiming(pool, plan, outcome)
        status = status_after(pool, evaluation, forecasts, reclaiming, self._settings.history_s)
        if is_news(pool.status, status, self._settings.refresh_s):
            await self._write(pool, status)
        self._planner.applied(pool, evaluation)
        self._report(pool, evaluation)
        tick_s = self._settings.refresh_s - now_s % self._settings.refresh_s
        return min(outcome.again_s, tick_s + 0.01)

    async def _write(self, pool: Pool, status: PoolStatus) -> None:
        document = status_document(status)
        if document != pool.document.get("status"):
            await self._writer.put_status(pool.document, document)

    def _report(self, pool: Pool, evaluation: Evaluation) -> None:
        """Once for each change, not at every reconcile."""
        plan, spec = evaluation.plan, evaluation.pool
        if plan.verb is Verb.KEEP:
            return
        reason = ("Lending" if plan.verb is Verb.LEND else "Reclaiming") + (
            "" if spec.mode is Mode.ENFORCE else "Advised"
        )
        self._emit_event(LENDING_POOLS.reference("", pool.name, pool.uid), reason, plan.reasons[0].message)
        about = {
            "policy": "reallocation",
            "mode": spec.mode.value,
            "pool": pool.name,
            "verb": plan.verb.value,
            "gpus": plan.gpus,
            "lent": plan.lent,
            "forecast": evaluation.forecast.value,
            "reasons": [item.to_dict() for item in plan.reasons],
            "models": [model.to_dict() for model in plan.models],
        }
        DECISIONS.info("LendingPool %s", pool.name, extra={"decision": about})

    async def _tidied(self, pools: Sequence[Pool]) -> float:
        """Restore queues and release workloads that no pool lends to any more, or can."""
        if any(pool.spec is None for pool in pools):
            # Its spec cannot be read: it may lend to these.
            return _IDLE_S
        lent = [
            queue
            for evaluation in self._evaluations
            if evaluation.pool.mode is Mode.ENFORCE
            for queue in evaluation.queues
            if queue.problem is None or queue.problem.code == "NO_QUEUE"
        ]
        errors = Errors()
        for resource, name, document in stray_workloads(self._cluster, {item.borrower.key for item in lent}):
            with errors.kept():
                await self._writer.give_back(resource, document)
                _LOG.info("%s %s is given back: no pool lends to it", resource.kind, name)
        paths = {(*item.borrower.key, path) for item in lent for path in item.values}
        for resource, name, document, changes in stray_quotas(self._cluster, paths):
            with errors.kept():
                await self._writer.patch(resource, document, changes)
                _LOG.info("%s %s has its own quota again: no pool lends to it", resource.kind, name)
        try:
            errors.raise_first()
        except Invalid:
            # A quota that has changed since.
            return SOON_S
        return _IDLE_S


def _reclaiming(pool: Pool, plan: PoolPlan, outcome: Outcome) -> Reclaiming | None:
    evaluation, before = plan.evaluation, pool.status.reclaiming
    terminating = sum(queue.terminating_gpus for queue in evaluation.queues)
    if not evaluation.missing and not (terminating and before):
        return None
    named = {
        borrowing.name
        for queue in evaluation.queues
        for borrowing in queue.terminating
        if holder_of(borrowing.document) == HOLDER
    }
    return Reclaiming(
        math.ceil((evaluation.missing + terminating) / 1000),
        before.since_s if before else evaluation.now_s,
        plan.by_s,
        tuple(sorted(named | set(outcome.victims))),
    )
