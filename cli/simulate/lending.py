"""``kopt simulate lending``: services lend GPUs to the jobs of a trace; what each rule lends, gains and loses."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, plain, show
from kopt.cli.progress import bar, print_status

if TYPE_CHECKING:
    from kopt.data.demand.table import DemandSeries
    from kopt.simulator.lending.study import LendingOutcome

_SHORTEST_DAYS = 6.5
_GPUS_HELD = "gpu"
"""Kind of a series, in SERIES.csv."""


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _hours(value: float) -> str:
    return f"{value:,.0f}"


@dataclass(frozen=True)
class LendingRow:
    """One rule at one lead time, means over services; GPU-hours per service."""

    lead_minutes: int = column("lead, min")
    rule: str = column("rule")
    lent: float = column("lent", show=_percent)
    share_of_oracle: float = column("of the oracle's", show=_percent)
    violation: float = column("short", show=_percent)
    gained_gpu_hours: float = column("useful GPU-hours", show=_hours)
    lost_gpu_hours: float = column("lost", show=_hours)
    evictions: float = column("evictions", show=_hours)
    native_evictions: float = column("by the scheduler", show=_hours)
    torn: float = column("torn", wide=True)
    services: int = column("services", wide=True)


def lending(
    demand: Annotated[
        Path, typer.Option("--demand", metavar="SERIES.parquet", help="Demand: series, t, value; SERIES.csv beside it.")
    ],
    forecasts: Annotated[
        Path, typer.Option("--forecasts", metavar="PRED.parquet", help="As `kopt demand backtest` writes them.")
    ],
    jobs: Annotated[
        Path, typer.Option("--jobs", metavar="FILE", help="Borrowers: job_id, submit_time, duration, gpus; .csv[.gz].")
    ],
    lead: Annotated[
        str, typer.Option("--lead", metavar="MINUTES", help="From the decision to reclaim until pods serve.")
    ] = "5,30,60",
    violation: Annotated[
        float, typer.Option("--violation", metavar="SHARE", help="Of the time that GPUs may be missing.")
    ] = 0.01,
    hold: Annotated[
        float, typer.Option("--hold", metavar="MINUTES", help="Jobs start on what has been lent for so long.")
    ] = 15.0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Draws when jobs come and how they save.")] = 0,
    behaviour: Annotated[
        Path | None,
        typer.Option("--behaviour", metavar="FILE", help="records.jsonl of a corpus: how regular savers are."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw it over the lead time (.png, .svg, .pdf).")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default one per core.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Inference services lend idle GPUs to training jobs: how many, how often too many, and what the jobs gain.

    Every service is a pool of 64 GPUs that its 99.9 % demand fills. A GPU is back one lead time after it is reclaimed,
    so each rule decides so long before; jobs on reclaimed GPUs are evicted and lose what they had not saved.

    Examples:

        kopt demand backtest data/demand --group-cv source --out pred.parquet

        kopt simulate lending --demand data/demand/demand.parquet --forecasts pred.parquet --jobs jobs.csv.gz
    """
    from kopt.data.jobs.training import read_jobs
    from kopt.policies.lending.caution import CautionSettings
    from kopt.simulator.lending.plots import SUFFIXES, write_plot
    from kopt.simulator.lending.study import LendingSetup, study
    from kopt.simulator.preemption.behaviour import STEADY, read_manners

    leads_s = _leads(lead)
    if plot and plot.suffix.lower() not in SUFFIXES:
        usage_error(f"{plot}: a picture ends in {', '.join(SUFFIXES)}", "--plot")
    if not 0 < violation < 1:
        usage_error(f"{violation:g} is not a share between 0 and 1", "--violation")
    if not hold >= 0:
        usage_error("minutes are not negative", "--hold")
    series, predictions = _inputs(demand, forecasts, leads_s)
    manners = read_manners(behaviour) if behaviour else STEADY
    setup = LendingSetup(read_jobs(jobs), manners, caution=CautionSettings(violation), hold_s=60 * hold, seed=seed)
    with bar("replaying") as advance:
        lending_outcomes = study(setup, series, predictions, leads_s, workers, advance)
    if not lending_outcomes:
        raise Refused(f"{demand}: the demand of none of the series changes")
    if plot:
        write_plot(plot, lending_outcomes, f"{demand.stem}, {jobs.stem}: a pool of 64 GPUs per service")
    rows = [
        _row(lending_outcomes, lead_s, rule)
        for lead_s in leads_s
        for rule in dict.fromkeys(lending_outcome.rule for lending_outcome in lending_outcomes)
    ]
    show(Answer("rules", rows, {"violation_target": violation, "hold_minutes": hold}, document=_document(rows)), output)


def _leads(text: str) -> tuple[int, ...]:
    try:
        minutes = tuple(dict.fromkeys(int(name) for name in text.split(",")))
    except ValueError:
        minutes = ()
    if not minutes or min(minutes) < 1:
        usage_error(f"{text!r} are no lead times; write minutes such as 5,30,60", "--lead")
    return tuple(60 * minute for minute in minutes)


def _inputs(demand: Path, forecasts: Path, leads_s: Sequence[int]) -> "tuple[list[DemandSeries], list[Any]]":
    """The series that have forecasts, on their grid."""
    from kopt.cli.demand.backtest import own_starts
    from kopt.data.demand.files import read_catalogue, read_demand
    from kopt.data.demand.table import GRID_S
    from kopt.simulator.lending.forecasts import read_forecasts

    series = [demand_series.resampled(GRID_S) for demand_series in read_demand(demand)]
    predictions = read_forecasts(forecasts, series, own_starts(demand), leads_s)
    kinds = {name: info.kind for name, info in read_catalogue(demand).items()}
    long = [
        demand_series
        for demand_series in series
        if demand_series.name in predictions
        and len(demand_series) * demand_series.step_s >= _SHORTEST_DAYS * 86_400
        and kinds.get(demand_series.name) != _GPUS_HELD
    ]
    if missing := sorted(set(predictions) - {demand_series.name for demand_series in long}):
        print_status(
            f"left out, shorter than {_SHORTEST_DAYS:g} days or GPUs that are held, no demand: {', '.join(missing)}"
        )
    if not long:
        raise Refused(f"{forecasts} has forecasts of none of the longer series in {demand}")
    return long, [predictions[demand_series.name] for demand_series in long]


def _row(lending_outcomes: "Sequence[LendingOutcome]", lead_s: int, rule: str) -> LendingRow:
    mine = [
        lending_outcome
        for lending_outcome in lending_outcomes
        if (lending_outcome.lead_s, lending_outcome.rule) == (lead_s, rule)
    ]

    def mean(values: "list[float]") -> float:
        return sum(values) / len(values)

    return LendingRow(
        lead_s // 60,
        rule,
        mean([lending_outcome.lent for lending_outcome in mine]),
        mean([lending_outcome.share_of_oracle for lending_outcome in mine]),
        mean([lending_outcome.violation for lending_outcome in mine]),
        mean([lending_outcome.gains.gained for lending_outcome in mine]),
        mean([lending_outcome.gains.lost for lending_outcome in mine]),
        mean([lending_outcome.gains.evictions for lending_outcome in mine]),
        mean([lending_outcome.gains.native for lending_outcome in mine]),
        mean([lending_outcome.gains.torn for lending_outcome in mine]),
        len(mine),
    )


def _document(rows: Sequence[LendingRow]) -> dict[str, Any]:
    """Ours by lead time, and every rule beside it."""
    ours = {str(row.lead_minutes): plain(row) for row in rows if row.rule == "kopt"}
    return {"leads": ours, "rules": [plain(row) for row in rows]}
