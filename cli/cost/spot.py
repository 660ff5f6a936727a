"""``kopt cost spot``: whether a run is cheaper on capacity that may be taken away."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cost.reading import Prices, read_book
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import format_span

if TYPE_CHECKING:
    from kopt.core.cost.prices import Price
    from kopt.policies.cost.spot import SpotAdvice


@dataclass(frozen=True)
class SpotRow:
    """``micro``: of one GPU for the whole run, in millionths."""

    capacity: str = column("capacity")
    per_gpu_hour: float = column("GPU-hour", show=lambda price: f"{price:g}")
    expected_s: float = column("takes", show=lambda span: format_span(span) if math.isfinite(span) else "for ever")
    micro: float = column("a GPU costs", show=lambda micro: f"{micro / 1e6:,.2f}" if math.isfinite(micro) else "–")


def spot(
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="Its price is in the price book.")],
    run_time: Annotated[str, typer.Option("--run-time", metavar="SPAN", help="Without interruptions.")],
    interruptions: Annotated[int, typer.Option("--interruptions", min=0, help="That were counted.")],
    over: Annotated[str, typer.Option("--over", metavar="SPAN", help="In how much time of such capacity.")],
    lost: Annotated[
        str,
        typer.Option(
            "--lost", metavar="SPAN", help="Work lost by each: on average half of what is between checkpoints."
        ),
    ] = "15m",
    restart: Annotated[str, typer.Option("--restart", metavar="SPAN", help="Until it computes again.")] = "5m",
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="As in kopt cost prices.")] = "",
    deadline: Annotated[str, typer.Option("--deadline", metavar="SPAN", help="From now on.")] = "",
    prices: Prices = None,
    output: Output = Format.TABLE,
) -> None:
    """Whether a run is cheaper on spot capacity: interruption hazard × lost work × price, yes or no.

    It is yes only where spot is cheaper at the 95 % upper bound of the hazard: where little was counted, little is
    known. What a run would lose is in `kopt logs classify` (work at risk).

    Examples:

        kopt cost spot --gpu h100 --provider nebius --run-time 24h --interruptions 3 --over 21d --lost 20m
    """
    import time

    from kopt.core.cost.metering import Offer
    from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
    from kopt.policies.cost.spot import SpotQuestion, spot_advice

    try:
        model, book, now_ms = find_gpu(gpu).name, read_book(prices), int(time.time() * 1000)
    except UnknownGpuError as error:
        usage_error(str(error), "--gpu")
    listed, cheap = (book.of(Offer(model, provider, "", capacity), now_ms) for capacity in ("on-demand", "spot"))
    if listed is None or cheap is None or listed.currency != cheap.currency:
        raise Refused(f"no prices of {model} {provider} on demand and on spot in one currency; see kopt cost prices")
    run_s = seconds(run_time, "--run-time")
    advice = spot_advice(
        SpotQuestion(
            run_s,
            interruptions,
            seconds(over, "--over"),
            seconds(lost, "--lost"),
            seconds(restart, "--restart"),
            listed.micro_per_gpu_hour,
            cheap.micro_per_gpu_hour,
            seconds(deadline, "--deadline") if deadline else None,
        )
    )
    show(_answer(advice, listed, cheap, run_s), output)


def _answer(advice: "SpotAdvice", listed: "Price", cheap: "Price", run_s: float) -> Answer:
    rows = [
        SpotRow("on-demand", listed.micro_per_gpu_hour / 1e6, run_s, advice.on_demand_micro),
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
        f"Prices in {listed.currency}: {listed.source}; {cheap.source}.",
    ]
    return Answer("capacities", rows, header, remarks=remarks, hide_header=True)
