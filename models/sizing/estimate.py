"""From a command to a sizing: what would run, run abstractly or read by formulas, corrected, and what to ask for.

import kopt
print(kopt.estimate("train.py --batch-size 32", gpu="a100-40gb").to_dict())
"""

import contextlib
import os
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import find_gpu
from kopt.core.reason import Reason
from kopt.core.redaction import redact
from kopt.core.settings import Settings
from kopt.core.units import Bytes
from kopt.core.workload.executor import Executor
from kopt.core.workload.sizing import (
    AllocationKind,
    MemoryBreakdown,
    Method,
    SizingEstimate,
    TraceCoverage,
    WorkloadProfile,
)
from kopt.core.workload.training_plan import PlanError
from kopt.formats.entrypoint import (
    Entrypoint,
    EntrypointError,
    Kind,
    notebook_source,
    pod_entrypoint,
    read_script,
    what_runs,
)
from kopt.formats.pod_request import requested_executor, requested_gpus
from kopt.formats.processes import NO_REQUEST, Processes, Slots, count_processes
from kopt.formats.python_config import read_python_config
from kopt.formats.trainers import read_plan
from kopt.formats.trainers.trainers import importing
from kopt.formats.yaml_text import load_yaml
from kopt.models.registry.aliases import CHAMPION
from kopt.models.registry.loading import load_as
from kopt.models.sizing.assembly import ADAPTS, answer, because
from kopt.models.sizing.beyond import ImplausibleSizeError, from_plausible_plan
from kopt.models.sizing.code import CodeEstimate, from_trace
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.script_settings import settings_in
from kopt.models.sizing.table import SizingQuestion
from kopt.tracing.devices import capability
from kopt.tracing.interpreter import NoInterpreterError, find_interpreter
from kopt.tracing.private_folders import own_folder, private_folder
from kopt.tracing.timeline import Timeline
from kopt.tracing.trace import BESIDE_VARIABLE, ConfinementError, Limits, ScriptCall, TraceCache, trace_script

DEFAULT_GPU = "A100-SXM4-80GB"
AUTO, HF = "auto", "hf"
_RUNS = (AUTO, HF, "python")
"""Trainers whose scripts are run; others are read by their formulas."""
_MAX_FILE_BYTES = 16 << 20
_MAX_CONFIG_CHARACTERS = 1 << 20
_MAX_OUTPUT = 400
_FRAME = re.compile(r'  File "([^"]+)", line (\d+)')
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d|^<")
_EXITED = re.compile(r"the script exited with \S+$")
NOTHING = CodeEstimate(Method.ABSTRACT, TraceCoverage.FAILED, Bytes(0), Bytes(0), MemoryBreakdown())

Progress = Callable[[str], None]


@dataclass(frozen=True)
class EstimateOptions:
    """How an estimate is made. ``timeout_s`` bounds the script's run on the fake device."""

    gpu: str = DEFAULT_GPU
    world_size: int | None = None
    timeout_s: float = 60.0
    trainer: str = AUTO
    python: str | None = None
    folder: Path | None = None
    profile: WorkloadProfile | None = None
    keep_traces: bool = True
    slots: Slots | None = None
    """The host file of an MPI job."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout_s <= 24 * 3600:
            raise ValueError(f"a time limit of {self.timeout_s:g} s; give one between 1 second and a day")
        if self.world_size is not None and not 1 <= self.world_size <= 1 << 16:
            raise ValueError(f"{self.world_size} processes; give a number from 1 to 65,536")


@dataclass(frozen=True)
class CodeResult:
    """What the code shows, and the timeline if it ran. ``world_size`` counts the job's processes."""

    code: CodeEstimate
    timeline: Timeline | None = None
    problem: str = ""
    world_size: int = 1
    reason: Reason | None = None
    """Of a problem that has a code of its own."""


def estimate(
    command: str | Sequence[str] | Mapping[str, Any],
    *,
    model: str | SizingPredictor = CHAMPION,
    settings: Settings | None = None,
    options: EstimateOptions | None = None,
    progress: Progress = lambda _: None,
    **changes: Any,
) -> SizingEstimate:
    """GPU memory and compute need of what ``command`` runs: a line, words, a path, or a decoded pod manifest.

    ``changes`` are fields of ``EstimateOptions`` (``gpu="h100"``). A failed run is reported in ``trace`` and
    ``warnings``; where no formula knows it either, the prediction is refused and nothing recommended.

    Raises EntrypointError if there is nothing to run, UnknownGpuError, ValueError for options out of range, and
    what loading the model raises.
    """
    return estimate_and_code(
        command,
        model=model,
        settings=settings,
        options=replace(options or EstimateOptions(), **changes),
        progress=progress,
    )[0]


def estimate_and_code(
    command: str | Sequence[str] | Mapping[str, Any],
    *,
    model: str | SizingPredictor,
    settings: Settings | None,
    options: EstimateOptions,
    progress: Progress = lambda _: None,
) -> tuple[SizingEstimate, CodeResult]:
    """As ``estimate``, with what the code shows and, if the script ran, the timeline of its memory."""
    began = time.monotonic()
    gpu = find_gpu(options.gpu)
    folder = (options.folder or Path.cwd()).resolve()
    entrypoint = _entrypoint(command, folder)
    folder = _entered(folder, entrypoint, named_by(command), inside=isinstance(command, Mapping))
    entrypoint = _by_imports(entrypoint, _reader(folder, inside=isinstance(command, Mapping)))
    processes = _processes(entrypoint, command, folder, options)
    with ThreadPoolExecutor(1) as beside:
        # The script runs in a process of its own: meanwhile the learned part is loaded here.
        loading = beside.submit(_loaded, model, settings)
        result = _code(entrypoint, gpu, processes, folder, options, settings, progress, named_by(command))
        progress("correcting by measured runs")
        predictor = loading.result()
    question = SizingQuestion(result.code, gpu.name, processes.world_size, AllocationKind.PROCESS, options.profile)
    executor = requested_executor(command) if isinstance(command, Mapping) else Executor.UNKNOWN
    made = answer(question, entrypoint, predictor, processes, executor, lambda memory: because(_why(result), memory))
    return replace(made, seconds=time.monotonic() - began), replace(result, world_size=processes.world_size)


def _why(result: CodeResult) -> Reason | None:
    """What is wrong with the code, None where it was read."""
    if not result.problem:
        return None
    return result.reason or Reason("NO_FORMULA", f"{result.problem.rstrip('.')}.")


def read_code(
    command: str | Sequence[str] | Mapping[str, Any],
    *,
    settings: Settings | None,
    options: EstimateOptions,
    progress: Progress = lambda _: None,
) -> CodeResult:
    """What the code alone says, without the learned part. Raises as ``estimate``."""
    folder = (options.folder or Path.cwd()).resolve()
    entrypoint = _entrypoint(command, folder)
    folder = _entered(folder, entrypoint, named_by(command), inside=isinstance(command, Mapping))
    entrypoint = _by_imports(entrypoint, _reader(folder, inside=isinstance(command, Mapping)))
    processes = _processes(entrypoint, command, folder, options)
    gpu, named = find_gpu(options.gpu), named_by(command)
    result = _code(entrypoint, gpu, processes, folder, options, settings, progress, named)
    return replace(result, world_size=processes.world_size)


def _processes(
    entrypoint: Entrypoint, command: str | Sequence[str] | Mapping[str, Any], folder: Path, options: EstimateOptions
) -> Processes:
    load = _loader(folder, inside=isinstance(command, Mapping))
    requested = requested_gpus(command) if isinstance(command, Mapping) else NO_REQUEST
    return count_processes(entrypoint, load, requested, options.world_size, options.slots)


def _loaded(model: str | SizingPredictor, settings: Settings | None) -> SizingPredictor:
    return model if isinstance(model, SizingPredictor) else load_sizing(model, settings)


def load_sizing(model: str = CHAMPION, settings: Settings | None = None) -> SizingPredictor:
    """The sizing predictor that ``model`` names."""
    return load_as(SizingPredictor, "sizing", model, settings)


def named_by(command: str | Sequence[str] | Mapping[str, Any]) -> frozenset[str]:
    """The words that the user gave: the paths among them may be read. A manifest may come from someone else."""
    if isinstance(command, Mapping):
        return frozenset()
    arguments = [command] if isinstance(command, str) else list(command)
    return frozenset(arguments) | {part for word in arguments for part in _parts(word, 2)}


def _parts(word: str, depth: int) -> Iterator[str]:
    """Words of a shell line, and of a line that is one of them (``bash -c '…'``)."""
    with contextlib.suppress(ValueError):
        for part in shlex.split(word) if depth else ():
            yield part
            if part != word:
                yield from _parts(part, depth - 1)


def _entrypoint(command: str | Sequence[str] | Mapping[str, Any], folder: Path) -> Entrypoint:
    if isinstance(command, Mapping):
        return pod_entrypoint(command, _reader(folder, inside=True))
    files = _reader(folder)
    return what_runs(command if isinstance(command, str) else list(command), files)


def _entered(folder: Path, entrypoint: Entrypoint, named: frozenset[str], *, inside: bool) -> Path:
    """The folder that the command enters before it runs, as far as there are such; a manifest's are its container's.

    A script of someone else may enter any: what the traced program is shown whole lies below ``folder``, or is a path
    that the user gave (``named``), or lies below such a path.
    """
    start, before = folder, folder
    opened = [start]
    for name in () if inside else entrypoint.folders:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            below = (before if name == "-" else folder / name).resolve()
            before = folder
            given = name in named and below == (start / name).resolve()
            if not below.is_dir() or not (given or any(map(below.is_relative_to, opened))):
                continue
            folder = below
            # One above the start (``..``, ``/``) opens itself and not what else lies there.
            opened += [below] if not start.is_relative_to(below) else []
    return folder


def _by_imports(entrypoint: Entrypoint, read: Callable[[str], str | None]) -> Entrypoint:
    """With the trainer whose package the script imports, where its command says none."""
    text = read(entrypoint.script) if entrypoint.kind is Kind.SCRIPT and entrypoint.trainer is None else None
    if text is None:
        return entrypoint
    with contextlib.suppress(EntrypointError):
        return replace(entrypoint, trainer=importing(read_script(text).frameworks))
    return entrypoint


def _reader(folder: Path, *, inside: bool = False) -> Callable[[str], str | None]:
    """Texts of files by the paths a command gives; what is absent, too large or no text is None.

    ``inside``: only those in the folder, for commands that are not the user's own.
    """

    def read(name: str) -> str | None:
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            path = folder / name
            if inside and not path.resolve().is_relative_to(folder.resolve()):
                return None
            if path.is_file() and path.stat().st_size <= _MAX_FILE_BYTES:
                return path.read_text(encoding="utf-8", errors="strict")
        return None

    return read


def _code(
    entrypoint: Entrypoint,
    gpu: GpuModel,
    processes: Processes,
    folder: Path,
    options: EstimateOptions,
    settings: Settings | None,
    progress: Progress,
    named: frozenset[str],
) -> CodeResult:
    """Abstract execution where it can be had, else formulas, else why neither could."""
    problems = []
    if options.trainer in _RUNS and entrypoint.kind is not Kind.TOOL:
        # A script that nothing launches is one process, however many GPUs its pod asks for.
        ran = _run(entrypoint, gpu, processes.counted or 1, folder, options, settings, progress, named)
        if ran.code.coverage is not TraceCoverage.FAILED:
            return ran
        problems.append(ran.problem or "nothing was allocated on the GPU")
    progress("reading the trainer's arguments")
    read = _formulas(entrypoint, gpu, processes.total, folder, options, inside=not named)
    if not read.problem:
        return replace(read, code=replace(read.code, warnings=(*_not_run(problems), *read.code.warnings)))
    problems.append(read.problem)
    nothing = replace(NOTHING, warnings=tuple(_not_run(problems[:-1])))
    return CodeResult(nothing, problem="; ".join(problems), reason=read.reason)


def _not_run(problems: Sequence[str]) -> list[str]:
    return [f"the script could not be run abstractly: {problem}" for problem in problems if problem]


def _formulas(
    entrypoint: Entrypoint,
    gpu: GpuModel,
    world_size: int | None,
    folder: Path,
    options: EstimateOptions,
    *,
    inside: bool = False,
) -> CodeResult:
    """What the trainer's arguments and configuration say, or why they do not say enough."""
    trainer = None if options.trainer in (AUTO, "python") else options.trainer
    text = _reader(folder, inside=inside)(entrypoint.script) if entrypoint.kind is Kind.SCRIPT else None
    try:
        settings_by_name = settings_in(read_script(text), entrypoint.arguments) if text is not None else {}
        trainer = trainer or entrypoint.trainer or (HF if settings_by_name else None)
        plan = read_plan(
            entrypoint,
            _loader(folder, inside=inside),
            trainer=trainer,
            world_size=world_size,
            settings=settings_by_name,
        )
        code = from_plausible_plan(plan, gpu=gpu, processes_stated=world_size is not None)
    except ImplausibleSizeError as error:
        return CodeResult(NOTHING, problem=str(error), reason=error.reason)
    except (PlanError, EntrypointError) as error:
        return CodeResult(NOTHING, problem=str(error))
    return CodeResult(code)


def _loader(folder: Path, *, inside: bool = False) -> Callable[[str], Mapping[str, Any] | None]:
    """Decoded YAML, JSON, TOML or a configuration in Python by the path a command gives; None for what is no table.

    Python is read, never run. Raises EntrypointError for such a file that cannot be read.
    """
    read = _reader(folder, inside=inside)

    def load(name: str) -> Mapping[str, Any] | None:
        import tomllib

        text = read(name)
        if text is None or len(text) > _MAX_CONFIG_CHARACTERS:
            return None
        if name.endswith(".py"):
            return read_python_config(text, name, read)
        try:
            result = tomllib.loads(text) if name.endswith(".toml") else load_yaml(text)
        except (RecursionError, ValueError):
            return None
        return result if isinstance(result, dict) else None

    return load


def _run(
    entrypoint: Entrypoint,
    gpu: GpuModel,
    world_size: int,
    folder: Path,
    options: EstimateOptions,
    settings: Settings | None,
    progress: Progress,
    named: frozenset[str],
) -> CodeResult:
    """The script on the fake device."""
    if not sys.platform.startswith("linux"):
        return CodeResult(NOTHING, problem="scripts are executed abstractly on Linux only")
    limits = Limits(wall_s=options.timeout_s, cpu_s=max(1, int(2 * options.timeout_s)))
    try:
        state = settings.home if settings is not None else own_folder(f"kopt-{os.getuid()}")
        python = find_interpreter(options.python)
        with _runnable(entrypoint, folder, inside=not named) as arguments:
            environment = entrypoint.env
            if entrypoint.kind in (Kind.NOTEBOOK, Kind.CODE):
                environment, named = {**environment, BESIDE_VARIABLE: "1"}, named | {arguments[0]}
            call = ScriptCall(python, arguments, folder, environment, world_size, named)
            cache = TraceCache(state / "traces" if settings is not None and options.keep_traces else None)
            traced = trace_script(call, gpu, limits=limits, state=state, cache=cache, progress=progress)
    except (NoInterpreterError, ConfinementError, EntrypointError, PermissionError) as error:
        return CodeResult(NOTHING, problem=str(error))
    if traced.trace is None:
        return CodeResult(NOTHING, problem=redact(traced.problem))
    progress("replaying its allocations")
    # If the script ran out of memory, PyTorch had released its cache before it raised the error.
    adapts = any(warning.startswith(ADAPTS) for warning in traced.trace.warnings)
    card = int(gpu.usable_bytes)
    code, timeline = from_trace(
        traced.trace, capacity_bytes=card if adapts else None, card_bytes=card, capability=capability(gpu)
    )
    gaps = [f"confined without {name}" for name in traced.missing]
    problem = traced.problem or (traced.trace.end.error or "" if traced.trace.end else "")
    return CodeResult(
        replace(code, warnings=(*code.warnings, *gaps)), timeline, _in_one_line(problem, traced.output_tail)
    )


def _in_one_line(problem: str, output: str) -> str:
    """The problem in one line: the error with its position in the script, or its last output before it exited."""
    # Before anything is cut, as the rest of a secret is not known as one.
    problem, output = redact(problem), redact(output)
    lines = problem.strip().splitlines()
    if len(lines) < 2:
        output_lines = [line.strip() for line in output.strip().splitlines() if line.strip()]
        return (
            f"{problem.strip()}: {output_lines[-1][:_MAX_OUTPUT]}"
            if _EXITED.search(problem) and output_lines
            else problem.strip()
        )
    frames = [n for n, line in enumerate(lines) if _FRAME.match(line)]
    # Without frames of the script's own (a text that is no Python) the traceback's heading is followed by the error.
    error = next((line for line in lines[frames[-1] + 1 if frames else 1 :] if line[:1].strip()), lines[-1])
    if error.endswith(":"):
        error += f" {lines[min(lines.index(error) + 1, len(lines) - 1)].strip()}"
    places = [match for n in frames if (match := _FRAME.match(lines[n])) and not _LIBRARY.search(match[1])]
    where = f" ({Path(places[-1][1]).name}, line {places[-1][2]})" if places else ""
    return error[:_MAX_OUTPUT] + where


@contextlib.contextmanager
def _runnable(entrypoint: Entrypoint, folder: Path, *, inside: bool = False) -> Iterator[tuple[str, ...]]:
    """What the interpreter is given; notebooks and source texts become a file in a folder of its own for the while."""
    if entrypoint.kind is Kind.SCRIPT:
        yield (entrypoint.script, *entrypoint.arguments)
    elif entrypoint.kind is Kind.MODULE:
        yield ("-m", entrypoint.script, *entrypoint.arguments)
    else:
        text: str | None = entrypoint.script
        if entrypoint.kind is Kind.NOTEBOOK:
            text = _reader(folder, inside=inside)(entrypoint.script)
        if text is None:
            raise EntrypointError(f"{entrypoint.script} is no notebook that can be read")
        with private_folder("kopt-source-", Path(tempfile.gettempdir())) as (scratch, _):
            path = scratch.resolve() / "source.py"
            path.write_text(notebook_source(text) if entrypoint.kind is Kind.NOTEBOOK else text, encoding="utf-8")
            yield (str(path), *entrypoint.arguments)
