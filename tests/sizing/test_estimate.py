"""From a command to a sizing, with scripts that really run where an environment with torch is there."""

import json
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from secret_corpus import left_of, plain
from sizing.traces import training

from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.redaction import HIDDEN
from kopt.core.settings import Settings
from kopt.core.units import GIB, MIB, Bytes
from kopt.core.workload.sizing import Method, ShareKind, SizingEstimate, TraceCoverage, WorkloadProfile
from kopt.formats.entrypoint import EntrypointError
from kopt.models.sizing import estimate as sizing
from kopt.models.sizing.code import from_trace
from kopt.models.sizing.compute import activity
from kopt.models.sizing.estimate import EstimateOptions, estimate, estimate_and_code
from kopt.models.sizing.plot import draw
from kopt.models.sizing.posterior import combine
from kopt.models.sizing.predictor import SizingPredictor
from kopt.models.sizing.residual import ResidualSettings
from kopt.models.sizing.table import MeasuredQuestion, SizingQuestion, sizing_table
from kopt.tracing.events import End, Trace
from kopt.tracing.trace import Traced

STEADY = WorkloadProfile("A100-40GB", Bytes(4 * GIB), 300.0, 300, steady=True, activity=0.7, steps=200)


@pytest.fixture(scope="module")
def predictor() -> SizingPredictor:
    """Fitted on made-up processes that need 600 MiB more than the allocator."""
    rows = []
    for n in range(60):
        code, _ = from_trace(
            training(layers=2 + n % 7, weight=(1 + n % 5) * 8 * MIB, activation=(1 + n % 3) * 20 * MIB)
        )
        measured = Bytes(int(code.reserved_bytes * (1 + 0.002 * (n % 5))) + 600 * MIB)
        rows.append(MeasuredQuestion(f"r{n}", f"f{n % 12}", f"s{n % 2}", SizingQuestion(code, "A100-40GB"), measured))
    return SizingPredictor(ResidualSettings(rounds=30, rows_in_leaf=3)).fit(sizing_table(rows))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Scripts are taken to have given the made-up trace; returns the calls. Real ones run in the probe's tests."""
    calls: list[Any] = []

    def traced(call: Any, gpu: Any, **_: Any) -> Traced:
        calls.append(call)
        return Traced(training())

    monkeypatch.setattr(sizing, "trace_script", traced)
    monkeypatch.setattr(sizing, "find_interpreter", lambda asked: asked or sys.executable)
    return calls


def test_a_script_that_ran_is_sized_with_interval_reasons_and_advice(
    predictor: SizingPredictor, ran: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("pass")
    found = estimate("train.py --lr 1", model=predictor, gpu="a100-40gb", folder=tmp_path)
    assert ran[0].arguments == ("train.py", "--lr", "1")
    assert (found.method, found.trace) == (Method.ABSTRACT, TraceCoverage.FULL)
    assert found.memory.value is not None
    assert found.memory.high is not None
    assert found.reserved_bytes is not None
    assert found.memory.value == pytest.approx(found.reserved_bytes + 600 * MIB, rel=0.05)
    assert found.recommendation.kind in (ShareKind.FRACTION, ShareKind.PARTITION)
    assert found.recommendation.bytes >= found.memory.high
    assert found.breakdown.total == pytest.approx(found.memory.value, rel=1e-6)
    assert {reason.code for reason in found.reasons} >= {"ABSTRACT_EXECUTION", "LEARNED_OVERHEAD"}
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert set(document) >= {
        "schema",
        "script",
        "gpu",
        "memory",
        "compute",
        "per_rank",
        "method",
        "trace",
        "fits",
        "recommendation",
        "assumptions",
        "warnings",
        "seconds",
        "model",
    }
    assert set(document["memory"]) >= {"peak_bytes", "low_bytes", "high_bytes", "probability", "breakdown"}


def test_the_launcher_tells_how_many_processes_there_are(
    predictor: SizingPredictor, ran: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("pass")
    found = estimate("torchrun --nproc-per-node 4 train.py", model=predictor, folder=tmp_path)
    assert ran[0].world_size == 4
    assert (found.recommendation.kind, found.recommendation.count) == (ShareKind.WHOLE, 4)


def test_where_no_script_can_run_formulas_answer_and_say_so(predictor: SizingPredictor, tmp_path: Path) -> None:
    line = (
        "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16 "
        "--seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 2 --global-batch-size 16 --bf16"
    )
    found = estimate(line, model=predictor, folder=tmp_path, trainer="megatron")
    assert found.method is Method.ANALYTIC
    assert found.memory.value is not None
    assert found.memory.value > 4 * GIB
    assert any(reason.code == "OUT_OF_DISTRIBUTION" for reason in found.reasons)


def test_what_neither_path_knows_is_refused_without_advice(
    predictor: SizingPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "trace_script", lambda *_, **__: Traced(None, "no module named wonders"))
    monkeypatch.setattr(sizing, "find_interpreter", lambda _: sys.executable)
    (tmp_path / "train.py").write_text("import wonders")
    found = estimate("train.py", model=predictor, folder=tmp_path)
    assert found.memory.refused
    assert found.trace is TraceCoverage.FAILED
    assert found.recommendation.kind is ShareKind.NONE
    assert any("wonders" in text for text in found.warnings)
    assert found.to_dict()["memory"]["peak_bytes"] is None
    seen = estimate("train.py", model=predictor, folder=tmp_path, profile=STEADY)
    assert seen.method is Method.PROFILE
    assert seen.memory.low == STEADY.peak_bytes
    assert seen.observed_peak_bytes == STEADY.peak_bytes


PARSER = """Traceback (most recent call last):
  File "/usr/lib/python3.11/runpy.py", line 1, in run
    exec(code)
  File "/work/train.py", line 12, in <module>
    rows = load()
  File "/env/lib/python3.11/site-packages/pandas/io.py", line 900, in load
    raise
FileNotFoundError: no such file: 'rows.csv'
"""
LOADING = """Traceback (most recent call last):
  File "train.py", line 3, in <module>
    model.load_state_dict(found)
RuntimeError: Error(s) in loading state_dict for Net:
\tMissing key(s) in state_dict: "a", "b".
"""
BINARY = "Traceback (most recent call last):\nSyntaxError: source code string cannot contain null bytes\n"
SYNTAX = """Traceback (most recent call last):
  File "/work/syntax.py", line 2
    for i in range(3)
                     ^
SyntaxError: expected ':'
"""


@pytest.mark.parametrize(
    ("error", "output", "said"),
    [
        (PARSER, "", "FileNotFoundError: no such file: 'rows.csv' (train.py, line 12)"),
        (LOADING, "", 'Net: Missing key(s) in state_dict: "a", "b". (train.py, line 3)'),
        (BINARY, "", "SyntaxError: source code string cannot contain null bytes"),
        (SYNTAX, "", "SyntaxError: expected ':' (syntax.py, line 2)"),
        ("the script exited with 2", "usage: x\nx: error: --data is required\n", "exited with 2: x: error: --data is"),
        ("the script exited with 1", "", "the script exited with 1"),
    ],
)
def test_what_broke_a_script_is_told_with_its_place(
    predictor: SizingPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, output: str, said: str
) -> None:
    made = replace(training(), end=End("error", 0, error))
    monkeypatch.setattr(sizing, "trace_script", lambda *_, **__: Traced(made, output_tail=output))
    monkeypatch.setattr(sizing, "find_interpreter", lambda _: sys.executable)
    (tmp_path / "train.py").write_text("pass")
    warnings = estimate("train.py", model=predictor, folder=tmp_path).warnings
    assert any(text.endswith(said) or said in text for text in warnings), warnings
    assert not any("Traceback" in text for text in warnings)


@pytest.mark.parametrize(
    ("error", "output"),
    [
        ("the script exited with 2", "usage: x\nx: error: cannot log in with password={}\n"),
        ('Traceback (most recent call last):\n  File "/work/train.py", line 1, in <module>\nOSError: token={}\n', ""),
        ("OSError: redis://:{}@cache:6379 does not answer", ""),
    ],
)
def test_what_broke_a_script_is_told_without_its_secrets(
    predictor: SizingPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, output: str
) -> None:
    secret = plain(random.Random(3))
    made = replace(training(), end=End("error", 0, error.replace("{}", secret)))
    traced = Traced(made, output_tail=output.replace("{}", secret))
    monkeypatch.setattr(sizing, "trace_script", lambda *_, **__: traced)
    monkeypatch.setattr(sizing, "find_interpreter", lambda _: sys.executable)
    (tmp_path / "train.py").write_text("pass")
    warnings = estimate("train.py", model=predictor, folder=tmp_path).warnings
    assert any(HIDDEN in text for text in warnings), warnings
    assert left_of(secret, repr(warnings)) == []


def test_a_script_that_takes_what_there_is_gets_a_whole_gpu_and_no_larger_one(
    predictor: SizingPredictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = training(layers=8, weight=600 * MIB, activation=400 * MIB)
    needs = estimate_of(made, predictor, tmp_path, monkeypatch)
    assert needs.recommendation.bytes > find_gpu("T4").usable_bytes
    assert needs.recommendation.gpu != find_gpu("T4").name
    adapts = replace(made, warnings=(f"{sizing.ADAPTS} the 15 GiB of the GPU were full and went on with less",))
    takes = estimate_of(adapts, predictor, tmp_path, monkeypatch)
    assert takes.recommendation.kind is ShareKind.WHOLE
    assert takes.recommendation.gpu == find_gpu("T4").name
    assert takes.fits["T4"]


def estimate_of(
    trace: Trace, predictor: SizingPredictor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> SizingEstimate:
    """The estimate for a T4 of a script that gave this trace."""
    monkeypatch.setattr(sizing, "trace_script", lambda *_, **__: Traced(trace))
    monkeypatch.setattr(sizing, "find_interpreter", lambda _: sys.executable)
    (folder / "train.py").write_text("pass")
    return estimate("train.py", model=predictor, folder=folder, gpu="T4")


def test_a_dry_run_only_lowers_the_upper_end(predictor: SizingPredictor, ran: list[Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    plain = estimate("train.py", model=predictor, gpu="a100-40gb", folder=tmp_path)
    seen = replace(STEADY, peak_bytes=Bytes(int(plain.memory.value or 0)))
    both = estimate("train.py", model=predictor, gpu="a100-40gb", folder=tmp_path, profile=seen)
    assert both.method is Method.COMBINED
    assert (both.memory.value or 0) >= (plain.memory.value or 0)
    assert (both.memory.high or 0) <= (plain.memory.high or 0)


@pytest.mark.parametrize("seen", [1 * GIB, 4 * GIB, 9 * GIB])
@pytest.mark.parametrize("steady", [True, False])
def test_the_posterior_never_falls_below_code_or_peak(seen: int, steady: bool) -> None:
    profile = replace(STEADY, peak_bytes=Bytes(seen), steady=steady)
    centre, low, high, reasons = combine(4.0 * GIB, 3.5 * GIB, 6.0 * GIB, profile)
    assert centre >= max(4 * GIB, seen)
    assert low <= centre <= high
    assert high <= 6 * GIB or seen > 4 * GIB
    assert reasons[0].code == "DRY_RUN"


def test_nothing_to_run_an_unknown_gpu_and_absurd_limits_are_clear_errors(
    predictor: SizingPredictor, tmp_path: Path
) -> None:
    with pytest.raises(EntrypointError):
        estimate("echo hello", model=predictor, folder=tmp_path)
    with pytest.raises(UnknownGpuError, match="abacus"):
        estimate("train.py", model=predictor, gpu="abacus", folder=tmp_path)
    with pytest.raises(ValueError, match="time limit"):
        EstimateOptions(timeout_s=0)
    with pytest.raises(ValueError, match="processes"):
        EstimateOptions(world_size=0)


def test_the_picture_is_drawn(predictor: SizingPredictor, ran: list[Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    options = EstimateOptions(folder=tmp_path)
    found, code = estimate_and_code("train.py $x_{y", model=predictor, settings=None, options=options)
    timeline = code.timeline
    assert timeline is not None
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        draw(found, timeline, tmp_path / f"memory{suffix}")
        assert (tmp_path / f"memory{suffix}").read_bytes().startswith(start)


def test_traces_are_kept_below_the_home(predictor: SizingPredictor, ran: list[Any], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("pass")
    estimate("train.py", model=predictor, folder=tmp_path, settings=Settings(home=tmp_path / "home"))
    assert not (tmp_path / "home" / "traces").exists(), "nothing ran, so nothing is kept"


def test_activity_is_flagged_as_unvalidated_and_replaced_by_a_measurement() -> None:
    code, _ = from_trace(training())
    guessed = activity(code, "a100-40gb")
    assert guessed.reasons[0].code == "UNVALIDATED_ROOFLINE"
    assert guessed.low is not None
    assert guessed.high is not None
    assert 0 <= guessed.low < guessed.high <= 1
    measured = activity(code, "a100-40gb", STEADY)
    assert (measured.value, measured.reasons[0].code) == (0.7, "DRY_RUN_ACTIVITY")
