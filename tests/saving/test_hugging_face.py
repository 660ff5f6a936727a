"""A real Trainer writes a checkpoint when it is asked to: once, at the next step, all ranks at the same one."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kopt.core.workload.checkpoint_request import REQUEST_ANNOTATION, SaveRequest

pytestmark = [pytest.mark.trainers, pytest.mark.slow]
SOURCE = Path(__file__).parents[2] / "src"
PROGRAM = Path(__file__).parent / "live" / "train.py"


class Training:
    """A Trainer's process, or several."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.output, self.notes, self.log = folder / "out", folder / "notes", folder / "log"
        environment = os.environ | {
            "PYTHONPATH": str(SOURCE),
            "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(folder),
        }
        words = [*command, str(PROGRAM), str(self.output), str(self.notes)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, env=environment, stdout=log, stderr=log, cwd=folder)

    def ask(self, rank: int = 0) -> SaveRequest:
        """As kubelet shows it: a file with another name takes the place of the old one."""
        request = SaveRequest.of("test", "because", time.time(), time.time() + 60)
        folder = self.notes / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / "fresh"
        fresh.write_text(f"a={json.dumps('b')}\n{REQUEST_ANNOTATION}={json.dumps(request.to_text())}\n")
        fresh.rename(folder / "annotations")
        return request

    def step(self) -> int:
        told = [line.split() for line in self.log.read_text(errors="replace").splitlines() if line.startswith("step ")]
        return int(told[-1][1]) if told else 0

    def saved(self) -> list[int]:
        """Steps of checkpoints that are complete: their state is written last."""
        return sorted(int(one.parent.name.split("-")[1]) for one in self.output.glob("checkpoint-*/trainer_state.json"))

    def wait(self, condition: Callable[[], object], what: str) -> None:
        ends_s = time.monotonic() + 90
        while not condition():
            text = self.log.read_text(errors="replace")[-2000:]
            assert self.process.poll() is None, f"it ended before {what}: {text}"
            assert time.monotonic() < ends_s, f"never {what}: {text}"
            time.sleep(0.05)

    def end(self) -> None:
        (self.output / "stop").touch()
        assert self.process.wait(60) == 0
        assert "the end" in self.log.read_text()


@pytest.fixture
def started(tmp_path: Path, trainer_python: Callable[[str], str]) -> Iterator[Callable[..., Training]]:
    running: list[Training] = []

    def start(*options: str) -> Training:
        one = Training([trainer_python("newest"), *options], tmp_path)
        running.append(one)
        one.wait(lambda: one.step() > 3, "it trains")
        return one

    yield start
    for one in running:
        one.process.kill()
        one.process.wait()


def test_it_saves_once_for_each_request_and_trains_on(started: Callable[..., Training]) -> None:
    training = started()
    assert training.saved() == []
    before = training.step()
    request = training.ask()
    training.wait(lambda: len(training.saved()) == 1, "it saves")
    (at,) = training.saved()
    assert at > before
    assert (training.output / f"checkpoint-{at}" / "trainer_state.json").stat().st_mtime >= request.at_s
    training.wait(lambda: training.step() > at + 20, "it trains on")
    assert training.saved() == [at]
    training.ask()
    training.wait(lambda: len(training.saved()) == 2, "it saves again")
    training.end()


@pytest.mark.long
def test_all_ranks_save_although_one_alone_was_asked(started: Callable[..., Training]) -> None:
    training = started("-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", "--standalone")
    before = training.step()
    training.ask(rank=1)
    training.wait(lambda: len(training.saved()) == 1, "it saves")
    (at,) = training.saved()
    assert at > before
    assert at % 3 == 0, "they agree every third step"
    # The other learns of it late, when all have saved already.
    training.ask(rank=0)
    training.wait(lambda: training.step() > at + 20, "it trains on")
    training.end()


def test_importing_it_loads_no_trainer() -> None:
    code = "import kopt.saving, sys; print([one for one in ('torch', 'transformers', 'httpx') if one in sys.modules])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
