"""Run times from the prediction endpoint. What it does not know counts as a job that may run for ever."""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from kopt.cluster.workloads.runs import kind_of_workload
from kopt.controllers.reservations.observed import Observed, with_runs
from kopt.controllers.reservations.views import ObservedWorkload
from kopt.core.workload.run_time import RunTimeError, RunTimeQuantiles, RunTimeQuestion

_LOG = logging.getLogger(__name__)
Ask = Callable[[Mapping[str, RunTimeQuestion]], Awaitable[Mapping[str, RunTimeQuantiles]]]
"""Raises RunTimesUnknown."""
_AGAIN_S, _AFTER_FAILURE_S = 30.0, 10.0


class RunTimesUnknown(Exception):
    """The endpoint does not answer."""


@dataclass(frozen=True)
class _Answer:
    at_s: float
    runs: bool
    quantiles: RunTimeQuantiles | None


class RunTimes:
    """Answers by Workload; asked for again after half a minute, and when one starts."""

    def __init__(self, ask: Ask | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._answers: dict[str, _Answer] = {}
        self._failed_s = float("-inf")

    async def added(self, observed: Observed) -> Observed:
        """The same, with what the endpoint knows."""
        if self._ask is None:
            return observed
        now_s, wanted = self._clock(), dict[str, ObservedWorkload]()
        for each in observed.workloads:
            answer = self._answers.get(each.workload.uid)
            is_old = answer is None or answer.runs != each.workload.running or now_s - answer.at_s >= _AGAIN_S
            if is_old:
                wanted[each.workload.uid] = each
        uids = {each.workload.uid for each in observed.workloads}
        self._answers = {uid: answer for uid, answer in self._answers.items() if uid in uids}
        if wanted and now_s - self._failed_s >= _AFTER_FAILURE_S:
            await self._refresh(wanted, observed, now_s)
        return with_runs(observed, self._remaining(now_s))

    async def _refresh(self, wanted: Mapping[str, ObservedWorkload], observed: Observed, now_s: float) -> None:
        assert self._ask is not None
        questions = {uid: question for uid, each in wanted.items() if (question := _question(each, observed))}
        try:
            answers = await self._ask(questions) if questions else {}
        except RunTimesUnknown as error:
            _LOG.warning("%s; what is not known counts as a job that may run for ever", error)
            self._failed_s = now_s
            return
        for uid, each in wanted.items():
            self._answers[uid] = _Answer(now_s, each.workload.running, answers.get(uid))

    def _remaining(self, now_s: float) -> dict[str, RunTimeQuantiles]:
        result = {}
        for uid, answer in self._answers.items():
            if answer.quantiles is not None:
                past_s = now_s - answer.at_s if answer.runs else 0.0
                remaining = tuple(max(0.0, value - past_s) for value in answer.quantiles.seconds)
                result[uid] = RunTimeQuantiles(answer.quantiles.levels, remaining)
        return result


def _question(each: ObservedWorkload, observed: Observed) -> RunTimeQuestion | None:
    workload = each.workload
    queue = workload.cluster_queue or observed.local_queues.get((workload.key[0], workload.queue), "")
    try:
        kind = kind_of_workload(each.document, queue)
        # Clocks differ a little: nothing starts after it is asked about.
        reserved_s = workload.reserved_s if workload.running else None
        started_s = None if reserved_s is None else min(reserved_s, observed.now_s)
        job = "" if started_s is None else f"{workload.uid}/{started_s:.0f}"
        return None if kind is None else RunTimeQuestion(kind, observed.now_s, started_s, job=job)
    except RunTimeError:
        return None
