"""Logs are followed in pieces of any size, by several writers, and elsewhere, with the same answers."""

import itertools
import json
import random

import pytest
from example_budget import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.formats.joblog import read_message
from kopt.models.checkpoint.classifier.tokens import spoken, template
from kopt.models.checkpoint.predictor import CheckpointPredictor, LogQuestion
from kopt.models.checkpoint.session import Session
from kopt.models.registry.shipped import load_shipped

_JOB = (
    "Loading dataset from /data/train",
    *(f"step {n}/100 | loss {3 / n:.3f} | lr 1e-4" for n in range(1, 11)),
    "Saving checkpoint to /out/step-10",
    "Saved checkpoint to /out/step-10 in 3.1 s",
    *(f"step {n}/100 | loss {3 / n:.3f} | lr 1e-4" for n in range(11, 19)),
    "Training finished in 41 s",
)


@pytest.fixture(scope="module")
def shipped() -> CheckpointPredictor:
    found = load_shipped("checkpoint")
    assert isinstance(found, CheckpointPredictor)
    return found


def states(session: Session, lines: tuple[str, ...]) -> list[tuple[LineLabel, JobState, bool]]:
    return [(label, session.machine.state, session.safe) for label in session.read(lines)]


def test_the_shipped_model_follows_a_job_from_its_start_to_its_end(shipped: CheckpointPredictor) -> None:
    session = shipped.session(gpus=4)
    seen = states(session, _JOB)
    assert seen[11][1:] == (JobState.CKPT_WRITING, False)
    assert seen[12] == (LineLabel.CKPT_END, JobState.CKPT_WRITING, False)
    assert seen[13] == (LineLabel.TRAIN_STEP, JobState.CKPT_DONE, False)
    assert {label for label, _, _ in seen[1:11]} == {LineLabel.TRAIN_STEP}
    assert not any(safe for _, _, safe in seen)
    status = session.status()
    assert (status.last_durable_step, status.step, status.safe) == (10, 18, False)
    assert "Text alone cannot tell" in status.reason


def test_the_second_save_of_one_kind_shows_how_a_job_saves(shipped: CheckpointPredictor) -> None:
    session = shipped.session()
    again = [line.replace("step-10", "step-18") for line in _JOB[11:13]]
    more = [f"step {n}/100 | loss {3 / n:.3f} | lr 1e-4" for n in range(19, 24)]
    seen = states(session, (*_JOB[:-1], *again, *more))
    assert not any(safe for _, _, safe in seen[: len(_JOB) + 1])
    assert session.safe
    assert session.status().last_durable_step == 18


@settings(max_examples=examples(25), deadline=None)
@given(cuts=st.lists(st.integers(0, len(_JOB)), max_size=6))
def test_pieces_of_any_size_give_the_same_answers(shipped: CheckpointPredictor, cuts: list[int]) -> None:
    whole, session = states(shipped.session(), _JOB), shipped.session()
    found, edges = [], [0, *sorted(cuts), len(_JOB)]
    for first, last in itertools.pairwise(edges):
        found += states(session, _JOB[first:last])
        session = Session.from_dict(json.loads(json.dumps(session.to_dict())), shipped.classifier)
    assert found == whole


def test_what_one_rank_says_is_no_context_of_another(shipped: CheckpointPredictor) -> None:
    alone = list(shipped.session().read(tuple(f"[rank0]: {line}" for line in _JOB)))
    both = shipped.session()
    noise = "[rank1]: Traceback (most recent call last):"
    labels = list(both.read(tuple(text for line in _JOB for text in (f"[rank0]: {line}", noise))))
    assert labels[::2] == alone


def test_hostile_lines_are_only_lines(shipped: CheckpointPredictor) -> None:
    rng = random.Random(3)
    lines = [
        "",
        "\x00" * 5000,
        "[" * 20000,
        "1" * 20000,
        "a/" * 20000,
        "- " * 9000,
        "█" * 9000,
        "😀" * 4000,
        "{" * 9000,
    ]
    lines += [
        "".join(chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x20, 0xD000)))) for _ in range(200))
        for _ in range(300)
    ]
    lines += [f"[rank{n}]: Saving checkpoint {n}" for n in range(6000)]
    session = shipped.session()
    assert len(list(session.read(lines))) == len(lines)
    assert len(session.machine.to_dict()["writers"]) <= 4097
    assert len(session.machine.open_writes) <= 4097
    assert not session.safe


def test_a_saved_session_of_something_else_is_refused(shipped: CheckpointPredictor) -> None:
    for found in ({}, {"gpus": "x"}, {**shipped.session().to_dict(), "machine": {}}, {"gpus": 1, "lines": 1}):
        with pytest.raises(ValueError, match=r"session|machine|literal|version"):
            Session.from_dict(found, shipped.classifier)


def test_work_at_risk_is_predicted_with_its_reason(shipped: CheckpointPredictor) -> None:
    lines = tuple(f"2024-05-01 10:00:{n:02d} step {n} loss 0.5" for n in range(1, 30))
    (found,) = shipped.predict(LogQuestion(lines, gpus=8))
    assert found.value is not None
    assert found.value >= 8 * 28
    assert found.reasons[0].code == "NOT_SAFE"
    (refused,) = shipped.predict(LogQuestion(("step 1 loss 2",)))
    assert refused.refused
    assert "arrival times" in refused.reasons[0].message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[INFO|trainer.py:4141] 2026-11-22 07:37:05,389 >> Saving model", "Saving model"),
        ("2024-04-24 00:13:42 | INFO | core.utils | Preparing to save", "Preparing to save"),
        ("INFO:tensorflow:Saving checkpoints", "Saving checkpoints"),
        ("[12/50] loss 0.3", "[12/50] loss 0.3"),
        ("ERROR: no space left", "ERROR: no space left"),
        ('  File "a.py", line 3, in main', '  File "a.py", line 3, in main'),
        ("I0608 20:54:47.917440 12356728 checkpointing.py:1007] Waiting for step 19", "Waiting for step 19"),
        ("I0608 20:54:47.917440 140 saving.py:1007] Saved step 19", "Saved step 19"),
        ("2025-06-15 15:09:20,508\tnode1:0\tlab.train:1205\tINFO\tCheckpoint saved", "Checkpoint saved"),
        ("[PC] 2020-11-11 16:51:55,569 (trainer:286) INFO: Saved", "Saved"),
        ("[06/15 15:07:37 lab.common.checkpoint]: Saving checkpoint", "Saving checkpoint"),
        ("[0807 20:27:10 @saver.py:82] Model saved to a.ckpt", "Model saved to a.ckpt"),
        ("epoch 3 INFO: saved", "epoch 3 INFO: saved"),
    ],
)
def test_what_loggers_put_in_front_is_not_what_was_said(line: str, message: str) -> None:
    assert spoken(read_message(line)) == message


def test_lines_of_one_kind_are_one_template() -> None:
    one = template("step 120/5000 |███▌      | loss 1.25e-3 saved /a/b/c/ckpt-120.pt")
    assert one == template("step 9/300 |█         | loss 7.5e-11 saved /x/y/ckpt-9.pt")
    assert one != template("step 9/300 |█         | loss 7.5e-11 saved /x/y/best-9.pt")
