"""``kopt efficiency``: what GPU-hours were used for, by kind of job, team and pool, and the cluster's health index."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import typer

from kopt.cli.cluster.listing import list_objects
from kopt.cli.errors import Refused, usage_error
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.core.units import format_span
from kopt.core.workload.gpu_hours import GpuHourHistory, GpuHours
from kopt.policies.cost.attribution import label_of
from kopt.policies.efficiency.groups import covered, pool_hours, wasteful_first, workload_hours
from kopt.policies.efficiency.health_index import FORMULA, HealthIndex, Spent, health_index, spent

_SHORTEST_S, _LONGEST_S = 600, 400 * 86_400
_GROUP_OTHERWISE = "--by kind, namespace and queue need no cluster"


class By(StrEnum):
    """What rows are of."""

    KIND = "kind"
    NAMESPACE = "namespace"
    TEAM = "team"
    QUEUE = "queue"
    POOL = "pool"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}"


@dataclass(frozen=True)
class EfficiencyRow:
    """GPU-hours of a window; ``efficiency`` is used / measured, ``gpus`` the mean that was allocated."""

    name: str = column("name")
    gpus: float = column("GPUs", show=lambda gpus: f"{gpus:.1f}", drop=2)
    requested_gpu_hours: float = column("requested", show=_hours, drop=3)
    allocated_gpu_hours: float = column("allocated", show=_hours)
    used_gpu_hours: float = column("used", show=_hours)
    efficiency: float | None = column("efficiency", show=_percent)
    unused_gpu_hours: float = column("held, unused", show=_hours)
    waited_gpu_hours: float = column("waited", show=_hours, drop=4)
    measured: float | None = column("measured", show=_percent, drop=1)


def efficiency(
    prometheus: Annotated[
        str, typer.Option("--prometheus", metavar="URL", help="Where the rules of `kopt alerts rules` are evaluated.")
    ],
    by: Annotated[By, typer.Option("--by", help="What the rows are of.", show_choices=True)] = By.KIND,
    since: Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back.")] = "24h",
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what GPU-hours were used for, by kind of job, team or pool, and the cluster's health index.

    Requested is what pods asked for, with or without a node (by pool: what they have and what Kueue holds back);
    allocated what they had; used the allocated time weighted by how much of it GPUs computed. Efficiency is used /
    measured: what nothing measures is neither used nor wasted. Partitions of GPUs count one each.

    Health index = 100 x available x served x computing, each from 0 to 1: available = 1 - unavailable / installed
    GPU-hours; served = allocated / (allocated + free while work waits); computing = used / measured. Free GPUs that
    nobody waits for do not lower it.

    Kind is what owns the pods (Job, PyTorchJob, Deployment). Teams are the labels kaiwo.ai/team or team of namespaces,
    pools Kueue's ResourceFlavors, else models of GPUs: both are read from the cluster. Queues need the label
    kueue.x-k8s.io/queue-name of pods in kube-state-metrics (--metric-labels-allowlist).

    Examples:

        kopt efficiency --prometheus http://prometheus:9090

        kopt efficiency --prometheus http://prometheus:9090 --by team --since 7d

        kopt efficiency --prometheus http://prometheus:9090 --by pool --since 30d -o json
    """
    span_s = seconds(since, "--since")
    if not _SHORTEST_S <= span_s <= _LONGEST_S:
        usage_error(f"a window is {format_span(_SHORTEST_S)} to {format_span(_LONGEST_S)} long", "--since")
    history = _read(prometheus, span_s, token_file)
    groups = asyncio.run(_groups(by, history, kubeconfig))
    show(answer(by, history, groups), output)


def _read(url: str, span_s: int, token_file: Path | None) -> GpuHourHistory:
    from kopt.cli.sizing.measured import read_token
    from kopt.data.demand.prometheus import PrometheusError, Server
    from kopt.data.gpu_hours import read_gpu_hours

    try:
        with Server(url, token=read_token(token_file)) as server:
            return read_gpu_hours(server, float(span_s))
    except PrometheusError as error:
        raise Refused(f"GPU-hours cannot be read: {error}") from error


async def _groups(by: By, history: GpuHourHistory, kubeconfig: Path | None) -> dict[str, GpuHours]:
    """Rows by name; only those that need the cluster read it."""
    if by is By.POOL:
        return pool_hours(history, await node_pools_of(kubeconfig))
    if by is By.TEAM:
        from kopt.cluster.client.resources import NAMESPACES
        from kopt.cluster.objects.fields import mapping, text

        (namespaces,) = await list_objects(kubeconfig, NAMESPACES, needed="namespaces", otherwise=_GROUP_OTHERWISE)
        labels = {text(item, "metadata", "name"): mapping(item, "metadata", "labels") for item in namespaces}
        teams = {name: label_of(of) for name, of in labels.items()}
        return workload_hours(history, lambda workload: teams.get(workload.namespace, ""))
    return workload_hours(history, attrgetter(by.value))


async def node_pools_of(kubeconfig: Path | None, otherwise: str = _GROUP_OTHERWISE) -> dict[str, str]:
    """By node. Raises Refused where the cluster cannot be read."""
    from kopt.cluster.client.resources import KUEUE_FLAVORS, NODES
    from kopt.cluster.workloads.kueue.pool_sizes import node_pools
    from kopt.cluster.workloads.requests.external import RESOURCE_SLICES

    flavors, nodes, slices = await list_objects(
        kubeconfig, KUEUE_FLAVORS, NODES, RESOURCE_SLICES, needed="nodes", otherwise=otherwise
    )
    return node_pools(flavors, nodes, slices)


def answer(by: By, history: GpuHourHistory, groups: Mapping[str, GpuHours]) -> Answer:
    """The rows that waste most come first."""
    total = spent(history.steps, history.step_s / 3600)
    health = health_index(total)
    rows = [_row(name, hours, history.recorded_s / 3600) for name, hours in wasteful_first(groups)]
    header = {
        "by": by.value,
        "window_s": history.window_s,
        "step_s": history.step_s,
        "coverage": round(history.coverage, 4),
        "health_index": None if health is None else _rounded(health.index),
        "factors": None if health is None else _factors(health),
        "formula": FORMULA,
        "gpu_hours": {"installed": round(total.installed, 3), **total.document()},
    }
    remarks = [*_remarks(total, health), covered(history)]
    return Answer("rows", rows, header, remarks=remarks, empty="no pod requested GPUs", hide_header=True)


def _row(name: str, hours: GpuHours, recorded_h: float) -> EfficiencyRow:
    return EfficiencyRow(
        name,
        hours.allocated / recorded_h,
        hours.requested,
        hours.allocated,
        hours.used,
        hours.efficiency,
        hours.unused,
        hours.waited,
        hours.measured_share,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _factors(health: HealthIndex) -> dict[str, float | None]:
    parts = {"available": health.available, "served": health.served, "computing": health.computing}
    return {name: _rounded(value) for name, value in parts.items()}


def _remarks(total: Spent, health: HealthIndex | None) -> list[str]:
    if health is None:
        return ["No GPU was seen, so there is no health index."]
    known = f"available {health.available:.3f} x served {health.served:.3f}"
    if health.index is None:
        index = f"No health index: nothing says how busy GPUs were ({known})."
    else:
        index = f"Health index {health.index:.1f} = 100 x {known} x computing {health.computing:.3f}."
    shares = ", ".join(
        f"{name} {hours:,.1f} ({hours / total.installed:.0%})" for name, hours in total.by_name.items() if hours
    )
    return [index, f"Of {total.installed:,.1f} GPU-hours: {shares}.", f"{FORMULA[0].upper()}{FORMULA[1:]}."]
