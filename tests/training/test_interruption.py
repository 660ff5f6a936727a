"""Training that is killed goes on where it was; on Ray, too, and without anything left running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from controlplane.processes import wait_for

from kopt.core.settings import Settings
from kopt.training.demand.sources import GeneratedSource
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import RayTasks

SOURCE = GeneratedSource(services=3, days=4.0, seed=5)
OPTIONS = TrainOptions(folds=2, parameters={"rounds": 5, "network_epochs": 1, "rows_per_series": 300})
CHILD = """
import sys
from pathlib import Path
from kopt.core.settings import Settings
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.demand.sources import GeneratedSource
from kopt.training.pipeline.tasks import HereTasks
source = GeneratedSource(services=3, days=4.0, seed=5)
options = TrainOptions(folds=2, parameters={"rounds": 5, "network_epochs": 1, "rows_per_series": 300})
show = lambda event: print(event.step, event.done, event.total, event.kept, flush=True)
settings = Settings(home=Path(sys.argv[1]))
outcome = train(source=source, settings=settings, options=options, tasks=HereTasks(), progress=show)
print("outcome", outcome.computed, outcome.kept, outcome.model.version, flush=True)
"""


def _child(home: Path) -> "subprocess.Popen[str]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-P", "-c", CHILD, str(home)], stdout=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_killed_training_goes_on_where_it_was(tmp_path: Path) -> None:
    child = _child(tmp_path)
    assert child.stdout is not None
    for line in child.stdout:
        if line.startswith("fit 2 "):
            os.kill(child.pid, signal.SIGKILL)
            break
    assert child.wait() == -signal.SIGKILL
    (run,) = (tmp_path / "runs").iterdir()
    stamps = {p.parent.name: p.stat().st_mtime_ns for p in run.glob("*/done.json")}
    assert {"recent", "fold-0"} <= set(stamps)
    assert "final" not in stamps
    second = _child(tmp_path)
    lines = second.communicate()[0].splitlines()
    assert second.returncode == 0
    assert "fit 2 4 2" in lines
    assert {p.parent.name: p.stat().st_mtime_ns for p in run.glob("*/done.json")}["fold-0"] == stamps["fold-0"]
    assert lines[-1].split()[-1] in ("1", "2")
    third = _child(tmp_path)
    last = third.communicate()[0].splitlines()[-1].split()
    assert last[:2] == ["outcome", "0"], "an identical run trains nothing"
    assert last[-1] == lines[-1].split()[-1]


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_ray_tasks_give_the_same_model_as_this_process_and_are_cancelled_on_interrupt(tmp_path: Path) -> None:
    import ray

    settings = Settings(home=tmp_path / "ray")
    others = _ray_children()

    def interrupt(event: object) -> None:
        if getattr(event, "step", "") == "fit" and getattr(event, "done", 0) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(source=SOURCE, settings=settings, options=OPTIONS, progress=interrupt)
    assert not ray.is_initialized()
    with RayTasks(settings, cpus=2) as tasks:
        outcome = train(source=SOURCE, settings=settings, options=OPTIONS, tasks=tasks)
    assert outcome.kept >= 1
    here = _child(tmp_path / "here")
    assert here.communicate()[0]
    digests = []
    for home in (tmp_path / "ray", tmp_path / "here"):
        (final,) = (home / "runs").glob("*/final/done.json")
        digests.append(final.read_text())
    assert digests[0] == digests[1], "the same data give the same model, wherever it is fitted"
    wait_for(lambda: _ray_children() <= others, 120, "no Ray process of this training is left")


def _ray_children() -> set[Path]:
    """Processes of trainings' Ray that this process started."""
    return {p for p in Path("/proc").glob("[0-9]*/cmdline") if _mentions(p, "kopt-ray-") and _child_of_us(p)}


def _mentions(path: Path, word: str) -> bool:
    try:
        return word in path.read_text()
    except OSError:
        return False


def _child_of_us(path: Path) -> bool:
    try:
        stat = (path.parent / "stat").read_text()
    except OSError:
        return False
    return int(stat.rpartition(")")[2].split()[1]) == os.getpid()
