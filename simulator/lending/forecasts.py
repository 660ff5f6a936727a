"""Forecasts as ``kopt demand backtest`` wrote them, back on the buckets of their series."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from kopt.data.demand.rolling import Forecasts
from kopt.data.demand.table import DemandDataError, DemandSeries


def read_forecasts(
    path: Path, series: Sequence[DemandSeries], own_start_s: Mapping[str, float], horizons_s: Sequence[int]
) -> dict[str, Forecasts]:
    """By series; of the ``horizons_s`` alone. ``own_start_s`` is the first ``t`` of each in the file of its demand.

    Raises DemandDataError for a file that is no backtest or lacks a horizon, OSError.
    """
    try:
        frame = pd.read_parquet(path)
    except (ValueError, TypeError) as error:
        raise DemandDataError(
            f"{path} is no Parquet file ({error}); `kopt demand backtest --out` writes one"
        ) from error
    names = sorted(
        (column for column in frame.columns if column.startswith("q") and column[1:].isdigit()),
        key=lambda q: int(q[1:]),
    )
    if not {"series", "t", "h"} <= set(frame.columns) or not names:
        raise DemandDataError(f"{path} is no backtest: it needs the columns series, t, h and quantiles such as q99")
    if absent := {number // 60 for number in horizons_s} - set(frame["h"].unique().tolist()):
        raise DemandDataError(f"{path} has no forecasts {min(absent)} minutes ahead")
    quantiles = tuple(int(name[1:]) / 100 for name in names)
    grouped = dict(tuple(frame.groupby("series", sort=False)))
    forecasts_by_name = {}
    for demand_series in series:
        if demand_series.name in grouped:
            values = _by_horizon(grouped[demand_series.name], names, horizons_s)
            origins = np.round(
                (values[0].index.to_numpy(float) - own_start_s[demand_series.name]) / demand_series.step_s
            ).astype(np.int64)
            stacked = np.stack([each.reindex(values[0].index).to_numpy(float) for each in values], 1)
            try:
                forecasts_by_name[demand_series.name] = Forecasts(
                    demand_series.name, origins, tuple(horizons_s), quantiles, stacked
                )
            except ValueError as error:
                raise DemandDataError(f"{path}: {error}") from error
    return forecasts_by_name


def _by_horizon(rows: pd.DataFrame, names: Sequence[str], horizons_s: Sequence[int]) -> list[pd.DataFrame]:
    return [
        rows[rows["h"] == horizon_s // 60].drop_duplicates("t").sort_values("t").set_index("t")[list(names)]
        for horizon_s in horizons_s
    ]
