"""What is kept by a text's shape is what each text of the shape says by itself."""

import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kopt.data.joblogs.labelled import read_logs
from kopt.models.checkpoint import line_facts as facts
from kopt.models.checkpoint.classifier import tokens as words
from kopt.models.checkpoint.classifier.lines import LineClassifier
from kopt.models.checkpoint.classifier.text_shape import shape_of, text_of
from kopt.models.checkpoint.predictor import CheckpointPredictor
from kopt.models.registry.shipped import load_shipped
from kopt.training.checkpoint.default_data import RECORDED

_PARTS = (
    "step",
    "epoch",
    "Epoch ",
    "iter: ",
    "it",
    "updates",
    " steps",
    "global_step=",
    "第",
    "步",
    "шаг ",
    "ep#",
    "[",
    "]",
    " ",
    "  ",
    "/",
    " / ",
    "\\",
    "a/b/",
    "ckpt-",
    ":",
    ".",
    "=",
    "-",
    "====",
    "....",
    "|",
    "█",
    "▏▎",
    "%",
    "e-",
    "0",
    "00",
    "007",
    "1",
    "9",
    "12",
    "30",
    "999999",
    "000000000000000000000",
    "12345678901234567890",
    "٣",
    "९",
    "²",
    "4/4",
    " 12/30 ",
    " 9/4 ",
    "epoch 03",
    "½",
    "\ud800",
    "\udfff",
    "\udc9f",
    "😀",
    "é",
    "\x00",
    "\n",
    "it/s",
    "10:00:00",
    "run1/",
    "/0/",
    "ckpt",
    "model_",
    "state-",
    " for step ",
    " at ",
    "GB",
    "s",
    "MB ",
)
_ANY = st.characters(codec=None, exclude_categories=())
LINES = st.lists(st.sampled_from(_PARTS) | _ANY, max_size=16).map("".join)


def plain_template(text: str) -> str:
    """Word for word, by the text itself."""
    text = words._BLOCKS.sub("█", text.translate(words._PARTIAL_BLOCKS))
    if len(re.findall(r"[/\\]", text)) > 1:
        text = words._FOLDERS.sub("/", text)
    return words._RUN.sub(r"\1\1\1", words._NUMBER.sub("0", text))


def plain_epoch(text: str) -> int | None:
    found = facts._EPOCH.search(text)
    return int(found[1][:18]) if found else None


def plain_step(text: str) -> int | None:
    found = facts._NAMED.search(text) or facts._BEFORE.search(text)
    if found:
        return int(found[1][:18])
    done = [one[1] for one in facts._OF.finditer(text) if int(one[2][:18]) >= int(one[1][:18])]
    return int(done[0][:18]) if done else plain_epoch(text)


def plain_saved(text: str) -> int | None:
    text = facts._from_folder(facts._PATH.sub(plain_path, text))
    ways = (facts._NAMED, facts._BEFORE, facts._IN_NAME, facts._SAVED, facts._FILE, facts._FOR, facts._EPOCH)
    found = next((one for one in (way.search(text) for way in ways) if one), None)
    return int(found[1][:18]) if found else None


def plain_path(found: re.Match[str]) -> str:
    """From the last part on that is named like a checkpoint, by the text itself."""
    parts = found[0].split("/")
    while any(facts._SAVED.search(one) for one in parts[1:]):
        parts.pop(0)
    kept = "/".join(parts)
    return kept if kept == found[0] else f"/{kept}".rjust(len(found[0]))


@given(LINES)
def test_a_shape_is_a_text_as_long_with_the_same_characters_but_for_digits(line: str) -> None:
    text = text_of(shape_of(line))
    assert len(text) == len(line)
    assert re.sub("[0-9]", "0", text) == re.sub("[0-9]", "0", line)
    assert shape_of(text) == shape_of(line)


@given(LINES)
def test_the_template_of_a_shape_is_that_of_each_of_its_lines(line: str) -> None:
    assert words.template(line) == plain_template(line)


@given(LINES, LINES)
def test_of_a_long_line_both_ends_make_the_template(head: str, tail: str) -> None:
    line = f"{head}{'x' * 480}{tail}{'saved 12 ' * 40}"
    assert words.template(line) == plain_template(f"{line[:480]} … {line[-240:]}")


@given(LINES)
def test_numbers_are_read_where_the_shape_has_them(line: str) -> None:
    assert facts.step_of_progress(line) == plain_step(line)
    assert facts.epoch_of(line) == plain_epoch(line)
    assert facts.step_of_checkpoint(line) == plain_saved(line)


def test_recorded_lines_with_any_digits_say_what_they_say_by_themselves() -> None:
    rng = random.Random(11)
    for line in rng.sample([line for log in read_logs(RECORDED) for line in log.lines], 4000):
        digits = rng.choice(("0", "01", "0123456789٣"))
        text = re.sub("[0-9]", lambda _, digits=digits: rng.choice(digits), line)[:600]
        assert words.template(text) == plain_template(text)
        assert (facts.step_of_progress(text), facts.epoch_of(text)) == (plain_step(text), plain_epoch(text))
        assert facts.step_of_checkpoint(text) == plain_saved(text)


@pytest.mark.parametrize(
    ("line", "step", "epoch"),
    [
        ("iteration 7, epoch 03", 7, 3),
        ("iteration 8, epoch 12", 8, 12),
        ("9/4 5/7", 5, None),
        ("3/4 5/7", 3, None),
        ("9/4 8/7", None, None),
        ("4/4", 4, None),
        ("epoch 000 loss 1", 0, 0),
        ("epoch 0٣", 3, 3),
        ("iter 000000000000000000123", 0, None),
        ("epoch 000000000000000000123", 123, 123),
        ("x" * 600 + " step 3", None, None),
    ],
)
def test_lines_of_one_shape_keep_their_own_numbers(line: str, step: int | None, epoch: int | None) -> None:
    assert (facts.step_of_progress(line), facts.epoch_of(line)) == (step, epoch)


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("saved model-0012.pt", 12),
        ("saved model-9999.pt", 9999),
        ("saved model-0000.pt", 0),
        ("saved ckpt_000000000000000000123", 123),
        ("saved at iteration 000000000000000000123", 0),
        ("saved at 007", 7),
        ("saved " + "x" * 600, None),
    ],
)
def test_checkpoints_of_one_shape_keep_their_own_steps(line: str, step: int | None) -> None:
    assert facts.step_of_checkpoint(line) == step


@pytest.fixture(scope="module")
def classifier() -> LineClassifier:
    found = load_shipped("checkpoint")
    assert isinstance(found, CheckpointPredictor)
    return found.classifier


def test_what_a_line_says_does_not_hang_on_the_lines_it_comes_with(classifier: LineClassifier) -> None:
    rng = random.Random(5)
    pieces = ["step", "saving", "loss", "to", "a/b/c", "12", "é", "█", "", "shard", "epoch"]
    lines = [" ".join(rng.choice(pieces) for _ in range(rng.randrange(12))) for _ in range(150)]
    templates = [words.template(line) for line in lines]
    _, together = LineClassifier(classifier.parameters).alone(templates)
    single = LineClassifier(classifier.parameters)
    for template, shares in zip(templates, together, strict=True):
        np.testing.assert_allclose(single.alone([template])[1][0], shares, atol=1e-5)


_ASK = """
import hashlib, random
from kopt.models.registry.shipped import load_shipped
classifier, rng = load_shipped("checkpoint").classifier, random.Random(7)
words = ("saving", "step", "of", "7", "model", "loss", "x")
lines = [" ".join(rng.choice(words) for _ in range(9)) for _ in range(999)]
hidden, alone = classifier.alone(lines)
within = classifier.within(hidden, alone[[[n, n - 1, n - 2] for n in range(999)]])
print(hashlib.sha256(alone.tobytes() + within.tobytes()).hexdigest())
"""


def test_answers_are_the_same_to_the_last_bit_however_many_threads_there_are() -> None:
    # Products that BLAS spreads over threads are rounded otherwise, and take longer: these are small.
    answers = set()
    for threads in ("1", "2"):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
        asked = subprocess.run(
            [sys.executable, "-c", _ASK], env=environment, capture_output=True, text=True, check=True, timeout=90
        )
        answers.add(asked.stdout)
    assert len(answers) == 1
