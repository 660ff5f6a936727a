"""``kopt queue``: GPU workloads that wait and run, queue by queue, in the order in which they are taken."""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.edge import Refused
from kopt.cli.evictions import span
from kopt.cli.options import Output
from kopt.cli.output import Answer, Format, column, show

if TYPE_CHECKING:
    from kopt.cluster.api import Kube
    from kopt.controllers.overview.queues import Queued

    Told = Callable[[list[Queued], tuple[str, ...], float], None]


@dataclass(frozen=True)
class QueueRow:
    """A workload. Times are Unix seconds; ``lost_gpu_seconds`` is the work that an eviction now would lose."""

    queue: str = column("queue")
    position: int | None = column("#")
    workload: str = column("workload")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    priority: int | None = column("priority", show=str)
    state: str = column("state")
    for_s: float | None = column("for", show=span)
    lost_gpu_seconds: float | None = column("at risk", show=lambda gpu_s: f"{gpu_s / 3600:.2f} GPU-h")
    gpus_of: str = column("GPUs of")
    kind: str = column("kind", wide=True)
    system: str = column("system", wide=True)
    local_queue: str = column("local queue", wide=True)
    holder: str = column("held by", wide=True)
    since_s: float | None = column("since", wide=True)
    created_s: float = column("created", wide=True)
    message: str = column("message", wide=True)


def queue(
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
    ] = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the workloads; default: all.")] = "",
    name: Annotated[str, typer.Option("--queue", metavar="NAME", help="Only this ClusterQueue or LocalQueue.")] = "",
    waiting: Annotated[bool, typer.Option("--waiting", help="Only what does not run.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on, and print it anew whenever it changes.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """GPU workloads that wait and run, queue by queue, in the order in which they are taken.

    What runs comes first, then what waits with its place, then what is held and by whom. Kueue's Workloads, and the
    gangs and pods of KAI, Volcano and of no queue. "GPUs of" names the LendingPool whose GPUs a workload runs on. `kopt
    why` says more about one.

    Examples:

        kopt queue

        kopt queue --queue research --waiting

        kopt queue -n team --watch
    """

    def told(found: "list[Queued]", unread: tuple[str, ...], now_s: float) -> None:
        show(answer(found, unread, now_s, namespace=namespace, name=name, waiting=waiting), output)

    if watch:
        asyncio.run(_watched(kubeconfig, namespace, told))
        return
    now_s = time.time()
    told(*asyncio.run(_read(kubeconfig, namespace, now_s)), now_s)


def answer(found: "list[Queued]", unread: tuple[str, ...], now_s: float, *, namespace: str = "", name: str = "",
           waiting: bool = False) -> Answer:  # fmt: skip
    """Positions are those among all, whatever is shown."""
    shown = [one for one in found if (not namespace or one.namespace == namespace)
             and name in ("", one.queue, one.local_queue) and not (waiting and one.state in _HAVE_GPUS)]  # fmt: skip
    notes = [_summary(shown)] if shown else []
    notes += [f"You may not read {', '.join(unread)}: lines may be missing."] if unread else []
    empty = "nothing waits" if waiting else "no GPU workload waits or runs"
    return Answer("workloads", [_row(one, now_s) for one in shown], notes=notes, empty=empty)


_HAVE_GPUS = ("running", "starting", "leaving")
_ALIVE = "status.phase!=Succeeded,status.phase!=Failed"
_BETWEEN_S = 1.0
_CLEARED = "\033[H\033[2J"


async def _read(kubeconfig: Path | None, namespace: str, now_s: float) -> "tuple[list[Queued], tuple[str, ...]]":
    from kopt.cluster.api import ApiError, connect

    try:
        async with connect(kubeconfig) as kube:
            return await read(kube, namespace, now_s)
    except ApiError as error:
        raise Refused(f"the cluster cannot be read: {error}") from error


async def _watched(kubeconfig: Path | None, namespace: str, told: "Told") -> None:
    """Prints until it is interrupted; a change is waited for with watches, and at most once a second told of."""
    from kopt.cluster.api import ApiError, connect
    from kopt.cluster.informer import Informer
    from kopt.cluster.resources import KUEUE_WORKLOADS, PODS

    changed = asyncio.Event()
    changed.set()
    try:
        async with connect(kubeconfig) as kube, asyncio.TaskGroup() as tasks:
            for resource, fields in ((KUEUE_WORKLOADS, ""), (PODS, _ALIVE)):
                informer: Informer[str] = Informer(kube, resource, namespace=namespace or None, field_selector=fields,
                                                   keep=lambda document: document["metadata"]["uid"])  # fmt: skip
                informer.subscribe(lambda _: changed.set())
                tasks.create_task(informer.run())
            while True:
                await changed.wait()
                changed.clear()
                now_s = time.time()
                found = await read(kube, namespace, now_s)
                if sys.stdout.isatty():
                    typer.echo(_CLEARED, nl=False)
                told(*found, now_s)
                await asyncio.sleep(_BETWEEN_S)
    except* ApiError as errors:
        raise Refused(f"the cluster cannot be read: {errors.exceptions[0]}") from None


async def read(kube: "Kube", namespace: str, now_s: float) -> "tuple[list[Queued], tuple[str, ...]]":
    """Every line, and what may not be read. ``namespace`` is read alone where that is all that may be."""
    from kopt.cluster.resources import PODS
    from kopt.controllers.overview.gather import Reader
    from kopt.controllers.overview.queues import unqueued

    reader = Reader(kube)
    known, pods = await asyncio.gather(
        reader.lines(namespace),
        reader.listed(PODS, fields=_ALIVE, narrow=namespace),
    )
    others = unqueued(pods, now_s, known.owners)
    return known.queued(pods, others, now_s), tuple(reader.unread)


def _row(one: "Queued", now_s: float) -> QueueRow:
    state = one.state.value + (f" by {one.holder}" if one.state == "held" and one.holder else "")
    has_gpus = one.state in _HAVE_GPUS
    return QueueRow(
        one.queue, one.position, one.full_name, one.gpus / 1000, one.priority, state,
        None if one.since_s is None else max(0.0, now_s - one.since_s), one.risk_gpu_s,
        one.pool or ("own" if has_gpus else ""), one.kind, one.system.value, one.local_queue, one.holder, one.since_s,
        one.created_s, one.message,
    )  # fmt: skip


def _summary(found: "list[Queued]") -> str:
    run = [one for one in found if one.state in _HAVE_GPUS]
    wait = [one for one in found if one.state not in _HAVE_GPUS]
    lent = sum(one.gpus for one in run if one.pool)
    words = f"{len(run)} run on {sum(one.gpus for one in run) / 1000:g} GPUs"
    words += f" ({lent / 1000:g} of them lent)" if lent else ""
    return f"{words}; {len(wait)} wait for {sum(one.gpus for one in wait) / 1000:g}."
