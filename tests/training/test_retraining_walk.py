"""An engineer trains each predictor on her table, then on another, and reads in MLflow why the second won or lost."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from empty_registry import with_empty_registry

from kopt.core.settings import Settings
from kopt.models.registry import registry as registering
from kopt.models.registry.registry import Registry
from kopt.training.bandwidth.recipe import BandwidthDataset
from kopt.training.checkpoint.recipe import LogDataset
from kopt.training.pipeline.run import TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks
from kopt.training.runtime.recipe import RunDataset
from tests.training import (
    test_bandwidth_training,
    test_checkpoint_training,
    test_runtime_training,
    test_sizing_training,
)

pytestmark = [pytest.mark.slow, pytest.mark.long]


@dataclass(frozen=True)
class Walk:
    """Two tables of one predictor; a model that learned from the first has seen nothing of the second."""

    first: Any
    second: Any
    slices: frozenset[str]
    parameters: Mapping[str, Any]
    folds: int = 3


def _sizing() -> Walk:
    first = test_sizing_training._dataset()
    others = tuple(replace(one, name=f"new-{one.name}", family=f"new-{one.family}") for one in first.runs)
    slices = frozenset({"all", "kind abstract-process", "source source-1"})
    return Walk(first, replace(first, runs=others), slices, {"rounds": 10, "rows_in_leaf": 3})


def _checkpoint() -> Walk:
    def logs(frameworks: str) -> LogDataset:
        return LogDataset(
            "made-up", tuple(test_checkpoint_training.log(f"{one}-{n}", one) for one in frameworks for n in range(2))
        )

    return Walk(logs("abc"), logs("def"), frozenset({"all", "framework d"}), {"epochs": 4}, 2)


def _bandwidth() -> Walk:
    rows = test_bandwidth_training.rows()
    others = tuple(replace(one, machine=f"{one.machine} in another box") for one in rows)
    return Walk(BandwidthDataset("made-up", rows), BandwidthDataset("made-up", others), frozenset({"all"}), {})


def _runtime() -> Walk:
    def runs(*names: str) -> RunDataset:
        return RunDataset("made-up", tuple(test_runtime_training.trace(name, seed) for seed, name in enumerate(names)))

    slices = frozenset({"all", "regime new services"})
    return Walk(runs("east", "west", "north"), runs("south", "up", "down"), slices, test_runtime_training.SMALL)


@dataclass(frozen=True)
class Table:
    """A table that is there already, as a source."""

    dataset: Any

    def read(self) -> Any:
        return self.dataset


@pytest.mark.parametrize(
    ("predictor", "made"),
    [("sizing", _sizing), ("checkpoint", _checkpoint), ("bandwidth", _bandwidth), ("runtime", _runtime)],
)
def test_mlflow_says_by_slice_why_the_second_model_won_or_lost(
    predictor: str, made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The shipped models would be the champions, and are better than what these few rows teach.
    monkeypatch.setattr(registering, "shipped_digests", dict)
    monkeypatch.setattr("kopt.training.checkpoint.recipe.MADE_JOBS", 200)
    settings, walk = Settings(home=with_empty_registry(tmp_path / "home")), made()
    registry = Registry(settings, trusted_digests=())
    options = TrainOptions(folds=walk.folds, parameters=walk.parameters)

    def trained(table: Any) -> Any:
        return train(
            predictor, source=Table(table), settings=settings, options=options, tasks=HereTasks(), registry=registry
        )

    first, second = trained(walk.first), trained(walk.second)
    assert first.promoted, first.decision.summary
    client = registry.client
    version = client.get_model_version(predictor, second.model.version)
    outcome = "passed" if second.decision.passed else "refused"
    assert f"The gate {outcome} it against version 1" in version.description, version.description
    assert second.decision.summary in version.description
    figures = client.get_run(second.model.run_id).data.metrics
    assert walk.slices <= {name.partition("/")[0] for name in figures}, "the figures of each slice"
    folder = Path(client.download_artifacts(second.model.run_id, "gate"))
    rows = list(csv.DictReader((folder / "comparisons.csv").read_text().splitlines()))
    assert walk.slices <= {row["slice"] for row in rows}, "each comparison with the champion"
    for row in rows:
        low, change, high = (float(row[name]) for name in ("low", "change", "high"))
        assert low <= change <= high
        assert (float(row["champion"]) > float(row["challenger"])) == (change > 0), row
    assert second.decision.summary in (folder / "reasons.md").read_text()
    # She puts the first one back where she thinks otherwise.
    registry.promote(predictor, first.model.version, force=True, reason="by hand")
    assert registry.resolve(predictor).version == first.model.version
