"""``kopt cost spot``: whether a run is cheaper on capacity that may be taken away."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cost.reading import Prices, Question, SinceOption, metered, read_book
from kopt.cli.cost.spot_history import History, Loss, counted_by_hand, counted_by_the_meter, loss
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import format_span

if TYPE_CHECKING:
    from kopt.core.cost.prices import Price
    from kopt.policies.cost.spot_plan import SpotPlan


@dataclass(frozen=True)
class SpotRow:
    """``micro``: of one GPU for the whole run, in millionths."""

    capacity: str = column("capacity")
    per_gpu_hour: float | None = column("GPU-hour", show=lambda price: "" if price is None else f"{price:g}")
    expected_s: float = column("takes", show=lambda span: format_span(span) if math.isfinite(span) else "for ever")
    micro: float = column("a GPU costs", show=lambda micro: f"{micro / 1e6:,.2f}" if math.isfinite(micro) else "–")


@dataclass(frozen=True)
class _Run:
    work_s: float
    restart_s: float
    deadline_s: float | None
    history: History
    loss: Loss


def spot(
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="Its price is in the price book.")],
    run_time: Annotated[str, typer.Option("--run-time", metavar="SPAN", help="Without interruptions.")],
    interruptions: Annotated[
        int | None,
        typer.Option("--interruptions", min=0, help="That were counted; by default what the meter has seen."),
    ] = None,
    over: Annotated[str, typer.Option("--over", metavar="SPAN", help="In how much time of one such node.")] = "",
    outage: Annotated[
        str, typer.Option("--outage", metavar="SPAN", help="Until capacity that was taken away is back, on average.")
    ] = "",
    since: SinceOption = "30d",
    lost: Annotated[
        str,
        typer.Option("--lost", metavar="SPAN", help="Work lost by each: half of what is between saves. [default: 15m]"),
    ] = "",
    job: Annotated[
        str, typer.Option("--job", metavar="NAMESPACE/NAME", help="What is lost is read from how often this job saves.")
    ] = "",
    restart: Annotated[str, typer.Option("--restart", metavar="SPAN", help="Until it computes again.")] = "5m",
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Of the run: it stops when any is taken away.")] = 1,
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="As in kopt cost prices.")] = "",
    deadline: Annotated[
        str, typer.Option("--deadline", metavar="SPAN", help="From now on; the answer is then a plan that is in time.")
    ] = "",
    prices: Prices = None,
    output: Output = Format.TABLE,
) -> None:
    """Whether a run is cheaper on spot capacity: interruption hazard × lost work × price, yes or no.

    Interruptions are those of spot nodes that the meter has recorded, or what you counted. Without a deadline it is yes
    only where spot is cheaper at the 95 % upper bound of the hazard: where little was counted, little is known. With a
    deadline the answer is the cheapest plan: when to use spot capacity, when to wait for it, and when on-demand
    capacity has to take over.

    Examples:

        kopt cost spot --gpu h100 --provider nebius --run-time 24h --interruptions 3 --over 21d --lost 20m

        kubectl -n kopt-system exec deploy/kopt-meter -- kopt cost spot --gpu h100 --run-time 24h --deadline 36h

        kopt cost spot --gpu h100 --run-time 24h --job research/finetune --nodes 4
    """
    import time

    from kopt.core.cost.metering import Offer
    from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu

    try:
        model, book, now_ms = find_gpu(gpu).name, read_book(prices), int(time.time() * 1000)
    except UnknownGpuError as error:
        usage_error(str(error), "--gpu")
    listed, cheap = (book.of(Offer(model, provider, "", capacity), now_ms) for capacity in ("on-demand", "spot"))
    if listed is None or cheap is None or listed.currency != cheap.currency:
        raise Refused(f"no prices of {model} {provider} on demand and on spot in one currency; see kopt cost prices")
    if not listed.micro_per_gpu_hour:
        raise Refused(f"on-demand capacity of {model} {provider} costs nothing by {listed.source}: nothing is saved")
    run = _Run(
        seconds(run_time, "--run-time"),
        seconds(restart, "--restart"),
        seconds(deadline, "--deadline") if deadline else None,
        _of_nodes(_history(interruptions, over, outage, Question(since, prices, None), model, provider), nodes),
        loss(lost, job),
    )
    show(_advised(run, listed, cheap) if run.deadline_s is None else _planned(run, listed, cheap), output)


def _history(count: int | None, over: str, outage: str, question: Question, model: str, provider: str) -> History:
    if count is not None and over:
        return counted_by_hand(count, over, outage)
    if count is not None or over:
        usage_error("--interruptions and --over belong together", "--over" if count is not None else "--interruptions")
    if outage:
        usage_error("belongs to --interruptions and --over; the meter has seen outages itself", "--outage")
    try:
        with metered(question) as source:
            return counted_by_the_meter(source, model, provider)
    except Refused as refused:
        raise Refused(f"{refused}; or give what you counted: --interruptions 3 --over 21d") from refused


def _of_nodes(history: History, nodes: int) -> History:
    """Any of its nodes stops the run, and it waits for all of them."""
    return replace(
        history,
        busy_s=history.busy_s / nodes,
        interruptions=history.interruptions.of_any(nodes),
        returns=history.returns.of_all(nodes),
    )


def _advised(run: _Run, listed: "Price", cheap: "Price") -> Answer:
    from kopt.policies.cost.spot import SpotQuestion, spot_advice

    advice = spot_advice(
        SpotQuestion(
            run.work_s,
            run.history.count,
            run.history.busy_s,
            run.loss.mean_s,
            run.restart_s,
            listed.micro_per_gpu_hour,
            cheap.micro_per_gpu_hour,
        )
    )
    rows = [
        SpotRow("on-demand", listed.micro_per_gpu_hour / 1e6, run.work_s, advice.on_demand_micro),
        SpotRow("spot", cheap.micro_per_gpu_hour / 1e6, advice.spot_s, advice.spot_micro),
    ]
    header = {
        "use_spot": advice.use_spot,
        "reason": advice.reason,
        "hazard_per_hour": advice.hazard,
        "hazard_high_per_hour": advice.hazard_high,
        "most_hazard_per_hour": advice.most_hazard,
        "currency": listed.currency,
    }
    remarks = [
        f"{'Yes' if advice.use_spot else 'No'}: {advice.reason}.",
        f"{advice.hazard:.3g} interruptions an hour, at most {advice.hazard_high:.3g} (95 %); spot is cheaper below "
        f"{advice.most_hazard:.3g}.",
    ]
    return Answer("capacities", rows, header, remarks=[*remarks, *_sources(run, listed, cheap)], hide_header=True)


def _planned(run: _Run, listed: "Price", cheap: "Price") -> Answer:
    from kopt.policies.cost.spot_plan import SpotPlan, SpotRun

    ratio = cheap.micro_per_gpu_hour / listed.micro_per_gpu_hour
    rates, alone_s = (run.history.interruptions, run.history.returns), run.work_s + run.restart_s
    deadline_s = run.deadline_s or math.inf
    if alone_s > deadline_s:
        usage_error(f"the run takes {format_span(alone_s)} on on-demand capacity, start included", "--deadline")
    plan = SpotPlan(SpotRun(run.work_s, deadline_s, run.restart_s, run.loss.mean_s, run.loss.most_s, ratio, *rates))
    price = listed.micro_per_gpu_hour
    there, away = (plan.expected_hours(available=available) * price for available in (True, False))
    alone = alone_s / 3600 * price
    rows, steps = [SpotRow("on-demand", price / 1e6, alone_s, alone)], list[_Step]()
    sentences = ["No: on-demand capacity from the start is the cheapest that is in time."]
    if there < alone:
        rows += [SpotRow("spot, as planned", None, deadline_s, there)]
        rows += [SpotRow("spot, none to be had now", None, deadline_s, away)]
        steps = [_step(plan, share * run.work_s) for share in _SHARES]
        saves = (
            f"{1 - there / alone:.0%} less with spot capacity to be had now, {max(0.0, 1 - away / alone):.0%} without"
        )
        sentences = [f"Yes: the plan is expected to cost {saves}, and is in time."]
        sentences += [step.sentence for step in steps]
    header = {
        "use_spot": there < alone,
        "plan": [
            {
                "work_seconds": step.work_s,
                "spot_while_hours_left": step.spot_h,
                "wait_while_hours_left": step.wait_h,
            }
            for step in steps
        ],
        "currency": listed.currency,
    }
    return Answer("capacities", rows, header, remarks=[*sentences, *_sources(run, listed, cheap)], hide_header=True)


_SHARES = (1.0, 0.5, 0.25)
"""Of the work, as still to be done, for which the plan is put into words."""


@dataclass(frozen=True)
class _Step:
    """With ``work_s`` still to compute: use spot capacity while more than ``spot_h`` are left until the deadline, and
    wait for it, where it has been away for an hour, while more than ``wait_h`` are left; None: never."""

    work_s: float
    spot_h: float | None
    wait_h: float | None

    @property
    def sentence(self) -> str:
        begin = f"With {format_span(self.work_s)} still to compute,"
        if self.spot_h is None:
            return f"{begin} use on-demand capacity."
        use = f"{begin} use spot capacity while more than {format_span(self.spot_h * 3600)} are left"
        if self.wait_h is None:
            return f"{use}, and on-demand capacity while there is none; then on-demand capacity."
        wait = f"wait for it while more than {format_span(self.wait_h * 3600)} are left"
        return f"{use}, and {wait}; else on-demand capacity."


def _step(plan: "SpotPlan", work_s: float) -> _Step:
    return _Step(work_s, plan.least_hours_for_spot(work_s), plan.least_hours_to_wait(work_s))


def _sources(run: _Run, listed: "Price", cheap: "Price") -> list[str]:
    prices = f"Prices in {listed.currency}: {listed.source}; {cheap.source}."
    return [run.history.text, run.loss.text, prices]
