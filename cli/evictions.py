"""``kopt evictions``: the ledger of who lost GPUs, to whom, at what cost, and whether they are back."""

import asyncio
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.edge import Refused
from kopt.cli.options import Output, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import counted

if TYPE_CHECKING:
    from kopt.core.evictions import Entry

_INSTALL = "the ledger is not installed here (no evictions.kaiwo.ai): install the chart with ledger.enabled=true"


def _local(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def span(of_s: float) -> str:
    """``2h05m``, ``3m20s``, ``12s``."""
    whole = int(max(0.0, of_s))
    if whole >= 86400:
        return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 60}m{whole % 60:02d}s" if whole >= 60 else f"{whole}s"


@dataclass(frozen=True)
class EvictionRow:
    """A line of the ledger; times are Unix seconds, ``back_after_s`` is empty while it waits."""

    evicted_at: float = column("when", show=_local)
    workload: str = column("workload")
    by: str = column("by")
    for_whom: str = column("for")
    cause: str = column("cause")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:g}")
    lost_gpu_hours: float | None = column("lost GPU-h", show=lambda hours: f"{hours:.2f}")
    state: str = column("state")
    back_after_s: float | None = column("back after", show=span)
    verified: str = column("verified", wide=True)
    last_durable_step: int | None = column("saved step", wide=True)
    resumed_step: int | None = column("resumed at", wide=True)
    system: str = column("system", wide=True)
    order: int = column("order", wide=True)
    reason: str = column("reason", wide=True)
    message: str = column("message", wide=True)


def evictions(
    kubeconfig: Annotated[
        Path | None,
        typer.Option("--kubeconfig", metavar="FILE", help="The cluster; else KUBECONFIG, the pod, ~/.kube."),
    ] = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Of the workloads; default: all.")] = "",
    since: Annotated[str, typer.Option(metavar="SPAN", help="Evictions of this last time: 30m, 12h, 7d.")] = "7d",
    waiting: Annotated[bool, typer.Option("--waiting", help="Only what waits, in the order of return.")] = False,
    output: Output = Format.TABLE,
) -> None:
    """Who was evicted, by whom and for whom, what was lost, and when they were back.

    Written by `kopt controller ledger`. The newest come first; what waits is listed however long ago it was evicted.

    Examples:

        kopt evictions --namespace research --since 24h

        kopt evictions --waiting

        kopt evictions -o csv > evictions.csv
    """
    since_s, now_s = float(seconds(since, "--since")), time.time()
    found, unreadable = asyncio.run(_read(kubeconfig, namespace))
    lines = [one for one in found if _shown(one, now_s - since_s, waiting)]
    lines.sort(key=lambda one: one.eviction.order if waiting else -one.eviction.evicted_at_s)
    empty = "nothing waits" if waiting else f"no GPU workload was evicted in the last {since}"
    notes = [_summary(lines)] if lines else []
    notes += [f"Left out, as they cannot be read: {', '.join(unreadable[:3])}{' …' * (len(unreadable) > 3)}."
              ] if unreadable else []  # fmt: skip
    show(Answer("evictions", [_row(one) for one in lines], notes=notes, empty=empty), output)


def _shown(line: "Entry", from_s: float, only_waiting: bool) -> bool:
    waits = line.outcome.phase == "Waiting"
    return waits or (not only_waiting and line.eviction.evicted_at_s >= from_s)


async def _read(kubeconfig: Path | None, namespace: str) -> "tuple[list[Entry], list[str]]":
    """The lines, and the names of those that somebody has written and nobody can read."""
    from kopt.cluster.api import ApiError, Forbidden, NotFound, connect
    from kopt.cluster.evictions import entry_of
    from kopt.cluster.resources import EVICTIONS

    found, unreadable = [], []
    try:
        async with connect(kubeconfig) as kube:
            async for page in kube.pages(EVICTIONS, namespace):
                for document in page.items:
                    try:
                        found.append(entry_of(document))
                    except ValueError:
                        unreadable.append(f"{document['metadata'].get('namespace')}/{document['metadata']['name']}")
    except NotFound as error:
        raise Refused(_INSTALL) from error
    except Forbidden as error:
        where = f"of namespace {namespace}" if namespace else "of all namespaces; name yours with -n"
        raise Refused(f"you may not read the ledger {where}") from error
    except ApiError as error:
        raise Refused(f"the ledger cannot be read: {error}") from error
    return found, unreadable


def _row(line: "Entry") -> EvictionRow:
    one, after = line.eviction, line.outcome
    return EvictionRow(
        one.evicted_at_s, f"{one.namespace}/{one.workload.name}", one.by, one.for_whom, one.cause.value,
        one.gpus / 1000, None if one.lost_gpu_s is None else one.lost_gpu_s / 3600, after.phase.value,
        None if after.resumed_at_s is None else after.resumed_at_s - one.evicted_at_s,
        after.verified.value if after.verified else "", one.last_durable_step, after.resumed_step, one.system.value,
        one.order, one.reason, after.message,
    )  # fmt: skip


def _summary(lines: "list[Entry]") -> str:
    waits = sum(one.outcome.phase == "Waiting" for one in lines)
    known = [one.eviction.lost_gpu_s for one in lines if one.eviction.lost_gpu_s is not None]
    lost = (
        f"{sum(known) / 3600:.2f} GPU-hours of work lost in the {len(known)} whose checkpoints were known"
        if known
        else ("nothing is known of their checkpoints")
    )
    return f"{counted(len(lines), 'eviction')}, {waits} of them waiting to return; {lost}."
