"""The checkpoint predictor goes through the same pipeline: folds of frameworks, scores by writes, gate."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kopt.core.settings import Settings
from kopt.core.workload.checkpoint import JobState, LineLabel
from kopt.data.joblogs.labelled import LabelledLog, LogDataError
from kopt.models.registry import registry as registering
from kopt.models.registry.registry import Registry
from kopt.training.checkpoint.default_data import licensed_logs
from kopt.training.checkpoint.recipe import LogDataset, LogFolders
from kopt.training.checkpoint.scoring import CheckpointScoring, score_log, summary
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks

_L, _S = LineLabel, JobState
_OPTIONS = TrainOptions(folds=2, parameters={"epochs": 4})


def log(name: str, framework: str, licence: str = "MIT") -> LabelledLog:
    """A job that saves twice and says so."""
    lines, labels, spans, ends = [], {}, [], []
    for save in (1, 2):
        for step in range(6):
            lines.append(f"{framework} step {save * 6 + step}/100 loss 0.{step}")
            labels[len(lines)] = _L.TRAIN_STEP
        lines += [f"Saving checkpoint to out/{save}.pt", f"Saved checkpoint to out/{save}.pt"]
        labels |= {len(lines) - 1: _L.CKPT_BEGIN, len(lines): _L.CKPT_END}
        spans.append((len(lines) - 1, len(lines) - 1))
        ends.append(len(lines))
    return LabelledLog(name, framework, tuple(lines), labels, tuple(spans), tuple(ends), licence=licence)


def dataset() -> LogDataset:
    return LogDataset("made-up", tuple(log(f"{one}-{n}", one) for one in ("a", "b", "c") for n in range(2)))


class Given:
    def __init__(self, found: LogDataset) -> None:
        self.dataset = found

    def read(self) -> LogDataset:
        return self.dataset


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("kopt.training.checkpoint.recipe.MADE_JOBS", 80)
    # The shipped model would be the champion, and is better than what these few lines teach.
    monkeypatch.setattr(registering, "shipped_digests", dict)
    settings = Settings(home=tmp_path / "home")
    registry = Registry(settings, trusted_digests=())
    options = {"settings": settings, "options": _OPTIONS, "tasks": HereTasks(), "registry": registry}
    return lambda found: train("checkpoint", source=Given(found), **options)  # type: ignore[arg-type]


def test_a_first_model_is_judged_on_unseen_frameworks_and_promoted(trained: Any) -> None:
    outcome = trained(dataset())
    assert outcome.decision.passed, outcome.decision.summary
    assert outcome.promoted
    everything = next(one for one in outcome.summaries if one.slice == "all")
    assert (everything.services, everything.spans, everything.spans_unsafe) == (6, 12, 0)
    assert {one.slice for one in outcome.summaries} >= {"framework a", "framework b", "framework c"}
    again = trained(dataset())
    assert again.computed == 0


def answers(found: LabelledLog) -> list[tuple[LineLabel, JobState, bool]]:
    """What an oracle says."""
    writing = {n for first, last in found.spans for n in range(first, last + 1)}
    safe, told = False, []
    for number in range(1, len(found.lines) + 1):
        state = _S.CKPT_WRITING if number in writing else _S.CKPT_DONE if number in found.completions else _S.TRAIN
        safe = ((safe or state is _S.CKPT_DONE) and state is not _S.CKPT_WRITING) or (safe and state is _S.TRAIN)
        told.append((found.labels[number], state, number > found.completions[0] and number not in writing))
    return told


def test_figures_are_what_their_names_say() -> None:
    found = log("x", "x")
    perfect = summary("all", [score_log(found, answers(found))])
    assert (perfect.macro_f1, perfect.spans_unsafe, perfect.unguarded, perfect.held) == (1.0, 0, 0.0, 0.0)
    assert (perfect.completions_seen, perfect.done_false, perfect.killable) == (1.0, 0.0, 1.0)
    told = answers(found)
    told[6] = (_L.OTHER, _S.TRAIN, True)
    told[3] = (_L.TRAIN_STEP, _S.CKPT_WRITING, False)
    told[11] = (_L.TRAIN_STEP, _S.CKPT_DONE, True)
    worse = summary("all", [score_log(found, told)])
    assert (worse.spans_unsafe, worse.unguarded, worse.held) == (1, 0.5, pytest.approx(1 / 14))
    assert worse.done_false == pytest.approx(1 / 3)
    assert worse.f1["ckpt_begin"] == pytest.approx(2 / 3)
    always_hold = [(label, _S.CKPT_WRITING, False) for label, _, _ in answers(found)]
    held = summary("all", [score_log(found, always_hold)])
    assert (held.spans_unsafe, held.killable) == (0, 0.0), "holding always must not look good"
    with pytest.raises(ValueError, match="16 lines, 3 answers"):
        score_log(found, told[:3])


def test_runs_survive_the_disk_and_a_torn_file_is_named(tmp_path: Path) -> None:
    found = log("x", "x")
    runs = [score_log(found, answers(found))]
    scoring = CheckpointScoring()
    scoring.write(runs, tmp_path / "runs.json")
    assert scoring.read(tmp_path / "runs.json") == tuple(runs)
    (tmp_path / "runs.json").write_text("[{")
    with pytest.raises(ValueError, match=r"runs\.json"):
        scoring.read(tmp_path / "runs.json")


def test_only_logs_whose_licence_allows_it_are_shipped() -> None:
    found = replace(dataset(), logs=(log("free", "a"), log("none", "a", "none-stated"), log("bsd", "b", "BSD")))
    kept = licensed_logs(found)
    assert kept.names == ("free", "bsd")
    assert set(kept.excluded) == {"none"}


def test_a_folder_without_logs_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "something.txt").write_text("x")
    with pytest.raises(LogDataError, match=r"neither labels\.jsonl"):
        LogFolders((tmp_path,)).read()
