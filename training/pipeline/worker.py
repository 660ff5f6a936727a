"""What runs inside a worker: fits, backtests, trials. Functions of (shared, item, threads), found by import."""

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kopt.models.predictors import predictor_class
from kopt.models.registry.artifact import save_model
from kopt.training.pipeline.protocols import Backtest, Part
from kopt.training.pipeline.recipe import recipe_of, restore_files, saved_files

FINAL = "final"
_PROBES_PER_PART = 2


class UnusableModelError(ValueError):
    """A saved model that this version of the code cannot load any more."""


@dataclass(frozen=True)
class Shared:
    """What all fits of a run share; stored once for all workers."""

    predictor: str
    dataset: Any
    table: Any
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class Carried:
    """A saved model on its way to workers that may be on other machines."""

    predictor: str
    dataset: Any
    files: Mapping[str, bytes]


def fit_item(shared: Shared, item: Part | str, threads: int) -> Backtest | dict[str, bytes]:
    """A part's backtest, or for ``FINAL`` the files of the model that is fitted on everything."""
    return fit_part(shared, item, threads) if isinstance(item, Part) else fit_all(shared, threads)


def fit_part(shared: Shared, part: Part, threads: int) -> Backtest:
    """Fit on a part and forecast its test series."""
    _limit_threads(threads)
    recipe = recipe_of(shared.predictor)
    predictor = recipe.fit(shared.dataset, shared.table, part, shared.parameters, threads)
    return _backtest(recipe, predictor, shared.dataset, part.test)


def fit_all(shared: Shared, threads: int) -> dict[str, bytes]:
    """Fit on everything; the unsigned model's files."""
    _limit_threads(threads)
    recipe = recipe_of(shared.predictor)
    predictor = recipe.fit(shared.dataset, shared.table, None, shared.parameters, threads)
    with tempfile.TemporaryDirectory() as folder:
        save_model(predictor, Path(folder), recipe.card(shared.dataset, shared.parameters))
        return saved_files(Path(folder))


def replay(carried: Carried, names: Sequence[str], threads: int) -> Backtest:
    """Forecast series with a saved model."""
    _limit_threads(threads)
    recipe = recipe_of(carried.predictor)
    with tempfile.TemporaryDirectory() as folder:
        restore_files(carried.files, Path(folder))
        try:
            predictor = predictor_class(carried.predictor).load(Path(folder))
        except ValueError as error:
            raise UnusableModelError(str(error)) from error
    return _backtest(recipe, predictor, carried.dataset, names)


def try_parameters(shared: Shared, trial: tuple[Mapping[str, Any], tuple[str, ...]], threads: int) -> float:
    """The loss of one set of parameters on held-out series."""
    _limit_threads(threads)
    parameters, held_out = trial
    return recipe_of(shared.predictor).loss(shared.table, held_out, {**shared.parameters, **parameters}, threads)


def _backtest(recipe: Any, predictor: Any, dataset: Any, names: Sequence[str]) -> Backtest:
    forecasts = tuple(recipe.backtests(predictor, dataset, names))
    probed = sorted(forecasts, key=len)[:_PROBES_PER_PART]
    peeked = max((recipe.peeks(predictor, dataset, item.series, item) for item in probed), default=0.0)
    return Backtest(forecasts, peeked)


def _limit_threads(threads: int) -> None:
    """Torch and OpenMP would take every core of the machine, whatever the grant."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, str(threads))
    import torch

    torch.set_num_threads(threads)
