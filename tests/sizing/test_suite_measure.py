"""``make measure``: the wrapper round a program, whole runs on a stand-in for a GPU, and none at all.

No GPU is assumed. The wrapper runs real programs in real children, one with the real torch; where the allocator's
figures are needed, a module called ``torch`` with the few functions that the wrapper calls stands in.
"""

import dataclasses
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarked import ROOT, benchmark_module

from kopt.agents.profiler.processes import tree_of
from kopt.agents.profiler.readings import Reading, SourceError
from kopt.core.units import GIB, MIB, Bytes
from kopt.formats.gpu_metrics import GpuSample, ProcessSample

measure = benchmark_module("measure")
measured_gpu = benchmark_module("measured_gpu")
stored = benchmark_module("measurements")
suite = benchmark_module("sizing_suite")
manifest = benchmark_module("sizing_suite.manifest")
Ending = stored.Ending

STAND_IN = {
    "__init__.py": """
        __version__ = "2.99.0+standin"
        from types import SimpleNamespace as _N
        version = _N(cuda="13.0", hip=None)
        backends = _N(cudnn=_N(version=lambda: 91000))
        class OutOfMemoryError(RuntimeError): pass
        from . import cuda, optim
    """,
    "cuda.py": """
        _queued, _peak, _limit, _started = [], 0, 80 << 30, False
        def _lazy_call(function): _queued.append(function)
        def is_available(): return True
        def is_initialized(): return _started
        def get_device_name(index): return "Stand-in GPU"
        def get_device_properties(index):
            from types import SimpleNamespace
            return SimpleNamespace(total_memory=80 << 30)
        def set_per_process_memory_fraction(fraction, index):
            global _limit
            _limit = int(fraction * (80 << 30))
        def memory_stats(index):
            return {"allocated_bytes.all.peak": _peak, "reserved_bytes.all.peak": 2 * _peak, "num_ooms": 0}
        def use(amount):
            global _peak, _started
            import torch
            if not _started:
                _started = True
                for function in _queued: function()
            if amount > _limit:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {amount} of {_limit}")
            _peak = max(_peak, amount)
    """,
    "optim/__init__.py": "from . import optimizer",
    "optim/optimizer.py": """
        _hooks = []
        def register_optimizer_step_post_hook(hook): _hooks.append(hook)
        def step():
            for hook in _hooks: hook(None, (), {})
    """,
}
USES_GPU = """
import sys, time, torch
for _ in range(int(sys.argv[2])):
    torch.cuda.use(int(sys.argv[1]) << 20)
    torch.optim.optimizer.step()
    time.sleep(0.02)
"""


def unindented(text: str) -> str:
    return "\n".join(line.removeprefix("        ") for line in text.splitlines())


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module ``torch`` on the path of programs that are measured."""
    for name, text in STAND_IN.items():
        path = tmp_path / "site" / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(unindented(text))
    real = measure.environment
    monkeypatch.setattr(
        measure,
        "environment",
        lambda *given: {**(found := real(*given)), "PYTHONPATH": f"{found['PYTHONPATH']}:{tmp_path / 'site'}"},
    )


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Writes a program and gives the entry that runs it."""
    monkeypatch.setattr(manifest, "FOLDER", tmp_path / "scripts")

    def write(text: str, file: str = "program.py", **changed: Any) -> Any:
        path = tmp_path / "scripts" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        entry = suite.SuiteEntry(
            name=path.stem,
            file=file,
            files=(file,),
            launcher="python",
            framework="torch",
            packages=("torch",),
            category="cnn",
            family="resnet",
            precision="fp32",
            optimizer="sgd",
            batch=1,
            memory_gib=16,
            digest="d",
        )
        return dataclasses.replace(entry, **changed)

    return write


class OneGpu:
    """A source with one GPU that every process of these tests holds a little of."""

    name, idles = "nvml-gpm", True

    def __init__(self) -> None:
        # Servers that other tests share, and this process: none of them uses it.
        self._others = tree_of(os.getpid())

    def read(self) -> Reading:
        gpu = GpuSample(
            "GPU-1", "Stand-in GPU", Bytes(3 * GIB), Bytes(80 * GIB), activity=0.5, bandwidth=0.25, driver="1.0"
        )
        mine = tree_of(os.getpid()) - self._others
        processes = tuple(ProcessSample(pid, "GPU-1", Bytes(2 * MIB)) for pid in mine)
        return Reading(time.monotonic(), (gpu,), processes)

    def close(self) -> None:
        """Nothing is held."""


def stand_in_gpu() -> Any:
    return measured_gpu.MeasuredGpu(OneGpu())


INTERPRETER = measure.Interpreter(sys.executable, "2.99.0+standin", {"torch": "2.99.0"})
SHORT = measure.Settings(timeout_s=60)


def wrapped(tmp_path: Path, text: str, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    program, report = tmp_path / "p.py", tmp_path / "report.json"
    program.write_text(text)
    command = [sys.executable, measure.WRAPPER, "--report", report, program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    return done, json.loads(report.read_text())


def test_a_program_sees_nothing_of_the_wrapper(tmp_path: Path) -> None:
    (tmp_path / "measurements.py").write_text("mine = True\n")
    text = (
        "import sys, os\nfrom measurements import mine\n"
        "print(__name__, *sys.argv[1:], os.path.basename(sys.argv[0]), 'torch' in sys.modules)"
    )
    done, report = wrapped(tmp_path, text, "--report", "x", "--capacity-bytes=3")
    assert done.stdout.split() == ["__main__", "--report", "x", "--capacity-bytes=3", "p.py", "False"]
    assert (report["error"], report["out_of_memory"], report["step_times"]) == ("", False, [])
    assert "allocated_bytes" not in report


@pytest.mark.parametrize(
    ("text", "status", "error"),
    [
        ("import sys; sys.exit(3)", 3, "SystemExit: 3"),
        ("import sys; sys.exit()", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def f(", 1, "SyntaxError: "),
    ],
)
def test_a_program_ends_as_it_would_alone(tmp_path: Path, text: str, status: int, error: str) -> None:
    done, report = wrapped(tmp_path, text)
    assert done.returncode == status
    assert report["error"].startswith(error)
    assert bool(report["error"]) == bool(error)


def test_a_forked_worker_reports_nothing(tmp_path: Path) -> None:
    done, report = wrapped(
        tmp_path, "import os, sys\nif not os.fork(): sys.exit(7)\nos.wait()\nassert not os.path.exists('report.json')"
    )
    assert (done.returncode, report["error"]) == (0, "")


def test_optimizer_steps_of_the_real_torch_are_noted(tmp_path: Path) -> None:
    text = (
        "import torch\nw = torch.nn.Parameter(torch.ones(2))\no = torch.optim.Adam([w])\n"
        "for _ in range(3):\n    w.sum().backward(); o.step()\n"
    )
    done, report = wrapped(tmp_path, text)
    assert done.returncode == 0, done.stderr
    assert len(report["step_times"]) == 3
    assert report["step_times"] == sorted(report["step_times"])
    assert report["torch"]
    assert "allocated_bytes" not in report


def test_a_run_is_measured_whole(stand_in: None, program: Callable[..., Any]) -> None:
    entry = program(USES_GPU, arguments="100 {steps}", long=12)
    ran = measure.run_entry(entry, sys.executable, stand_in_gpu(), SHORT)
    one = measure.summarise(entry, ran, stand_in_gpu(), INTERPRETER, SHORT)
    assert (one.ending, one.error) == (Ending.FINISHED, "")
    assert (one.allocated, one.reserved, one.steps) == (100 * MIB, 200 * MIB, 12)
    assert (one.process_scope, one.capacity, one.cuda) == ("process", 80 * GIB, "13.0")
    assert one.process is not None
    assert one.process >= 2 * MIB
    assert (one.activity, one.bandwidth, one.activity_kind) == (0.5, 0.25, "busy SMs")
    assert one.readings >= 1
    assert one.seconds_per_step == pytest.approx(0.02, rel=1)
    assert stored.Measurement.from_json(one.to_json()) == one


def test_running_out_of_a_smaller_card_is_recorded_with_its_capacity(
    stand_in: None, program: Callable[..., Any]
) -> None:
    entry = program(USES_GPU, arguments="30000 {steps}")
    settings = dataclasses.replace(SHORT, capacity=24 * GIB)
    ran = measure.run_entry(entry, sys.executable, stand_in_gpu(), settings)
    one = measure.summarise(entry, ran, stand_in_gpu(), INTERPRETER, settings)
    assert (one.ending, one.capacity) == (Ending.OUT_OF_MEMORY, 24 * GIB)
    assert "out of memory" in one.error


@pytest.mark.parametrize(
    ("text", "error"),
    [("raise KeyError('x')", "KeyError: 'x'"), ("pass", "without using the GPU"), ("import os; os._exit(9)", "")],
)
def test_a_run_without_figures_has_failed(program: Callable[..., Any], text: str, error: str) -> None:
    entry = program(text)
    ran = measure.run_entry(entry, sys.executable, stand_in_gpu(), SHORT)
    one = measure.summarise(entry, ran, stand_in_gpu(), INTERPRETER, SHORT)
    assert (one.ending, one.allocated) == (Ending.FAILED, None)
    assert error in one.error


def test_the_time_limit_ends_a_program_and_what_it_started(program: Callable[..., Any], tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    text = (
        "import subprocess, time\np = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pid)!r}, 'w').write(str(p.pid))\ntime.sleep(600)"
    )
    entry, started = program(text), time.monotonic()
    ran = measure.run_entry(entry, sys.executable, stand_in_gpu(), dataclasses.replace(SHORT, timeout_s=3))
    one = measure.summarise(entry, ran, stand_in_gpu(), INTERPRETER, SHORT)
    assert one.ending is Ending.TIMEOUT
    assert time.monotonic() - started < 30
    state = Path("/proc") / pid.read_text() / "stat"
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_module_of_a_package_and_an_environment(stand_in: None, program: Callable[..., Any]) -> None:
    program("amount = 7\n", file="kind/net/sizes.py")
    program("", file="kind/net/__init__.py")
    text = "import os\nimport torch\nfrom .sizes import amount\ntorch.cuda.use(amount * int(os.environ['BATCH']))"
    entry = program(text, file="kind/net/train.py", launcher="module", variables={"BATCH": "{steps}"}, long=5)
    ran = measure.run_entry(entry, sys.executable, stand_in_gpu(), SHORT)
    assert (ran.seen.exit_status, ran.output_tail) == (0, "")
    assert ran.report["allocated_bytes"] == 35


def test_what_is_measured_is_not_measured_again(
    stand_in: None, program: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    good = program(USES_GPU, arguments="1 1", digest="good")
    bad = program("1 / 0", file="bad.py", digest="bad")
    needy = program("import nothing_like_it", file="needy.py", packages=("torch", "nothing_like_it"), digest="needy")

    def run(*entries: Any, budget: float = 1e9, settings: Any = SHORT) -> list[str]:
        measure.measure(entries, INTERPRETER, stand_in_gpu(), settings, folder, budget)
        (path,) = folder.glob("*.jsonl")
        return [json.loads(line)["digest"] for line in path.read_text().splitlines()]

    assert run(good, bad, needy) == ["good", "bad"]
    assert "needy: left out" in capsys.readouterr().err
    assert run(good, bad, needy) == ["good", "bad", "bad"]  # what failed is tried again
    assert run(dataclasses.replace(good, digest="edited")) == ["good", "bad", "bad", "edited"]
    assert run(good, settings=dataclasses.replace(SHORT, capacity=GIB))[4:] == ["good"]
    assert len(run(bad, budget=-1)) == 5
    assert "1 entries are left for the next time" in capsys.readouterr().err


def test_without_a_gpu_the_error_says_what_is_missing_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # As on a machine without any library or tool; what a setting names for users' dry runs is not measured on.
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("KOPT_PROFILE_SOURCE", "csv:/dev/null")
    assert measure.main(["--folder", str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: no GPU to measure on")
    for part in ("nvidia-ml-py is not installed", "rocm-smi is not on the PATH", "--python"):
        assert part in error
    assert not (tmp_path / "none").exists()


def test_the_gpu_is_the_one_that_was_asked_for() -> None:
    class TwoGpus(OneGpu):
        name = "rocm-smi"

        def read(self) -> Reading:
            gpus = tuple(GpuSample(str(n), "MI300X", Bytes(n), Bytes(9), driver="6") for n in range(2))
            # One sum over its GPUs is all that this tool tells; and another process on the other GPU.
            return Reading(1.0, gpus, (ProcessSample(7, "", Bytes(3)), ProcessSample(8, "0", Bytes(1))))

    found = measured_gpu.MeasuredGpu(TwoGpus(), 1)
    assert (found.identity.driver, found.identity.capacity_bytes, found.activity_kind) == ("6", 9, "busy time")
    (reading,) = found.readings
    assert ([one.gpu for one in reading.gpus], reading.processes) == (["1"], (ProcessSample(7, "1", Bytes(3)),))
    with pytest.raises(measured_gpu.NoGpuError, match="no GPU 2: rocm-smi sees 2"):
        measured_gpu.MeasuredGpu(TwoGpus(), 2)


def test_what_was_measured_is_kept_when_the_gpu_fails(
    stand_in: None,
    program: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def kept() -> list[str]:
        return [line for path in (tmp_path / "results").glob("*.jsonl") for line in path.read_text().splitlines()]

    class Failing(OneGpu):
        def read(self) -> Reading:
            if len(kept()) == 2:
                raise SourceError("the GPU has fallen off the bus")
            return super().read()

    entries = [program(USES_GPU, file=f"{name}.py", arguments="1 1", digest=name) for name in "abcdef"]
    monkeypatch.setattr(measure, "find_gpu", lambda index: measured_gpu.MeasuredGpu(Failing()))
    monkeypatch.setattr(measure, "look_at", lambda *_: INTERPRETER)
    monkeypatch.setattr(measure, "read_suite", lambda: entries)
    assert measure.main(["--folder", str(tmp_path / "results")]) == 1
    assert "error: the GPU has fallen off the bus" in capsys.readouterr().err
    assert len(kept()) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("exit 1", "does not run|it has no torch"),
        ("echo no torch here >&2", "no torch here"),
        ("echo '{\"packages\": {}}'", "it has no torch"),
        ('echo \'{"packages": {}, "torch": "2.6.0+cpu", "usable": false}\'', "the torch 2.6.0.cpu of .* sees no GPU"),
    ],
)
def test_an_interpreter_that_cannot_measure_is_refused(tmp_path: Path, body: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    with pytest.raises(measure.InterpreterError, match=message):
        measure.look_at(str(python), {"torch"})
    with pytest.raises(measure.InterpreterError, match="does not run"):
        measure.look_at(str(tmp_path / "missing"), {"torch"})


def test_one_entry_of_each_program_comes_first() -> None:
    entries = suite.read_suite()
    order = list(measure.in_turns(entries))
    programs = {one.file for one in entries}
    assert {one.file for one in order[: len(programs)]} == programs
    assert sorted(one.name for one in order) == sorted(one.name for one in entries)


def test_shares_are_those_of_the_steady_state() -> None:
    looks = [Reading(float(at), (GpuSample("0", activity=at / 10),)) for at in range(10)]
    assert measure.steady_shares(looks, [1, 3, 5]) == (0.4, None, 3)
    assert measure.steady_shares(looks, [1, 3]) == (None, None, 0)
    assert measure.steady_shares([], [1, 2, 3]) == (None, None, 0)


def test_process_memory_is_the_devices_where_its_process_ids_are_strange(
    stand_in: None, program: Callable[..., Any]
) -> None:
    class Strange(OneGpu):
        def read(self) -> Reading:
            found = super().read()
            used = Bytes((9 if len(found.processes or ()) else 2) * GIB)
            gpus = (dataclasses.replace(found.gpus[0], used_bytes=used),)
            return Reading(found.at_s, gpus, (ProcessSample(1 << 30, "GPU-1", used),))

    entry, gpu = program(USES_GPU, arguments="1 60"), measured_gpu.MeasuredGpu(Strange())
    ran = measure.run_entry(entry, sys.executable, gpu, SHORT)
    one = measure.summarise(entry, ran, gpu, INTERPRETER, SHORT)
    assert (one.process, one.process_scope) == (7 * GIB, "device")


def test_the_suite_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert measure.main(["--list", "--only", "conformer"]) == 0
    assert "python -m asr.train --updates 5" in capsys.readouterr().out
    assert measure.main(["--only", "no such entry"]) == 2
    assert (ROOT / "benchmarks" / "sizing_suite" / "manifest.toml").is_file()
