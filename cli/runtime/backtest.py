"""``kopt runtime backtest``: the jobs of a table answered as they were submitted, written as CSV to be scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import bar, print_status
from kopt.core.workload.run_time import LEVELS
from kopt.data.jobs.openb import TraceError
from kopt.data.tables import replace_table
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.data.jobs.runs import TableRow
    from kopt.features.job_history import Array
    from kopt.models.runtime.predictor import RunTimePredictor
    from kopt.models.runtime.table import RunTimeTable
    from kopt.training.runtime.backtest import Answered, Backtest, Runs
    from kopt.training.runtime.scoring import RunTimeSummary

_QUANTILES = tuple(f"q{round(100 * level):02d}" for level in LEVELS)
_TIMES = 3
"""By default, where there are jobs to train on: a month's table is trained on about as often by a weekly CronJob."""


@dataclass(frozen=True)
class BacktestRow:
    """How the answers about one cluster's jobs held."""

    cluster: str = column("cluster")
    runs: int = column("compared")
    loss: float = column("loss", show=lambda loss: f"{loss:.3f}")
    recent_loss: float = column("last 20", show=lambda loss: f"{loss:.3f}")
    factor: float = column("typically within", show=lambda factor: f"× {factor:.2f}")
    recent_factor: float = column("last 20", show=lambda factor: f"× {factor:.2f}")
    coverage: float = column("within 5-95 %", show=lambda share: f"{share:.1%}")
    over: float = column("over 95 %", show=lambda share: f"{share:.1%}")

    @classmethod
    def of(cls, summary: "RunTimeSummary") -> "BacktestRow":
        accuracy = summary.loss, summary.recent_loss, summary.factor, summary.recent_factor
        return cls(summary.slice, summary.runs, *accuracy, summary.coverage, summary.over)


def backtest(
    table: Annotated[Path, typer.Argument(metavar="JOBS", help="Jobs that ran: CSV, also .gz.")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The CSV file to write.")],
    train: Annotated[
        Path | None,
        typer.Option(
            "--train",
            metavar="TABLE",
            help="Jobs to train a model on before; of the same cluster, they are its history as well.",
        ),
    ] = None,
    retrain: Annotated[
        int | None,
        typer.Option(
            "--retrain",
            min=0,
            max=100,
            metavar="TIMES",
            help=f"How often to train again, by what had ended by then; default: {_TIMES} with --train, else never.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option("--model", metavar="MODEL", help="Without --train: champion, a version number, or shipped.")
    ] = "champion",
    output: Output = Format.TABLE,
) -> None:
    """Answer each job of a table as it was submitted, by what had ended until then, and write the quantiles.

    JOBS has the columns job_id, submit_time (or start_time), duration (or end_time), gpus, and optionally queue (or
    vc), name, user and cluster. A job's duration counts from its end on, never before. The file has a row per job on
    GPUs, in the table's order: row (from 0), then q05, q10, q25, q50, q75, q90 and q95 in seconds.

    Examples:

        kopt runtime backtest october.csv --train september.csv --out answers.csv

        kopt runtime backtest jobs.csv --out answers.csv -o json
    """
    from kopt.data.jobs.runs import by_start
    from kopt.training.runtime.backtest import Backtest, backtest_summaries

    if not out.absolute().parent.is_dir():
        raise Refused(f"{out.parent}: there is no such folder to write into")
    rows = _read(table)
    test = Backtest(by_start(rows), by_start(_read(train)) if train else {})
    times = _TIMES if retrain is None and train else retrain or 0
    answered = _answered(test, None if train else _loaded(model, test.runs), times)
    _write(out, rows, answered)
    header = {"file": str(out), "rows": len(answered), "model": f"trained on {train}" if train else model}
    summaries = [BacktestRow.of(summary) for summary in backtest_summaries(test.runs, answered)]
    show(Answer("clusters", summaries, header, empty="no job with a predecessor has ended"), output)


def _read(path: Path) -> "tuple[TableRow, ...]":
    from kopt.data.jobs.runs import read_rows

    try:
        rows = read_rows(path)
    except TraceError as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from error
    if not rows:
        raise Refused(f"{path} has no run on a GPU")
    return rows


def _loaded(model: str, runs: "Runs") -> "RunTimePredictor":
    from kopt.models.registry.loading import load_card
    from kopt.models.runtime.loading import load_run_time
    from kopt.training.runtime.backtest import trained_on

    settings = load_settings()
    if overlapping := trained_on(load_card("runtime", model, settings), runs):
        print_status(
            f"warning: {model} was trained on these jobs ({', '.join(overlapping)}), so the answers prove nothing"
        )
    return load_run_time(model, settings)


def _answered(test: "Backtest", model: "RunTimePredictor | None", times: int) -> "list[Answered]":
    from kopt.models.runtime.predictor import RunTimePredictor

    def fit(table: "RunTimeTable") -> RunTimePredictor:
        print_status(f"training on {len(table):,} runs that had started by then, after {len(answered):,} answers")
        return RunTimePredictor().fit(table)

    total = sum(map(len, test.runs.values()))
    answered: list[Answered] = []
    try:
        with bar("answering jobs") as advance:
            for item in test.answers(model, fit, times):
                answered.append(item)
                advance(len(answered), total)
    except ValueError as error:
        raise Refused(str(error)) from error
    return answered


def _write(out: Path, rows: "Sequence[TableRow]", answered: "Sequence[Answered]") -> None:
    by_job = {(item.cluster, item.job): item.log_seconds for item in answered}
    written = (
        {"row": row.row, **dict(zip(_QUANTILES, _seconds(by_job[row.cluster, row.run.job]), strict=True))}
        for row in rows
    )
    try:
        replace_table(out, ("row", *_QUANTILES), written)
    except OSError as error:
        raise Refused(f"{out} cannot be written: {error.strerror or error}") from error


def _seconds(log_seconds: "Array") -> list[str]:
    return [f"{math.exp(value):.1f}" for value in log_seconds]
