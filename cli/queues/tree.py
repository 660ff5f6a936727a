"""``kopt queues tree`` and ``show``: quota, use, borrowing and what waits, as the page of quotas has them."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import unknown_name
from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import Answer, Format, column, show
from kopt.core.scheduling.queue_standing import QueueStanding
from kopt.core.units import format_gpus

if TYPE_CHECKING:
    from kopt.controllers.overview.queue_standings import Standings


def _gpus(milli: int | None) -> str:
    return "no bound" if milli is None else format_gpus(milli)


def _some(milli: int | None) -> str:
    return format_gpus(milli) if milli else ""


@dataclass(frozen=True)
class TreeRow:
    """A queue, of a department with all below it. Amounts are thousandths of a GPU, ``pending`` counts workloads."""

    queue: str = column("queue")
    parent: str = column("parent", drop=3)
    quota: int | None = column("quota", show=_gpus)
    limit: int | None = column("limit", show=_some, drop=2)
    guarantee: int = column("never lent", show=_some, drop=2)
    use: int = column("used", show=_gpus)
    borrowing: int = column("borrowed", show=_some)
    pending_gpus: int = column("waited for", show=_some)
    pending: int = column("workloads", show=lambda number: str(number) if number else "")
    lacks: int = column("lacks of quota", show=_some, drop=1)
    ideal: int = column("ideal", show=_gpus, drop=1)
    namespaces: tuple[str, ...] = column("namespaces", show=", ".join, drop=4)


def show_tree(kubeconfig: Path | None, output: Format, queue: str = "") -> None:
    """All queues, or one with those above and below it."""
    standings = asyncio.run(_read(kubeconfig))
    by_name = {each.name: each for each in standings.queues}
    if queue and queue not in by_name:
        unknown_name("queue", queue, list(by_name), "NAME", f"there are {', '.join(by_name)}")
    related = [each for each in standings.queues if not queue or _related(each, by_name, queue)]
    rows = [_row(each, indent=output is Format.TABLE) for each in related]
    remarks = [f"Left out: {each}" for each in standings.skipped]
    show(Answer("queues", rows, remarks=remarks, empty="Kueue has no queues in this cluster"), output)


def _related(each: QueueStanding, by_name: dict[str, QueueStanding], queue: str) -> bool:
    return each.name in _lineage(queue, by_name) or queue in _lineage(each.name, by_name)


def _lineage(name: str, by_name: dict[str, QueueStanding]) -> list[str]:
    result = []
    while name in by_name:
        result.append(name)
        name = by_name[name].parent
    return result


async def _read(kubeconfig: Path | None) -> "Standings":
    from kopt.controllers.overview.queue_standings import NEEDED, queue_standings

    async with open_cluster(
        kubeconfig, missing="Kueue is not installed in this cluster", forbidden="you may not read this"
    ) as kube:
        listings = await asyncio.gather(*(kube.list(kind) for kind in NEEDED))
        return queue_standings({kind: listing.items for kind, listing in zip(NEEDED, listings, strict=True)})


def _row(each: QueueStanding, *, indent: bool) -> TreeRow:
    return TreeRow(
        f"{'  ' * each.depth if indent else ''}{each.name}",
        each.parent,
        each.quota,
        each.limit,
        each.guarantee,
        each.use,
        each.borrowing,
        each.pending_gpus,
        each.pending,
        each.lacks,
        each.ideal,
        tuple(sorted(each.namespaces)),
    )
