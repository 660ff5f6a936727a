"""``kopt demand ingest``: what the ingest controller does, by hand and without a cluster."""

import asyncio
import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import bar, print_status
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kopt.controllers.ingest.demand_source import DemandSource
    from kopt.controllers.ingest.ingester import Followed, Ingester, IngestSettings, Report


@dataclass(frozen=True)
class IngestRow:
    """One service after a pass over its source."""

    service: str = column("service")
    state: str = column("state")
    changed: int = column("new buckets")
    newest_s: float | None = column(
        "newest", show=lambda at_s: time.strftime("%m-%d %H:%M", time.localtime(at_s)) if at_s else ""
    )
    reason: str = column("reason", wide=True)
    error: str = column("problem")


def _clock(at_s: float | None) -> str:
    return "" if at_s is None else time.strftime("%m-%d %H:%M", time.localtime(at_s))


def ingest(
    prometheus: Annotated[str, typer.Option("--prometheus", metavar="URL", help="The Prometheus server.")],
    service: Annotated[
        str, typer.Option("--service", metavar="NAME", help="One service, with --engine or --query.")
    ] = "",
    engine: Annotated[
        str, typer.Option("--engine", metavar="ENGINE", help="Whose metrics it has: vLLM, Triton, KServe, RayServe.")
    ] = "",
    labels: Annotated[
        list[str] | None,
        typer.Option("--match", metavar="NAME=VALUE", help="Label of its metrics; default: service=NAME."),
    ] = None,
    query: Annotated[str, typer.Option("--query", metavar="PROMQL", help="Requests in one $step, as one series.")] = "",
    services: Annotated[
        Path | None,
        typer.Option("--services", metavar="FILE", help="Services and sources; default: KOPT_HOME/services.toml."),
    ] = None,
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How much history is filled in.")] = "14d",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on after every bucket, until it is interrupted.")
    ] = False,
    token_file: PrometheusToken = None,
    output: Output = Format.TABLE,
) -> None:
    """Push the demand of services from Prometheus to the prediction endpoint, which then forecasts them by name.

    Services are named by --service or by a services.toml. Pushing again is harmless: what is there is not written
    again, late and restated buckets are. `kopt controller ingest` does the same in a cluster.

    Examples:

        kopt demand ingest --prometheus http://127.0.0.1:9090 --service chat --engine vLLM

        kopt demand ingest --prometheus http://prometheus:9090 --services services.toml --follow
    """
    from kopt.controllers.ingest.ingester import IngestSettings

    backfill_s = seconds(since, "--since")
    if not 300 <= backfill_s <= 14 * 86_400:
        usage_error("the endpoint keeps two weeks; give 5m to 14d", "--since")
    sources = _sources(service, engine, labels or [], query, services)
    settings = IngestSettings(backfill_s=backfill_s, reread_s=min(1800.0, backfill_s))
    run = _followed if follow else _once
    rows = [_row(followed) for followed in asyncio.run(run(prometheus, token_file, settings, sources))]
    remarks = ["kopt demand ingest --follow goes on"] if not follow else []
    show(Answer("services", rows, {"prometheus": prometheus}, remarks=remarks), output)
    if failed := [row for row in rows if row.state == "failing"]:
        raise Refused(f"{len(failed)} of {len(rows)} services failed, {failed[0].service} first: {failed[0].error}")


def _sources(
    service: str, engine: str, labels: list[str], query: str, services: Path | None
) -> "tuple[DemandSource, ...]":
    from kopt.controllers.ingest.sources import SourceError, read_services, source_of, unique

    try:
        if not service:
            if engine or query or labels:
                usage_error("--engine, --query and --match go with --service", "--service")
            path = services or load_settings().home / "services.toml"
            sources, errors = unique(read_services(path))
            if errors:
                raise Refused(errors[0])
            if not sources:
                raise Refused(f"{path} names no service with an engine or a query")
            return sources
        if bad := [label for label in labels if "=" not in label]:
            usage_error(f"{bad[0]!r} is no NAME=VALUE", "--match")
        matchers = dict(label.split("=", 1) for label in labels)
        fields = {"engine": engine, "query": query, "labels": matchers}
        return (source_of(service, fields, {"service": service}),)
    except SourceError as error:
        raise Refused(str(error)) from error


async def _once(
    prometheus: str, token_file: Path | None, settings: "IngestSettings", sources: "tuple[DemandSource, ...]"
) -> "list[Followed]":
    with bar("ingesting") as advance:
        done = 0

        def report(_: "Followed") -> None:
            nonlocal done
            done += 1
            advance(done, len(sources))

        async with _ingester(prometheus, token_file, settings, report) as ingester:
            return await ingester.once(sources)


async def _followed(
    prometheus: str, token_file: Path | None, settings: "IngestSettings", sources: "tuple[DemandSource, ...]"
) -> "list[Followed]":
    """Until it is interrupted, and then how all sources do."""
    followed: dict[str, Followed] = {}

    def report(source: "Followed") -> None:
        followed[source.source.series] = source
        what = source.error or f"{source.changed} new buckets"
        print_status(f"{time.strftime('%H:%M:%S')} {source.source.series}: {source.state}, {what}")

    async with _ingester(prometheus, token_file, settings, report) as ingester:
        ingester.follow(sources)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
    return list(followed.values())


@contextlib.asynccontextmanager
async def _ingester(
    prometheus: str, token_file: Path | None, settings: "IngestSettings", report: "Report"
) -> "AsyncIterator[Ingester]":
    from kopt.controllers.ingest.connections import connected
    from kopt.controllers.ingest.ingester import Ingester

    async with connected(prometheus, load_settings().endpoint, token_file) as connections:
        ingester = Ingester(connections.read, connections.push, settings, report, read_group=connections.read_group)
        try:
            yield ingester
        finally:
            await ingester.stop()


def _row(followed: "Followed") -> IngestRow:
    newest_s = None if followed.newest is None else (followed.newest + 1) * 300.0
    return IngestRow(
        followed.source.series,
        str(followed.state),
        followed.changed,
        newest_s,
        followed.reason,
        followed.error,
    )
