"""``kopt queues shares``: what each queue of a cluster has, and what it ideally had."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import unknown_name, usage_error
from kopt.cli.open_cluster import open_cluster
from kopt.cli.output import NOTHING, Answer, Format, column, show
from kopt.cli.queues.manifests import refused
from kopt.core.scheduling.queue_tree import CPU, GPU, MEMORY, Engine
from kopt.core.units import format_thousandths
from kopt.core.workload.gpu_share import CHARGE_RESOURCE

if TYPE_CHECKING:
    from kopt.cluster.workloads.queue_trees.usage import LeafUsage
    from kopt.policies.queues import QueueTree
    from kopt.policies.shares import Amounts, ShareRow


def _listed(amounts: Mapping[str, str]) -> str:
    return ", ".join(f"{value} {name}" for name, value in amounts.items()) or NOTHING


def _percent(error: float) -> str:
    return f"{100 * error:+.1f} %" if round(error, 3) else "0"


@dataclass(frozen=True)
class QueueSharesRow:
    """A queue at this instant; amounts are Kubernetes quantities by resource, of a department with all below it."""

    queue: str = column("queue")
    parent: str = column("parent", drop=2)
    quota: Mapping[str, str] = column("quota", show=_listed)
    guarantee: Mapping[str, str] = column("guarantee", show=_listed, drop=1)
    use: Mapping[str, str] = column("use", show=_listed)
    demand: Mapping[str, str] = column("demand", show=_listed)
    ideal: Mapping[str, str] = column("ideal", show=_listed)
    dominant: str = column("dominant", wide=True)
    share_error: float = column("share error", show=_percent)
    borrowing: Mapping[str, str] = column("borrowing", show=_listed)
    below_quota: Mapping[str, str] = column("below quota", show=_listed, wide=True)
    pending: int = column("waiting")


def show_shares(engine: Engine, queue: str, kubeconfig: Path | None, output: Format) -> None:
    """Raises Refused where the engine is missing or its queues cannot be read."""
    from kopt.policies.queues.shares import divisions
    from kopt.policies.shares import QueueUse, misallocated, share_rows

    if engine is Engine.VOLCANO:
        usage_error("shares of Volcano's queues are not computed; use kueue or kai", "--engine")
    tree, usages, capacity, skipped = asyncio.run(_read(engine, kubeconfig))
    if queue and queue not in tree.queues:
        unknown_name("queue", queue, list(tree.queues), "--queue", f"there are {', '.join(tree.queues)}")
    rows, errors, remarks = list["ShareRow"](), dict[str, float](), [f"Left out: {each}" for each in skipped]
    uses = {name: QueueUse(usage.use, usage.pending) for name, usage in usages.items()}
    for division in divisions(tree, {name: usage.demand for name, usage in usages.items()}, capacity):
        own = share_rows(division.queues, uses, division.capacity)
        if queue and all(row.queue.name != queue for row in own):
            continue
        rows += [row for row in own if queue in ("", row.queue.name)]
        errors[division.name] = misallocated(own)
        if round(errors[division.name], 3):
            where = f"of {division.name}" if division.name else "of the cluster"
            remarks.append(f"{100 * errors[division.name]:.1f} % {where} is not with the queue that ideally had it.")
    displayed = _displayed(rows) if output is Format.TABLE else None
    header = {"engine": engine.value, "misallocated": errors}
    table = [_row(row, displayed) for row in rows]
    show(Answer("queues", table, header=header, remarks=remarks, empty="there are no queues", hide_header=True), output)


async def _read(
    engine: Engine, kubeconfig: Path | None
) -> "tuple[QueueTree, dict[str, LeafUsage], Amounts | None, Sequence[str]]":
    """The queues that the cluster has, what runs and waits in them, what they share, and what was left out."""
    from kopt.cluster.client.resources import KUEUE_WORKLOADS, NODES, PODS
    from kopt.cluster.workloads.kueue.reading import local_queue_target
    from kopt.cluster.workloads.queue_trees.from_kai import from_kai
    from kopt.cluster.workloads.queue_trees.from_kueue import from_kueue
    from kopt.cluster.workloads.queue_trees.live import read_live
    from kopt.cluster.workloads.queue_trees.usage import kai_usage, kueue_usage, node_capacity
    from kopt.policies.queues import QueueTree, TreeError

    try:
        async with open_cluster(
            kubeconfig, missing=f"{engine.value} is not installed in this cluster", forbidden="you may not read this"
        ) as kube:
            objects = (await read_live(kube, engine)).objects
            documents = [item for (kind, *_), item in objects.items() if kind != "LocalQueue"]
            imported = from_kueue(documents) if engine is Engine.KUEUE else from_kai(documents)
            tree = QueueTree.of(imported.queues, imported.pools)
            names = {resource for name in tree.roots for _, resource in tree.places(name)}
            if engine is Engine.KUEUE:
                local = {key[1:]: local_queue_target(item) for key, item in objects.items() if key[0] == "LocalQueue"}
                usage = kueue_usage((await kube.list(KUEUE_WORKLOADS)).items, local, names)
                return tree, usage, None, imported.skipped
            usage = kai_usage((await kube.list(PODS)).items, names)
            return tree, usage, node_capacity((await kube.list(NODES)).items, names), imported.skipped
    except TreeError as error:
        raise refused(error) from None


def _displayed(rows: "Sequence[ShareRow]") -> frozenset[str]:
    """For people: GPUs and the like; CPU and memory only where queues share nothing else, or they are dominant."""
    names = {name for row in rows for name in (*row.queue.quota, *row.use)}
    main = {name for name in names if name not in (CPU, MEMORY)} | {row.dominant for row in rows}
    return frozenset(main or names)


def _row(row: "ShareRow", displayed: frozenset[str] | None) -> QueueSharesRow:
    from kopt.cluster.workloads.requests.gpus import devices_in

    def amounts(values: "Amounts") -> dict[str, str]:
        keep = Counter[str]()
        for name, value in values.items():
            if displayed is None or name in displayed:
                charged = name == CHARGE_RESOURCE
                keep[GPU if charged else name] += devices_in(name, value) if charged else value
        return {name: format_thousandths(value) for name, value in sorted(keep.items())}

    queue = row.queue
    return QueueSharesRow(
        queue.name,
        queue.parent,
        amounts(queue.quota),
        amounts(queue.guarantee),
        amounts(row.use),
        amounts(row.demand),
        amounts(row.ideal),
        GPU if row.dominant == CHARGE_RESOURCE else row.dominant,
        round(row.share_error, 6),
        amounts(row.borrowing),
        amounts(row.broken),
        row.pending,
    )
