"""The sizing predictor goes through the same pipeline: folds of families, scores, gate, registration."""

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from empty_registry import with_empty_registry

from kopt.core.settings import Settings
from kopt.core.units import Bytes
from kopt.data.memory import MemoryDataError
from kopt.models.registry.registry import Registry
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks
from kopt.training.sizing.default_data import licensed_runs
from kopt.training.sizing.recipe import MemoryRuns, SizingDataset
from kopt.training.sizing.scoring import SizedRun, SizingScoring, summary

_EXAMPLE = Path(__file__).parents[1] / "models" / "examples" / "sizing.py"
_OPTIONS = TrainOptions(folds=3, parameters={"rounds": 10, "rows_in_leaf": 3})


def _dataset(factor: float = 1.0) -> SizingDataset:
    spec = importlib.util.spec_from_file_location("example_sizing_runs", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runs = tuple(replace(one, measured=Bytes(int(one.measured * factor))) for one in module.runs())
    return SizingDataset("made-up", runs, {}, {"source-0": "MIT", "source-1": "", "source-2": "see LICENSE"})


class Given:
    """A data set as a source."""

    def __init__(self, dataset: SizingDataset) -> None:
        self.dataset = dataset

    def read(self) -> SizingDataset:
        return self.dataset


@pytest.fixture
def trained(tmp_path: Path) -> Any:
    settings = Settings(home=with_empty_registry(tmp_path / "home"))
    registry = Registry(settings, trusted_digests=())
    options = {"settings": settings, "options": _OPTIONS, "tasks": HereTasks(), "registry": registry}
    return lambda dataset: train("sizing", source=Given(dataset), **options)  # type: ignore[arg-type]


def test_a_first_model_is_judged_on_unseen_families_and_promoted(trained: Any) -> None:
    outcome = trained(_dataset())
    assert outcome.decision.passed, outcome.decision.summary
    assert outcome.promoted
    everything = next(one for one in outcome.summaries if one.slice == "all")
    assert everything.services == 120
    assert everything.median_error < 0.15
    assert {one.slice for one in outcome.summaries} >= {"kind abstract-process", "source source-1"}


def test_an_identical_run_computes_nothing(trained: Any) -> None:
    trained(_dataset())
    again = trained(_dataset())
    assert again.computed == 0
    assert again.promoted


def test_a_champion_that_has_seen_every_family_cannot_be_judged_against(trained: Any) -> None:
    trained(_dataset())
    other = trained(_dataset(1.01))
    assert not other.decision.passed
    assert other.decision.reasons[0].code == "TOO_LITTLE_DATA"


def test_only_runs_whose_licence_allows_it_are_shipped() -> None:
    kept = licensed_runs(_dataset())
    assert {one.source for one in kept.runs} == {"source-0"}
    assert set(kept.excluded) == {"source-1", "source-2"}


def test_a_folder_without_tables_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MemoryDataError, match="holds none of the tables"):
        MemoryRuns(tmp_path, Settings(home=tmp_path)).read()


def test_forecasts_survive_the_disk_and_a_torn_file_is_named(tmp_path: Path) -> None:
    runs = [SizedRun("s/f", "r", "abstract-process", 4.0, 5.0, 3.0, 6.0)]
    scoring = SizingScoring()
    scoring.write(runs, tmp_path / "f.parquet")
    assert scoring.read(tmp_path / "f.parquet") == tuple(runs)
    (tmp_path / "f.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"f\.parquet"):
        scoring.read(tmp_path / "f.parquet")


def test_figures_are_what_their_names_say() -> None:
    runs = [
        SizedRun("a", "1", "k", 100.0, 110.0, 90.0, 120.0),
        SizedRun("a", "2", "k", 100.0, 80.0, 70.0, 90.0),
    ]
    found = summary("all", runs)
    assert (found.services, found.p_under, found.coverage) == (2, 0.5, 0.5)
    assert found.median_error == pytest.approx(0.15)
    assert found.mean_slack == pytest.approx(0.1)
