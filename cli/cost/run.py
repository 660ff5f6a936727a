"""``kopt cost run``: what a training cost by epoch and by thousand steps, and what a unit of money bought."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cost.asking import ServerOption, TokenOption, refuse_beside_server, run_from_pages
from kopt.cli.cost.reading import PriceOption, Prices, Question, SinceOption, Source, metered
from kopt.cli.errors import Refused
from kopt.cli.job_log import opened_log
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.policies.cost.attribution import By
from kopt.policies.cost.budgets import stamp

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kopt.formats.joblog.epochs import Epoch
    from kopt.policies.cost.epochs import EpochCost
    from kopt.policies.cost.report import CostEvent
    from kopt.policies.cost.run import RunCost


def _money(micro: int | None) -> str:
    return "–" if micro is None else f"{micro / 1e6:,.2f}"


def _amount(number: float | None) -> str:
    return "–" if number is None else f"{number:,.0f}"


@dataclass(frozen=True)
class EpochRow:
    """``epoch`` is "all" for the whole run, also its time before and after epochs. Amounts are in millionths."""

    epoch: str = column("epoch")
    start: str = column("from", drop=2)
    end: str = column("until", drop=1)
    gpu_hours: float = column("GPU-hours", show=lambda hours: f"{hours:,.2f}")
    micro: int | None = column("amount", show=_money)
    currency: str = column("currency", drop=4)
    steps: int | None = column("steps", show=_amount, drop=3)
    micro_per_1000_steps: int | None = column("1,000 steps", show=_money)
    samples_per_unit: float | None = column("samples for 1", show=_amount, drop=5)
    tokens_per_unit: float | None = column("tokens for 1", show=_amount, drop=6)

    @classmethod
    def of(cls, item: "EpochCost") -> "EpochRow":
        return cls(
            "all" if item.epoch is None else str(item.epoch),
            stamp(item.start_ms),
            stamp(item.end_ms),
            item.gpu_hours,
            item.micro,
            item.currency,
            item.steps or None,
            item.micro_per_1000_steps,
            item.samples_per_unit,
            item.tokens_per_unit,
        )


def run_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `kopt cost --by workload` names it, or its end.")],
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Its log, with times; else what the endpoint has read of it."),
    ] = None,
    since: SinceOption = "30d",
    prices: Prices = None,
    price: PriceOption = None,
    server: ServerOption = "",
    token_file: TokenOption = None,
    run: Annotated[
        str, typer.Option("--run", metavar="UID", help="Of several runs of this name; its begin is enough. The latest.")
    ] = "",
    output: Output = Format.TABLE,
) -> None:
    """What one training cost by epoch and by 1,000 steps, and how many samples or tokens one unit of money bought.

    Amounts are what its pods were charged while each epoch of the log went on; an epoch that was begun again after a
    restart is listed again. Samples and tokens are counted by the rates that the log says (samples/s, tokens/s).
    Without --log epochs are those that the endpoint has read in the lines that `kopt agent logtail` sent it.
    A job that was deleted and made anew is another run: the latest is shown, and the others are named below.

    Examples:

        kopt cost run research/jobs/finetune

        kopt cost run research/jobs/finetune --log train.log

        kopt cost run research/jobs/finetune --server https://gpus.example --token-file token

        kubectl logs job/finetune --timestamps > train.log && kopt cost run finetune --log train.log -o json
    """
    if server:
        refuse_beside_server(prices=prices, price=price, log=log)
        show(_answer(run_from_pages(name, server, token_file, since, run)), output)
        return
    with metered(Question(since, prices, price)) as source:
        show(_answer(_run(source, name, log, run)), output)


def _run(source: Source, name: str, log: Path | None, uid: str) -> "RunCost":
    """Raises Refused."""
    from kopt.policies.cost.run import cost_of_run
    from kopt.policies.cost.runs import RunError, epochs_of_run, run_named, runs_of

    try:
        workload, events = _events(source, name)
        runs = runs_of(events)
        run = run_named(runs, uid)
        epochs = epochs_of_run(run, runs, _epochs_of_endpoint(workload)) if log is None else _epochs(log)
        return cost_of_run(workload, run, runs, epochs)
    except RunError as error:
        raise Refused(str(error)) from error


def _events(source: Source, name: str) -> "tuple[str, Sequence[CostEvent]]":
    """Of the workload of this name, and the name in full. Raises RunError."""
    from kopt.controllers.meter.reports import CostReports
    from kopt.policies.cost.attribution import Part
    from kopt.policies.cost.report import CostQuestion
    from kopt.policies.cost.run import workload_named

    reports = CostReports(source.store, source.book)
    question = CostQuestion(source.window.start_ms, source.window.end_ms, By.WORKLOAD, "", limit=0)
    workload = workload_named((row.name for row in reports.report(question).rows if row.part is Part.PODS), name)
    return workload, reports.events(question, workload)


def _epochs(log: Path) -> "Sequence[Epoch]":
    from kopt.formats.joblog.epochs import read_epochs

    with opened_log(log) as lines:
        return read_epochs(lines)


def _epochs_of_endpoint(workload: str) -> "Mapping[str, Sequence[Epoch]]":
    """Of the job that the workload is, by source. Raises Refused."""
    from kopt.cli.endpoint import endpoint
    from kopt.policies.cost.run import job_of
    from kopt.serving.base.environment import load_settings
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.checkpoint_answers import epochs_by_source
    from kopt.serving.contract.common import AnswerError

    job = job_of(workload)
    try:
        with endpoint(load_settings()) as client:
            sources = epochs_by_source(client.jobs(job))
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error
    if not sources:
        raise Refused(f"the endpoint has read no epoch in the log of {job}; give its log: --log FILE")
    return sources


def _answer(run: "RunCost") -> Answer:
    rows = [EpochRow.of(item) for item in (*run.epochs, run.whole)]
    return Answer(
        "epochs", rows, {"workload": run.workload, "run": run.uid, "runs": list(run.runs)}, remarks=list(run.remarks)
    )
