"""A small demand predictor and what to ask it."""

from dataclasses import replace
from typing import Any

import numpy as np

from kopt.data.demand.generator import generate
from kopt.data.demand.table import DemandSeries
from kopt.models.demand.global_model import GlobalSettings
from kopt.models.demand.predictor import DemandPredictor, DemandRequest
from kopt.models.demand.table import training_table

PREDICTOR = DemandPredictor
_SETTINGS = GlobalSettings(rounds=5, rows_per_series=300, network_epochs=1)


def make() -> DemandPredictor:
    return DemandPredictor(_SETTINGS)


def table() -> Any:
    return training_table(generate(3, 3.0, seed=3))


def requests() -> list[DemandRequest]:
    """Ordinary, tiny, huge, gappy and short histories."""
    series = replace(generate(1, 2.5, seed=9)[0], tenants={})
    gappy = series.value.copy()
    gappy[100:140] = np.nan
    ends = gappy.copy()
    ends[-30:] = np.nan
    others = [series.value * 1e-6, series.value * 1e9, gappy, ends, np.zeros(700), series.value[:40]]
    asked = [series, *(DemandSeries("other", 0.0, 300, value) for value in others)]
    return [DemandRequest(one) for one in asked]


def refused() -> list[DemandRequest]:
    """What no forecast can be made of."""
    return [
        DemandRequest(DemandSeries("unknown", 0.0, 300, np.full(600, np.nan))),
        DemandRequest(generate(1, 2.0, seed=9)[0], horizons_s=(7 * 86_400.0,)),
    ]
