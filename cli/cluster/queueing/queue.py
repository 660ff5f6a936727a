"""``kopt queue``: GPU workloads that wait and run, queue by queue, in the order in which they are taken."""

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.cluster.evictions import span, whose
from kopt.cli.cluster.queueing.scores import overtaken, scores
from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.core.reason import Reason
    from kopt.core.scheduling.queued import Queued

    Report = Callable[[list[Queued], tuple[str, ...], float], None]


@dataclass(frozen=True)
class QueueRow:
    """A workload. Times are Unix seconds; ``lost_gpu_seconds`` is the work that an eviction now would lose,
    by the word of ``source``: ``agent``, or ``claim`` of the pods' owner."""

    queue: str = column("queue")
    position: int | None = column("#", drop=6)
    workload: str = column("workload")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    priority: int | None = column("priority", show=str, drop=2)
    state: str = column("state")
    for_s: float | None = column("for", show=span, drop=5)
    lost_gpu_seconds: float | None = column("at risk", show=lambda gpu_s: f"{gpu_s / 3600:.2f} GPU-h", drop=4)
    gpus_of: str = column("GPUs of", drop=3)
    kind: str = column("kind", wide=True)
    system: str = column("system", wide=True)
    local_queue: str = column("local queue", wide=True)
    holder: str = column("held by", wide=True)
    since_s: float | None = column("since", wide=True)
    created_s: float = column("created", wide=True)
    message: str = column("message", wide=True)
    source: str = column("at risk by", show=whose, drop=1)
    overtakes: str = column("overtakes", drop=0)
    workload_class: str = column("class", wide=True)


def queue(
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the workloads; default: all.")] = "",
    name: Annotated[str, typer.Option("--queue", metavar="NAME", help="Only this ClusterQueue or LocalQueue.")] = "",
    waiting: Annotated[bool, typer.Option("--waiting", help="Only what does not run.")] = False,
    by_score: Annotated[
        bool, typer.Option("--by-score", help="What waits, in the order of a formula with age and GPUs, and its parts.")
    ] = False,
    per_hour: Annotated[
        float, typer.Option("--per-hour", min=0.001, metavar="POINTS", help="With --by-score: what an hour counts.")
    ] = 10.0,
    per_doubling: Annotated[
        float,
        typer.Option("--per-doubling", min=0.0, metavar="POINTS", help="With --by-score: what twice the GPUs count."),
    ] = 5.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and print it anew whenever it changes.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List GPU workloads that wait and run, by queue, in the order in which they are admitted.

    Running workloads come first, then waiting ones with their position, then those that are held and by which
    controller: Kueue's Workloads, and gangs and pods of KAI, of Volcano and outside of queues. "GPUs of" names the
    LendingPool whose GPUs a workload runs on. "Overtakes" names the oldest workload of its queue that one is before
    although it came later, and why; where the queues controller has written an order by class, age and GPUs, also the
    one of a higher class that it is before. --by-score orders what waits by that formula, says for how long each can
    be overtaken at most, and why an order may not be written. `kopt why` explains a single one.

    Examples:

        kopt queue

        kopt queue --queue research --waiting

        kopt queue --by-score --per-hour 20

        kopt queue -n team --watch
    """

    refusals = asyncio.run(_refusals(kubeconfig)) if by_score else {}

    def report(queueds: "list[Queued]", unread: tuple[str, ...], now_s: float) -> None:
        if by_score:
            listed = selected(queueds, namespace=namespace, name=name)
            show(scores(listed, now_s, per_hour, per_doubling, refusals), output)
            return
        show(answer(queueds, unread, now_s, namespace=namespace, name=name, waiting=waiting), output)

    if watch:
        asyncio.run(_watched(kubeconfig, namespace, report))
        return
    now_s = time.time()
    report(*asyncio.run(_read(kubeconfig, namespace, now_s)), now_s)


def answer(
    queueds: "list[Queued]",
    unread: tuple[str, ...],
    now_s: float,
    *,
    namespace: str = "",
    name: str = "",
    waiting: bool = False,
) -> Answer:
    """Positions are those among all, whatever is shown."""
    listed = selected(queueds, namespace=namespace, name=name, pending=waiting)
    before = overtaken(queueds)
    remarks = [_summary(listed)] if listed else []
    remarks += [f"You may not read {', '.join(unread)}: lines may be missing."] if unread else []
    empty = "nothing waits" if waiting else "no GPU workload waits or runs"
    return Answer(
        "workloads",
        [_row(queued, now_s, before.get(queued.uid, "")) for queued in listed],
        remarks=remarks,
        empty=empty,
    )


def selected(queueds: "list[Queued]", *, namespace: str = "", name: str = "", pending: bool = False) -> "list[Queued]":
    """Those that are to be shown."""
    return [
        queued
        for queued in queueds
        if (not namespace or queued.namespace == namespace)
        and name in ("", queued.queue, queued.local_queue)
        and not (pending and queued.has_gpus)
    ]


_BETWEEN_S = 1.0
_CLEARED = "\033[H\033[2J"


async def _read(kubeconfig: Path | None, namespace: str, now_s: float) -> "tuple[list[Queued], tuple[str, ...]]":

    async with open_cluster(kubeconfig) as kube:
        return await read(kube, namespace, now_s)


async def _refusals(kubeconfig: Path | None) -> "Mapping[str, Reason]":
    """By ClusterQueue, why the order of its cohort may not be written; empty where these may not be read."""
    from kopt.cluster.client.api import ApiError, connect
    from kopt.cluster.client.resources import KUEUE_CLUSTER_QUEUES, KUEUE_COHORTS
    from kopt.cluster.workloads.kueue.order_rules import in_trees, order_rules, parent_cohort
    from kopt.policies.priority.order_writes import order_refusals

    try:
        async with connect(kubeconfig) as kube:
            queues, cohorts = await asyncio.gather(kube.list(KUEUE_CLUSTER_QUEUES), kube.list(KUEUE_COHORTS))
    except ApiError:
        return {}
    parents = {cohort["metadata"]["name"]: parent_cohort(cohort) for cohort in cohorts.items}
    return order_refusals(in_trees(map(order_rules, queues.items), parents))


async def _watched(kubeconfig: Path | None, namespace: str, report: "Report") -> None:
    """Prints until it is interrupted; changes arrive by watches, and are printed at most once a second."""
    from kopt.cluster.client.api import ApiError, connect
    from kopt.cluster.client.resources import KUEUE_WORKLOADS, PODS, UNFINISHED_PODS
    from kopt.cluster.runtime.informer import Informer

    changed = asyncio.Event()
    changed.set()
    try:
        async with connect(kubeconfig) as kube, asyncio.TaskGroup() as tasks:
            for resource, fields in ((KUEUE_WORKLOADS, ""), (PODS, UNFINISHED_PODS)):
                informer: Informer[str] = Informer(
                    kube,
                    resource,
                    namespace=namespace or None,
                    field_selector=fields,
                    keep=lambda document: document["metadata"]["uid"],
                )
                informer.subscribe(lambda _: changed.set())
                tasks.create_task(informer.run())
            while True:
                await changed.wait()
                changed.clear()
                now_s = time.time()
                result = await read(kube, namespace, now_s)
                if sys.stdout.isatty():
                    typer.echo(_CLEARED, nl=False)
                report(*result, now_s)
                await asyncio.sleep(_BETWEEN_S)
    except* ApiError as errors:
        raise Refused(f"the cluster cannot be read: {errors.exceptions[0]}") from None


async def read(kube: "Kube", namespace: str, now_s: float) -> "tuple[list[Queued], tuple[str, ...]]":
    """Every line, and what may not be read. ``namespace`` is read alone where that is all that may be."""
    from kopt.cluster.client.resources import PODS, UNFINISHED_PODS
    from kopt.controllers.overview.reading import Reader

    reader = Reader(kube)
    queue_state, pods = await asyncio.gather(
        reader.lines(namespace),
        reader.listed(PODS, fields=UNFINISHED_PODS, narrow=namespace),
    )
    return queue_state.everything(pods, now_s), tuple(reader.unread)


def _row(queued: "Queued", now_s: float, overtakes: str = "") -> QueueRow:
    return QueueRow(
        queued.queue,
        queued.position,
        queued.full_name,
        queued.gpus / 1000,
        queued.priority,
        queued.state_text,
        None if queued.since_s is None else max(0.0, now_s - queued.since_s),
        queued.risk_gpu_s,
        queued.pool or ("own" if queued.has_gpus else ""),
        queued.kind,
        queued.system.value,
        queued.local_queue,
        queued.holder,
        queued.since_s,
        queued.created_s,
        queued.message,
        queued.risk_source or "",
        overtakes,
        queued.workload_class,
    )


def _summary(queueds: "list[Queued]") -> str:
    run = [queued for queued in queueds if queued.has_gpus]
    wait = [queued for queued in queueds if not queued.has_gpus]
    lent = sum(queued.gpus for queued in run if queued.pool)
    sentence = f"{len(run)} run on {sum(queued.gpus for queued in run) / 1000:g} GPUs"
    sentence += f" ({lent / 1000:g} of them lent)" if lent else ""
    return f"{sentence}; {len(wait)} wait for {sum(queued.gpus for queued in wait) / 1000:g}."
