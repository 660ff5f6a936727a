"""``kopt health``: how healthy nodes and their GPUs are, and what speaks against them."""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, format_time, show

if TYPE_CHECKING:
    from kopt.cluster.objects.custom.node_health import HealthRecord

app = typer.Typer(no_args_is_help=True, help="How healthy nodes and their GPUs are, and why.")
_INSTALL = "health is not kept here (no nodehealths.kaiwo.ai): install the chart with health.enabled=true"


@dataclass(frozen=True)
class NodeRow:
    """``score`` is 1 for a node of which nothing is known; ``gpus`` are those that are suspect or condemned."""

    node: str = column("node")
    grade: str = column("verdict")
    score: float = column("score", show=lambda score: f"{score:.2f}")
    gpus: list[str] = column("GPUs", show=", ".join)
    since: float = column("since", show=format_time, drop=2)
    mode: str = column("mode", drop=1)
    reason: str = column("why")


@dataclass(frozen=True)
class EvidenceRow:
    """``load``: what it weighs now; a GPU is condemned from 1 on. ``gpu`` is empty for the node itself."""

    gpu: str = column("GPU")
    code: str = column("code")
    load: float = column("weighs", show=lambda load: f"{load:.2f}")
    times: float = column("times", show=lambda times: f"{times:g}", drop=3)
    first: float = column("first", show=format_time, drop=1)
    last: float = column("last", show=format_time, drop=2)
    means: str = column("means")


@app.command("list")
def list_nodes(
    all_nodes: Annotated[bool, typer.Option("--all", help="Healthy ones, too.")] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List nodes whose GPUs are suspect or condemned, the worst first, with what speaks against them.

    `kopt controller health` keeps it in NodeHealth objects. In mode observe nothing goes by it; in annotate the
    extender prefers other nodes; in enforce condemned nodes take no new pods, as far as the share of their pool allows.

    Examples:

        kopt health list

        kopt health list --all -o json
    """
    records = asyncio.run(_read(kubeconfig))
    selected = [record for record in records if all_nodes or record.health.grade]
    selected.sort(key=lambda record: (record.health.score, record.node))
    rows = [
        NodeRow(
            record.node,
            record.health.grade.text,
            record.health.score,
            sorted((gpu for gpu, grade in record.health.gpus.items() if grade and gpu), key=int_or_zero),
            record.since_s,
            record.mode.value,
            record.reason,
        )
        for record in selected
    ]
    counts = [record.health.grade.text for record in records]
    summary = ", ".join(f"{counts.count(grade)} {grade.lower()}" for grade in dict.fromkeys(sorted(counts)))
    show(Answer("nodes", rows, remarks=[f"{len(records)} nodes: {summary}."], empty="no node is ill"), output)


@app.command("explain")
def explain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Its name.")],
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Say why a node has its score: every piece of evidence, what it weighs now, and what would end it.

    What weighs 0 explains only: faults of applications never count against a GPU.

    Examples:

        kopt health explain gpu-7

        kopt health explain gpu-7 -o json
    """
    records = {record.node: record for record in asyncio.run(_read(kubeconfig))}
    record = records.get(node)
    if record is None:
        names = ", ".join(sorted(records)[:8]) or "none"
        raise Refused(f"nothing is kept of a node {node!r}; there are {names}")
    show(answer(record, time.time()), output)


def answer(record: "HealthRecord", now_s: float) -> Answer:
    """The evidence of one node, the heaviest first."""
    from kopt.core.hardware.health import code_of
    from kopt.policies.health.grades import heaviest

    rows = [
        EvidenceRow(
            entry.gpu,
            code_of(entry.code).label,
            load,
            entry.count,
            entry.first_s,
            entry.last_s,
            code_of(entry.code).means + (f" ({entry.detail})" if entry.detail else ""),
        )
        for load, entry in heaviest(record.entries, now_s)
    ]
    header = {
        "node": record.node,
        "verdict": record.health.grade.text,
        "score": round(record.health.score, 3),
        "since": format_time(record.since_s),
        "mode": record.mode.value,
    }
    remarks = []
    if any(entry.lasts and code_of(entry.code).sticky for entry in record.entries.values()):
        annotate = f"kubectl annotate node {record.node} kaiwo.ai/repaired-at=$(date -uIs)"
        remarks.append(f"Only a repair ends it: another boot, or {annotate}")
    failed = sum(outcome.failed for outcome in record.outcomes)
    if record.outcomes:
        remarks.append(f"Of its last {len(record.outcomes)} jobs {failed} failed.")
    return Answer("evidence", rows, header=header, remarks=remarks, empty="nothing speaks against it")


def int_or_zero(text: str) -> int:
    """Indexes of GPUs in their order."""
    return int(text) if text.isdigit() else 0


async def _read(kubeconfig: Path | None) -> "list[HealthRecord]":
    from kopt.cluster.client.api import NotFound
    from kopt.cluster.client.resources import NODE_HEALTHS
    from kopt.cluster.objects.custom.node_health import record_of

    async with open_cluster(kubeconfig) as kube:
        try:
            return [record_of(document) for document in (await kube.list(NODE_HEALTHS)).items]
        except NotFound:
            raise Refused(_INSTALL) from None
