"""Where calibration starts: scores of the online mixture on services that the global model was not fitted on."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kopt.features.demand import COLUMN
from kopt.models.demand.calibration import DEFAULT_THRESHOLDS, pooled_thresholds
from kopt.models.demand.global_model import GlobalModel, GlobalSettings
from kopt.models.demand.replay import Track, replay
from kopt.models.demand.table import TrainingTable

Array = NDArray[np.float64]
_WARM_UP = 288
"""Scores before the error scales have settled are not counted."""
_MOST_ROWS = 2000


def thresholds(table: TrainingTable, settings: GlobalSettings) -> Array:
    """Pooled thresholds (H, levels) from two fits, each on one half of the groups and judged on the other half.

    With a single group its series are halved instead; with a single series there is nothing to hold out, and the
    defaults stand.
    """
    groups = table.groups if len(np.unique(table.groups)) > 1 else table.series
    names = np.unique(groups)
    if len(names) < 2:
        return DEFAULT_THRESHOLDS.copy()
    half = np.isin(groups, np.random.default_rng(settings.seed).permutation(names)[: len(names) // 2])
    # Half the trees: the spread of scores settles long before the medians do.
    quick = replace(settings, rounds=max(1, settings.rounds // 2), rows_per_series=settings.rows_per_series // 2)
    scores: list[Array] = []
    for fitted, evaluated in ((half, ~half), (~half, half)):
        model = GlobalModel.fit(table.where(fitted), quick)
        scores += _scores(list(_by_series(table.where(evaluated))), model)
    return pooled_thresholds(scores)


def _by_series(table: TrainingTable) -> Iterator[TrainingTable]:
    for name in np.unique(table.series):
        rows = table.where(table.series == name)
        order = np.argsort(rows.origins_s, kind="stable")[-_MOST_ROWS:]
        mask = np.zeros(len(rows), dtype=bool)
        mask[order] = True
        yield rows.where(mask)


def _scores(series: list[TrainingTable], model: GlobalModel) -> list[Array]:
    """Scores (n, H) of series replayed from their rows, those of one step together."""
    steps = [int(rows.features[0, COLUMN["step_s"]]) for rows in series]
    scores: list[Array] = []
    for step_s in sorted(set(steps)):
        tracks = [_track(rows, step_s, model) for rows, mine in zip(series, steps, strict=True) if mine == step_s]
        scores += [run.scores[_WARM_UP:] for run in replay(tracks, step_s, DEFAULT_THRESHOLDS)]
    return scores


def _track(rows: TrainingTable, step_s: int, model: GlobalModel) -> Track:
    """An origin that is missing in the table is a gap, with the features of the next one."""
    bucket = np.round((rows.origins_s - rows.origins_s[0]) / step_s).astype(np.int64)
    trees, network = model.predict(rows.features)
    value = np.full(bucket[-1] + 1, np.nan)
    value[bucket] = rows.features[:, COLUMN["last_value"]]
    row = np.searchsorted(bucket, np.arange(len(value)))
    return Track(value, rows.features[row], trees[row], network[row])
