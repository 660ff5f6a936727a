"""An estimate around a prediction: what the code says and the learned part corrects, and what to ask for."""

import shlex
from collections.abc import Callable
from dataclasses import replace

from kopt.core.gpu_catalogue import find_gpu
from kopt.core.prediction import Prediction
from kopt.core.reason import Reason
from kopt.core.units import MIB, Bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import Method, SizingEstimate, TraceCoverage, WorkloadProfile
from kopt.formats.entrypoint import Entrypoint, Kind
from kopt.formats.processes import Processes
from kopt.models.sizing import compute
from kopt.models.sizing.code import CodeEstimate
from kopt.models.sizing.posterior import alone
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.table import SizingQuestion
from kopt.policies.sizing.advice import advise, fits

ADAPTS = "the script caught that"
"""How the probe's warning begins where a script that found the memory full went on with less."""


def answer(
    question: SizingQuestion,
    entrypoint: Entrypoint,
    predictor: SizingPredictor,
    processes: Processes,
    executor: Executor = Executor.UNKNOWN,
    adjust: Callable[[Prediction], Prediction] = lambda memory: memory,
) -> SizingEstimate:
    """The corrected estimate for the code of ``entrypoint``, and what a pod of it should request.

    ``adjust`` changes the model's prediction before advice is derived from it.
    """
    memory = adjust(predictor.predict(question)[0])
    if memory.refused and question.profile is not None:
        memory = alone(question.profile, memory)
    return assemble(question, entrypoint, memory, processes, executor)


def because(why: Reason | None, memory: Prediction) -> Prediction:
    """A refusal with what is wrong with the code in front; other predictions as they are."""
    return replace(memory, reasons=(why, *memory.reasons)) if memory.refused and why is not None else memory


def assemble(
    question: SizingQuestion,
    entrypoint: Entrypoint,
    memory: Prediction,
    processes: Processes,
    executor: Executor = Executor.UNKNOWN,
) -> SizingEstimate:
    """The estimate around a prediction of memory, which may be a refusal."""
    code, profile, gpu = question.code, question.profile, question.gpu
    adapts = any(warning.startswith(ADAPTS) for warning in code.warnings)
    most_share = 1.0 if adapts else code.most_share
    if most_share is not None:
        # Advice is in whole mebibytes, rounded up.
        memory = _at_most(memory, float(int(most_share * find_gpu(gpu).usable_bytes) // MIB * MIB))
    busy = compute.activity(code, gpu, profile)
    observed = profile.peak_bytes if profile is not None else Bytes(0)
    advice = advise(
        memory,
        processes.requested,
        gpu,
        processes.of_pod,
        activity_high=None if busy.refused else busy.high,
        observed_peak_bytes=observed,
        executor=executor,
    )
    complete = memory.value is not None and memory.high is not None
    framework = max(0, round(memory.value or 0) - int(code.breakdown.tensors))
    return SizingEstimate(
        _display_name(entrypoint),
        gpu,
        memory,
        code.allocated_bytes or None,
        code.reserved_bytes or None,
        replace(code.breakdown, framework=Bytes(framework if complete else int(code.breakdown.framework))),
        _method(code, profile),
        code.coverage,
        advice,
        fits(memory.high) if complete and memory.high else {},
        None if busy.refused else busy,
        code.per_rank,
        (*code.assumptions, *(reason.message for reason in entrypoint.unknown)),
        code.warnings,
        (*memory.reasons, advice.reason, *busy.reasons),
        observed_peak_bytes=observed,
    )


def _at_most(memory: Prediction, most: float) -> Prediction:
    """Of a script or an engine that takes what there is: no more than that."""
    if memory.value is None or memory.low is None or memory.high is None:
        return memory
    return replace(memory, value=min(memory.value, most), low=min(memory.low, most), high=min(memory.high, most))


def _method(code: CodeEstimate, profile: WorkloadProfile | None) -> Method:
    if profile is None:
        return code.method
    return Method.PROFILE if code.coverage is TraceCoverage.FAILED else Method.COMBINED


def _display_name(entrypoint: Entrypoint) -> str:
    """The entrypoint as one line."""
    script = entrypoint.script if entrypoint.kind is not Kind.CODE else "-c …"
    return shlex.join([*(["-m"] if entrypoint.kind is Kind.MODULE else []), script, *entrypoint.arguments])[:2000]


def refusal(estimate: SizingEstimate) -> Reason | None:
    """Why there is no size; None where there is one."""
    return estimate.memory.reasons[0] if estimate.memory.refused else None
