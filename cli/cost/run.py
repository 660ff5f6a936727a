"""``kopt cost run``: what a training cost by epoch and by thousand steps, and what a unit of money bought."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cost.reading import PriceOption, Prices, Question, SinceOption, Source, metered
from kopt.cli.errors import Refused
from kopt.cli.job_log import opened_log
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show
from kopt.policies.cost.attribution import By
from kopt.policies.cost.budgets import stamp

if TYPE_CHECKING:
    from kopt.formats.joblog.epochs import Epoch
    from kopt.policies.cost.epochs import EpochCost
    from kopt.policies.cost.report import CostEvent


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


def run_cost(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As `kopt cost --by workload` names it, or its end.")],
    log: Annotated[
        Path | None,
        typer.Option("--log", metavar="FILE", help="Its log, with times; else what the endpoint has read of it."),
    ] = None,
    since: SinceOption = "30d",
    prices: Prices = None,
    price: PriceOption = None,
    output: Output = Format.TABLE,
) -> None:
    """What one training cost by epoch and by 1,000 steps, and how many samples or tokens one unit of money bought.

    Amounts are what its pods were charged while each epoch of the log went on; an epoch that was begun again after a
    restart is listed again. Samples and tokens are counted by the rates that the log says (samples/s, tokens/s).
    Without --log epochs are those that the endpoint has read in the lines that `kopt agent logtail` sent it.

    Examples:

        kopt cost run research/jobs/finetune

        kopt cost run research/jobs/finetune --log train.log

        kubectl logs job/finetune --timestamps > train.log && kopt cost run finetune --log train.log -o json
    """
    with metered(Question(since, prices, price)) as source:
        row, events = _events(source, name)
        epochs = _epochs_of_endpoint(row) if log is None else _epochs(log)
        show(_answer(row, events, epochs), output)


def _events(source: Source, name: str) -> "tuple[str, Sequence[CostEvent]]":
    """Of the workload of this name, and the name in full. Raises Refused."""
    from kopt.controllers.meter.reports import CostReports
    from kopt.policies.cost.attribution import Part
    from kopt.policies.cost.report import CostQuestion

    reports = CostReports(source.store, source.book)
    question = CostQuestion(source.window.start_ms, source.window.end_ms, By.WORKLOAD, "", limit=0)
    names = sorted({row.name for row in reports.report(question).rows if row.part is Part.PODS})
    matching = [each for each in names if each == name] or [each for each in names if each.endswith(f"/{name}")]
    if len(matching) != 1:
        there = ", ".join(matching or names[:8]) or "none"
        raise Refused(f"{'several workloads are' if matching else 'no workload is'} called {name!r}; there are {there}")
    return matching[0], reports.events(question, matching[0])


def _epochs(log: Path) -> "Sequence[Epoch]":
    from kopt.formats.joblog.epochs import read_epochs

    with opened_log(log) as lines:
        return read_epochs(lines)


def _epochs_of_endpoint(row: str) -> "Sequence[Epoch]":
    """Of the job that the workload is. Raises Refused."""
    from kopt.cli.endpoint import endpoint
    from kopt.formats.joblog.epochs import Epoch
    from kopt.policies.cost.epochs import distinct_epochs
    from kopt.serving.base.environment import load_settings
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError

    namespace, _, workload = row.partition("/")
    job = f"{namespace}/{workload.rpartition('/')[2]}"
    try:
        with endpoint(load_settings()) as client:
            answer = client.jobs(job)
    except (RequestRefused, AnswerError) as error:
        raise Refused(str(error)) from error
    sources: dict[str, list[Epoch]] = {}
    for each in answer.epochs:
        times = (each.started_at, each.ended_at)
        epoch = Epoch(each.number, *times, each.steps, each.samples_per_second, each.tokens_per_second)
        sources.setdefault(each.source, []).append(epoch)
    if not sources:
        raise Refused(f"the endpoint has read no epoch in the log of {job}; give its log: --log FILE")
    return distinct_epochs(sources)


def _answer(row: str, events: "Sequence[CostEvent]", epochs: "Sequence[Epoch]") -> Answer:
    from kopt.policies.cost.epochs import epoch_costs

    try:
        costs = epoch_costs(events, epochs)
    except ValueError as error:
        raise Refused(str(error)) from error
    whole = costs[-1]
    remarks = []
    if not epochs:
        remarks.append("The log names no epoch with a date and a time, so only the whole run is priced.")
    elif not any(item.gpu_hours for item in costs[:-1]):
        remarks.append("No pod of the run was charged while the epochs of the log went on: is it the log of this run?")
    if not whole.steps:
        remarks.append("The log counts no steps (step k/N) within epochs.")
    if not any(item.samples is not None or item.tokens is not None for item in costs):
        remarks.append("The log says no samples/s or tokens/s, so what one unit of money bought is not known.")
    if whole.micro is None:
        remarks.append("A part of it has no price; name one with --prices or --price.")
    return Answer("epochs", [EpochRow.of(item) for item in costs], {"workload": row}, remarks=remarks)
