"""``kopt capacity what-if``: what waits and use would have been with other pools, on the jobs that really ran."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cluster.queueing.pools import numbers_of, on_demand_price, sizes_of_pools
from kopt.cli.cost.reading import Prices, read_book
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.progress import bar
from kopt.serving.base.environment import load_settings

if TYPE_CHECKING:
    from kopt.core.workload.run_time import JobRun
    from kopt.simulator.what_if.answer import WhatIf
    from kopt.simulator.what_if.study import Cluster


class OrderChoice(StrEnum):
    AUTO = "auto"
    FIFO = "fifo"
    BEST_EFFORT = "best-effort"
    BACKFILL = "backfill"
    FAIR = "fair"


class GroupChoice(StrEnum):
    QUEUE = "queue"
    USER = "user"


@dataclass(frozen=True)
class FigureRow:
    """Values as people read them; JSON has numbers."""

    what: str = column("figure")
    of: str = column("of")
    recorded: str = column("recorded", drop=3)
    as_is: str = column("as it is")
    as_is_interval: str = column("5–95 %", drop=1)
    what_if: str = column("would be")
    what_if_interval: str = column("5–95 %", drop=2)
    change: str = column("change")
    change_interval: str = column("5–95 %", drop=4)


@dataclass(frozen=True)
class _Change:
    add: Mapping[str, int]
    remove: Mapping[str, int]
    moves: Mapping[str, str]
    quotas: Mapping[str, int]


def what_if(
    jobs: Annotated[
        Path | None, typer.Option("--jobs", metavar="TABLE", help="Jobs that ran, CSV; else those of the endpoint.")
    ] = None,
    cluster: Annotated[
        str, typer.Option("--cluster", metavar="NAME", help="Whose jobs, where there are several clusters.")
    ] = "",
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="Only of jobs that were submitted since.")] = "",
    gpus: Annotated[
        list[str] | None,
        typer.Option("--gpus", metavar="POOL=NUMBER", help="GPUs as it is; else those of the cluster."),
    ] = None,
    add_gpus: Annotated[
        list[str] | None, typer.Option("--add-gpus", metavar="POOL=NUMBER", help="So many more.")
    ] = None,
    remove_gpus: Annotated[
        list[str] | None, typer.Option("--remove-gpus", metavar="POOL=NUMBER", help="So many fewer; of all, no pool.")
    ] = None,
    move: Annotated[
        list[str] | None, typer.Option("--move", metavar="POOL=POOL", help="Jobs of a pool that run in another one.")
    ] = None,
    quota: Annotated[
        list[str] | None, typer.Option("--quota", metavar="QUEUE=NUMBER", help="GPUs that a queue may use at a time.")
    ] = None,
    quota_now: Annotated[
        list[str] | None, typer.Option("--quota-now", metavar="QUEUE=NUMBER", help="… and may use as it is.")
    ] = None,
    order: Annotated[
        OrderChoice, typer.Option("--order", help="In which jobs start; auto: as agrees best with recorded waits.")
    ] = OrderChoice.AUTO,
    by: Annotated[GroupChoice, typer.Option("--by", help="Whose waits are listed.")] = GroupChoice.QUEUE,
    prices: Prices = None,
    price: Annotated[
        float | None, typer.Option("--price", min=0, metavar="AMOUNT", help="Of a GPU-hour in every pool.")
    ] = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """What waits, utilisation and costs would have been with other GPUs or quotas, on the jobs that really ran.

    Replays the jobs through the cluster as it is and as it would be. How far the first of these agrees with the waits
    that were recorded is said beside the answer, and where it does not, that the answer is not to be trusted. What of a
    wait passed while enough GPUs were free for all that waited stays as it was. Jobs are those that
    `kopt controller runs` has sent to the endpoint, or a TABLE with job_id, submit_time, start_time, end_time (or
    duration), gpus, and optionally queue, user, pool and cluster.

    Examples:

        kopt capacity what-if --add-gpus h100=16

        kopt capacity what-if --jobs jobs.csv --gpus h100=64 --remove-gpus h100=16 --price 2.49

        kopt capacity what-if --remove-gpus a100=32 --move a100=h100 --by user

        kopt capacity what-if --jobs jobs.csv --gpus h100=64 --quota research=48 -o json
    """
    now = numbers_of(quota_now or [], "--quota-now", "QUEUE")
    change = _Change(
        numbers_of(add_gpus or [], "--add-gpus"),
        numbers_of(remove_gpus or [], "--remove-gpus"),
        _moves(move or []),
        numbers_of(quota or [], "--quota", "QUEUE"),
    )
    if not any((change.add, change.remove, change.moves, change.quotas)):
        usage_error("say what would be another one: --add-gpus, --remove-gpus, --move or --quota", "--add-gpus")
    span_s = seconds(since, "--since") if since else None
    supposed = numbers_of(gpus or [], "--gpus")
    sizes = {name: (number, name) for name, number in supposed.items()} or _sizes(kubeconfig)
    as_is = _as_is(sizes, now, prices, price)
    would_be = _would_be(as_is, change)
    runs = _of_table(jobs, cluster) if jobs is not None else _of_endpoint(cluster)
    _show(_answered(_since(runs, span_s), as_is, would_be, order, by), output)


def _answered(
    runs: "Sequence[JobRun]", as_is: "Cluster", would_be: "Cluster", order: OrderChoice, by: GroupChoice
) -> "WhatIf":
    from kopt.simulator.what_if.jobs import WhatIfError, history_of
    from kopt.simulator.what_if.replay import Order
    from kopt.simulator.what_if.study import study

    selected = None if order is OrderChoice.AUTO else Order(order.value)
    try:
        with bar("replaying") as advance:
            return study(
                history_of(runs), as_is, would_be, order=selected, by_user=by is GroupChoice.USER, advance=advance
            )
    except WhatIfError as error:
        raise Refused(str(error)) from error


def _show(answer: "WhatIf", output: Format) -> None:
    check = answer.check
    trust = "The answer can be trusted" if check.is_trusted else "DO NOT TRUST the changes of waits"
    remarks = [f"{trust}: {check.reason.message}", *answer.assumptions]
    if answer.left_out:
        remarks.append(f"{answer.left_out:,} jobs ran on GPUs of other pools, or of none that is recorded: left out.")
    rows = [FigureRow(*figure.cells()) for figure in answer.figures]
    title = f"{check.jobs:,} jobs of {check.days} days"
    show(Answer("figures", rows, title=title, remarks=remarks, document=answer.to_dict()), output)


def _moves(written: Sequence[str]) -> dict[str, str]:
    result = {}
    for item in written:
        source, equals, target = item.partition("=")
        if not (source and equals and target) or source == target:
            usage_error(f"{item!r} is not POOL=POOL", "--move")
        result[source] = target
    return result


def _sizes(kubeconfig: Path | None) -> dict[str, tuple[int, str]]:
    """GPUs and their model, by pool."""
    sizes = asyncio.run(sizes_of_pools(kubeconfig))
    listed = {name: (size.gpus, size.model) for name, size in sizes.items() if size.gpus}
    if not listed:
        raise Refused("no ResourceFlavor of the cluster has GPUs; say how many each pool has: --gpus POOL=NUMBER")
    return listed


def _as_is(
    sizes: Mapping[str, tuple[int, str]], quotas: Mapping[str, int], prices: Path | None, price: float | None
) -> "Cluster":
    from kopt.simulator.what_if.replay import Pool
    from kopt.simulator.what_if.study import Cluster

    book = read_book(prices)
    pools = {name: Pool(number, quotas) for name, (number, _) in sizes.items()}
    listed = {name: on_demand_price(book, model) if price is None else price for name, (_, model) in sizes.items()}
    return Cluster(pools, prices={name: each for name, each in listed.items() if each is not None})


def _would_be(as_is: "Cluster", change: _Change) -> "Cluster":
    from kopt.simulator.what_if.jobs import WhatIfError
    from kopt.simulator.what_if.study import changed

    try:
        return changed(as_is, add=change.add, remove=change.remove, moves=change.moves, quotas=change.quotas)
    except WhatIfError as error:
        raise Refused(str(error)) from error


def _of_table(table: Path, cluster: str) -> "Sequence[JobRun]":
    from kopt.core.workload.run_time import RunTimeError
    from kopt.data.jobs.openb import TraceError
    from kopt.sdk.run_time import runs_of

    try:
        runs = runs_of(table, cluster)
    except (TraceError, RunTimeError) as error:
        raise Refused(str(error)) from error
    except OSError as error:
        raise Refused(f"{table} cannot be read: {error.strerror or error}") from error
    if not runs:
        raise Refused(f"{table} has no run on a GPU")
    return runs


def _of_endpoint(cluster: str) -> "Sequence[JobRun]":
    from kopt.cli.endpoint import endpoint
    from kopt.core.workload.run_time import RunTimeError
    from kopt.serving.client.transport import RequestRefused
    from kopt.serving.contract.common import AnswerError
    from kopt.simulator.what_if.asking import pages_of_endpoint

    runs: list[JobRun] = []
    try:
        with endpoint(load_settings()) as client, bar("reading jobs") as advance:
            for page in pages_of_endpoint(client, cluster):
                runs += page
                advance(len(runs), len(runs))
    except (RequestRefused, AnswerError, RunTimeError) as error:
        raise Refused(str(error)) from error
    if not runs:
        of = f" of cluster {cluster!r}" if cluster else ""
        raise Refused(f"the endpoint has no jobs{of}; `kopt controller runs` sends them, or give a table: --jobs")
    return runs


def _since(runs: "Sequence[JobRun]", span_s: int | None) -> "Sequence[JobRun]":
    """Back from the last that is known, as times may be a trace's own."""
    if span_s is None:
        return runs
    last_s = max(run.started_s if run.ended_s is None else run.ended_s for run in runs)
    submitted_s = (run.started_s if run.submitted_s is None else run.submitted_s for run in runs)
    return [run for run, at_s in zip(runs, submitted_s, strict=True) if at_s >= last_s - span_s]
