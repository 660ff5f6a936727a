"""``kopt demand``: forecasts, back tests and the lendable-GPU curve, without a server."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.demand import inputs
from kopt.cli.demand.anomalies import anomalies_of, anomaly_remark
from kopt.cli.demand.ingest import ingest
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Label, Output, Query, Since, Step, Unit, probabilities, seconds, several_seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import bar, step
from kopt.core.prediction import DEFAULT_HORIZONS_S, DEFAULT_QUANTILES
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.core.prediction import Prediction
    from kopt.data.demand.table import DemandSeries
    from kopt.sdk.forecast import Forecast

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
    fallback: bool = column("fallback", wide=True)
    why: str = column("why", wide=True)
    remark: str = column("remark")
    """The reason again where a person must know it: a refusal or a fallback."""


app.command()(ingest)


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

    Without a registry on this machine the shipped model answers. Series that end in demand that their past does not
    let expect are named.

    Examples:

        kopt demand forecast demand.parquet

        kopt demand forecast demand.csv --series chat --horizons 30m,2h -o json

        kopt demand forecast http://prometheus:9090 --query 'sum by (service) (increase(requests_total[$step]))'
    """
    ahead, wanted = several_seconds(horizons, "--horizons"), probabilities(quantiles, "--quantiles")
    source = inputs.Source(where, query, label, since, step_, unit)
    demand_series = choose(inputs.read(source), series)
    answer = _answer(demand_series, model, ahead, wanted, now or source.is_prometheus)
    rows = [_row(service.name, prediction) for service in answer for prediction in service.predictions]
    header = {"model": answer.model.to_dict()}
    unusual = anomalies_of(demand_series)
    remarks = [anomaly_remark(each, unusual[each.name]) for each in demand_series if each.name in unusual]
    remarks.append("kopt demand explain INPUT --series NAME says why")
    show(Answer("forecasts", rows, header, title="demand forecast", remarks=remarks, document=answer.to_dict()), output)


def _answer(
    demand_series: "list[DemandSeries]", model: str, ahead: tuple[int, ...], wanted: tuple[float, ...], live: bool
) -> "Forecast":
    from kopt.models.lightgbm.booster import import_lightgbm_alone
    from kopt.sdk import forecast as api

    import_lightgbm_alone()
    with step("loading the model"):
        predictor = api.demand_model(model, load_settings())
    now_s = time.time() if live else None
    with bar("forecasting") as advance:
        return api.forecast(
            demand_series, horizons_s=ahead, quantiles=wanted, model=predictor, now_s=now_s, progress=advance
        )


def choose(series: "list[DemandSeries]", names: list[str] | None) -> "list[DemandSeries]":
    """The series of these names, all without names. Raises Refused for a name that is not there."""
    if not names:
        return series
    if absent := sorted(set(names) - {demand_series.name for demand_series in series}):
        available = ", ".join(sorted(demand_series.name for demand_series in series)[:8])
        raise Refused(f"no series {absent[0]!r} in the input; it has {available}")
    return [demand_series for demand_series in series if demand_series.name in names]


def _row(name: str, prediction: "Prediction") -> ForecastRow:
    q = prediction.quantiles
    why = prediction.reasons[0].message if prediction.reasons else ""
    return ForecastRow(
        name,
        prediction.horizon_s or 0.0,
        prediction.unit,
        q.get(0.5),
        q.get(0.9),
        q.get(0.95),
        q.get(0.99),
        prediction.confidence,
        prediction.refused,
        prediction.fallback,
        why,
        why if prediction.refused or prediction.fallback else "",
    )


@app.command()
def backtest(
    where: Input,
    out: Annotated[Path, typer.Option("--out", metavar="PRED.parquet", help="Where the forecasts are written.")],
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="A model that has not seen INPUT: alias or version.")
    ] = None,
    group_cv: Annotated[
        str | None,
        typer.Option("--group-cv", metavar="source", help="Fit a model per group on all other groups (zero-shot)."),
    ] = None,
    series: Series = None,
    unit: Unit = None,
    output: Output = Format.TABLE,
) -> None:
    """Rolling forecasts at every origin of the test window, as a Parquet file to be scored.

    The window is the last 30 % of each series, at most 10 days; horizons are 5, 30 and 60 minutes. INPUT that the
    model was trained on is refused.

    Examples:

        kopt demand backtest data/demand --out pred.parquet --group-cv source

        kopt demand backtest mine.parquet --out pred.parquet --model champion
    """
    from kopt.cli.demand import backtest as tester

    if (model is None) == (group_cv is None):
        usage_error("give either --model or --group-cv", "--model")
    if group_cv is not None and group_cv not in tester.GROUPINGS:
        usage_error(f"unknown grouping {group_cv!r}; expected one of {', '.join(tester.GROUPINGS)}", "--group-cv")
    source = inputs.Source(where, unit=unit)
    if source.is_prometheus:
        usage_error("a back test reads files, so that it can be repeated", "INPUT")
    if not out.absolute().parent.is_dir():
        raise Refused(f"{out.parent}: there is no such folder to write into")
    path, settings = Path(where), load_settings()
    data = tester.read_dataset(path, choose(inputs.read(source), series))
    made = tester.with_model(data, model, settings) if model else tester.with_group_cv(data, settings)
    forecasts = list(made)
    written = tester.write(out, data, forecasts, tester.own_starts(path))
    header = {"file": str(out), "rows": written, "model": model or f"one per {group_cv}"}
    show(Answer("series", tester.rows(data, forecasts), header), output)


@dataclass(frozen=True)
class LendRow:
    """What a pool can lend until one horizon."""

    pool: str = column("pool")
    gpus: int = column("GPUs")
    horizon_s: float = column("for", show=lambda seconds: f"{seconds / 60:g} min")
    provision_gpus: int = column("kept")
    lendable_gpus: int = column("lendable")
    services: int = column("services")
    assumed: bool = column("capacity assumed", wide=True)
    why: str = column("why", wide=True)


@app.command()
def lend(
    where: Input,
    model: Model = "champion",
    risk: Annotated[
        float, typer.Option("--risk", min=0.001, max=0.5, help="Share of the time under-provisioned that is accepted.")
    ] = 0.01,
    shared: Annotated[bool, typer.Option("--one-pool", help="All services share one pool.")] = False,
    series: Series = None,
    query: Query = "",
    label: Label = "service",
    since: Since = "14d",
    step_: Step = "5m",
    unit: Unit = None,
    output: Output = Format.TABLE,
) -> None:
    """GPUs that each pool can lend, by how long, at an accepted risk.

    What a service's GPUs serve stands in KOPT_HOME/services.toml; without an entry 64 GPUs are assumed that just serve
    its 99.9th percentile. The rule is max(reactive, forecast), as in serving and on the pages.

    Examples:

        kopt demand lend demand.parquet

        kopt demand lend demand.parquet --one-pool --risk 0.05 -o csv
    """
    from kopt.cli.demand.lending import lendable_pools

    source = inputs.Source(where, query, label, since, step_, unit)
    demand_series = choose(inputs.read(source), series)
    answer = _answer(demand_series, model, DEFAULT_HORIZONS_S, (*DEFAULT_QUANTILES, 1 - risk), source.is_prometheus)
    pools = lendable_pools(demand_series, answer, load_settings(), risk, shared=shared)
    rows = [
        LendRow(
            pool.name,
            pool.gpus,
            point.horizon_s,
            point.provision // 1000,
            point.lendable // 1000,
            len(pool.services),
            pool.assumed,
            pool.reasons[0].message,
        )
        for pool in pools
        for point in pool.curve
    ]
    remarks = [f"{pool.name}: {reason.message}" for pool in pools if not pool.curve for reason in pool.reasons]
    if any(pool.assumed for pool in pools):
        remarks.append("capacity is assumed where services.toml names none: 64 GPUs that serve the 99.9th percentile")
    header = {"model": answer.model.to_dict(), "risk": risk}
    show(Answer("pools", rows, header, title="lendable GPUs", remarks=remarks, empty="nothing can be lent"), output)


@dataclass(frozen=True)
class ReasonRow:
    """One reason of a forecast."""

    series: str = column("series", wide=True)
    code: str = column("code", wide=True)
    message: str = column("why")
    numbers: dict[str, float | int | str] = column("numbers", wide=True)


@app.command()
def explain(
    where: Input,
    series: Annotated[str, typer.Option("--series", metavar="NAME", help="Which series to explain.")],
    horizon: Annotated[str, typer.Option("--horizon", metavar="SPAN", help="How far ahead.")] = "30m",
    model: Model = "champion",
    query: Query = "",
    label: Label = "service",
    since: Since = "14d",
    step_: Step = "5m",
    unit: Unit = None,
    output: Output = Format.TABLE,
) -> None:
    """Why a forecast is what it is: inputs, tenants and change points, in words with numbers.

    Example:

        kopt demand explain demand.parquet --series chat --horizon 30m
    """
    ahead = seconds(horizon, "--horizon")
    (demand_series,) = choose(inputs.read(inputs.Source(where, query, label, since, step_, unit)), [series])
    from kopt.models.demand.predictor import DemandRequest
    from kopt.models.lightgbm.booster import import_lightgbm_alone
    from kopt.sdk import forecast as api

    import_lightgbm_alone()
    with step("loading the model"):
        predictor = api.demand_model(model, load_settings())
    reasons = predictor.explain(DemandRequest(demand_series, (float(ahead),)))
    rows = [ReasonRow(series, reason.code, reason.message, dict(reason.numbers)) for reason in reasons]
    header = {"series": series, "horizon_s": ahead, "model": predictor.version.to_dict()}
    show(Answer("reasons", rows, header), output)
