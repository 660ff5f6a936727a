"""``kopt capacity``: how many GPUs pools will need, and what to buy by when."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cluster.queueing.pools import numbers_of, on_demand_price, sizes_of_pools
from kopt.cli.cluster.queueing.what_if import what_if
from kopt.cli.cost.reading import Prices, read_book
from kopt.cli.errors import usage_error
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.core.hardware.pools import PoolSize
from kopt.core.units import counted, format_span
from kopt.policies.capacity.advice import CapacitySettings, advise, begin_s, month_cost, needs_of
from kopt.policies.capacity.forecast import QUANTILES

if TYPE_CHECKING:
    from kopt.core.cost.prices import PriceBook
    from kopt.core.scheduling.queue_demand import QueueDemandHistory
    from kopt.policies.capacity.forecast import WeekAhead


def _gpus(number: float | None) -> str:
    return "–" if number is None else f"{number:.0f}"


def _between(interval: Sequence[float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.0f}–{interval[1]:.0f}"


@dataclass(frozen=True)
class CapacityRow:
    """``needed``: by the median at the end of the forecast; ``interval``: its 5 % and 95 % quantile. ``buy`` GPUs,
    ``buy_interval`` at the 50 % and 95 % quantile. ``weeks``: quantiles of each week ahead."""

    pool: str = column("pool")
    gpus: int = column("GPUs")
    last_week: float | None = column("last week", show=_gpus, drop=2)
    needed: float | None = column("needed", show=_gpus)
    interval: tuple[float, float] | None = column("5–95 %", show=_between)
    buy: int | None = column("buy", show=_gpus)
    buy_interval: tuple[int, int] | None = column("50–95 %", show=_between, drop=1)
    short_from: str = column("short from", show=lambda day: day or "–")
    order_by: str = column("order by", show=lambda day: day or "–")
    per_month: float | None = column("a month", show=lambda price: "–" if price is None else f"{price:,.0f}", drop=3)
    code: str = column("code", drop=4)
    reason: str = column("reason", wide=True)
    weeks: tuple[dict[str, float], ...] = column("weeks", wide=True)


app = typer.Typer(invoke_without_command=True, no_args_is_help=False)
app.command("what-if")(what_if)


@app.callback()
def capacity(
    context: typer.Context,
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where `kopt controller queues` is scraped.")
    ] = "",
    weeks: Annotated[int, typer.Option("--weeks", min=1, max=26, help="How far ahead.")] = 13,
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How much demand to go by.")] = "26w",
    served: Annotated[
        float, typer.Option("--served", min=0.5, max=0.999, help="Share of hours in which GPUs are to be enough.")
    ] = 0.95,
    delivery: Annotated[
        str, typer.Option("--delivery", metavar="SPAN", help="From an order to GPUs that can be used.")
    ] = "8w",
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpus", metavar="POOL=NUMBER", help="As if the pool had so many; without a cluster, all pools."),
    ] = None,
    prices: Prices = None,
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """How many GPUs each pool will need, and what to buy by when: with an interval, and at what price.

    Goes by what queues used and waited for, week by week (Kueue). A pool is short in the first week that needs more
    GPUs than it has with a probability above 10 %; whole nodes are bought. JSON has the quantiles of every week.

    Examples:

        kopt capacity --prometheus http://prometheus:9090

        kopt capacity --prometheus http://prometheus:9090 --weeks 26 --delivery 12w -o json

        kopt capacity --prometheus http://prometheus:9090 --gpus a100=64
    """
    if context.invoked_subcommand is not None:
        return
    if not prometheus:
        usage_error("name the Prometheus that scrapes `kopt controller queues`", "--prometheus")
    supposed = numbers_of(gpus or [], "--gpus")
    span_s, delivery_weeks = seconds(since, "--since"), -(-seconds(delivery, "--delivery") // (7 * 86_400))
    book, history = read_book(prices), _history(prometheus, span_s, token_file)
    pools = sorted({pool for _, pool in history.used})
    if unknown := sorted(set(supposed) - set(pools)):
        usage_error(f"no demand for GPUs of pool {unknown[0]} was scraped; there are: {', '.join(pools)}", "--gpus")
    sizes = {} if set(supposed) >= set(pools) else asyncio.run(sizes_of_pools(kubeconfig))
    settings = CapacitySettings(weeks, served, delivery_weeks)
    rows = [_row(pool, history, _size(sizes.get(pool), supposed.get(pool)), settings, book) for pool in pools]
    rows.sort(key=lambda row: (-(row.per_month or 0), -(row.buy or 0), row.pool))
    remarks = [
        f"By {format_span(span_s)} of demand, used and waited for; {counted(weeks, 'week')} ahead, GPUs enough in "
        f"{served:.0%} of hours, {counted(delivery_weeks, 'week')} for a delivery.",
        "Assumes that demand goes on as it changed so far: no project that begins or ends is known.",
        *_what_if(rows),
    ]
    header = {"weeks": weeks, "served": served, "since_s": span_s, "delivery_weeks": delivery_weeks}
    show(Answer("pools", rows, header, remarks=remarks, empty="no pool", hide_header=True), output)


def _what_if(rows: Sequence[CapacityRow]) -> list[str]:
    """How to ask what the first purchase would have changed."""
    bought = next((row for row in rows if row.buy), None)
    if bought is None:
        return []
    return [f"What that would have changed: `kopt capacity what-if --add-gpus {bought.pool}={bought.buy}`"]


def _history(url: str, since_s: int, token_file: Path | None) -> "QueueDemandHistory":
    from kopt.cli.queues.advise import read_history

    return read_history(url, since_s, token_file)


def _size(size: PoolSize | None, supposed: int | None) -> PoolSize:
    size = size or PoolSize()
    return size if supposed is None else replace(size, gpus=supposed)


def _row(
    pool: str,
    history: "QueueDemandHistory",
    size: PoolSize,
    settings: CapacitySettings,
    book: "PriceBook",
) -> CapacityRow:
    advice = advise(needs_of(history.of_pool(pool), settings.served), size, settings)
    bought, last = advice.purchase, advice.ahead[-1] if advice.ahead else None
    return CapacityRow(
        pool,
        size.gpus,
        advice.last_week,
        None if last is None else last.quantile(0.5),
        None if last is None else (last.gpus[0], last.gpus[-1]),
        None if bought is None else bought.buy_gpus,
        None if bought is None else (bought.buy_low, bought.buy_high),
        _day(history.end_s, None if bought is None else bought.short_in_weeks),
        _day(history.end_s, None if bought is None else bought.order_in_weeks),
        month_cost(on_demand_price(book, size.model), advice.buy_gpus),
        advice.reason.code,
        advice.reason.message,
        tuple(map(_quantiles, advice.ahead)),
    )


def _quantiles(week: "WeekAhead") -> dict[str, float]:
    levels = {f"p{100 * level:.0f}": round(gpus, 1) for level, gpus in zip(QUANTILES, week.gpus, strict=True)}
    return {"week": week.weeks, **levels}


def _day(end_s: float, weeks: int | None) -> str:
    """When a week begins that lies so far ahead."""
    return "" if weeks is None else datetime.fromtimestamp(begin_s(end_s, weeks), UTC).date().isoformat()
