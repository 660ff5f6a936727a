"""``kopt audit``: the GPU workloads that bypass the queues, and below it the audit log of our components."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.cluster import audit_log
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import format_gpus

app = typer.Typer(invoke_without_command=True)
app.command("log")(audit_log.log)
app.command("verify")(audit_log.verify)


@dataclass(frozen=True)
class RogueRow:
    """A GPU workload that no queue holds."""

    namespace: str = column("namespace")
    kind: str = column("kind")
    name: str = column("name")
    milli_gpus: int = column("GPUs", show=format_gpus)
    queue: str = column("queue by the rules")
    opted_out: bool = column("opted out")
    reason: str = column("reason", wide=True)
    patch: list[dict[str, object]] = column("patch", wide=True)
    command: str = column("command", wide=True)


@app.callback()
def audit(
    context: typer.Context,
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[str, typer.Option("-n", "--namespace", help="Only this namespace; default: all.")] = "",
    output: Output = Format.TABLE,
) -> None:
    """List the GPU workloads that bypass the queues, with the patch for each.

    The queue named is the one that the cluster's ConformancePolicy gives; QUEUE in a patch is for you to fill in.
    A running Job that gets its label is stopped by Kueue and queued anew.

    Examples:

        kopt audit -n research

        kopt audit -o json | jq -r '.rogue[].command'

        kopt audit log                            what our components did, and why
    """
    if context.invoked_subcommand is not None:
        return
    rows = asyncio.run(_audit(kubeconfig, namespace))
    gpus = sum(row.milli_gpus for row in rows if not row.opted_out)
    remarks = [row.command for row in rows if not row.opted_out]
    show(
        Answer(
            "rogue", rows, header={"rogue_gpus": gpus / 1000}, remarks=remarks, empty="every GPU workload is in a queue"
        ),
        output,
    )


async def _audit(kubeconfig: Path | None, namespace: str) -> list[RogueRow]:
    from kopt.controllers.admission.audit import audit
    from kopt.controllers.admission.state import read_once

    async with open_cluster(kubeconfig, failed="the cluster cannot be audited") as kube:
        cluster_view = await read_once(kube)
        return [
            RogueRow(
                finding.namespace,
                finding.resource.kind,
                finding.name,
                finding.gpus,
                finding.queue,
                finding.opted_out,
                finding.reason,
                [dict(operation) for operation in finding.patch],
                finding.command,
            )
            async for finding in audit(kube, cluster_view, namespace)
        ]
