"""``kopt utilisation``: percentiles of how busy GPUs were, by pool and day, over months."""

import asyncio
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cluster.efficiency import node_pools_of
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import print_status
from kopt.core.units import counted
from kopt.policies.efficiency.busy_counts import HOUR_S, KEEP_S, BusyCounts, PoolUse, day_of, pool_use

if TYPE_CHECKING:
    from kopt.controllers.meter.busy_hours import BusyHours

app = typer.Typer(no_args_is_help=True)
_TIMEOUT_S = 30.0
_REMARK = "Of GPUs that pods hold; a percentile is right to 5 % of the time, and one of a day is not a mean of hours."


class Every(StrEnum):
    """What a row is of."""

    HOUR = "hour"
    DAY = "day"
    WHOLE = "whole"


def _share(share: float | None) -> str:
    return "–" if share is None else f"{share:.0%}"


@dataclass(frozen=True)
class UtilisationRow:
    """Shares of the time that a share of GPUs and times computed for at most. ``gpus`` is the mean number that pods
    held while it was recorded, ``hours`` how many were."""

    start: str = column("from")
    pool: str = column("pool")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:,.1f}")
    hours: int = column("hours", show=str, drop=1)
    p05: float | None = column("p5", show=_share, drop=3)
    p25: float | None = column("p25", show=_share, drop=4)
    p50: float | None = column("p50", show=_share)
    p75: float | None = column("p75", show=_share, drop=4)
    p95: float | None = column("p95", show=_share)
    p99: float | None = column("p99", show=_share, drop=2)


@app.command("record")
def record(
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where the rules of `kopt alerts rules` are evaluated.")
    ],
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back hours are looked for.")] = "15d",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Store how busy GPUs were in each hour that has ended and is not stored yet, by pool, for 400 days.

    Prometheus keeps series for days or weeks; counts of an hour and pool are 21 numbers. In a cluster
    `kopt controller meter --prometheus URL` does the same each hour; elsewhere run it by cron: what is stored is not
    read again, and a run that was missed is made up for. The database is
    that of KOPT_DATABASE_URL, else busy.db below KOPT_STATE_DIR or KOPT_HOME.

    Examples:

        kopt utilisation record --prometheus http://prometheus:9090
    """
    span_s = seconds(since, "--since")
    if not HOUR_S <= span_s <= KEEP_S:
        usage_error("hours are looked for in the last 1h to 400d", "--since")
    if not prometheus.startswith(("http://", "https://")):
        usage_error("the address of Prometheus begins with http:// or https://", "--prometheus")
    with _opened() as store:
        number, due = asyncio.run(_record(store, span_s, prometheus, token_file, kubeconfig))
    print_status(f"{counted(number, 'hour')} stored; nothing was recorded in {due - number} of {due}")


async def _record(
    store: "BusyHours", since_s: float, url: str, token_file: Path | None, kubeconfig: Path | None
) -> tuple[int, int]:
    """How many hours there was something of, and how many were looked for. Raises Refused."""
    from kopt.cluster.client.prometheus import Prometheus, PrometheusError, token_of
    from kopt.controllers.meter.busy_hours import due_hours, record_hours

    pools = await node_pools_of(kubeconfig, "counts are stored by pool")
    now_s, number = time.time(), 0
    due = due_hours(store, now_s, since_s)
    try:
        async with Prometheus(url, token=token_of(token_file), timeout_s=_TIMEOUT_S) as server:
            async for _, stored in record_hours(store, server, due, pools, now_s):
                number += stored
    except PrometheusError as error:
        raise Refused(f"{counted(number, 'hour')} stored; the next cannot be read: {error}") from error
    return number, len(due)


@app.command("show")
def show_utilisation(
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back.")] = "90d",
    every: Annotated[Every, typer.Option("--every", help="What a row is of.", show_choices=True)] = Every.DAY,
    pool: Annotated[str, typer.Option("--pool", metavar="NAME", help="Only of this one.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """Show percentiles of how busy GPUs were, by pool and day (UTC), of what `kopt utilisation record` has stored.

    Examples:

        kopt utilisation show --since 90d

        kopt utilisation show --every whole --pool h100 -o json
    """
    since_s = time.time() - seconds(since, "--since")
    with _opened() as store:
        hours = list(store.hours(since_s))
    show(answer(hours, every, pool), output)


def answer(hours: Iterable[tuple[int, str, BusyCounts]], every: Every, pool: str = "") -> Answer:
    """Raises Refused for a pool that there is not."""
    listed = list(hours)
    names = sorted({name for _, name, _ in listed})
    if pool and pool not in names:
        raise Refused(f"nothing is stored of pool {pool!r}; there are {', '.join(names[:8]) or 'none'}")
    selected = [each for each in listed if pool in ("", each[1])]
    rows = [_row(use, every) for use in pool_use(selected, lambda start_s: _begin_s(start_s, every, listed[0][0]))]
    return Answer("rows", rows, {"every": every.value}, remarks=[_REMARK], empty="nothing is stored of this time")


def _begin_s(start_s: int, every: Every, first_s: int) -> int:
    if every is Every.WHOLE:
        return first_s
    return start_s if every is Every.HOUR else day_of(start_s)


def _row(use: PoolUse, every: Every) -> UtilisationRow:
    form = "%Y-%m-%d" if every is Every.DAY else "%Y-%m-%d %H:%M"
    levels = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    begin = datetime.fromtimestamp(use.start_s, UTC).strftime(form)
    return UtilisationRow(begin, use.pool, use.gpus, use.hours, *(use.counts.quantile(level) for level in levels))


@contextmanager
def _opened() -> Iterator["BusyHours"]:
    """Closed afterwards. Raises Refused where the database cannot be used."""
    from kopt.controllers.meter.busy_hours import BusyHours
    from kopt.core.settings import SettingsError
    from kopt.serving.base.database.interface import DatabaseError
    from kopt.serving.base.database.opening import location
    from kopt.serving.base.environment import load_settings

    try:
        store = BusyHours(location(load_settings(), "busy"))
    except SettingsError as error:
        raise Refused(str(error)) from error
    try:
        yield store
    except DatabaseError as error:
        raise Refused(f"what is stored cannot be used: {error}") from error
    finally:
        store.close()
