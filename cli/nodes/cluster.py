"""What ``kopt nodes`` reads and writes in a cluster."""

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kopt.cli.errors import Refused
from kopt.cli.nodes.draining import DrainedNode, Say
from kopt.cli.open_cluster import open_cluster
from kopt.core.dsse import Envelope, envelope_document
from kopt.core.node_plan.plan import envelope_digest

if TYPE_CHECKING:
    from kopt.cluster.client.api import Kube
    from kopt.cluster.objects.custom.node_plan import ReportedNode

_INSTALL = "there are no node executors here (no nodeplans.kaiwo.ai): install the chart with nodeExecutor.enabled=true"
_POLL_S = 1.0


def reported(kubeconfig: Path | None, node: str = "") -> "list[ReportedNode]":
    """What executors report, by node; of one node where it is named. Raises Refused."""
    return asyncio.run(_reported(kubeconfig, node))


async def _reported(kubeconfig: Path | None, node: str) -> "list[ReportedNode]":
    from kopt.cluster.client.api import NotFound
    from kopt.cluster.client.resources import NODE_PLANS
    from kopt.cluster.objects.custom.node_plan import reported_of

    async with open_cluster(kubeconfig, failed="NodePlans cannot be read") as kube:
        try:
            listed = await kube.list(NODE_PLANS)
        except NotFound as error:
            raise Refused(_INSTALL) from error
    nodes = sorted((reported_of(item) for item in listed.items), key=lambda each: each.node)
    if not node:
        return nodes
    names = ", ".join(each.node for each in nodes[:8]) or "none"
    return [each for each in nodes if each.node == node] or _refused(
        f"no executor has reported about node {node}; there are reports of {names}"
    )


def _refused(message: str) -> "list[ReportedNode]":
    raise Refused(message)


def applied(
    kubeconfig: Path | None, node: str, envelope: Envelope, wait_s: float, say: Say | None = None
) -> "ReportedNode":
    """The report about ``envelope``, or the last one once ``wait_s`` are over. With ``say``, which takes what is done
    as lines, the node is emptied before, and opened again where the plan has left it as planned or as before. Raises
    Refused."""
    return asyncio.run(_applied(kubeconfig, node, envelope, wait_s, say))


async def _applied(
    kubeconfig: Path | None, node: str, envelope: Envelope, wait_s: float, say: Say | None
) -> "ReportedNode":
    from kopt.cluster.client.api import NotFound
    from kopt.cluster.client.resources import NODE_PLANS

    until_s = time.monotonic() + wait_s
    async with open_cluster(kubeconfig, failed=f"the NodePlan of {node} cannot be written") as kube:
        try:
            await kube.get(NODE_PLANS, node)
        except NotFound as error:
            raise Refused(f"no executor has reported about node {node}: there is no NodePlan to write to") from error
        drained = None if say is None else DrainedNode(kube, node, say)
        if drained is not None:
            await drained.empty(until_s)
        await kube.patch(NODE_PLANS, node, {"spec": {"envelope": envelope_document(envelope)}})
        result = await _settled(kube, node, envelope_digest(envelope), until_s)
        if drained is not None and result.phase in ("Applied", "RolledBack"):
            await drained.open()
        return result


async def _settled(kube: "Kube", node: str, digest: str, until_s: float) -> "ReportedNode":
    from kopt.cluster.client.resources import NODE_PLANS
    from kopt.cluster.objects.custom.node_plan import reported_of

    while True:
        result = reported_of(await kube.get(NODE_PLANS, node))
        if result.digest == digest:
            return result
        if time.monotonic() > until_s:
            raise Refused(f"the executor of {node} has not answered yet; see `kopt nodes status {node}`")
        await asyncio.sleep(_POLL_S)
