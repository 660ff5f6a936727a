"""What a job's state says on its pods: annotations, written when they change, and not often.

A reader sees in ``kaiwo.ai/checkpoint-observed-at`` how old it is. A safe state is written again every minute while it
holds, so that an old annotation means "unknown"; a state that becomes unsafe is written at once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kopt.cluster.client.api import ApiError, Conflict, Forbidden, Kube, NotFound
from kopt.cluster.client.resources import PODS, Key
from kopt.cluster.objects.progress import PROGRESS, PROGRESS_AT, STEP_SECONDS
from kopt.cluster.runtime.backoff import Backoff
from kopt.core.times import stamp
from kopt.core.workload.run_time import StepProgress

_LOG = logging.getLogger(__name__)
STATE, SAFE = "kaiwo.ai/checkpoint-state", "kaiwo.ai/checkpoint-safe"
OBSERVED_AT = "kaiwo.ai/checkpoint-observed-at"
LAST_TIME, LAST_STEP = "kaiwo.ai/last-checkpoint-time", "kaiwo.ai/last-checkpoint-step"
RISK, RISK_BETWEEN = "kaiwo.ai/work-at-risk", "kaiwo.ai/work-at-risk-interval"
FIRST_STEP = "kaiwo.ai/first-step"
REASON, MODEL = "kaiwo.ai/checkpoint-reason", "kaiwo.ai/checkpoint-model"
_LONGEST = 256
_AT_ONCE = 8
_PARTS = 8


@dataclass(frozen=True)
class AnnotationSettings:
    """Times in seconds, for each pod."""

    between_s: float = 10.0
    """At least this between two writes, unless a job stops being safe."""
    urgent_between_s: float = 1.0
    refresh_s: float = 60.0
    """Unchanged annotations are written again after this long."""
    stale_after_s: float = 90.0
    """Without an answer of the endpoint for so long, nothing is known."""


def annotations_of(answer: Mapping[str, Any], observed_at_s: float) -> dict[str, str | None]:
    """An answer of ``/v1/checkpoint`` as annotations; None takes one away."""
    safe = answer.get("safe") is True
    low, high = answer.get("work_at_risk_low"), answer.get("work_at_risk_high")
    model = answer.get("model")
    return {
        STATE: str(answer.get("state", "UNKNOWN")),
        SAFE: "true" if safe else "false",
        OBSERVED_AT: stamp(observed_at_s),
        LAST_TIME: _time(answer.get("last_durable_at")),
        LAST_STEP: _whole(answer.get("last_durable_step")),
        RISK: _whole(answer.get("work_at_risk_gpu_seconds")),
        RISK_BETWEEN: f"{low:.0f}-{high:.0f}" if _is_number(low) and _is_number(high) else None,
        REASON: str(answer.get("reason", ""))[:_LONGEST] or None,
        MODEL: f"{model.get('name')}/{model.get('version')}" if isinstance(model, Mapping) else None,
    }


def progress_annotations(progress: StepProgress) -> dict[str, str | None]:
    """How far the training is, as its log shows it; the times of steps are means of up to eight parts of the last."""
    times = progress.step_seconds
    parts = [times[at * len(times) // _PARTS : (at + 1) * len(times) // _PARTS] for at in range(_PARTS)]
    means = [sum(part) / len(part) for part in parts if part]
    return {
        PROGRESS: f"{progress.step}/{progress.steps}",
        PROGRESS_AT: stamp(progress.at_s),
        STEP_SECONDS: " ".join(f"{mean:.4g}" for mean in means),
    }


def unknown(observed_at_s: float, why: str) -> dict[str, str | None]:
    """The state is no longer known; a durable checkpoint stays durable."""
    return {
        STATE: "UNKNOWN",
        SAFE: "false",
        OBSERVED_AT: stamp(observed_at_s),
        RISK: None,
        RISK_BETWEEN: None,
        REASON: why[:_LONGEST],
    }


class Annotator:
    """Writes onto one pod. ``update`` says what holds now; ``run`` writes it when it is time."""

    def __init__(
        self,
        kube: Kube,
        key: Key,
        uid: str,
        settings: AnnotationSettings,
        clock: Callable[[], float],
        turns: asyncio.Semaphore | None = None,
    ) -> None:
        self._kube, self._key, self._uid, self._settings, self._clock = kube, key, uid, settings, clock
        self._turns = turns or asyncio.Semaphore(_AT_ONCE)
        self._wanted: dict[str, str | None] = {}
        self._written: dict[str, str | None] = {}
        self._written_at_s = float("-inf")
        self._wake = asyncio.Event()
        self._step: int | None = None
        self.writes = 0

    def update(self, annotations: Mapping[str, str | None]) -> None:
        self._wanted = {**self._wanted, **annotations}
        self._wake.set()

    def update_step(self, step: object) -> None:
        """The step that the job is at. What is known first may be that of pods before this one; where it goes on from
        there, or begins again, is the first step of this pod."""
        if not isinstance(step, int) or isinstance(step, bool) or FIRST_STEP in self._wanted:
            return
        if self._step is not None and step != self._step:
            self.update({FIRST_STEP: str(step)})
        self._step = step

    async def run(self) -> None:
        """Until the pod is gone, or may not be written to."""
        backoff = Backoff(1.0, 60.0)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while (wait_s := self._due_in_s()) > 0:
                if not await self._changed_within(wait_s):
                    break
            try:
                await self._write()
                backoff.reset()
            except (NotFound, Conflict):
                return
            except Forbidden as error:
                _LOG.error("pod %s/%s cannot be annotated: %s", *self._key, error)
                return
            except ApiError as error:
                _LOG.warning("pod %s/%s is not annotated yet: %s", *self._key, error)
                await asyncio.sleep(backoff.next_s())
                self._wake.set()

    async def _changed_within(self, wait_s: float) -> bool:
        """Whether there was a change, which may be urgent, before the time was over."""
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    def _changes(self) -> set[str]:
        return {name for name in self._wanted if self._wanted[name] != self._written.get(name)} - {OBSERVED_AT}

    def _due_in_s(self) -> float:
        changed = self._changes()
        if SAFE in changed and self._wanted[SAFE] == "false":
            after_s = self._settings.urgent_between_s
        elif {STATE, SAFE, LAST_STEP, LAST_TIME, FIRST_STEP} & changed:
            after_s = self._settings.between_s
        else:
            # Work at risk grows by itself: readers add the time since it was written.
            after_s = self._settings.refresh_s
        return self._written_at_s + after_s - self._clock()

    async def _write(self) -> None:
        wanted = dict(self._wanted)
        namespace, name = self._key
        # The uid: another pod under this name is refused as a conflict.
        metadata = {"uid": self._uid, "annotations": wanted}
        async with self._turns:
            await self._kube.patch(PODS, name, {"metadata": metadata}, namespace)
        self._written, self._written_at_s = wanted, self._clock()
        self.writes += 1


def _time(value: Any) -> str | None:
    try:
        return stamp(value) if _is_number(value) else None
    except (OverflowError, ValueError, OSError):
        return None


def _whole(value: Any) -> str | None:
    return f"{value:.0f}" if _is_number(value) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value and abs(value) < 1e18
