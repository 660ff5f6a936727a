"""The search of every predictor tries parameters: ``kopt train PREDICTOR --trials``."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest

from kopt.core.settings import Settings
from kopt.models.predictors import predictor_names
from kopt.training.bandwidth.recipe import BandwidthDataset
from kopt.training.demand.sources import GeneratedSource
from kopt.training.pipeline.recipe import folds, recipe_of
from tests.training import (
    test_bandwidth_training,
    test_checkpoint_training,
    test_runtime_training,
    test_sizing_training,
)

DATASETS: Mapping[str, Callable[[], Any]] = {
    "bandwidth": lambda: BandwidthDataset("made-up", test_bandwidth_training.rows()),
    "checkpoint": test_checkpoint_training.dataset,
    "demand": GeneratedSource(services=3, days=4.0, seed=5).read,
    "runtime": test_runtime_training.dataset,
    "sizing": test_sizing_training._dataset,
}


@pytest.mark.parametrize("predictor", predictor_names())
def test_a_trial_has_a_loss(predictor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kopt.training.checkpoint.recipe.MADE_JOBS", 100)
    recipe, dataset = recipe_of(predictor), DATASETS[predictor]()
    held_out = folds(dataset, 3)[-1].test
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask()
    parameters = {**recipe.defaults, **recipe.suggest(trial)}
    loss = recipe.loss(recipe.table(dataset, Settings(home=tmp_path)), held_out, parameters, 1)
    assert math.isfinite(loss)
    assert trial.params
