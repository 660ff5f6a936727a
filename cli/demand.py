"""``kopt demand``: forecasts, back tests and the lendable-GPU curve, without a server."""

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli import inputs
from kopt.cli.edge import Refused
from kopt.cli.options import Label, Output, Query, Since, Step, Unit, probabilities, several_seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import bar, step
from kopt.serving.environment import load_settings

if TYPE_CHECKING:
    from kopt.core.prediction import Prediction
    from kopt.data.demand.table import DemandSeries
    from kopt.models.api import Forecast

app = typer.Typer(no_args_is_help=True, help="Forecast inference demand and what can be lent of its GPUs.")

Input = Annotated[
    str,
    typer.Argument(
        metavar="INPUT", help="A Parquet or CSV file, a folder, a public trace, or a Prometheus address (http://…)."
    ),
]
Model = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="champion, challenger, a version number, or shipped.")
]
Horizons = Annotated[str, typer.Option("--horizons", metavar="SPANS", help="How far ahead, separated by commas.")]
Series = Annotated[
    list[str] | None, typer.Option("--series", metavar="NAME", help="Only this series; may be given several times.")
]


@dataclass(frozen=True)
class ForecastRow:
    """One series at one horizon; quantiles in the series' unit per bucket."""

    series: str = column("series")
    horizon_s: float = column("ahead", show=lambda seconds: f"{seconds / 60:g} min")
    unit: str = column("unit", wide=True)
    q50: float | None = column("p50")
    q90: float | None = column("p90")
    q95: float | None = column("p95")
    q99: float | None = column("p99")
    confidence: float = column("confidence")
    refused: bool = column("refused", wide=True)
    why: str = column("why")


@app.command()
def forecast(
    where: Input,
    model: Model = "champion",
    horizons: Horizons = "5m,30m,60m",
    quantiles: Annotated[
        str, typer.Option("--quantiles", metavar="PROBABILITIES", help="Of the JSON and YAML documents.")
    ] = "0.5,0.9,0.95,0.99",
    series: Series = None,
    now: Annotated[bool, typer.Option("--now", help="Refuse series whose newest datum is stale by now.")] = False,
    query: Query = "",
    label: Label = "service",
    since: Since = "14d",
    step_: Step = "5m",
    unit: Unit = None,
    output: Output = Format.TABLE,
) -> None:
    """Quantiles of demand per series and horizon, counted from the end of each series.

    Without a registry on this machine the shipped model answers.

    Examples:

        kopt demand forecast demand.parquet

        kopt demand forecast demand.csv --series chat --horizons 30m,2h -o json

        kopt demand forecast http://prometheus:9090 --query 'sum by (service) (increase(requests_total[$step]))'
    """
    ahead, wanted = several_seconds(horizons, "--horizons"), probabilities(quantiles, "--quantiles")
    source = inputs.Source(where, query, label, since, step_, unit)
    answer = _forecast(source, series, model, ahead, wanted, now or source.is_prometheus)
    rows = [_row(service.name, prediction) for service in answer for prediction in service.predictions]
    facts = {"model": answer.model.to_dict()}
    show(Answer("forecasts", rows, facts, title="demand forecast", document=answer.to_dict()), output)


def _forecast(
    source: inputs.Source, names: list[str] | None, model: str, ahead: tuple[int, ...], wanted: tuple[float, ...],
    live: bool,
) -> "Forecast":  # fmt: skip
    found = choose(inputs.read(source), names)
    from kopt.models import api

    with step("loading the model"):
        settings = load_settings()
        predictor = api.load_model(model, settings)
    with bar("forecasting") as advance:
        return api.forecast(
            found, horizons_s=ahead, quantiles=wanted, model=predictor,
            now_s=time.time() if live else None, progress=advance,
        )  # fmt: skip


def choose(found: "list[DemandSeries]", names: list[str] | None) -> "list[DemandSeries]":
    """The series of these names, all without names. Raises Refused for a name that is not there."""
    if not names:
        return found
    if absent := sorted(set(names) - {one.name for one in found}):
        there = ", ".join(sorted(one.name for one in found)[:8])
        raise Refused(f"no series {absent[0]!r} in the input; it has {there}")
    return [one for one in found if one.name in names]


def _row(name: str, prediction: "Prediction") -> ForecastRow:
    q = prediction.quantiles
    why = prediction.reasons[0].message if prediction.reasons else ""
    return ForecastRow(
        name, prediction.horizon_s or 0.0, prediction.unit, q.get(0.5), q.get(0.9), q.get(0.95), q.get(0.99),
        prediction.confidence, prediction.refused, why,
    )  # fmt: skip
