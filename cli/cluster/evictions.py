"""``kopt evictions``: which workloads lost GPUs, to which others, at what cost, and whether they are back."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output, seconds
from kopt.cli.output import Answer, Format, column, format_time, show
from kopt.core.units import counted

if TYPE_CHECKING:
    from kopt.core.scheduling.eviction import Entry

_INSTALL = "evictions are not recorded here (no evictions.kaiwo.ai): install the chart with evictions.enabled=true"


def span(of_s: float) -> str:
    """``2h05m``, ``3m20s``, ``12s``."""
    whole = int(max(0.0, of_s))
    if whole >= 86400:
        return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


def whose(source: str) -> str:
    """Whose word about checkpoints it is, for people."""
    return {"claim": "owner's claim", "agent": "log agent"}.get(source, "–")


@dataclass(frozen=True)
class EvictionRow:
    """One eviction; times are Unix seconds, ``back_after_s`` is empty while the workload waits. ``source`` of what is
    known of its checkpoints: ``agent``, or ``claim`` of the pods' owner."""

    evicted_at: float = column("when", show=format_time)
    workload: str = column("workload")
    by: str = column("by")
    for_whom: str = column("for")
    cause: str = column("cause", drop=3)
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    lost_gpu_hours: float | None = column("lost GPU-h", show=lambda hours: f"{hours:.2f}")
    state: str = column("state")
    back_after_s: float | None = column("back after", show=span, drop=2)
    verified: str = column("verified", wide=True)
    last_durable_step: int | None = column("saved step", wide=True)
    resumed_step: int | None = column("resumed at", wide=True)
    system: str = column("system", wide=True)
    order: int = column("order", wide=True)
    reason: str = column("reason", wide=True)
    message: str = column("message", wide=True)
    source: str = column("lost by", show=whose, drop=1)


def evictions(
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the workloads; default: all.")] = "",
    since: Annotated[str, typer.Option(metavar="SPAN", help="How far to look back: 30m, 12h, 7d.")] = "7d",
    waiting: Annotated[bool, typer.Option("--waiting", help="Only what waits, in the order of return.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """List evictions of GPU workloads: by what and for what, what was lost, and when the workload was back.

    `kopt controller evictions` records them. The newest come first; a workload that still waits is listed however long
    ago it was evicted.

    Examples:

        kopt evictions --namespace research --since 24h

        kopt evictions --waiting

        kopt evictions -o csv > evictions.csv
    """
    since_s, now_s = float(seconds(since, "--since")), time.time()
    entries, unreadable = asyncio.run(_read(kubeconfig, namespace))
    listed = [entry for entry in entries if _is_listed(entry, now_s - since_s, waiting)]
    listed.sort(key=lambda entry: entry.eviction.order if waiting else -entry.eviction.evicted_at_s)
    empty = "nothing waits" if waiting else f"no GPU workload was evicted in the last {since}"
    remarks = [_summary(listed)] if listed else []
    remarks += (
        [f"Left out, as they cannot be read: {', '.join(unreadable[:3])}{' …' * (len(unreadable) > 3)}."]
        if unreadable
        else []
    )
    show(Answer("evictions", [_row(entry) for entry in listed], remarks=remarks, empty=empty), output)


def _is_listed(entry: "Entry", from_s: float, only_waiting: bool) -> bool:
    waits = entry.outcome.phase == "Waiting"
    return waits or (not only_waiting and entry.eviction.evicted_at_s >= from_s)


async def _read(kubeconfig: Path | None, namespace: str) -> "tuple[list[Entry], list[str]]":
    """The evictions, and the names of objects that cannot be read."""
    from kopt.cluster.client.api import Forbidden, NotFound
    from kopt.cluster.client.resources import EVICTIONS
    from kopt.cluster.objects.eviction import entry_of

    entries, unreadable = [], []
    async with open_cluster(kubeconfig, failed="evictions cannot be read") as kube:
        try:
            async for page in kube.pages(EVICTIONS, namespace):
                for document in page.items:
                    try:
                        entries.append(entry_of(document))
                    except ValueError:
                        unreadable.append(f"{document['metadata'].get('namespace')}/{document['metadata']['name']}")
        except NotFound as error:
            raise Refused(_INSTALL) from error
        except Forbidden as error:
            where = f"of namespace {namespace}" if namespace else "of all namespaces; name yours with -n"
            raise Refused(f"you may not read evictions {where}") from error
    return entries, unreadable


def _row(entry: "Entry") -> EvictionRow:
    eviction, after = entry.eviction, entry.outcome
    return EvictionRow(
        eviction.evicted_at_s,
        f"{eviction.namespace}/{eviction.workload.name}",
        eviction.by,
        eviction.for_whom,
        eviction.cause.value,
        eviction.gpus / 1000,
        None if eviction.lost_gpu_s is None else eviction.lost_gpu_s / 3600,
        after.phase.value,
        None if after.resumed_at_s is None else after.resumed_at_s - eviction.evicted_at_s,
        after.verified.value if after.verified else "",
        eviction.last_durable_step,
        after.resumed_step,
        eviction.system.value,
        eviction.order,
        eviction.reason,
        after.message,
        eviction.source or "",
    )


def _summary(entries: "list[Entry]") -> str:
    waits = sum(entry.outcome.phase == "Waiting" for entry in entries)
    losses = [entry.eviction.lost_gpu_s for entry in entries if entry.eviction.lost_gpu_s is not None]
    lost = (
        f"{sum(losses) / 3600:.2f} GPU-hours of work lost in the {len(losses)} whose checkpoints were known"
        if losses
        else ("nothing is known of their checkpoints")
    )
    claims = sum(entry.eviction.source == "claim" and entry.eviction.lost_gpu_s is not None for entry in entries)
    lost += f", {claims} of which are claimed by the pods' owners" if claims else ""
    return f"{counted(len(entries), 'eviction')}, {waits} of them waiting to return; {lost}."
