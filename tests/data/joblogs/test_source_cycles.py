"""Logs rendered from what trainers print: every line has the label that its place in the save cycle gives it."""

import json
from pathlib import Path
from typing import Any

import pytest

from kopt.core.workload.checkpoint import LineLabel
from kopt.data.joblogs.labelled import LabelledLog, LogDataError, read_logs

REPOSITORY = {"repo": "us/trainer", "commit": "0a1b", "framework": "ours"}


def cycle(*parts: tuple[str, str | None], **more: Any) -> dict[str, Any]:
    lines = [{"role": role, "template": template} for role, template in parts]
    return {**REPOSITORY, "step_template": "step {step} loss {loss:.2f}", "cycle": lines, **more}


def rendered(folder: Path, *cycles: dict[str, Any], statements: tuple[dict[str, Any], ...] = ()) -> list[LabelledLog]:
    for name, records in (("cycles", cycles), ("statements", statements)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return read_logs(folder)


def labels(log: LabelledLog, text: str) -> set[LineLabel]:
    return {log.labels[n] for n, line in enumerate(log.lines, 1) if text in line and n in log.labels}


def test_a_cycle_becomes_logs_with_labelled_writes(tmp_path: Path) -> None:
    logs = rendered(
        tmp_path,
        cycle(
            ("ckpt_begin", "about to save to {path}"),
            ("ckpt_silent", None),
            ("ckpt_end", "weights are out"),
            ("ckpt_end", "all of it is out"),
            ("train_step", "@step_template"),
            eval_template="validation {m}",
        ),
    )
    assert len(logs) >= 2
    assert {log.framework for log in logs} == {"ours"}
    for log in logs:
        assert log.source == "us/trainer@0a1b"
        assert labels(log, "about to save") == {LineLabel.CKPT_BEGIN}
        assert labels(log, "weights are out") == {LineLabel.CKPT_PROGRESS}, "the checkpoint is whole at the last end"
        assert labels(log, "all of it is out") == {LineLabel.CKPT_END}
        assert labels(log, "step ") == {LineLabel.TRAIN_STEP}
        assert [log.lines[n - 1].endswith("all of it is out") for n in log.completions] == [True] * 3
        for (first, last), end in zip(log.spans, log.completions, strict=True):
            assert "about to save" in log.lines[first - 1]
            assert last == end - 1
    assert logs == rendered(tmp_path, *[json.loads(line) for line in (tmp_path / "cycles.jsonl").open()])


def test_a_write_that_nothing_ends_is_over_with_the_next_step_and_every_rank_prints_it(tmp_path: Path) -> None:
    parts = cycle(("ckpt_begin", "rank {rank} saves"), ("train_step", "@step_template"))
    parts["cycle"][0]["printed_by"] = "every rank (8)"
    for log in rendered(tmp_path, parts):
        assert [log.labels[number] for number in log.completions] == [LineLabel.TRAIN_STEP] * 3
        assert all(last < end for (_, last), end in zip(log.spans, log.completions, strict=True))
        assert [labels(log, f"rank {rank} saves") for rank in range(3)] == [{LineLabel.CKPT_BEGIN}] * 3
        assert len(log.spans) == 3


def test_statements_stand_between_lines_about_steps(tmp_path: Path) -> None:
    (*_, log) = rendered(
        tmp_path,
        cycle(("ckpt_end", "out")),
        statements=(
            {**REPOSITORY, "role": "negative", "negative_kind": "dataset", "template": "Saved {} examples to {}"},
            {**REPOSITORY, "role": "ckpt_load", "template": "resuming from {}", "fields": ["args.path"]},
            {**REPOSITORY, "role": "negative", "negative_kind": "metrics", "template": "best so far"},
        ),
    )
    assert labels(log, "examples to") == {LineLabel.DATA}
    assert labels(log, "resuming from") == {LineLabel.CKPT_LOAD}
    assert not any("best so far" in line for line in log.lines), "nobody can label this one"
    assert "{" not in "".join(log.lines)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"repo": "us/trainer"}, "no 'framework'"),
        ({**REPOSITORY, "cycle": [{"role": "ckpt_end"}]}, "no 'template'"),
        ({**REPOSITORY, "cycle": 3}, "another type"),
        ({**REPOSITORY, "cycle": [3]}, "another type"),
    ],
)
def test_a_record_of_another_form_is_named(tmp_path: Path, record: dict[str, Any], message: str) -> None:
    with pytest.raises(LogDataError, match=message):
        rendered(tmp_path, record)
