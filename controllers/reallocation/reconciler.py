"""One pass over all pools, from what stands on them and on the queues: nothing that matters is only in memory.

In this order: borrowers are chosen; a quota that has to fall falls, so that nobody new is admitted; the chosen are
asked to save, told to go. Where all is given back those who may return are let go in the ledger's order, and a quota
that may rise rises once they are in the queue. The status is written.
Wherever this ends in between, the next pass finds the rest still to be done.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

from kopt.cluster.api import ApiError, Conflict, Invalid, NotFound
from kopt.cluster.held import holder_of
from kopt.cluster.lending_pools import status_document
from kopt.cluster.resources import LENDING_POOLS
from kopt.controllers.preemption.passes import AFTER_TROUBLE_S, SOON_S
from kopt.controllers.reallocation.acting import Acting, Carried
from kopt.controllers.reallocation.deciding import Deciding, Judged
from kopt.controllers.reallocation.forecasts import Forecasts
from kopt.controllers.reallocation.given import ControllerSettings, Errors, Tell, Writer
from kopt.controllers.reallocation.live import LiveCluster
from kopt.controllers.reallocation.reporting import is_news, refused, status_after
from kopt.controllers.reallocation.views import HOLDER, Pool
from kopt.core.decision import Mode
from kopt.core.lending_pools import PoolStatus, Reclaiming, Verb

_LOG = logging.getLogger(__name__)
DECISIONS = logging.getLogger("kopt.decisions")
_IDLE_S = 30.0


class Reconciler:
    """``step`` does what there is to do and says in how many seconds to look again, should nothing change before."""

    def __init__(self, cluster: LiveCluster, writer: Writer, forecasts: Forecasts, deciding: Deciding, acting: Acting,
                 settings: ControllerSettings, tell: Tell, clock: Callable[[], float] = time.time) -> None:  # fmt: skip
        self._cluster, self._writer, self._forecasts, self._deciding = cluster, writer, forecasts, deciding
        self._acting, self._settings, self._tell, self._clock = acting, settings, tell, clock
        self.troubles = 0
        self._judged: list[Judged] = []

    async def step(self) -> float:
        """Raises Deposed."""
        pools = self._cluster.pools()
        self._judged.clear()
        again_s = [await self._guarded(pool) for pool in pools]
        again_s.append(await self._tidied(pools))
        self._deciding.forget(pools)
        return min(_IDLE_S, *again_s)

    async def _guarded(self, pool: Pool) -> float:
        try:
            return await self._one(pool)
        except (Conflict, NotFound) as error:
            _LOG.info("LendingPool %s: it has changed meanwhile: %s", pool.name, error)
            return SOON_S
        except ApiError as error:
            _LOG.warning("LendingPool %s: a pass failed and is tried again: %s", pool.name, error)
            self.troubles += 1
            return AFTER_TROUBLE_S

    async def _one(self, pool: Pool) -> float:
        now_s = self._clock()
        if pool.spec is None:
            await self._write(pool, refused(pool, now_s))
            return _IDLE_S
        judged = self._deciding.judge(pool, now_s)
        self._judged.append(judged)
        self._deciding.look(judged)
        carried = await self._acting.carry_out(pool, judged, self._by_s(pool, judged))
        status = status_after(pool, judged, self._forecasts.of(pool.spec), self._reclaiming(pool, judged, carried),
                              self._settings.history_s)  # fmt: skip
        if is_news(pool.status, status, self._settings.refresh_s):
            await self._write(pool, status)
        self._deciding.applied(pool, judged)
        self._say(pool, judged)
        tick_s = self._settings.refresh_s - now_s % self._settings.refresh_s
        return min(carried.again_s, tick_s + 0.01)

    def _by_s(self, pool: Pool, judged: Judged) -> float:
        """The deadline never moves away once GPUs are being taken back."""
        before = pool.status.reclaiming
        return min(before.by_s, judged.by_s) if before else judged.by_s

    def _reclaiming(self, pool: Pool, judged: Judged, carried: Carried) -> Reclaiming | None:
        going = sum(queue.leaving for queue in judged.queues)
        missing = judged.missing
        if not missing and not (going and pool.status.reclaiming):
            return None
        before = pool.status.reclaiming
        since_s = before.since_s if before else judged.now_s
        named = {one.name for queue in judged.queues for one in queue.going if holder_of(one.document) == HOLDER}
        return Reclaiming(math.ceil((missing + going) / 1000), since_s, self._by_s(pool, judged),
                          tuple(sorted(named | set(carried.victims))))  # fmt: skip

    async def _write(self, pool: Pool, status: PoolStatus) -> None:
        document = status_document(status)
        if document != pool.document.get("status"):
            await self._writer.put_status(pool.document, document)

    def _say(self, pool: Pool, judged: Judged) -> None:
        """Once for each change, not at every look."""
        plan, spec = judged.plan, judged.pool
        if plan.verb is Verb.KEEP:
            return
        reason = ("Lending" if plan.verb is Verb.LEND else "Reclaiming") + (
            "" if spec.mode is Mode.ENFORCE else "Advised"
        )
        self._tell(LENDING_POOLS.reference("", pool.name, pool.uid), reason, plan.reasons[0].message)
        about = {
            "policy": "reallocation", "mode": spec.mode.value, "pool": pool.name, "verb": plan.verb.value,
            "gpus": plan.gpus, "lent": plan.lent, "forecast": judged.forecast.value,
            "reasons": [one.to_dict() for one in plan.reasons], "models": [one.to_dict() for one in plan.models],
        }  # fmt: skip
        DECISIONS.info("LendingPool %s", pool.name, extra={"decision": about})

    async def _tidied(self, pools: Sequence[Pool]) -> float:
        """Queues and workloads that no pool lends to any more, or none can, get back what is theirs."""
        if any(pool.spec is None for pool in pools):
            # What it says cannot be read: perhaps it lends to these.
            return _IDLE_S
        lent = [queue for judged in self._judged if judged.pool.mode is Mode.ENFORCE for queue in judged.queues
                if queue.problem is None or queue.problem.code == "NO_QUEUE"]  # fmt: skip
        errors = Errors()
        for resource, name, document in self._acting.strays({one.borrower.key for one in lent}):
            with errors.kept():
                await self._writer.give_back(resource, document)
                _LOG.info("%s %s is given back: no pool lends to it", resource.kind, name)
        places = {(*one.borrower.key, place) for one in lent for place in one.values}
        for resource, name, document, changes in self._acting.too_much(places):
            with errors.kept():
                await self._writer.patch(resource, document, changes)
                _LOG.info("%s %s has what it owns: no pool lends to it", resource.kind, name)
        try:
            errors.raise_first()
        except (Conflict, NotFound, Invalid):
            return SOON_S
        except ApiError as error:
            _LOG.warning("what no pool lends to any more cannot be given back yet: %s", error)
            self.troubles += 1
            return AFTER_TROUBLE_S
        return _IDLE_S
