"""``kopt fractions sharing``: modes of sharing, what is in force on nodes, and what would be better."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, show
from kopt.cli.sharing import changing
from kopt.cli.sharing.reading import (
    DEFAULT_CONFIGURATIONS,
    ConfigMap,
    Since,
    Slowdown,
    Url,
    config_map_key,
    read_measured,
)
from kopt.core.sharing.modes import SharingExecutor, sharing_table

if TYPE_CHECKING:
    from kopt.cli.sharing.planning import NodePlan
    from kopt.cluster.workloads.sharing.nodes import SharingCluster
    from kopt.formats.sharing_terms import ReplicaSetting

app = typer.Typer(no_args_is_help=True, help="Time-slicing and MPS: how nodes share GPUs, and how they should.")
app.command("apply")(changing.apply)
app.command("undo")(changing.undo)
app.command("history")(changing.history)


@dataclass(frozen=True)
class ModeRow:
    """What a mode keeps processes on one GPU from."""

    mode: str = column("mode")
    memory: str = column("memory")
    compute: str = column("compute")
    faults: str = column("faults")


@dataclass(frozen=True)
class SharingRow:
    """A node. ``in_force`` and ``wanted``: mode and replicas of each GPU. ``frees``: GPUs that its pods would no longer
    need. ``shares``: by pod, per cent of the SMs and MiB. ``environment``: of pods that are to have less."""

    node: str = column("node")
    executor: str = column("executor", drop=4)
    gpus: int = column("GPUs")
    pods: int = column("pods", drop=3)
    in_force: str = column("in force")
    wanted: str = column("is to be")
    frees: int = column("frees", drop=2)
    reason: str = column("reason", drop=1)
    message: str = column("message")
    further: Sequence[str] = column("further", wide=True)
    configuration: str = column("configuration", wide=True)
    shares: Sequence[Mapping[str, Any]] = column("shares", wide=True)
    environment: Mapping[str, Mapping[str, str]] = column("environment", wide=True)


@app.command("modes")
def modes(output: Output = Format.TABLE) -> None:
    """Show what each mode of sharing enforces; no cluster is asked.

    Examples:

        kopt fractions sharing modes
    """
    table = sharing_table()
    rows = [ModeRow(str(mode), traits.memory, traits.compute, traits.faults) for mode, traits in table.modes.items()]
    remarks = [f"{executor}: {traits.means}." for executor, traits in table.executors.items()]
    show(Answer("modes", rows, remarks=remarks), output)


@app.command("plan")
def plan(
    prometheus: Url = "",
    since: Since = "24h",
    slowdown: Slowdown = "",
    config_map: ConfigMap = DEFAULT_CONFIGURATIONS,
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Only this node.")] = "",
    manifests: Annotated[
        bool, typer.Option("--manifests", help="Print what to apply, for `kubectl apply --server-side -f -`.")
    ] = False,
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show how each node shares its GPUs, what it should do, and why; nothing is written.

    Pods that have a GPU alone are put together where all of them fit, by the SMs that they fill and use and by the
    memory that they hold. Nodes that share are taken one step down where the last hour was contended. JSON has the
    shares of pods. `apply` changes a node so; by hand, drain it before its label changes, as its pods lose their GPUs.

    Examples:

        kopt fractions sharing plan --prometheus http://prometheus:9090

        kopt fractions sharing plan --prometheus http://prometheus:9090 --node gpu-7 --manifests
    """
    from kopt.cli.sharing.planning import planned_nodes
    from kopt.policies.fractions.sharing import SharingSettings

    key = config_map_key(config_map)
    cluster = asyncio.run(_read(kubeconfig, key))
    measured = read_measured(prometheus, seconds(since, "--since"), slowdown, token_file)
    plans = [each for each in planned_nodes(cluster, measured, SharingSettings()) if node in ("", each.node.name)]
    if manifests:
        _print(plans, key, cluster)
        return
    show(planned(plans, cluster), output)


def planned(plans: "Sequence[NodePlan]", cluster: "SharingCluster") -> Answer:
    """One row for each node."""
    from kopt.cli.sharing.manifests import is_reconfigured

    remarks = []
    changed = [plan for plan in plans if plan.plans]
    if changed:
        freed = sum(_frees(plan) for plan in changed)
        remarks.append(f"{len(changed)} of {len(plans)} nodes would change; {freed} GPUs would no longer be needed.")
    if cluster.configurations is None and any(plan.node.executor is SharingExecutor.DEVICE_PLUGIN for plan in changed):
        remarks.append(
            "There is no ConfigMap of the device plugin's configurations: --config-map names it, or a new one."
        )
    if any(is_reconfigured(plan) for plan in changed):
        remarks.append("One node at a time: kopt fractions sharing apply --node NAME, which waits and puts back.")
    if any(plan.node.executor is SharingExecutor.DRA for plan in changed):
        remarks.append("The DRA driver needs its feature gates MPSSupport and TimeSlicingSettings, which are off.")
    return Answer("nodes", [_row(plan) for plan in plans], remarks=remarks, empty="no node has GPUs")


def _row(plan: "NodePlan") -> SharingRow:
    from kopt.cli.sharing.manifests import environments, is_reconfigured
    from kopt.formats.sharing_terms import configuration_name

    node = plan.node
    shares = [
        {"pod": share.name, "percent": share.percent, "mib": share.mib, "mode": str(each.mode)}
        for each in plan.plans
        for share in each.shares
    ]
    environment = {name: env for each in plan.plans for name, env in environments(each).items()}
    return SharingRow(
        node.name,
        str(node.executor),
        node.gpus,
        len(node.pods),
        _setting(node.in_force),
        _wanted(plan),
        _frees(plan),
        plan.reason.code,
        plan.reason.message,
        [reason.message for reason in plan.further],
        configuration_name(plan.wanted) if is_reconfigured(plan) else node.configuration,
        shares,
        environment,
    )


def _setting(setting: "ReplicaSetting") -> str:
    return str(setting.mode) if setting.replicas < 2 else f"{setting.mode} x {setting.replicas}"


def _wanted(plan: "NodePlan") -> str:
    if not plan.plans:
        return ""
    if plan.node.executor is not SharingExecutor.DRA:
        return _setting(plan.wanted)
    return ", ".join(f"{each.mode} of {len(each.shares)}" for each in plan.plans if len(each.shares) > 1)


def _frees(plan: "NodePlan") -> int:
    """GPUs that are held now and would not be; below 0 where pods would need more."""
    if not plan.plans or not plan.node.pods:
        return 0
    pods = len(plan.node.pods)
    now = -(-pods // plan.node.in_force.replicas)
    if plan.node.executor is SharingExecutor.DRA:
        return now - len(plan.plans)
    return now - -(-pods // plan.wanted.replicas)


def _print(plans: "Sequence[NodePlan]", key: tuple[str, str], cluster: "SharingCluster") -> None:
    import yaml

    from kopt.cli.sharing.manifests import environments, manifests

    documents = manifests(plans, key, cluster.configurations)
    for plan in plans:
        for each in plan.plans:
            for name, variables in environments(each).items():
                typer.echo(f"# pod {name}: {' '.join(f'{variable}={value}' for variable, value in variables.items())}")
    typer.echo(yaml.safe_dump_all(documents, sort_keys=False) if documents else "# no configuration is to change")


async def _read(kubeconfig: Path | None, config_map: tuple[str, str]) -> "SharingCluster":
    from kopt.cluster.workloads.sharing.nodes import read_sharing_cluster

    async with open_cluster(kubeconfig) as kube:
        return await read_sharing_cluster(kube, config_map)
