"""What a traced script sees of the file system, and what makes its trace another one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kopt.core.gpu_catalogue import find_gpu
from kopt.tracing import trace as tracing
from kopt.tracing.sandbox import Limits, Outcome
from kopt.tracing.trace import ScriptCall, call_digest, trace_script

SCRIPT = """
import sys, torch, beside
weight = torch.zeros(beside.SIZE, device="cuda", requires_grad=True)
print(open(sys.argv[1]).read())
"""


@pytest.fixture
def call(tmp_path: Path) -> ScriptCall:
    """A script, a module of it and its data, none of them in the folder it is started from."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "there/train.py").write_text(SCRIPT)
    (tmp_path / "there/beside.py").write_text("SIZE = 1000")
    (tmp_path / "data.txt").write_text("rows")
    return ScriptCall("python3", ("../there/train.py", str(tmp_path / "data.txt")), tmp_path / "here")


def test_a_change_beside_a_script_elsewhere_is_another_call(call: ScriptCall) -> None:
    gpu = find_gpu("a100-40gb")
    before = call_digest(call, gpu)
    assert call_digest(call, gpu) == before
    (call.folder.parent / "there/beside.py").write_text("SIZE = 2000")
    assert call_digest(call, gpu) != before


@pytest.mark.parametrize(
    ("hit", "said"),
    [("wall", "5 s; --timeout"), ("memory", "8 GiB of the host's memory"), ("processes", "512 processes")],
)
def test_a_script_that_is_ended_before_its_first_event_is_told_its_limit(
    call: ScriptCall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hit: str, said: str
) -> None:
    def confined(argv: list[str], **_: object) -> Outcome:
        prepares = "--prepare" in argv
        return Outcome(0 if prepares else None, None if prepares else hit, "", 5.0)

    monkeypatch.setattr(tracing, "run_confined", confined)
    traced = trace_script(call, find_gpu("a100-40gb"), limits=Limits(wall_s=5), state=tmp_path / "state")
    assert traced.trace is None
    assert said in traced.problem


@pytest.mark.trainers
@pytest.mark.slow
def test_a_script_elsewhere_sees_its_modules_and_the_files_it_is_given(
    call: ScriptCall, trainer_python: Callable[[str], str], tmp_path: Path
) -> None:
    call = ScriptCall(trainer_python("newest"), call.arguments, call.folder)
    traced = trace_script(call, find_gpu("a100-40gb"), limits=Limits(wall_s=120), state=tmp_path / "state")
    assert traced.trace is not None, traced
    assert traced.trace.end is not None
    assert traced.trace.end.reason == "finished", traced
