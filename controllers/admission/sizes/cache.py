"""Sizes of job types, kept in memory and filled from the prediction endpoint in the background (K3).

A question waits at most its budget. An answer that is no longer fresh is asked for again by the next question, which
waits for a moment only and else goes on with the old one, as all others do meanwhile: somebody may have published a
newer trace. While the endpoint fails it is not waited for at all.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.workloads.memory_need import Need, parse_need
from kopt.cluster.workloads.pod_sizing import JobType

_LOG = logging.getLogger(__name__)


Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a body to ``/v1/sizing`` and returns the decoded answer; raises when there is none."""


@dataclass(frozen=True)
class SizingSettings:
    """Bounds of the cache; times in seconds."""

    fresh_s: float = 15.0
    """An answer, or that there is none, is asked for again after this long. The endpoint repeats one that has not
    changed without asking its model."""
    refresh_wait_s: float = 0.05
    """How long the newer answer is waited for; an endpoint that knows a trace answers in milliseconds."""
    pause_s: float = 30.0
    """After a failure of the endpoint."""
    most: int = 10_000
    """Job types that are kept."""
    at_once: int = 8
    """Questions on their way to the endpoint."""


@dataclass
class _Entry:
    need: Need | None
    at_s: float


class SizingCache:
    """Answers by job type. Without ``ask`` it stays empty and every question is answered with None at once."""

    def __init__(
        self,
        ask: Ask | None = None,
        settings: SizingSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask, self._settings, self._clock = ask, settings or SizingSettings(), clock
        self._entries: OrderedDict[JobType, _Entry] = OrderedDict()
        self._asking: dict[JobType, asyncio.Task[Need | None]] = {}
        self._quiet_until_s = float("-inf")

    @property
    def has_source(self) -> bool:
        """Whether there is an endpoint to ask."""
        return self._ask is not None

    def cached(self, job_type: JobType) -> Need | None:
        """What is known now."""
        entry = self._entries.get(job_type)
        return entry.need if entry is not None else None

    async def need(self, job_type: JobType, template: Mapping[str, Any], budget_s: float) -> Need | None:
        """What is known of a job type within ``budget_s``; None when that is nothing. Never raises."""
        entry = self._entries.get(job_type)
        begun = self._is_due(entry) and self._start(job_type, template)
        task = self._asking.get(job_type)
        if entry is not None:
            return await self._newer(entry, task, budget_s) if begun and task is not None else entry.need
        if task is None:
            return None
        done, _ = await asyncio.wait({task}, timeout=max(budget_s, 0.0))
        if not done:
            # Slow counts as failed: the next pods must not wait as well.
            self._quiet()
        return task.result() if done and not task.cancelled() else None

    async def _newer(self, old: _Entry, task: "asyncio.Task[Need | None]", budget_s: float) -> Need | None:
        """The pending answer if it arrives in time; else, and on errors, the previous one."""
        before = self._quiet_until_s
        done, _ = await asyncio.wait({task}, timeout=max(0.0, min(budget_s, self._settings.refresh_wait_s)))
        if not done or task.cancelled() or self._quiet_until_s != before:
            return old.need
        return task.result()

    async def close(self) -> None:
        """End the questions that are on their way."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _is_due(self, entry: _Entry | None) -> bool:
        return entry is None or self._clock() - entry.at_s > self._settings.fresh_s

    def _start(self, job_type: JobType, template: Mapping[str, Any]) -> bool:
        """Whether a question has been sent."""
        if self._ask is None or job_type in self._asking or len(self._asking) >= self._settings.at_once:
            return False
        if self._clock() < self._quiet_until_s:
            return False
        task = asyncio.get_running_loop().create_task(self._fill(job_type, template, self._ask))
        self._asking[job_type] = task
        task.add_done_callback(lambda _: self._asking.pop(job_type, None))
        return True

    async def _fill(self, job_type: JobType, template: Mapping[str, Any], ask: Ask) -> Need | None:
        try:
            need = parse_need(await ask({"workload": template, **job_type.question}))
        except Exception as error:  # noqa: BLE001 - edge: whatever the endpoint does, pods go on
            _LOG.info("no size from the endpoint: %s", error)
            self._quiet()
            return None
        self._entries[job_type] = _Entry(need, self._clock())
        self._entries.move_to_end(job_type)
        while len(self._entries) > self._settings.most:
            self._entries.popitem(last=False)
        return need

    def _quiet(self) -> None:
        self._quiet_until_s = self._clock() + self._settings.pause_s
