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

from kopt.controllers.webhook.facts import JobType
from kopt.controllers.webhook.objects import at, mapping, text
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import Bytes

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Need:
    """Predicted GPU memory of one pod's process, and the most that any run of the job type was seen to use."""

    prediction: Prediction
    observed_peak_bytes: Bytes = Bytes(0)


Ask = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Sends a body to ``/v1/sizing`` and returns the decoded answer; raises when there is none."""


@dataclass(frozen=True)
class SizingSettings:
    """Bounds of the cache; times in seconds."""

    fresh_s: float = 15.0
    """An answer, or that there is none, is asked for again after this long. The endpoint repeats one that has not
    changed without asking its model."""
    moment_s: float = 0.05
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
        self, ask: Ask | None = None, settings: SizingSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._ask, self._settings, self._clock = ask, settings or SizingSettings(), clock
        self._known: OrderedDict[JobType, _Entry] = OrderedDict()
        self._asking: dict[JobType, asyncio.Task[Need | None]] = {}
        self._quiet_until_s = float("-inf")

    @property
    def has_source(self) -> bool:
        """Whether there is anybody to ask."""
        return self._ask is not None

    def cached(self, job_type: JobType) -> Need | None:
        """What is known now."""
        entry = self._known.get(job_type)
        return entry.need if entry is not None else None

    async def need(self, job_type: JobType, template: Mapping[str, Any], budget_s: float) -> Need | None:
        """What is known of a job type within ``budget_s``; None when that is nothing. Never raises."""
        entry = self._known.get(job_type)
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
        """The answer that is on its way, if it comes in a moment; the old one otherwise, also where asking fails."""
        before = self._quiet_until_s
        done, _ = await asyncio.wait({task}, timeout=max(0.0, min(budget_s, self._settings.moment_s)))
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
            body = {"workload": template, "profile": None, "gpu": None, "namespace": job_type.namespace or None}
            need = parse_need(await ask(body))
        except Exception as error:  # noqa: BLE001 - edge: whatever the endpoint does, pods go on
            _LOG.info("no size from the endpoint: %s", error)
            self._quiet()
            return None
        self._known[job_type] = _Entry(need, self._clock())
        self._known.move_to_end(job_type)
        while len(self._known) > self._settings.most:
            self._known.popitem(last=False)
        return need

    def _quiet(self) -> None:
        self._quiet_until_s = self._clock() + self._settings.pause_s


def parse_need(document: Mapping[str, Any]) -> Need | None:
    """The need in an answer of ``/v1/sizing`` (the ``memory`` block of ``kopt estimate``); None when it is refused.

    Raises ValueError for an answer whose figures contradict each other.
    """
    memory = mapping(document, "memory")
    value, low, high = (memory.get(name) for name in ("peak_bytes", "low_bytes", "high_bytes"))
    if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in (value, low, high)):
        return None
    probability = float(memory.get("probability") or 0.0)
    confidence = at(document, "confidence")
    prediction = Prediction(
        float(value), float(low), float(high), probability, "bytes",  # type: ignore[arg-type]
        float(confidence) if isinstance(confidence, int | float) else probability,
        ModelVersion(text(document, "model", "name") or "sizing", text(document, "model", "version")),
        (Reason("SIZING", f"method {text(document, 'method') or 'unknown'}"),),
        fallback=at(document, "fallback") is True,
    )  # fmt: skip
    observed = at(document, "observed_peak_bytes")
    return Need(prediction, Bytes(observed if isinstance(observed, int) and observed > 0 else 0))
