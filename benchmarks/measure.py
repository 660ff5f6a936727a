"""Measures the suite of ``sizing_suite`` on the GPU of this machine: ``python -m benchmarks.measure --python PYTHON``.

Each entry runs in a process of its own, by the interpreter whose torch is to be measured; what it took is appended to
``measurements/<gpu>-<torch>.jsonl`` as it ends. What is there already, with the same digest, is not run again, so an
interrupted run is taken up where it stopped. Entries are taken one of each program first, so that part of the suite is
a fair sample of it.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

from benchmarks.measured_gpu import GpuIdentity, MeasuredGpu, NoGpuError, find_gpu
from benchmarks.measurements import MEASUREMENTS, Ending, Measurement, append, path_for, read_measurements
from benchmarks.sizing_suite import FOLDER, SuiteEntry, read_suite
from kopt.agents.profiler.readings import Reading, SourceError
from kopt.agents.profiler.run import RunSettings, Watched, watch_command
from kopt.core.units import GIB, Bytes

WRAPPER = Path(__file__).with_name("measured_program.py")
_LOOK_EVERY_SECONDS = 0.1
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
_ABOUT = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version({"yaml": "PyYAML"}.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        return "?"
found = {name: version(name) for name in sys.argv[1:] if importlib.util.find_spec(name)}
about = {"packages": found}
if "torch" in found:
    import torch
    about |= {"torch": torch.__version__, "usable": torch.cuda.is_available(), "hip": torch.version.hip}
print(json.dumps(about))
"""


class InterpreterError(RuntimeError):
    """An interpreter that cannot run the suite; the message says why and what to do."""


@dataclass(frozen=True)
class Interpreter:
    """The Python whose torch is measured, and which of the suite's packages it has, with versions."""

    path: str
    torch: str
    packages: Mapping[str, str]

    def lacks(self, entry: SuiteEntry) -> list[str]:
        return [name for name in entry.packages if name not in self.packages]


@dataclass(frozen=True)
class Settings:
    """How entries are run: ``capacity`` in bytes is a limit set on the allocator, None for the whole GPU's."""

    gpu: int = 0
    capacity: Bytes | None = None
    allocator_configuration: str = ""
    timeout_s: float = 300
    long: bool = True


def look_at(python: str, packages: Iterable[str]) -> Interpreter:
    """Asks an interpreter for its torch. Raises InterpreterError where it has none that can use a GPU."""
    command = [python, "-c", _ABOUT, *sorted({"torch", *packages})]
    try:
        # Not in this project's folder, whose packages the interpreter would find instead of its own.
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, cwd=tempfile.gettempdir()
        )
        about: dict[str, Any] = json.loads(done.stdout.splitlines()[-1]) if done.stdout.strip() else {}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise InterpreterError(f"{python} does not run: {error}. Name another with --python.") from None
    if "torch" not in about:
        reason = done.stderr.strip().splitlines()[-1:] or ["it has no torch"]
        raise InterpreterError(f"{python}: {reason[0]}. Name an interpreter that has torch with --python.")
    if not about["usable"]:
        raise InterpreterError(
            f"the torch {about['torch']} of {python} sees no GPU. Install a build for this GPU, or name another "
            "interpreter with --python."
        )
    return Interpreter(python, about["torch"], about["packages"])


def in_turns(entries: Sequence[SuiteEntry]) -> Iterator[SuiteEntry]:
    """The first entry of each program, then the second of each, and so on."""
    by_file: dict[str, list[SuiteEntry]] = {}
    for entry in entries:
        by_file.setdefault(entry.file, []).append(entry)
    for turn in zip_longest(*by_file.values()):
        yield from (entry for entry in turn if entry is not None)


def command_line(entry: SuiteEntry, python: str, report: Path, settings: Settings) -> list[str]:
    """The entry's own command line, with the measuring wrapper before the program."""
    steps = entry.long if settings.long else entry.steps
    wrapped = [str(WRAPPER), "--report", str(report)]
    if settings.capacity is not None:
        wrapped += ["--capacity-bytes", str(settings.capacity)]
    if entry.launcher == "module":
        wrapped += ["--module", entry.module]
    else:
        wrapped += [str(entry.script)]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    return [python, *(launcher if entry.launcher == "torchrun" else []), *wrapped, *entry.arguments_for(steps)]


def environment(entry: SuiteEntry, settings: Settings) -> dict[str, str]:
    """This process's, with one GPU, no network for model hubs, and the entry's own settings."""
    steps = entry.long if settings.long else entry.steps
    kept = {name: value for name, value in os.environ.items() if name not in _ALLOCATOR}
    kept |= {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": str(settings.gpu),
        "PYTHONUNBUFFERED": "1",
        "HIP_VISIBLE_DEVICES": str(settings.gpu),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "4",
        "PYTHONPATH": str(entry.folder) if entry.launcher == "module" else "",
    }
    if settings.allocator_configuration:
        kept |= dict.fromkeys(_ALLOCATOR[:2], settings.allocator_configuration)
    return kept | entry.environment_for(steps)


@dataclass(frozen=True)
class Ran:
    """One process that has ended: its report (empty where it wrote none), and what was seen of the GPU meanwhile."""

    report: Mapping[str, Any]
    seconds: float
    seen: Watched
    readings: Sequence[Reading]
    output_tail: str


def run_entry(entry: SuiteEntry, python: str, gpu: MeasuredGpu, settings: Settings) -> Ran:
    """Runs one entry in an empty folder; it and all that it started is ended at the time limit (exit status None).

    Raises SourceError when the GPU cannot be observed.
    """
    watching = RunSettings(settings.timeout_s, _LOOK_EVERY_SECONDS, grace_s=0, to_the_end=True)
    gpu.readings.clear()
    with tempfile.TemporaryDirectory(prefix="kopt-measure-") as name:
        folder = Path(name)
        report, output = folder / "report.json", folder / "output.txt"
        started = time.monotonic()
        with output.open("wb") as stream:
            seen = watch_command(
                command_line(entry, python, report, settings),
                gpu,
                watching,
                relay=stream,
                env=environment(entry, settings),
                cwd=folder,
            )
        seconds = time.monotonic() - started
        found: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(report.read_text())
        tail = output.read_bytes()[-2000:].decode(errors="replace")
    return Ran(found, seconds, seen, tuple(gpu.readings), tail)


def summarise(
    entry: SuiteEntry, ran: Ran, gpu: MeasuredGpu, interpreter: Interpreter, settings: Settings
) -> Measurement:
    report, used = ran.report, ran.seen.observation
    times = report.get("step_times", [])
    gaps = [later - earlier for earlier, later in pairwise(times[1:])]
    activity, bandwidth, readings = steady_shares(ran.readings, times)
    used_gpu = "allocated_bytes" in report
    ending = _ending(ran)
    error = report.get("error") or ("" if ending is Ending.FINISHED else ran.output_tail[-500:])
    if ending is Ending.FINISHED and not used_gpu:
        ending, error = Ending.FAILED, "it ended without using the GPU"
    return Measurement(
        name=entry.name,
        digest=entry.digest,
        category=entry.category,
        family=entry.family,
        framework=entry.framework,
        precision=entry.precision,
        optimizer=entry.optimizer,
        batch=entry.batch,
        ending=ending,
        gpu=gpu.identity.name,
        driver=gpu.identity.driver,
        capacity=capacity_of(gpu.identity, settings),
        torch=interpreter.torch,
        cuda=report.get("cuda"),
        hip=report.get("hip"),
        allocator_configuration=settings.allocator_configuration,
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=round(ran.seconds, 2),
        steps=len(times),
        allocated=report.get("allocated_bytes"),
        reserved=report.get("reserved_bytes"),
        process=used.peak_bytes,
        process_scope="process" if used.by_process else "device",
        out_of_memory_events=report.get("out_of_memory_events", 0),
        allocation_retries=report.get("allocation_retries", 0),
        activity=activity,
        bandwidth=bandwidth,
        activity_kind=gpu.activity_kind if activity is not None else "",
        readings=readings,
        seconds_per_step=round(statistics.median(gaps), 5) if gaps else None,
        error=error,
        tool=gpu.name,
        packages={name: interpreter.packages[name] for name in entry.packages},
    )


def capacity_of(gpu: GpuIdentity, settings: Settings) -> Bytes:
    return gpu.capacity_bytes if settings.capacity is None else min(settings.capacity, gpu.capacity_bytes)


def steady_shares(readings: Sequence[Reading], times: Sequence[float]) -> tuple[float | None, float | None, int]:
    """Mean activity and bandwidth between the second and the last step, and how many looks that were."""
    if len(times) < 3:
        return None, None, 0
    steady = [one.gpus[0] for one in readings if times[1] <= one.at_s <= times[-1]]
    activity = [one.activity for one in steady if one.activity is not None]
    bandwidth = [one.bandwidth for one in steady if one.bandwidth is not None]
    return _mean(activity), _mean(bandwidth), len(steady)


def _mean(shares: Sequence[float]) -> float | None:
    return round(min(1.0, statistics.fmean(shares)), 4) if shares else None


def _ending(ran: Ran) -> Ending:
    if ran.seen.exit_status == 0:
        return Ending.FINISHED
    if ran.report.get("out_of_memory"):
        return Ending.OUT_OF_MEMORY
    return Ending.TIMEOUT if ran.seen.exit_status is None else Ending.FAILED


def measure(
    entries: Sequence[SuiteEntry],
    interpreter: Interpreter,
    gpu: MeasuredGpu,
    settings: Settings,
    folder: Path,
    budget_s: float,
) -> int:
    """Measures what has not been measured yet; progress to standard error. Returns how many failed.

    Raises SourceError when the GPU cannot be observed any more; what was measured is kept.
    """
    about = gpu.identity
    capacity = int(capacity_of(about, settings))
    done = {
        one.digest
        for one in read_measurements(folder)
        if one.key[1:] == (about.name, interpreter.torch, capacity, settings.allocator_configuration)
        and one.ending in (Ending.FINISHED, Ending.OUT_OF_MEMORY)
    }
    path = path_for(folder, about.name, interpreter.torch)
    waiting = [entry for entry in in_turns(entries) if entry.digest not in done]
    say(f"{about.name}, driver {about.driver}, torch {interpreter.torch}")
    say(f"{len(waiting)} to measure, {len(done)} measured")
    failures, end = 0, time.monotonic() + budget_s
    for number, entry in enumerate(waiting, 1):
        if time.monotonic() > end:
            say(f"the {budget_s:.0f} s are over; {len(waiting) - number + 1} entries are left for the next time")
            break
        lacking = interpreter.lacks(entry)
        if lacking:
            say(f"[{number}/{len(waiting)}] {entry.name}: left out, {interpreter.path} has no {', '.join(lacking)}")
            continue
        ran = run_entry(entry, interpreter.path, gpu, settings)
        measurement = summarise(entry, ran, gpu, interpreter, settings)
        append(path, measurement)
        failures += measurement.ending in (Ending.FAILED, Ending.TIMEOUT)
        say(f"[{number}/{len(waiting)}] {describe(measurement)}")
    return failures


def describe(one: Measurement) -> str:
    gib = [f"{(amount or 0) / GIB:.2f}" for amount in (one.allocated, one.reserved, one.process)]
    line = f"{one.name}: {one.ending} in {one.seconds:.0f} s, GiB allocated/reserved/process {'/'.join(gib)}"
    if one.activity is not None:
        line += f", {one.activity:.0%} {one.activity_kind}"
    return line if one.ending is Ending.FINISHED else f"{line}\n    {one.error.strip().splitlines()[-1:]}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measure", description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="interpreter whose torch is measured")
    parser.add_argument("--gpu", type=int, default=0, help="index, as nvidia-smi or rocm-smi count")
    parser.add_argument("--only", action="append", default=[], metavar="TEXT", help="entries whose name holds it")
    parser.add_argument("--capacity-gib", type=float, help="let the allocator have no more, as on a smaller card")
    parser.add_argument("--allocator", default="", help="PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one entry")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start no entry after so many seconds")
    parser.add_argument("--short", action="store_true", help="the few steps of an estimate: too few for activity")
    parser.add_argument("--folder", type=Path, default=MEASUREMENTS)
    parser.add_argument("--list", action="store_true", help="print the entries and run none")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    entries = [one for one in read_suite() if not options.only or any(text in one.name for text in options.only)]
    if not entries:
        say(f"no entry's name holds {' or '.join(options.only)}; --list shows them")
        return 2
    if options.list:
        for entry in entries:
            print(f"{entry.name:34} {entry.category:12} {' '.join(entry.command()).replace(f'{FOLDER}/', '')}")
        return 0
    capacity = None if options.capacity_gib is None else Bytes(int(options.capacity_gib * GIB))
    settings = Settings(options.gpu, capacity, options.allocator, options.timeout, not options.short)
    try:
        with contextlib.closing(find_gpu(options.gpu)) as gpu:
            interpreter = look_at(options.python, {name for entry in entries for name in entry.packages})
            failures = measure(entries, interpreter, gpu, settings, options.folder, options.budget)
    except (NoGpuError, InterpreterError, SourceError) as error:
        say(f"error: {error}")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
