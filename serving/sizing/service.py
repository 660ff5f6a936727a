"""A validated question becomes a size: what is known of the job type, the model, the deadline. Behind ``/v1/sizing``.

No script is run here. A caller that has traced one sends the trace (``SizingRequest.trace``); traces and dry runs are
stored by job type, for the caller or for the namespace of the request. Without either, formulas read the arguments, and
the answer says that nothing ran. Cached answers are given on the event loop: handing over to a thread would cost more.
"""

import asyncio
import logging
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.prediction import ModelVersion, Prediction
from kopt.core.reason import Reason
from kopt.core.units import GIB, Bytes
from kopt.core.workload.gpu_count import GpuCountAdvice
from kopt.core.workload.profile import read_profile
from kopt.core.workload.sizing import MemoryBreakdown, Method, SizingEstimate, TraceCoverage, WorkloadProfile
from kopt.core.workload.training_plan import PlanError, TrainingPlan
from kopt.formats.entrypoint import EntrypointError, Kind
from kopt.formats.trainers import read_plan
from kopt.models.registry.aliases import SHIPPED
from kopt.models.registry.registry import CHALLENGER, CHAMPION
from kopt.models.sizing.assembly import answer, assemble, because
from kopt.models.sizing.beyond import DOUBTFUL_SIZE, ImplausibleSizeError, from_plausible_plan
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.estimate import DEFAULT_GPU, HF, NOTHING, load_sizing
from kopt.models.sizing.predictor import UNIT, SizingPredictor
from kopt.models.sizing.script_settings import settings_in
from kopt.models.sizing.table import SizingQuestion
from kopt.models.sizing.trace_summary import read_summary
from kopt.serving.base.database.interface import DatabaseError
from kopt.serving.base.model_slot import ModelSource, Slot
from kopt.serving.base.owners import owner_of
from kopt.serving.base.service import PredictorService
from kopt.serving.base.workers import Workers
from kopt.serving.contract.schemas import SizingRequest
from kopt.serving.http.deadline import Deadline
from kopt.serving.http.metrics import EndpointMetrics
from kopt.serving.http.problems import Problem, invalid
from kopt.serving.measured.comparisons import HOLDS, Comparisons, Interval, Widening
from kopt.serving.sizing.gpu_counts import CountQuestion, GpuCounts
from kopt.serving.sizing.metrics import SizingMetrics
from kopt.serving.sizing.step_times import StepTimes
from kopt.serving.sizing.table import Kept, SizeTable, StoredEvidence
from kopt.serving.sizing.workload import Workload, no_file, read_workload
from kopt.tracing.confined_reading import read_script_confined
from kopt.tracing.sandbox import ConfinementError

_LOG = logging.getLogger(__name__)
_MOST_KEPT = 2000
"""Cached answers, valid while request, model and evidence of the job type stay the same."""
_MOST_INLINE = 64 << 10
"""Evidence and script up to this many characters are parsed on the event loop and cached."""
_WRITTEN_AGAIN_S = 600.0
"""Interval at which the use of a cached answer is recorded, so that only unused rows expire."""
NO_ANSWER = ModelVersion("no-advice", "1")
"""The model version of fallback answers, which advise nothing."""
_LEAST_GPUS = 2
"""Of one GPU there are no fewer."""
_NOT_RUN = (
    "The endpoint runs no script, and nothing will run this one later: formulas read its arguments. `kopt recommend` "
    "runs it on a fake device where you are and sends what it said."
)

_STORED_TRACE = Reason(
    "KNOWN_TRACE", "The answer rests on what the job type's run on a fake device said, as it was sent."
)


def sizing_slot(source: ModelSource, default: Callable[[], SizingPredictor] | None = None) -> Slot[SizingPredictor]:
    """The registry's champion; the shipped model, verified, while there is none."""
    return Slot(source, "sizing", CHAMPION, warm_up=_warm_up, default=default or (lambda: load_sizing(SHIPPED)))


def challenger_slot(source: ModelSource) -> Slot[SizingPredictor]:
    """The version on trial: it answers nobody, and is compared with measurements beside the champion."""
    return Slot(source, "sizing", CHALLENGER, warm_up=_warm_up)


def _warm_up(model: SizingPredictor) -> None:
    """One question, so that a model that cannot answer never serves. Raises ValueError."""
    code = CodeEstimate(Method.ABSTRACT, TraceCoverage.FULL, Bytes(GIB), Bytes(GIB), MemoryBreakdown(Bytes(GIB)))
    (prediction,) = model.predict(SizingQuestion(code, DEFAULT_GPU))
    if prediction.value is None or not 0 < prediction.value < 1 << 50:
        raise ValueError("its answer is no amount of memory")


@dataclass(frozen=True)
class _Evidence:
    """What an answer is based on, and why."""

    code: CodeEstimate
    profile: WorkloadProfile | None
    reasons: tuple[Reason, ...]


@dataclass(frozen=True)
class _Question:
    """``owner`` of the evidence that counts; ``sent`` is evidence in this request, ``kept`` of earlier ones."""

    workload: Workload
    caller: str
    owner: str
    sent: StoredEvidence
    kept: Kept
    unread: tuple[Reason, ...] = ()
    """Why ``kept`` is empty where it cannot be read."""

    @property
    def quick(self) -> bool:
        """Whether the event loop can answer: from a stored trace, without waiting for the disk."""
        return self.sent.empty and self.kept.trace is not None and len(self.kept) <= _MOST_INLINE


@dataclass(frozen=True)
class _Answered:
    noted_s: float
    workload: Workload
    model: ModelVersion
    kept: Kept
    widening: Widening
    answer: SizingEstimate


class SizingService(PredictorService[SizingPredictor]):
    """Answers sizing questions with the model in ``slot``. One per replica."""

    def __init__(
        self,
        slot: Slot[SizingPredictor],
        metrics: EndpointMetrics,
        *,
        table: SizeTable | None = None,
        challenger: Slot[SizingPredictor] | None = None,
        comparisons: Comparisons | None = None,
        step_times: StepTimes | None = None,
        threads: int = 2,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._counters = SizingMetrics(metrics)
        super().__init__(slot, metrics, self._counters, challenger)
        self._comparisons = comparisons
        self.table, self._clock = table, clock
        self._workers = Workers(threads, "sizing")
        self._answered: dict[tuple[str, str], _Answered] = {}
        self._counts = GpuCounts(step_times, _plan, clock=clock)

    @property
    def compared(self) -> Comparisons | None:
        return self._comparisons

    def close(self) -> None:
        self._workers.close()
        self._counts.close()
        super().close()
        if self.table is not None:
            self.table.close()

    async def advice(self, only_of: str | None) -> Mapping[str, list[Any]]:
        """``sizes``: the newest answer for each job type."""
        if self.table is None:
            return {"sizes": []}
        owner = None if only_of is None else owner_of(only_of)
        return {"sizes": await asyncio.to_thread(self.table.advice, owner)}

    async def estimate(
        self, request: SizingRequest, deadline: Deadline, caller: str = "", namespace: str = ""
    ) -> SizingEstimate:
        """The answer within the deadline; past it, and without a model, no advice, marked as a fallback.

        With a ``namespace`` its evidence counts in place of the caller's; rights are checked before.
        Raises Problem for invalid questions.
        """
        began = time.perf_counter()
        workload, sent = read_workload(request), StoredEvidence(request.trace, request.profile)
        owner = owner_of(caller, namespace)
        kept, unread = await self._stored_evidence(owner, workload.job_type) if workload.identified else (Kept(), ())
        question = _Question(workload, caller, owner, sent, kept, unread)
        model = self.model_for(lambda: f"{owner}/{workload.job_type}")
        made = self._newest(question, model)
        if made is None:
            made = await self._in_time(model, question, deadline)
        self._counters.answered(made)
        count = await self._gpu_count(request, question, made, deadline)
        return replace(made, seconds=time.perf_counter() - began, gpu_count=count)

    async def _gpu_count(
        self, request: SizingRequest, question: _Question, made: SizingEstimate, deadline: Deadline
    ) -> GpuCountAdvice | None:
        """How many of the workload's GPUs are useful; None where it has one, or that is not known yet."""
        workload = question.workload
        if workload.processes.world_size < _LEAST_GPUS or workload.problem is not None:
            return None
        measured = {int(gpus): seconds for gpus, seconds in request.measured_steps.items()}
        count_question = CountQuestion(question.owner, workload, request.threshold, measured)
        wait = request.scaling or bool(measured)
        return await self._counts.advice(count_question, deadline, wait=wait, made=lambda: self._record(question, made))

    def _newest(self, question: _Question, model: SizingPredictor | None) -> SizingEstimate | None:
        """The cached answer to the same request, where model and evidence are unchanged."""
        if not question.sent.empty or question.unread:
            return None
        key = (question.owner, question.workload.job_type)
        last = self._answered.get(key)
        if last is None or (last.workload, last.model, last.kept, last.widening) != (
            question.workload,
            None if model is None else model.version,
            question.kept,
            self._widening(question, last.model),
        ):
            return None
        if abs(self._clock() - last.noted_s) >= _WRITTEN_AGAIN_S:
            self._remember(question, last.model, last.answer)
            self._record(question, last.answer)
        return last.answer

    def _remember(self, question: _Question, model: ModelVersion, made: SizingEstimate) -> None:
        # Evidence in this request is stored, and counts from the next request on.
        workload = question.workload
        if not question.sent.empty or question.unread or len(question.kept) + len(workload.source or "") > _MOST_INLINE:
            return
        key = (question.owner, workload.job_type)
        self._answered.pop(key, None)
        while len(self._answered) >= _MOST_KEPT:
            self._answered.pop(next(iter(self._answered)))
        self._answered[key] = _Answered(
            self._clock(), workload, model, question.kept, self._widening(question, model), made
        )

    async def _in_time(self, model: SizingPredictor | None, question: _Question, deadline: Deadline) -> SizingEstimate:
        workload = question.workload
        if model is None:
            return _fallback(workload, self.slot.error or Reason("NO_MODEL", "No sizing model is loaded yet."))
        try:
            if question.quick and deadline.remaining_s() > 0:
                made = self._answer(model, question)
            else:
                made = await self._workers.run(deadline, self._answer, model, question)
        except TimeoutError:
            self.canary.failed(model)
            return _fallback(workload, deadline.reason)
        except Problem:
            raise
        except Exception as error:  # noqa: BLE001 - edge: a model's bug must not become the caller's outage
            _LOG.exception("sizing failed")
            if self.canary.failed(model):
                return await self._in_time(self.slot.current, question, deadline)
            why = Reason("MODEL_ERROR", f"The model failed ({type(error).__name__}); this is the fallback.")
            return _fallback(workload, why)
        self.canary.answered(model)
        self._remember(question, model.version, made)
        return made

    def _answer(self, model: SizingPredictor, question: _Question) -> SizingEstimate:
        workload = question.workload
        evidence = _evidence(workload, question.sent, question.kept.read())
        gpu, processes = workload.gpu.name, workload.processes
        model_input = SizingQuestion(evidence.code, gpu, processes.world_size, profile=evidence.profile)
        # A dry run has measured the job itself; only what rests on the model alone is widened.
        widening = self._widening(question, model.version) if evidence.profile is None else HOLDS
        # What was likely misread is the reason for no size, and not that there is none.
        doubt = next((reason for reason in evidence.reasons if reason.code == DOUBTFUL_SIZE), None)

        def adjusted(memory: Prediction) -> Prediction:
            return because(doubt, widening.applied(memory))

        made = answer(model_input, workload.entrypoint, model, processes, workload.executor, adjusted)
        others = (reason for reason in evidence.reasons if reason not in made.reasons)
        made = replace(made, reasons=(*made.reasons, *others, *question.unread, *workload.reasons))
        self._record(question, made)
        self._compare(model, question, evidence)
        return made

    def _widening(self, question: _Question, model: ModelVersion) -> Widening:
        return HOLDS if self._comparisons is None else self._comparisons.widening(question.owner, model)

    def _compare(self, model: SizingPredictor, question: _Question, evidence: _Evidence) -> None:
        """A dry run that came with this question, beside what the code alone had led to expect of it."""
        profile, workload = evidence.profile, question.workload
        if self._comparisons is None or question.sent.profile is None or profile is None or not profile.steady:
            return
        try:
            gpu = find_gpu(profile.gpu).name
        except UnknownGpuError:
            return
        prior_question = SizingQuestion(evidence.code, gpu, workload.processes.world_size)
        # The champion may have been replaced since the answer.
        models = self.models
        if CHALLENGER not in models or models[CHALLENGER].version != model.version:
            models = models | {CHAMPION: model}
        answers = {role: Interval.of(each.predict(prior_question)[0]) for role, each in models.items()}
        self._comparisons.record(
            question.owner,
            f"{workload.name[:200]} ({workload.job_type[:12]})",
            UNIT,
            float(profile.peak_bytes),
            {role: interval for role, interval in answers.items() if interval is not None},
        )

    async def _stored_evidence(self, owner: str, job_type: str) -> tuple[Kept, tuple[Reason, ...]]:
        """What is kept of the job type, or why that cannot be read."""
        if self.table is None:
            return Kept(), ()
        try:
            if self.table.shared:
                return await asyncio.to_thread(self.table.evidence, owner, job_type), ()
            return self.table.evidence(owner, job_type), ()
        except DatabaseError as error:
            _LOG.warning("what is known of job types cannot be read: %s", error)
            text = f"What was sent of this job type before cannot be read ({error}); the answer does without."
            return Kept(), (Reason("STATE_UNAVAILABLE", text),)

    def _record(self, question: _Question, made: SizingEstimate) -> None:
        """Evidence is written before the answer is given; answers alone are written in the background."""
        if self.table is None:
            return
        workload, at_s = question.workload, self._clock()
        # The stored command is redacted; the caller's own answer shows it as it was sent.
        count = self._counts.cached_advice(question.owner, workload)
        redacted = replace(made, script=shlex.join(workload.command)[:2000], gpu_count=count)
        advice = {
            "name": workload.name,
            "job_type": workload.job_type,
            "image": workload.image,
            "asked": workload.processes.requested.to_dict(),
            "made_at_s": at_s,
            "estimate": redacted.to_dict(),
        }
        if question.sent.empty or not workload.identified:
            self.table.put_later(question.owner, workload.job_type, at_s, advice=advice, named=workload.named)
            return
        # Evidence for a namespace is visible to its sender as well.
        owners = tuple(dict.fromkeys((question.owner, owner_of(question.caller))))
        try:
            self.table.put(owners, workload.job_type, at_s, sent=question.sent, advice=advice, named=workload.named)
        except DatabaseError as error:
            # The table writes it once it can; the answer itself needs no database.
            _LOG.warning("a size is kept later: %s", error)


def _evidence(workload: Workload, sent: StoredEvidence, kept: StoredEvidence) -> _Evidence:
    """Evidence of this request wins over stored evidence, a run over formulas. Raises Problem if unreadable."""
    profile = _profile(sent.profile)
    if profile is None:
        profile = _remembered(kept.profile, read_profile)
    if sent.trace is not None:
        try:
            return _Evidence(read_summary(sent.trace), profile, (_STORED_TRACE,))
        except ValueError as error:
            raise invalid("trace", str(error)) from None
    code = _remembered(kept.trace, read_summary)
    if code is not None:
        return _Evidence(code, profile, (_STORED_TRACE,))
    code, problem = _formulas(workload)
    why = (Reason("NOT_RUN", _NOT_RUN), *problem)
    return _Evidence(code, profile, why)


def _profile(document: Mapping[str, Any] | None) -> WorkloadProfile | None:
    try:
        return None if document is None else read_profile(document)
    except ValueError as error:
        raise invalid("profile", str(error)) from None


def _remembered(document: Mapping[str, Any] | None, read: Callable[[Mapping[str, Any]], Any]) -> Any:
    """The parsed document; None also for one of an older version that cannot be read."""
    try:
        return None if document is None else read(document)
    except ValueError:
        return None


def _formulas(workload: Workload) -> tuple[CodeEstimate, tuple[Reason, ...]]:
    """An estimate from arguments and literals in the source; NOTHING, and why, where these do not suffice."""
    if workload.problem is not None:
        return NOTHING, (workload.problem,)
    try:
        stated = workload.processes.total is not None
        return from_plausible_plan(_read_plan(workload), gpu=workload.gpu, processes_stated=stated), ()
    except ImplausibleSizeError as error:
        return NOTHING, (error.reason,)
    except EntrypointError as error:
        if workload.entrypoint.kind is Kind.SCRIPT:
            raise invalid("workload.script", str(error)) from None
        return NOTHING, (Reason("NO_FORMULA", f"{error}."),)
    except (PlanError, ConfinementError) as error:
        return NOTHING, (Reason("NO_FORMULA", f"{error}."),)


def _read_plan(workload: Workload) -> TrainingPlan:
    """By arguments and literals in the source. Raises PlanError, EntrypointError or ConfinementError."""
    entrypoint = workload.entrypoint
    script_settings = (
        {} if workload.source is None else settings_in(read_script_confined(workload.source), entrypoint.arguments)
    )
    return read_plan(
        entrypoint,
        no_file,
        trainer=entrypoint.trainer or (HF if script_settings else None),
        world_size=workload.processes.total,
        settings=script_settings,
    )


def _plan(workload: Workload) -> TrainingPlan:
    """Raises PlanError where there is none."""
    try:
        return _read_plan(workload)
    except (EntrypointError, ConfinementError) as error:
        raise PlanError(str(error)) from error


def _fallback(workload: Workload, why: Reason) -> SizingEstimate:
    refused = replace(Prediction.refusal(why, unit=UNIT, model=NO_ANSWER), fallback=True)
    question = SizingQuestion(NOTHING, workload.gpu.name, workload.processes.world_size)
    made = assemble(question, workload.entrypoint, refused, workload.processes)
    return replace(made, reasons=(*made.reasons, *workload.reasons))
