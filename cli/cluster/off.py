"""``kopt off``: out of a cluster with everything of ours that acts, and back with what we hold."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output, seconds
from kopt.cli.output import Answer, Format, column, show

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True)
class OffRow:
    """One step; ``error`` says why it was not done."""

    action: str = column("action")
    kind: str = column("kind")
    namespace: str = column("namespace")
    name: str = column("name")
    detail: str = column("detail")
    done: bool = column("done")
    error: str = column("error")


def off(
    kubeconfig: Kubeconfig = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Where our Deployments are; default: all, in a pod its own.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")] = False,
    wait: Annotated[str, typer.Option(metavar="SPAN", help="How long our pods may take to end.")] = "60s",
    output: Output = Format.TABLE,
) -> None:
    """Take every webhook, extender and controller of ours out of a cluster and release what they hold.

    May be run again at any time: what is off stays off. `helm upgrade` or `helm rollback` turns everything on again.
    The extender's entry in a scheduler's configuration may stay, a scheduler does without it. Without kopt at hand:

        kubectl delete mutatingwebhookconfiguration -l app.kubernetes.io/part-of=kaiwo-optimizer

        kubectl delete validatingwebhookconfiguration -l app.kubernetes.io/part-of=kaiwo-optimizer

    Examples:

        kopt off --dry-run

        kopt off --kubeconfig admin.conf -o json
    """
    wait_s = seconds(wait, "--wait")
    if not namespace and _POD_NAMESPACE.is_file():
        namespace = _POD_NAMESPACE.read_text(encoding="ascii").strip()
    rows = asyncio.run(_off(kubeconfig, namespace, dry_run, wait_s))
    failed = [row for row in rows if row.error]
    empty = "nothing of ours acts in this cluster"
    show(Answer("steps", rows, header={"dry_run": dry_run, "off": not failed and not dry_run}, empty=empty), output)
    if failed:
        raise typer.Exit(1)


async def _off(kubeconfig: Path | None, namespace: str, dry_run: bool, wait_s: float) -> list[OffRow]:
    from kopt.cluster.holds.hold import HELD_KINDS
    from kopt.cluster.teardown.steps import Outcome
    from kopt.cluster.teardown.switch_off import switch_off
    from kopt.controllers.specs import held_kinds

    named = held_kinds()
    held = [kind for kind in HELD_KINDS if kind.full_name in named]

    def row(outcome: Outcome) -> OffRow:
        step = outcome.step
        return OffRow(
            step.action,
            step.resource.kind,
            step.namespace,
            step.name,
            step.detail,
            not dry_run and not outcome.error,
            outcome.error,
        )

    async with open_cluster(kubeconfig, failed="the cluster cannot be switched off from here") as kube:
        outcomes = switch_off(kube, held_kinds=held, namespace=namespace, dry_run=dry_run, wait_s=wait_s)
        return [row(outcome) async for outcome in outcomes]
