"""Quotas advised from what queues demanded, for the status of KaiwoQueues. No quota is written by it."""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kopt.cluster.client.prometheus import PrometheusError, series_of
from kopt.cluster.workloads.requests.pods import is_gpu
from kopt.core.scheduling.queue_demand import HOUR_S, HOURLY_QUERY, QueueDemandHistory, history_of
from kopt.core.scheduling.queue_tree import DEMAND_METRIC, GPU
from kopt.core.units import format_span
from kopt.policies.queues import QueueTree, TreeError
from kopt.policies.queues.advice import METHOD, QuotaAdvice
from kopt.policies.queues.quota_groups import advised_quotas

READ_S = 600.0
"""Between two readings of the history, which has whole hours."""
GATHER_S = 2.0
_CHUNK_HOURS = 24
"""In one answer, so that a thousand queues stay below the largest answer."""


class History(Protocol):
    """A Prometheus server (``cluster.client.prometheus.Prometheus``)."""

    async def over(self, query: str, start_s: int, end_s: int, step_s: int) -> Any: ...


@dataclass(frozen=True)
class StandingAdvice:
    """What is known by now: whether the history could be read, why not, and the advice of each queue with a quota of
    GPUs."""

    is_read: bool
    reason: str
    message: str
    by_queue: Mapping[str, tuple[QuotaAdvice, ...]] = field(default_factory=dict)


UNREAD = StandingAdvice(False, "Unread", "The history has not been read yet.")
"""As a term begins: what an earlier one wrote stays until then."""


class Advising:
    """One term. ``tree`` raises ValueError where the queues contradict each other; ``changed`` is called with every new
    advice. ``clock`` gives Unix seconds."""

    def __init__(
        self,
        server: History,
        since_s: int,
        tree: Callable[[], QueueTree],
        changed: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._server, self._since_s, self._tree, self._changed, self._clock = server, since_s, tree, changed, clock
        self._history: QueueDemandHistory | None = None
        self._read_s = -math.inf
        self._of: tuple[QueueTree, QueueDemandHistory] | None = None
        self.latest = UNREAD
        self.errors = 0
        """Histories that could not be read."""

    async def step(self) -> float:
        """In how many seconds to run again."""
        now_s = self._clock()
        if now_s - self._read_s >= READ_S:
            self._read_s = now_s
            try:
                self._history = await self._read(now_s)
            except PrometheusError as error:
                self.errors += 1
                # What was advised from older hours is not kept: nobody could tell how old it is.
                self._history = self._of = None
                self._publish(StandingAdvice(False, error.reason, str(error)))
        if self._history is not None:
            await self._advise(self._history)
        return max(1.0, READ_S - (self._clock() - self._read_s))

    async def _advise(self, history: QueueDemandHistory) -> None:
        try:
            tree = self._tree()
        except (TreeError, ValueError):
            # The condition Applied says so.
            return
        if self._of == (tree, history):
            return
        advice = await asyncio.to_thread(advised_quotas, tree, history, _is_gpu)
        by_queue: dict[str, list[QuotaAdvice]] = defaultdict(list)
        for each in advice:
            by_queue[each.queue].append(each)
        self._of = (tree, history)
        message = f"By {METHOD} from {format_span(self._since_s)} of demand, used and waited for."
        rows = {name: tuple(rows) for name, rows in by_queue.items()}
        self._publish(StandingAdvice(True, "FromHistory", message, rows))

    def _publish(self, advice: StandingAdvice) -> None:
        if advice != self.latest:
            self.latest = advice
            self._changed()

    async def _read(self, now_s: float) -> QueueDemandHistory:
        """Whole hours. Raises PrometheusError."""
        end_s = int(now_s // HOUR_S) * HOUR_S
        hours = max(1, self._since_s // HOUR_S)
        start_s = end_s - hours * HOUR_S
        series: list[Any] = []
        for begin in range(start_s + HOUR_S, end_s + 1, _CHUNK_HOURS * HOUR_S):
            until = min(begin + (_CHUNK_HOURS - 1) * HOUR_S, end_s)
            series += series_of(await self._server.over(HOURLY_QUERY, begin, until, HOUR_S))
        try:
            history = history_of(series, start_s, hours)
        except ValueError as error:
            raise PrometheusError("BadAnswer", str(error)) from error
        if not history.used:
            raise PrometheusError("NoHistory", f"Prometheus has no {DEMAND_METRIC} yet: does it scrape kopt-queues?")
        return history


def _is_gpu(resource: str) -> bool:
    return resource == GPU or is_gpu(resource)
