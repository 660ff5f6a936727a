"""``kopt simulate preemption``: a job trace with urgent arrivals, and what each policy loses to make room for them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output
from kopt.cli.output import NOTHING, Answer, Format, column, show
from kopt.cli.progress import bar

if TYPE_CHECKING:
    from kopt.simulator.preemption.study import Figures

MOST_CANDIDATES = 200
MOST_SEEDS = 100


def _hours(value: float) -> str:
    return f"{value:.3f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f} %"


def _seconds(value: float) -> str:
    return f"{value:.0f}"


@dataclass(frozen=True)
class PreemptionRow:
    """One policy with one number of candidates; GPU-hours and seconds."""

    candidates: int = column("candidates")
    policy: str = column("policy")
    lost_gpu_hours_mean: float = column("lost per preemption", show=_hours)
    lost_gpu_hours_low: float = column("low", show=_hours, wide=True)
    lost_gpu_hours_high: float = column("high", show=_hours, wide=True)
    lost_gpu_hours_median: float = column("median", show=_hours)
    lost_gpu_hours_per_ask: float = column("per urgent job", show=_hours)
    of_newest_first: float | None = column("of newest-first", show=_percent)
    preemptions: int = column("preemptions")
    preempted_share: float = column("of jobs started", show=_percent)
    torn: int = column("torn")
    native: int = column("left to the scheduler")
    torn_native: int = column("torn by it", wide=True)
    wait_mean_s: float = column("wait, s", show=_seconds)
    wait_p95_s: float = column("p95", show=_seconds)


def preemption(
    jobs: Annotated[
        Path,
        typer.Option("--jobs", metavar="FILE", help="Trace: job_id, submit_time, duration, gpus; .csv[.gz]."),
    ],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of the cluster.")] = 512,
    policy: Annotated[
        list[str] | None,
        typer.Option("--policy", metavar="NAME", help="kopt, newest-first, …; several times, default all."),
    ] = None,
    pool: Annotated[
        list[int] | None, typer.Option("--pool", metavar="N", help="Candidates per preemption; may be repeated.")
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, max=MOST_SEEDS, help="So many draws of behaviours.")] = 1,
    warm: Annotated[float, typer.Option("--warm", metavar="DAYS", help="Of the trace, before urgent jobs come.")] = 1.0,
    days: Annotated[float, typer.Option("--days", metavar="DAYS", help="Of the trace, with urgent jobs.")] = 14.0,
    urgent: Annotated[float, typer.Option("--urgent", metavar="SHARE", help="Of the jobs.")] = 0.04,
    budget: Annotated[float, typer.Option("--budget", metavar="SECONDS", help="That an urgent job may wait.")] = 300.0,
    observable: Annotated[
        float, typer.Option("--observable", metavar="SHARE", help="Of the jobs whose logs show checkpoints.")
    ] = 0.7,
    behaviour: Annotated[
        Path | None,
        typer.Option("--behaviour", metavar="FILE", help="records.jsonl of a corpus: how regular savers are."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw lost work and waits (.png, .svg).")
    ] = None,
    workers: Annotated[int | None, typer.Option("--workers", min=1, help="Processes; default one per core.")] = None,
    output: Output = Format.TABLE,
) -> None:
    """Urgent jobs take the room of running ones: how many GPU-hours of work does each policy lose?

    The trace's jobs run on a cluster of so many GPUs and write checkpoints by behaviours drawn at random. kopt sees of
    them what logs would show, late and with mistakes; the oracles see the truth and are there for scale.
    """
    from kopt.data.jobs.training import read_jobs
    from kopt.simulator.preemption.behaviour import STEADY, read_manners
    from kopt.simulator.preemption.plots import SUFFIXES, write_plot
    from kopt.simulator.preemption.sight import Sight
    from kopt.simulator.preemption.study import DAY_S, Setup, study

    names, pools = _policies(policy), pool or [4, 8, 12, 16, 24]
    if plot and plot.suffix.lower() not in SUFFIXES:
        usage_error(f"{plot}: a picture ends in {', '.join(SUFFIXES)}", "--plot")
    for share, option in ((urgent, "--urgent"), (observable, "--observable")):
        if not 0 <= share <= 1:
            usage_error(f"{share:g} is not a share", option)
    if not all(0 < number <= MOST_CANDIDATES for number in pools):
        usage_error(f"a pool has 1 to {MOST_CANDIDATES} candidates", "--pool")
    if not (warm >= 0 and days > 0 and budget >= 0):
        usage_error("days and budget must be positive numbers", "--days")
    manners = read_manners(behaviour) if behaviour else STEADY
    setup = Setup(
        read_jobs(jobs),
        gpus,
        warm * DAY_S,
        (warm + days) * DAY_S,
        manners,
        sight=Sight(observable=observable),
        budget_s=budget,
        urgent=urgent,
    )
    with bar("replaying") as advance:
        result = study(setup, names, pools, range(seeds), workers, advance)
    if not any(figures.asks for figures in result):
        raise Refused(f"{jobs}: no urgent job found the {gpus} GPUs full; take fewer GPUs or more days")
    if plot:
        write_plot(plot, result, f"{jobs.stem}: {gpus} GPUs, {urgent:.0%} urgent, {observable:.0%} observable")
    header = {"gpus": gpus, "urgent": urgent, "observable": observable, "budget_s": budget, "seeds": seeds}
    show(Answer("policies", [_row(figures, result) for figures in result], header), output)


def _row(figures: "Figures", result: "tuple[Figures, ...]") -> PreemptionRow:
    from kopt.simulator.preemption.study import BASELINE

    base = next((other for other in result if other.policy == BASELINE and other.pool == figures.pool), None)
    share = figures.lost_per_ask / base.lost_per_ask if base and base.lost_per_ask else None
    return PreemptionRow(
        figures.pool,
        figures.policy,
        figures.lost_mean,
        figures.lost_low,
        figures.lost_high,
        figures.lost_median,
        figures.lost_per_ask,
        share,
        figures.rooms,
        figures.preempted_share,
        figures.torn,
        figures.native,
        figures.torn_native,
        figures.wait_mean_s,
        figures.wait_p95_s,
    )


def _policies(wanted: list[str] | None) -> list[str]:
    from kopt.simulator.preemption.study import RIVALS

    names = list(dict.fromkeys(part for text in wanted or ["all"] for part in text.split(",")))
    if names == ["all"]:
        return list(RIVALS)
    if unknown := [name for name in names if name not in RIVALS]:
        usage_error(f"no policy {unknown[0]!r}; there are {', '.join(RIVALS)}, or all", "--policy")
    return names
