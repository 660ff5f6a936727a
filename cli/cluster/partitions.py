"""``kopt partitions``: what the GPUs of nodes are cut into, and what would be cut before it is."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.open_cluster import open_cluster
from kopt.cli.options import Kubeconfig, Output
from kopt.cli.output import Answer, Format, column, show
from kopt.controllers.partitions.options import DEFAULT_CONFIGURATIONS, DEFAULT_PROFILES

if TYPE_CHECKING:
    from kopt.controllers.partitions.reports import StrategyReport

app = typer.Typer(no_args_is_help=True, help="MIG instances and AMD partitions of nodes, and how they are to be cut.")


def _instances(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {profile}" for profile, count in sorted(counts.items()) if count) or "none"


@dataclass(frozen=True)
class PartitionRow:
    """A node of a MIGStrategy. ``actual`` and ``wanted``: instances by profile, and whole GPUs."""

    strategy: str = column("strategy", drop=2)
    node: str = column("node")
    executor: str = column("executor", drop=3)
    configuration: str = column("configuration", drop=4)
    actual: Mapping[str, int] = column("has", show=_instances)
    wanted: Mapping[str, int] = column("is to have", show=_instances)
    reason: str = column("reason")
    message: str = column("message", wide=True)


Configurations = Annotated[
    str, typer.Option(metavar="NAMESPACE/NAME", help="ConfigMap of mig-manager's configurations.")
]


Profiles = Annotated[str, typer.Option(metavar="NAMESPACE/NAME", help="ConfigMap of AMD's device config manager.")]


@app.command("list")
def list_partitions(kubeconfig: Kubeconfig = None, output: Output = Format.TABLE) -> None:
    """List the nodes of MIGStrategies as `kopt controller partitions` has seen them last.

    Examples:

        kopt partitions list

        kopt partitions list -o json
    """
    show(listed(asyncio.run(_strategies(kubeconfig))), output)


def listed(strategies: list[dict[str, object]]) -> Answer:
    """By the status of each strategy."""
    from kopt.cluster.objects.fields import items, mapping, text
    from kopt.controllers.partitions.status import accepted_of

    rows, remarks = [], []
    for document in sorted(strategies, key=lambda item: text(item, "metadata", "name")):
        name = text(document, "metadata", "name")
        for _, row in items(document, "status", "nodes"):
            node, executor, label = (text(row, key) for key in ("name", "executor", "configuration"))
            actual, wanted = (dict(mapping(row, key)) for key in ("actual", "wanted"))
            rows.append(
                PartitionRow(name, node, executor, label, actual, wanted, text(row, "reason"), text(row, "message"))
            )
        reason, message = accepted_of(document)
        remarks.append(
            f"{name}: {reason or 'Unseen'}: "
            f"{message or 'No controller has seen it: is `kopt controller partitions` running?'}"
        )
        remarks += [f"{name}: {text(row, 'message')}" for _, row in items(document, "status", "undone")]
    return Answer("partitions", rows, remarks=remarks, empty="no MIGStrategy selects a node")


@app.command("plan")
def plan(
    file: Annotated[
        Path | None,
        typer.Option("-f", "--file", metavar="FILE", help="A MIGStrategy that is not there yet; - is standard input."),
    ] = None,
    configurations: Configurations = DEFAULT_CONFIGURATIONS,
    profiles: Profiles = DEFAULT_PROFILES,
    drain: Annotated[
        bool, typer.Option("--drain", help="As the controller with --drain: nodes with AMD's GPUs may be emptied.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show which nodes would be cut now, and how, with what is left undone and why.

    Nothing is written, and no controller has to run.

    Examples:

        kopt partitions plan

        kopt partitions plan -f strategy.yaml -o json
    """
    config_maps = _key(configurations, "--configurations"), _key(profiles, "--profiles")
    further = [] if file is None else [_manifest(file)]
    show(planned(asyncio.run(_reports(kubeconfig, config_maps, drain, further))), output)


def _key(written: str, option: str) -> tuple[str, str]:
    namespace, slash, name = written.partition("/")
    if not namespace or not slash or not name:
        usage_error(f"{written!r} is no NAMESPACE/NAME", option)
    return namespace, name


def planned(reports: "list[StrategyReport]") -> Answer:
    """What would be done."""
    rows, remarks = [], []
    for report in reports:
        name = report.strategy.name
        for each in report.nodes:
            executor = "" if each.executor is None else each.executor.name
            wanted = each.actual if each.wanted is None else each.wanted.instances
            columns = (name, each.node.name, executor, each.node.configuration)
            rows.append(PartitionRow(*columns, dict(each.actual), dict(wanted), each.reason, each.message))
        remarks += [f"{name}: {report.strategy.error}"] if report.strategy.error else []
        for profile, count in sorted(report.pending.items()):
            remarks.append(f"{name}: {count} x {profile} wait; {report.served.get(profile, 0)} would have one by this.")
        remarks += [f"{name}: {undone.message}" for undone in report.undone]
    return Answer("partitions", rows, remarks=remarks, empty="no MIGStrategy selects a node")


def _manifest(file: Path) -> dict[str, object]:
    from kopt.cli.queues.manifests import documents
    from kopt.cluster.objects.custom.mig_strategy import StrategyError, read_strategy

    manifests = [item for item in documents(file) if isinstance(item, dict) and item.get("kind") == "MIGStrategy"]
    metadata = manifests[0].get("metadata") if len(manifests) == 1 else None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        usage_error(f"{file} has to be one MIGStrategy with a name", "--file")
    try:
        read_strategy(manifests[0])
    except StrategyError as error:
        usage_error(f"{file}: {error}", "--file")
    return dict(manifests[0])


async def _strategies(kubeconfig: Path | None) -> list[dict[str, object]]:
    from kopt.cluster.client.api import NotFound
    from kopt.cluster.client.resources import MIG_STRATEGIES

    async with open_cluster(kubeconfig) as kube:
        try:
            return list((await kube.list(MIG_STRATEGIES)).items)
        except NotFound as error:
            raise Refused("the cluster has no MIGStrategies: apply deploy/chart/crds") from error


async def _reports(
    kubeconfig: Path | None,
    config_maps: tuple[tuple[str, str], tuple[str, str]],
    drains: bool,
    further: list[dict[str, object]],
) -> "list[StrategyReport]":
    from kopt.cluster.client.api import NotFound
    from kopt.controllers.partitions.amd_pools import AmdSettings
    from kopt.controllers.partitions.pools import Managers, read_partitions
    from kopt.controllers.partitions.reading import read_cluster

    async with open_cluster(kubeconfig) as kube:
        try:
            observed = await read_cluster(kube, time.time(), *config_maps, further)
        except NotFound as error:
            raise Refused("the cluster has no MIGStrategies: apply deploy/chart/crds") from error
    return read_partitions(observed, Managers(amd=AmdSettings(drains)))
