"""Forecasts on disk: Parquet in the public backtest layout, one row per series, origin and horizon."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kopt.data.demand.rolling import Forecasts


def write_forecasts(forecasts: Sequence[Forecasts], path: Path) -> None:
    """Columns ``series, origin, h`` (seconds) and one per quantile."""
    pq.write_table(pa.concat_tables([_rows(forecast) for forecast in forecasts]), path, compression="zstd")


def _rows(forecasts: Forecasts) -> pa.Table:
    origins, horizons = len(forecasts.origins), len(forecasts.horizons_s)
    columns = {
        "series": pa.array([forecasts.series]).take(pa.array(np.zeros(origins * horizons, np.int64))),
        "origin": np.repeat(forecasts.origins, horizons),
        "h": np.tile(np.array(forecasts.horizons_s), origins),
    }
    flat = forecasts.value.reshape(-1, len(forecasts.quantiles))
    return pa.table(columns | {f"q{q:g}": flat[:, i] for i, q in enumerate(forecasts.quantiles)})


def read_forecasts(path: Path) -> tuple[Forecasts, ...]:
    """What ``write_forecasts`` wrote. Raises ValueError for a file that is not whole."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    quantiles = tuple(float(name[1:]) for name in table.column_names if name.startswith("q"))
    names = table.column("series").to_numpy(zero_copy_only=False)
    origin, horizon = table.column("origin").to_numpy(), table.column("h").to_numpy()
    value = np.column_stack([table.column(f"q{q:g}").to_numpy() for q in quantiles])
    forecasts = []
    for name in dict.fromkeys(names):
        mine = names == name
        horizons = tuple(int(h) for h in dict.fromkeys(horizon[mine]))
        shaped = value[mine].reshape(-1, len(horizons), len(quantiles))
        forecasts.append(Forecasts(str(name), origin[mine][:: len(horizons)], horizons, quantiles, shaped))
    return tuple(forecasts)
