"""How many of a workload's GPUs are useful, computed on one thread and kept: a curve takes seconds, a size does not.

Asked for once, an answer is there for those who ask later, the admission webhook among them. What the trainer's
arguments do not tell, or splits are not known of, is remembered as nothing to say.
"""

import asyncio
import functools
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from kopt.core.redaction import redact_document
from kopt.core.workload.gpu_count import GpuCountAdvice
from kopt.core.workload.split import TrainingJob, job_to_dict
from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.models.parallelism.advice import Advisor
from kopt.models.parallelism.useful_count import gpus_per_node_of, job_of_plan, useful_count, with_patch
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.http.deadline import Deadline
from kopt.serving.http.problems import invalid
from kopt.serving.sizing.step_times import StepTimes
from kopt.serving.sizing.workload import Workload

_LOG = logging.getLogger(__name__)
_MOST_KEPT = 2000
_MOST_QUEUED = 64
_AGAIN_S = 600.0
"""What was sent to another replica counts here after this long."""


@dataclass(frozen=True)
class CountQuestion:
    """``measured`` are seconds of a step by number of GPUs, sent with this question."""

    owner: str
    workload: Workload
    threshold: float
    measured: Mapping[int, float]

    @property
    def key(self) -> tuple[str, str, float, tuple[tuple[int, float], ...]]:
        return self.owner, self.workload.job_type, self.threshold, tuple(sorted(self.measured.items()))

    @property
    def lasting(self) -> tuple[str, str]:
        """By which an answer is found by those who tell nothing."""
        return self.owner, self.workload.job_type


@dataclass(frozen=True)
class _CachedAdvice:
    threshold: float
    measured: tuple[tuple[int, float], ...]
    advice: GpuCountAdvice | None
    at_s: float


class GpuCounts:
    """``plan`` reads a workload's training plan, or raises PlanError. One per replica."""

    def __init__(
        self,
        table: StepTimes | None,
        plan: Callable[[Workload], TrainingPlan],
        advisor: Callable[[], Advisor] = Advisor.load,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._plan, self._clock = table, plan, clock
        self._advisor = functools.cache(advisor)
        self._cache: OrderedDict[tuple[str, str], _CachedAdvice] = OrderedDict()
        self._running: dict[object, Future[GpuCountAdvice | None]] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gpu-counts")

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._table is not None:
            self._table.close()

    def cached_advice(self, owner: str, workload: Workload) -> GpuCountAdvice | None:
        """The last answer about a workload; at once."""
        entry = self._cache.get((owner, workload.job_type))
        return None if entry is None else entry.advice

    async def advice(
        self, question: CountQuestion, deadline: Deadline, *, wait: bool, made: Callable[[], None]
    ) -> GpuCountAdvice | None:
        """What is known, or with ``wait`` what is computed within the deadline; ``made`` is called after computing."""
        entry = self._cache.get(question.lasting)
        if entry is not None and self._holds(entry, question):
            return entry.advice
        running = self._start(question, made)
        if running is None or not wait:
            return None if entry is None else entry.advice
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                return await asyncio.shield(asyncio.wrap_future(running))
        except TimeoutError:
            return None
        except PlanError as error:
            raise invalid("measured_steps", str(error)) from None
        except Exception:  # noqa: BLE001 - edge: a size is answered without its curve
            _LOG.exception("a scaling curve failed")
            return None

    def _holds(self, entry: _CachedAdvice, question: CountQuestion) -> bool:
        sent = tuple(sorted(question.measured.items()))
        if sent and sent != entry.measured:
            return False
        return entry.threshold == question.threshold and self._clock() - entry.at_s < _AGAIN_S

    def _start(self, question: CountQuestion, made: Callable[[], None]) -> "Future[GpuCountAdvice | None] | None":
        running = self._running.get(question.key)
        if running is None and len(self._running) < _MOST_QUEUED:
            running = self._running[question.key] = self._thread.submit(self._compute, question, made)
            running.add_done_callback(lambda _: self._running.pop(question.key, None))
        return running

    def _compute(self, question: CountQuestion, made: Callable[[], None]) -> GpuCountAdvice | None:
        """Raises PlanError for measured steps that cannot be."""
        advice = self._answer(question)
        self._cache[question.lasting] = _CachedAdvice(
            question.threshold, tuple(sorted(question.measured.items())), advice, self._clock()
        )
        self._cache.move_to_end(question.lasting)
        while len(self._cache) > _MOST_KEPT:
            self._cache.popitem(last=False)
        if advice is not None:
            made()
        return advice

    def _answer(self, question: CountQuestion) -> GpuCountAdvice | None:
        workload = question.workload
        gpus = workload.processes.world_size
        try:
            per_node = gpus_per_node_of(gpus, workload.entrypoint.nodes)
            job = job_of_plan(self._plan(workload), workload.gpu.name, gpus, per_node)
        except PlanError as error:
            _LOG.debug("no scaling curve: %s", error)
            return None
        training = training_of(job)
        advice = self._followed(question, job, self._kept(question, training))
        if advice is not None and question.measured:
            self._keep(question, training)
        return None if advice is None else _patched(advice, workload)

    def _followed(self, question: CountQuestion, job: TrainingJob, kept: Mapping[int, float]) -> GpuCountAdvice | None:
        """By the job's own runs. What was kept of another shape of nodes, or no longer fits, counts for nothing; for
        what was sent now PlanError is raised."""
        advisor = self._advisor()
        for measured in ({**kept, **question.measured}, question.measured):
            try:
                return useful_count(advisor, job, threshold=question.threshold, measured=measured)
            except PlanError as error:
                if question.measured and measured == question.measured:
                    raise
                _LOG.debug("no scaling curve by %d own runs: %s", len(measured), error)
        return None

    def _kept(self, question: CountQuestion, training: str) -> Mapping[int, float]:
        try:
            return {} if self._table is None else self._table.of(question.owner, training)
        except DatabaseError as error:
            _LOG.warning("step times of own runs cannot be read: %s", error)
            return {}

    def _keep(self, question: CountQuestion, training: str) -> None:
        try:
            if self._table is not None:
                self._table.keep(question.owner, training, question.measured, self._clock())
        except DatabaseError as error:
            _LOG.warning("step times of own runs are not kept: %s", error)


def training_of(job: TrainingJob) -> str:
    """Digest of what is trained and on which GPUs, however many they are."""
    fields = {name: value for name, value in job_to_dict(job).items() if name not in ("gpus", "gpus_per_node")}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _patched(advice: GpuCountAdvice, workload: Workload) -> GpuCountAdvice:
    """With the patch of the manifest, unless that would have to be kept with a secret in it."""
    made = with_patch(advice, workload.manifest)
    if redact_document(list(made.patch)) != list(made.patch):
        return replace(made, patch=(), no_patch="Its command holds what looks like a secret, and patches are kept.")
    return made
