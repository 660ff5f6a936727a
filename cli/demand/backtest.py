"""``kopt demand backtest``: rolling forecasts over the test window of every series, written as Parquet.

Each row is one origin and horizon: ``series, t, h, q50, q90, q95, q99``, with ``t`` the start of the last observed
bucket on the five-minute grid in the file's own time, ``h`` in minutes and values in bucket sums. Every observed origin
of the test window (the last 30 %, at most 10 days) has a row.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kopt.cli.errors import Refused
from kopt.cli.output import column
from kopt.cli.progress import bar, print_status, step
from kopt.core.settings import Settings

if TYPE_CHECKING:
    from kopt.data.demand.rolling import Forecasts
    from kopt.data.demand.table import DemandSeries
    from kopt.training.demand.sources import DemandDataset

GROUPINGS = ("source",)

_AT_ONCE = 8
"""Series forecast together between two moves of the bar."""


@dataclass(frozen=True)
class BacktestRow:
    """One series' share of the file."""

    series: str = column("series")
    group: str = column("group")
    origins: int = column("origins")
    mase_5: float | None = column("MASE 5 min")
    mase_60: float | None = column("60 min")
    against_last_60: float | None = column("to last value", show=lambda ratio: f"× {ratio:.2f}")
    violation_60: float | None = column("p99 violated", show=lambda share: f"{share:.1%}")


def read_dataset(path: Path, series: "Sequence[DemandSeries]") -> "DemandDataset":
    """The series that can be scored, with what SERIES.csv says of them; the others are named on stderr."""
    from kopt.data.demand.catalogue import read_catalogue
    from kopt.training.demand.sources import dataset

    demand_dataset = dataset(path.name, series, read_catalogue(path))
    for name, why in demand_dataset.excluded.items():
        print_status(f"left out: {name}, {why}")
    return demand_dataset


def with_model(data: "DemandDataset", model: str, settings: Settings) -> "Iterator[Forecasts]":
    """Forecasts of a registered model. Raises Refused when it has seen a series of the input."""
    from kopt.sdk import forecast as api
    from kopt.training.pipeline.recipe import recipe_of

    refuse_trained_on(data, model, settings)
    with step("loading the model"):
        predictor, recipe = api.demand_model(model, settings), recipe_of("demand")
    with bar("forecasting") as advance:
        names = [demand_series.name for demand_series in data.series]
        for start in range(0, len(names), _AT_ONCE):
            yield from recipe.backtests(predictor, data, names[start : start + _AT_ONCE])
            advance(min(start + _AT_ONCE, len(names)), len(names))


def refuse_trained_on(data: "DemandDataset", model: str, settings: Settings) -> None:
    """Raises Refused naming series that the model was trained on; its answers there would prove nothing."""
    from kopt.models.demand.training_overlap import trained_until
    from kopt.models.registry import loading

    card = loading.load_card("demand", model, settings)
    overlapping = [demand_series.name for demand_series in data.series if trained_until(card, demand_series)]
    if overlapping:
        names = ", ".join(overlapping[:5]) + (f" and {len(overlapping) - 5} more" if len(overlapping) > 5 else "")
        raise Refused(
            f"model {model} was trained on {len(overlapping)} of {len(data.series)} series of the input ({names}); "
            "--group-cv source fits models that have not seen what they forecast"
        )


def with_group_cv(data: "DemandDataset", settings: Settings) -> "Iterator[Forecasts]":
    """Zero-shot forecasts: every group by a model fitted on all the others. Groups are fitted in parallel by Ray."""
    from kopt.training.pipeline.protocols import NEW, Part
    from kopt.training.pipeline.tasks import RayTasks
    from kopt.training.pipeline.worker import Shared, fit_part

    names = [demand_series.name for demand_series in data.series]
    groups = sorted({data.group(name) for name in names})
    if len(groups) < 2:
        raise Refused(f"the input has one group only ({groups[0]}); cross-validation needs two; SERIES.csv names them")
    with step("computing features"):
        shared = Shared("demand", data, _table(data), _parameters())
    parts = [
        Part(
            group,
            NEW,
            tuple(n for n in names if data.group(n) != group),
            tuple(n for n in names if data.group(n) == group),
            before_window=False,
        )
        for group in groups
    ]
    with step("starting Ray"):
        tasks = RayTasks(settings, on_slow=print_status)
    with tasks, bar("fitting and forecasting groups") as advance:
        for done, (_, result) in enumerate(tasks.map(fit_part, shared, parts), 1):
            advance(done, len(parts))
            yield from result.forecasts


def _table(data: "DemandDataset") -> Any:
    from kopt.models.demand.table import training_table

    return training_table(
        data.series, {demand_series.name: data.group(demand_series.name) for demand_series in data.series}
    )


def _parameters() -> Mapping[str, Any]:
    from kopt.training.pipeline.recipe import recipe_of

    return recipe_of("demand").defaults


def write(path: Path, data: "DemandDataset", forecasts: "Sequence[Forecasts]", own_start_s: Mapping[str, float]) -> int:
    """Write the Parquet file in one step; returns its rows."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    steps = {demand_series.name: demand_series.step_s for demand_series in data.series}
    parts = []
    for item, (position, horizon_s) in itertools.chain.from_iterable(
        zip(itertools.repeat(each), enumerate(each.horizons_s)) for each in forecasts
    ):
        t = own_start_s[item.series] + item.origins * steps[item.series]
        fields = {"series": [item.series] * len(t), "t": t.astype(np.int64), "h": np.full(len(t), horizon_s // 60)}
        values = {f"q{round(100 * q)}": item.value[:, position, k] for k, q in enumerate(item.quantiles)}
        parts.append(pa.table(fields | values))
    table = pa.concat_tables(parts)
    draft = path.with_name(f".{path.name}.draft")
    pq.write_table(table, draft, compression="zstd")
    draft.replace(path)
    return int(table.num_rows)


def own_starts(path: Path) -> dict[str, float]:
    """First ``t`` of every series as the file has it: seconds since its start, or Unix time."""
    import pandas as pd

    file = next(f for f in (path, path / "demand.parquet", path / "demand.csv") if f.is_file())
    with file.open("rb") as head:
        is_parquet = head.read(4) == b"PAR1"
    frame = pd.read_parquet(file, columns=["series", "t"]) if is_parquet else pd.read_csv(file, usecols=["series", "t"])
    first = frame.groupby("series", sort=False)["t"].first()
    if not pd.api.types.is_numeric_dtype(first):
        stamps = pd.to_datetime(first, utc=True, format="ISO8601")
        first = (stamps - pd.Timestamp(0, tz="UTC")).dt.total_seconds()
    return {str(name): float(t) for name, t in first.items()}


def rows(data: "DemandDataset", forecasts: "Sequence[Forecasts]") -> list[BacktestRow]:
    """A summary per series, for people; the file is what counts."""
    return [_row(data, forecast) for forecast in sorted(forecasts, key=lambda forecast: forecast.series)]


def _row(data: "DemandDataset", forecasts: "Forecasts") -> BacktestRow:
    from kopt.training.demand.evaluate import score

    series = next(demand_series for demand_series in data.series if demand_series.name == forecasts.series)
    scores = {item.horizon_s: item for item in score(series, forecasts)}
    near, far = scores.get(300), scores.get(3600)
    return BacktestRow(
        forecasts.series,
        data.group(forecasts.series),
        len(forecasts.origins),
        near.mase if near else None,
        far.mase if far else None,
        far.mase / far.mase_last if far and far.mase_last else None,
        far.violation(0.99) if far else None,
    )
