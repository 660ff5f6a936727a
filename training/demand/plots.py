"""Figures of a demand training: calibration, forecast fans, lending frontier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kopt.data.demand.rolling import GPUS, Forecasts
from kopt.data.demand.table import DemandSeries
from kopt.features.demand import steps_ahead
from kopt.training.demand.evaluate import Score
from kopt.training.pipeline.plot_page import new_figure, write_plot_page

_FAN_DAYS = 2
_FANS = 6
_FACTORS = np.geomspace(0.4, 4.0, 40)


def write_plots(
    folder: Path, scores: Sequence[Score], series: Sequence[DemandSeries], forecasts: Sequence[Forecasts]
) -> tuple[Path, ...]:
    """Write every figure into one page in ``folder``; returns the files."""
    by_name = {demand_series.name: demand_series for demand_series in series}
    figures = {"calibration": calibration(scores), "lending_frontier": lending_frontier(scores)}
    for number, item in enumerate(_most_telling(forecasts), 1):
        figures[f"fan_{number}"] = fan(by_name[item.series], item)
    return (write_plot_page(folder, figures),)


def calibration(scores: Sequence[Score]) -> Any:
    """How often demand stayed at or below each quantile, by horizon; on the diagonal is right."""
    figure = new_figure("Calibration", "promised probability", "observed share of moments")
    figure.add_scatter(x=[0.4, 1], y=[0.4, 1], mode="lines", name="perfect", line={"dash": "dot", "color": "gray"})
    for horizon_s in sorted({score.horizon_s for score in scores}):
        mine = [score for score in scores if score.horizon_s == horizon_s]
        levels = sorted(mine[0].below)
        observed = [float(np.mean([score.below[q].sum() / score.rows.sum() for score in mine])) for q in levels]
        figure.add_scatter(x=levels, y=observed, mode="lines+markers", name=f"{horizon_s // 60} min")
    return figure


def lending_frontier(scores: Sequence[Score]) -> Any:
    """Share of 64 GPUs lent against violation, as the q95 forecast is scaled up and down; higher and left is better."""
    figure = new_figure("Lending frontier", "moments with too few GPUs", "share of GPUs lent")
    for horizon_s in sorted({score.horizon_s for score in scores}):
        mine = [score.moments for score in scores if score.horizon_s == horizon_s]
        points = []
        for factor in _FACTORS:
            gpus = [np.clip(np.ceil(m.forecast * factor - 1e-9), 1, GPUS) for m in mine]
            short = np.mean([(m.need() > g).mean() for m, g in zip(mine, gpus, strict=True)])
            points.append((float(short), float(np.mean([(1 - g / GPUS).mean() for g in gpus]))))
        figure.add_scatter(
            x=[x for x, _ in points], y=[y for _, y in points], mode="lines+markers", name=f"{horizon_s // 60} min"
        )
    figure.update_xaxes(range=[0, 0.1], tickformat=".0%")
    figure.update_yaxes(tickformat=".0%")
    return figure


def fan(series: DemandSeries, forecasts: Forecasts) -> Any:
    """The last days of a service with the quantiles that were forecast for each moment half an hour before."""
    column = min(1, len(forecasts.horizons_s) - 1)
    ahead = steps_ahead(forecasts.horizons_s[column], series.step_s)
    displayed = forecasts.origins >= forecasts.origins[-1] - _FAN_DAYS * 86_400 // series.step_s
    hours = (forecasts.origins[displayed] + ahead) * series.step_s / 3600
    title = f"{series.name}: forecasts {forecasts.horizons_s[column] // 60} min ahead"
    figure = new_figure(title, "hours since the start of the series", f"{series.unit} per {series.step_s // 60} min")
    for level, quantile in reversed(list(enumerate(forecasts.quantiles))):
        fill = "tozeroy" if quantile > 0.5 else None
        figure.add_scatter(
            x=hours,
            y=forecasts.value[displayed, column, level],
            name=f"p{quantile * 100:g}",
            fill=fill,
            line={"width": 1},
        )
    inside = forecasts.origins[displayed] + ahead
    inside = inside[inside < len(series)]
    figure.add_scatter(
        x=inside * series.step_s / 3600, y=series.value[inside], name="observed", line={"color": "black", "width": 1.5}
    )
    return figure


def _most_telling(forecasts: Sequence[Forecasts]) -> list[Forecasts]:
    """The services with the most demand."""
    return sorted(forecasts, key=lambda forecast: -float(forecast.value[:, 0, 0].mean()))[:_FANS]
