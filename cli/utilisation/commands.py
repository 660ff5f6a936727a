"""``kopt utilisation``: percentiles of how busy GPUs were, by pool and day, over months."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.cluster.efficiency import node_pools_of
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import print_status
from kopt.controllers.meter.busy_hours import KEEP_S, BusyHours
from kopt.core.units import counted
from kopt.policies.efficiency.busy_counts import EVERY_S, HOUR_S, BusyCounts, added, by_pool
from kopt.policies.efficiency.groups import GONE

app = typer.Typer(no_args_is_help=True)
_DAY_S = 24 * HOUR_S
_SETTLED_S = 300
"""An hour is read so long after its end: rules are evaluated, and scraped, a little late."""
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
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="A bearer token for Prometheus.")
    ] = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Store how busy GPUs were in each hour that has ended and is not stored yet, by pool, for 400 days.

    Prometheus keeps series for days or weeks; counts of an hour and pool are 21 numbers. Run it each day, or each hour,
    as a CronJob or by cron: what is stored is not read again, so a run that was missed is made up for. The database is
    that of KOPT_DATABASE_URL, else busy.db below KOPT_STATE_DIR or KOPT_HOME.

    Examples:

        kopt utilisation record --prometheus http://prometheus:9090
    """
    span_s, now_s = seconds(since, "--since"), time.time()
    if not HOUR_S <= span_s <= KEEP_S:
        usage_error("hours are looked for in the last 1h to 400d", "--since")
    pools = asyncio.run(node_pools_of(kubeconfig, "counts are stored by pool"))
    with _opened() as store:
        due = due_hours(store, now_s, span_s)
        number = _record(store, due, prometheus, token_file, pools, now_s)
    print_status(f"{counted(number, 'hour')} stored; nothing was recorded in {len(due) - number} of {len(due)}")


def due_hours(store: BusyHours, now_s: float, span_s: float) -> list[int]:
    """Those of a window that are not stored yet."""
    hours = hours_until(now_s, span_s)
    recorded = store.recorded(hours[0])
    return [start_s for start_s in hours if start_s not in recorded]


def hours_until(now_s: float, span_s: float) -> list[int]:
    """When the whole hours of a window begin, which are settled by ``now_s``; the oldest first."""
    end_s = int(now_s - _SETTLED_S) // HOUR_S * HOUR_S
    return list(range(end_s - int(span_s) // HOUR_S * HOUR_S, end_s, HOUR_S))


def _record(
    store: BusyHours, due: Sequence[int], url: str, token_file: Path | None, pools: dict[str, str], now_s: float
) -> int:
    """How many hours there was something of. Raises Refused."""
    from kopt.cli.sizing.measured import read_token
    from kopt.data.busy_counts import read_busy_hour
    from kopt.data.demand.prometheus import PrometheusError, Server

    number = 0
    try:
        with Server(url, token=read_token(token_file)) as server:
            for start_s in due:
                if by_node := read_busy_hour(server, start_s):
                    store.store(start_s, by_pool(by_node, pools, GONE), now_s)
                    number += 1
    except PrometheusError as error:
        raise Refused(f"{counted(number, 'hour')} stored; the next cannot be read: {error}") from error
    return number


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
    groups: dict[int, list[tuple[str, BusyCounts]]] = {}
    for start_s, name, counts in listed:
        if pool in ("", name):
            groups.setdefault(_begin_s(start_s, every, listed[0][0]), []).append((name, counts))
    rows = [
        _row(start_s, every, name, counts, sum(1 for each, _ in parts if each == name))
        for start_s, parts in sorted(groups.items())
        for name, counts in sorted(added(parts).items())
    ]
    return Answer("rows", rows, {"every": every.value}, remarks=[_REMARK], empty="nothing is stored of this time")


def _begin_s(start_s: int, every: Every, first_s: int) -> int:
    if every is Every.WHOLE:
        return first_s
    return start_s if every is Every.HOUR else start_s // _DAY_S * _DAY_S


def _row(start_s: int, every: Every, pool: str, counts: BusyCounts, hours: int) -> UtilisationRow:
    form = "%Y-%m-%d" if every is Every.DAY else "%Y-%m-%d %H:%M"
    levels = (0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
    gpus = counts.total / (hours * HOUR_S / EVERY_S)
    begin = datetime.fromtimestamp(start_s, UTC).strftime(form)
    return UtilisationRow(begin, pool, gpus, hours, *(counts.quantile(level) for level in levels))


@contextmanager
def _opened() -> Iterator[BusyHours]:
    """Closed afterwards. Raises Refused where the database cannot be used."""
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
