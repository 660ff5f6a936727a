"""The real predictor, trained on a planted leak or on spoilt data, is refused; trained well, its accuracy
is not called worse."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kopt.core.settings import Settings
from kopt.features.demand import COLUMN
from kopt.models.demand.table import TrainingTable, training_table
from kopt.models.registry.registry import Registry
from kopt.training.demand.recipe import DemandRecipe
from kopt.training.demand.sources import DemandDataset
from kopt.training.pipeline.run import TrainingOutcome, TrainOptions, train
from kopt.training.pipeline.tasks import HereTasks

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
QUICK = {"rounds": 40, "network_epochs": 2, "rows_per_series": 800, "rows_in_leaf": 50}


def _leaky(table: TrainingTable) -> TrainingTable:
    """Changes of the past are replaced by changes to come, as a careless join would do."""
    features = table.features.copy()
    ahead = np.nan_to_num(table.log_ratios())
    for column, name in enumerate(("change_10m", "change_20m", "change_60m")):
        features[:, COLUMN[name]] = ahead[:, column]
    return replace(table, features=features)


def _spoilt(table: TrainingTable) -> TrainingTable:
    """Targets of other moments, as after sorting one column and not the other; they still look like demand."""
    order = np.random.default_rng(0).permutation(len(table))
    last, floor = table.features[:, [COLUMN["last_value"]]], table.features[:, [COLUMN["floor"]]]
    shuffled = np.exp(table.log_ratios()[order]) * (last + floor) * 1.5 - floor
    return replace(table, targets=np.maximum(shuffled, 0))


def _untouched(table: TrainingTable) -> TrainingTable:
    return table


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def trained(home: Path, champion_source: Any) -> Settings:
    """A state folder whose champion was trained well on other services."""
    settings = Settings(home=home)
    registry = Registry(settings, trusted_digests=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kopt.models.registry.registry.shipped_digests", dict)
        patch.setattr(DemandRecipe, "table", lambda _, data, __: _table(data))
        outcome = _train(settings, registry, champion_source, 0)
    registry.promote("demand", outcome.model.version, force=True)
    return settings


def _table(data: DemandDataset) -> TrainingTable:
    return training_table(data.series, {one.name: data.group(one.name) for one in data.series})


def _train(settings: Settings, registry: Registry, source: Any, seed: int) -> TrainingOutcome:
    options = TrainOptions(folds=2, parameters={**QUICK, "seed": seed}, promote=False)
    return train(source=source, settings=settings, options=options, tasks=HereTasks(), registry=registry)


@pytest.mark.parametrize(
    ("change", "codes", "seed"),
    [
        (_leaky, {"WORSE_ACCURACY", "WORSE_LENDING", "WORSE_SAFETY"}, 1),
        (_spoilt, {"WORSE_ACCURACY", "WORSE_LENDING", "WORSE_SAFETY"}, 2),
        (_untouched, {"NO_BETTER", "BETTER", "WORSE_LENDING"}, 3),
    ],
)
def test_the_gate_refuses_leaks_and_worse_data_and_says_where(
    trained: Settings,
    challenger_source: Any,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[TrainingTable], TrainingTable],
    codes: set[str],
    seed: int,
) -> None:
    monkeypatch.setattr(DemandRecipe, "table", lambda _, data, __: change(_table(data)))
    outcome = _train(trained, Registry(trained, trusted_digests=()), challenger_source, seed)
    found = {reason.code for reason in outcome.decision.reasons}
    assert found <= codes, outcome.decision.summary
    if change is not _untouched:
        assert not outcome.decision.passed
        assert {reason.numbers["slice"] for reason in outcome.decision.reasons}
        assert "Worse on " in outcome.decision.summary
