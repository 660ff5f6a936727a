"""A real training is followed live: whenever it is said to be safe, its checkpoints must be enough to go on from."""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from benchmarked import benchmark_module

from kopt.formats.joblog import LineSplitter
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.checkpoint.session import Session
from kopt.models.registry.shipped import load_shipped

pytestmark = [pytest.mark.trainers, pytest.mark.slow]
recording = benchmark_module("checkpoint_corpus.recording")
PROGRAM = Path(recording.HERE) / "programs" / "hf_trainer.py"
RESUME = Path(__file__).parent / "live" / "resume.py"
SAVE_STEPS = 20
MOST_COPIES = 8


@dataclass(frozen=True)
class Moment:
    """A copy of the checkpoint folder as it was when the job was said to be safe, and what was said."""

    copy: Path
    step: int
    durable_step: int


@dataclass
class Training:
    """A training that runs; its log goes to ``session`` as it comes."""

    process: "subprocess.Popen[bytes]"
    session: Session
    splitter: LineSplitter
    lines: int = 0

    def follow(self, for_s: float) -> bool:
        """Reads for so long what the training prints; False once it has ended."""
        assert self.process.stdout is not None
        output, until = self.process.stdout.fileno(), time.monotonic() + for_s
        while (left := until - time.monotonic()) > 0:
            if not select.select([output], [], [], left)[0]:
                continue
            piece = os.read(output, 65_536)
            if not piece:
                return False
            self._read(piece)
        return True

    def _read(self, piece: bytes) -> None:
        now = time.time()
        texts = [line.text for line in self.splitter.feed(piece)]
        self.lines += len(list(self.session.read(texts, [now] * len(texts))))

    def copy_as_it_is(self, checkpoints: Path, to: Path) -> None:
        """Its folder at one instant: the training stands still meanwhile. What it had printed by then is read."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            shutil.copytree(checkpoints, to)
        finally:
            os.killpg(self.process.pid, signal.SIGCONT)


@pytest.fixture
def training(tmp_path: Path, trainer_python: Callable[[str], str]) -> Iterator[Training]:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    environment = os.environ | {
        "LD_PRELOAD": str(recording.build_slow_storage(tmp_path)),
        "KOPT_SLOW_FOLDER": str(checkpoints),
        "KOPT_SLOW_BYTES_PER_S": "1500000",
        "KOPT_SLOW_LATENCY_MS": "15",
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(tmp_path),
    }
    predictor = load_shipped("checkpoint")
    assert isinstance(predictor, CheckpointPredictor)
    command = [
        trainer_python("newest"),
        str(PROGRAM),
        "--output_dir",
        str(checkpoints),
        "--info",
        "--max_steps",
        "240",
        "--save_steps",
        str(SAVE_STEPS),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, start_new_session=True, cwd=tmp_path
    ) as process:
        try:
            yield Training(process, predictor.session(), LineSplitter())
        finally:
            os.killpg(process.pid, signal.SIGKILL) if process.poll() is None else None


@pytest.mark.long
def test_whenever_a_training_is_said_to_be_safe_it_can_be_resumed(
    training: Training,
    tmp_path: Path,
    trainer_python: Callable[[str], str],
) -> None:
    rng, moments, asked, unsafe_in_training = random.Random(7), list[Moment](), 0, 0
    while training.follow(rng.uniform(0.05, 0.4)):
        status = training.session.status(time.time())
        asked += 1
        unsafe_in_training += bool(status.evidence and not status.safe)
        if status.safe and len(moments) < MOST_COPIES and rng.random() < 0.7:
            assert status.step is not None
            assert status.last_durable_step is not None
            copy = tmp_path / f"copy-{len(moments)}"
            training.copy_as_it_is(tmp_path / "checkpoints", copy)
            moments.append(Moment(copy, status.step, status.last_durable_step))
    assert training.process.wait(60) == 0, "the training itself failed"
    assert training.lines > 100
    assert len(moments) >= 3, f"said to be safe only {len(moments)} times of {asked}"
    assert unsafe_in_training, "a training that saves half of its time was called safe throughout"

    copies = [str(one.copy) for one in moments]
    done = subprocess.run(
        [trainer_python("newest"), str(RESUME), *copies], capture_output=True, text=True, check=False, timeout=600
    )
    found = {
        one["copy"]: one
        for one in map(json.loads, filter(lambda text: text.startswith('{"copy'), done.stdout.splitlines()))
    }
    for one in moments:
        resumed = found.get(one.copy.name, {"error": done.stderr[-2000:]})
        assert "error" not in resumed, f"torn at step {one.step}: {resumed}"
        assert resumed["resumed_at"] == one.durable_step, "the durable step was another"
        assert resumed["trained_to"] == resumed["resumed_at"] + 1
        assert one.step - resumed["resumed_at"] <= SAVE_STEPS, "more than one save interval was lost"
