"""Labelled logs are read whole or refused with the file's name; made-up ones say what they are labelled."""

import gzip
import itertools
import json
import random
from pathlib import Path

import pytest

from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.labelled import LogDataError, family_of, read_logs
from kopt.data.joblogs.phrases import Phrases, dressed, phrases
from kopt.data.joblogs.scenarios import Scenario


def _excerpt(folder: Path, **changes: object) -> Path:
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "a.log").write_bytes(b"step 1\rstep 2\r\nSaving\nSaved\n")
    record = {
        "file": "a.log",
        "framework": "plain",
        "lines": {"1": "train_step", "3": "ckpt_begin"},
        "completed_at": [4],
        "write_intervals": [{"begin": 3, "end": 4, "kind": "sync", "end_evidence": "explicit"}],
        "licence": "MIT",
    }
    (folder / "labels.jsonl").write_text(json.dumps({**record, **changes}) + "\n")
    return folder


def test_an_excerpt_is_read_with_its_writes(tmp_path: Path) -> None:
    (log,) = read_logs(_excerpt(tmp_path / "x"))
    assert log.lines == ("step 1", "step 2", "Saving", "Saved")
    assert log.spans == ((3, 3),), "the line that tells the end is not in the write"
    assert (log.completions, log.labels[3]) == ((4,), LineLabel.CKPT_BEGIN)


@pytest.mark.parametrize(
    ("evidence", "spans"), [("next_activity", ((3, 4),)), ("truncated", ((3, 4),)), ("unknown: only text follows", ())]
)
def test_writes_without_a_told_end_last_through_their_last_line(
    tmp_path: Path, evidence: str, spans: tuple[tuple[int, int], ...]
) -> None:
    found = [{"begin": 3, "end": 4, "kind": "sync", "end_evidence": evidence}]
    (log,) = read_logs(_excerpt(tmp_path / "x", write_intervals=found))
    assert log.spans == spans


@pytest.mark.parametrize("lines", [{"9": "eval"}, {"0": "eval"}, {"1": "sleeping"}])
def test_labels_that_cannot_be_are_refused(tmp_path: Path, lines: dict[str, str]) -> None:
    with pytest.raises(LogDataError, match=r"a\.log"):
        read_logs(_excerpt(tmp_path / "x", lines=lines))


def test_a_recording_is_read_and_a_torn_one_refused(tmp_path: Path) -> None:
    packed = gzip.compress(b"step 1\nstep 2\nstep 3\n")
    (tmp_path / "r.log.gz").write_bytes(packed)
    record = {
        "name": "r",
        "framework": "plain",
        "labels": {"1": "train_step"},
        "arrivals_ms": [0, 1000, 2000],
        "writes": [{"unit": "ckpt_1", "start_s": 0.5, "end_s": 1.5, "step": 1, "complete": True}],
    }
    (tmp_path / "records.jsonl").write_text(json.dumps(record) + "\n")
    (log,) = read_logs(tmp_path)
    assert (log.spans, log.arrivals_s) == (((2, 2),), (0.0, 1.0, 2.0))
    (tmp_path / "r.log.gz").write_bytes(packed[:-9])
    with pytest.raises(LogDataError, match=r"r\.log\.gz"):
        read_logs(tmp_path)
    with pytest.raises(LogDataError, match=r"neither labels\.jsonl"):
        read_logs(tmp_path / "nothing")


def test_every_meaning_can_be_said_in_many_ways_and_the_same_seed_says_the_same() -> None:
    source = phrases()
    for label in LineLabel:
        rng = random.Random(1)
        said = {dressed(source.render(label, rng), label, rng) for _ in range(200)}
        assert len(said) > 60, label
        again = random.Random(1)
        assert dressed(source.render(label, again), label, again) in said


def test_a_phrase_with_a_bracket_too_many_is_refused() -> None:
    words = {"tmetric": ["loss"], "neutral": ["a"]}
    for text in ("(a|b", "a (b|c)) d ("):
        with pytest.raises(ValueError, match="bracket"):
            Phrases(words, {"other": [text]})


def test_made_up_jobs_begin_writes_before_they_end_them() -> None:
    rng = random.Random(5)
    jobs = [Scenario(rng).lines(40) for _ in range(100)]
    labels = [label for job in jobs for _, label in job]
    assert set(labels) >= set(LineLabel)
    after_begin = [b for job in jobs for (_, a), (_, b) in itertools.pairwise(job) if a is LineLabel.CKPT_BEGIN]
    assert LineLabel.CKPT_BEGIN not in after_begin


def test_kin_are_left_out_together() -> None:
    assert family_of("llama_factory") == family_of("hf_trainer")
    assert family_of("plain_print_zh") == family_of("plain")
    assert family_of("darknet") == "darknet"
