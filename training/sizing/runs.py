"""Measured runs → questions with answers: image models run abstractly, trainers' arguments are read by formulas."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.settings import Settings
from kopt.core.workload.sizing import TraceCoverage
from kopt.data.memory.commands import MeasuredCommand
from kopt.data.memory.table import MemoryRun
from kopt.formats.entrypoint import EntrypointError
from kopt.models.sizing.analytic.recorded import formula_of_run
from kopt.models.sizing.code import CodeEstimate, from_trace
from kopt.models.sizing.estimate import EstimateOptions, read_code
from kopt.models.sizing.plans import from_plan
from kopt.models.sizing.table import MeasuredQuestion, SizingQuestion
from kopt.tracing.devices import capability
from kopt.tracing.interpreter import NoInterpreterError
from kopt.tracing.trace import ConfinementError, Limits, ScriptCall, TraceCache, call_digest, trace_script
from kopt.training.sizing import reference

SCRIPTS = Path(str(reference.__file__)).resolve().parent
_IMAGE_SOURCES = {"itu-rad/GPUMemNet": "timm", "hadeelalbahar/SchedTune": "torchvision"}
_SEARCHING = ("timm",)
"""Its training script sets ``torch.backends.cudnn.benchmark``."""
_TRACED_ON = "A100-SXM4-40GB"
"""One trace serves every GPU: what is allocated is the same on all, but for the workspaces of convolutions, which the
replay adds."""


class NotAnswerable(LookupError):
    """No method here can estimate what this run's code needs."""


@dataclass
class ImageTracer:
    """Runs image models in an environment that has timm and torchvision; the same model and batch once."""

    python: str
    state: Path
    cache: TraceCache
    timeout_s: float = 180.0
    only_kept: bool = False
    """Run nothing; use cached runs."""
    seconds: list[float] = field(default_factory=list)

    def code(self, model: str, batch_size: int, library: str, gpu: str) -> CodeEstimate:
        """What it shows on ``gpu``. Raises NotAnswerable where the script does not run through."""
        search = ("--search",) if library in _SEARCHING else ()
        command = (
            "image_training.py",
            "--model",
            model,
            "--batch-size",
            str(batch_size),
            "--library",
            library,
            *search,
        )
        limits = Limits(wall_s=self.timeout_s, cpu_s=int(self.timeout_s))
        call = ScriptCall(self.python, command, SCRIPTS)
        if self.only_kept and self.cache.read(call_digest(call, find_gpu(_TRACED_ON))) is None:
            raise NotAnswerable("its script was not run before")
        try:
            traced = trace_script(call, find_gpu(_TRACED_ON), limits=limits, state=self.state, cache=self.cache)
        except ConfinementError as error:
            raise NotAnswerable(str(error)) from error
        self.seconds.append(traced.seconds)
        if traced.trace is None:
            raise NotAnswerable(traced.problem)
        card = find_gpu(gpu)
        code, _ = from_trace(traced.trace, card_bytes=int(card.usable_bytes), capability=capability(card))
        if code.coverage is TraceCoverage.FAILED:
            raise NotAnswerable("; ".join(code.warnings) or traced.problem)
        return code


def code_of(run: MemoryRun, tracer: ImageTracer | None) -> CodeEstimate:
    """The estimate from the code of a run. Raises NotAnswerable."""
    if run.source in _IMAGE_SOURCES and "model" in run.arguments:
        if tracer is None:
            raise NotAnswerable("no environment with timm and torchvision was given (KOPT_TRAINER_PYTHON)")
        batch = int(float(run.arguments["batch_size"]))
        library = _IMAGE_SOURCES[run.source]
        return tracer.code(str(run.arguments["model"]), batch, library, gpu_name(run.gpu))
    result = formula_of_run(run)
    if result is None:
        raise NotAnswerable("no formula reads this run, or it does not tell enough")
    plan, breakdown = result
    return from_plan(plan, measured=breakdown)


def measured_question(run: MemoryRun, tracer: ImageTracer | None, *, doubtful: bool = False) -> MeasuredQuestion:
    """A run as a question with its answer; ``doubtful`` ones too, or not. Raises NotAnswerable."""
    if run.measured is None or run.crashed or run.censored:
        raise NotAnswerable("what it needed is not known: crashed, capped or out of memory")
    if run.doubt and not doubtful:
        raise NotAnswerable(f"its figure is doubtful: {run.doubt}")
    if run.metric is None:
        raise NotAnswerable("the source does not say which figure it measured")
    gpu = gpu_name(run.gpu)
    question = SizingQuestion(code_of(run, tracer), gpu, run.gpus, run.metric)
    return MeasuredQuestion(run.name, run.family, run.source, question, run.measured)


def question_of(command: MeasuredCommand, settings: Settings, python: str | None) -> SizingQuestion:
    """What the code of a measured command shows, as ``kopt estimate`` reads it. Raises NotAnswerable."""
    gpu = gpu_name(command.gpu)
    options = EstimateOptions(gpu, command.processes, python=python, folder=command.folder)
    try:
        result = read_code(command.command, settings=settings, options=options)
    except (ConfinementError, EntrypointError, NoInterpreterError, ValueError) as error:
        raise NotAnswerable(str(error)) from error
    if result.code.coverage is TraceCoverage.FAILED:
        raise NotAnswerable(result.problem or "; ".join(result.code.warnings) or "its code shows no GPU memory")
    return SizingQuestion(result.code, gpu, result.world_size, command.metric)


def measured_questions(
    runs: Sequence[MemoryRun], tracer: ImageTracer | None, progress: Callable[[int, int], None] = lambda *_: None
) -> tuple[list[MeasuredQuestion], dict[str, int]]:
    """All runs that can be answered, and the reasons why others cannot, counted."""
    questions, excluded = [], dict[str, int]()
    for n, run in enumerate(runs, 1):
        try:
            questions.append(measured_question(run, tracer))
        except NotAnswerable as error:
            reason = f"{run.source}: {str(error)[:160]}"
            excluded[reason] = excluded.get(reason, 0) + 1
        progress(n, len(runs))
    return questions, excluded


def sample_images(runs: Sequence[MemoryRun], count: int) -> list[MemoryRun]:
    """``count`` runs of timm models, one batch size per model, dealt in turn from the families; always the same."""
    by_model: dict[str, list[MemoryRun]] = {}
    for run in runs:
        if run.published and "model" in run.arguments and not run.crashed and not run.censored:
            by_model.setdefault(str(run.arguments["model"]), []).append(run)
    models = sorted(by_model)
    random.Random(7).shuffle(models)
    families: dict[str, list[str]] = {}
    for model in models:
        families.setdefault(by_model[model][0].family, []).append(model)
    order: list[str] = []
    while any(families.values()):
        order += [families[name].pop() for name in sorted(families) if families[name]]
    return [random.Random(model).choice(by_model[model]) for model in order[:count]]


def gpu_name(text: str) -> str:
    """The catalogue's name of a GPU as a source has it. Raises NotAnswerable for one that is not in it."""
    try:
        return find_gpu(text.rstrip("?")).name
    except UnknownGpuError as error:
        raise NotAnswerable(str(error)) from error
