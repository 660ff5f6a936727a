"""``kopt fractions sharing apply``, ``undo`` and ``history``: a node's way of sharing is changed, and put back."""

import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kopt.cli.errors import Refused, usage_error
from kopt.cli.interruption import run_interruptibly, with_kube
from kopt.cli.options import Kubeconfig, Output, PrometheusToken, seconds
from kopt.cli.output import Answer, Format, column, format_time, show
from kopt.cli.progress import print_status
from kopt.cli.sharing.reading import (
    DEFAULT_CONFIGURATIONS,
    ConfigMap,
    Since,
    Slowdown,
    Url,
    config_map_key,
    read_measured,
)
from kopt.core.sharing.change import ChangeOutcome, ReplicaState, SharingChange
from kopt.core.sharing.modes import SharingExecutor, SharingMode

if TYPE_CHECKING:
    from kopt.cli.sharing.apply import ApplySettings
    from kopt.cli.sharing.node import SharedNode
    from kopt.cli.sharing.planning import Measured
    from kopt.cluster.client.api import Kube
    from kopt.cluster.workloads.sharing.nodes import SharingCluster, SharingNode
    from kopt.formats.sharing_terms import ReplicaSetting
    from kopt.policies.fractions.applying import NodeState

T = TypeVar("T")
NodeName = Annotated[str, typer.Option("--node", metavar="NAME", help="The node.")]
Drain = Annotated[bool, typer.Option("--drain", help="Evict pods with GPUs, as far as budgets and owners allow.")]
Timeout = Annotated[str, typer.Option("--timeout", metavar="SPAN", help="For the node to offer what it is to.")]
DrainTimeout = Annotated[str, typer.Option("--drain-timeout", metavar="SPAN", help="For evicted pods to end.")]


@dataclass(frozen=True)
class StepRow:
    """A step of a change that is not made."""

    step: str = column("step")
    means: str = column("what is done")


@dataclass(frozen=True)
class ChangeRow:
    """A change of one node."""

    at: float = column("at", show=format_time)
    node: str = column("node")
    before: str = column("before")
    after: str = column("after")
    outcome: str = column("outcome")
    reason: str = column("why")
    configuration: str | None = column("configuration", wide=True)
    configuration_before: str | None = column("configuration before", wide=True)


def apply(
    node: NodeName,
    prometheus: Url = "",
    since: Since = "24h",
    slowdown: Slowdown = "",
    mode: Annotated[SharingMode | None, typer.Option("--mode", help="Instead of what the plan says by now.")] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, metavar="N", help="With --mode: of each GPU.")] = 1,
    drain: Drain = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the steps, and change nothing.")] = False,
    settle: Annotated[
        str, typer.Option("--settle", metavar="SPAN", help="For a new configuration to reach the plugin's pod.")
    ] = "90s",
    timeout: Timeout = "5m",
    drain_timeout: DrainTimeout = "10m",
    config_map: ConfigMap = DEFAULT_CONFIGURATIONS,
    token_file: PrometheusToken = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Change how one node shares its GPUs, as `plan` shows it, and wait until it does; else put back what was.

    The node is cordoned, its configuration added to the ConfigMap, its label set, and what it then offers compared with
    the plan. Without --drain nothing with a GPU may run on it. Ctrl-C puts everything back; after a kill the same
    command goes on, and `undo` takes back. Your own rights are used: patch nodes and that ConfigMap, evict pods. For
    NVIDIA's device plugin only: claims are yours to apply (`plan --manifests`), and on AMD nothing is set. Exit status
    0: applied.

    Examples:

        kopt fractions sharing apply --node gpu-7 --prometheus http://prometheus:9090 --dry-run

        kopt fractions sharing apply --node gpu-7 --prometheus http://prometheus:9090 --drain

        kopt fractions sharing apply --node gpu-7 --mode mps --replicas 4
    """
    from kopt.cli.sharing.apply import ApplySettings
    from kopt.formats.sharing_terms import ReplicaSetting

    if mode is None and replicas != 1:
        usage_error("replicas are of a mode: name --mode, too", "--replicas")
    key = config_map_key(config_map)
    spans = (seconds(drain_timeout, "--drain-timeout"), seconds(settle, "--settle"), seconds(timeout, "--timeout"))
    settings = ApplySettings(drain, *spans)
    named = None if mode is None else ReplicaSetting(mode, replicas)
    measured = read_measured(prometheus, seconds(since, "--since"), slowdown, token_file)

    async def work(kube: "Kube") -> Answer | SharingChange:
        return await applied(kube, node, key, named or measured, settings, dry_run=dry_run)

    result = _run(work, kubeconfig, "it was ended, and the node is as before")
    if isinstance(result, Answer):
        show(result, output)
        return
    show(_answer([(node, result)]), output)
    if result.outcome is not ChangeOutcome.APPLIED:
        raise typer.Exit(1)


def undo(
    node: NodeName,
    drain: Drain = False,
    timeout: Timeout = "5m",
    drain_timeout: DrainTimeout = "10m",
    config_map: ConfigMap = DEFAULT_CONFIGURATIONS,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Put a node's label and configuration back to what they were before its last change, also one left half done.

    Examples:

        kopt fractions sharing undo --node gpu-7

        kopt fractions sharing undo --node gpu-7 --drain
    """
    from kopt.cli.sharing.apply import ApplySettings

    key = config_map_key(config_map)
    drain_s, in_force_s = seconds(drain_timeout, "--drain-timeout"), seconds(timeout, "--timeout")
    settings = ApplySettings(drain, drain_s, in_force_s=in_force_s)

    async def work(kube: "Kube") -> SharingChange:
        return await undone(kube, node, key, settings)

    left = f"it was ended half-way: `kopt fractions sharing undo --node {node}` goes on"
    show(_answer([(node, _run(work, kubeconfig, left))]), output)


def history(
    node: Annotated[str, typer.Option("--node", metavar="NAME", help="Only this node.")] = "",
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """List the changes that nodes have recorded, and what came of each, the newest first.

    Examples:

        kopt fractions sharing history --node gpu-7
    """

    async def work(kube: "Kube") -> Answer:
        from kopt.cluster.client.resources import NODES
        from kopt.cluster.objects.annotations import AnnotationError
        from kopt.cluster.objects.sharing_changes import sharing_changes_of

        nodes = [await kube.get(NODES, node)] if node else (await kube.list(NODES)).items
        changes, remarks = [], []
        for document in nodes:
            name = document["metadata"]["name"]
            try:
                changes += [(name, change) for change in sharing_changes_of(document)]
            except AnnotationError as error:
                remarks.append(f"{name}: {error}")
        changes.sort(key=lambda each: (-each[1].at_s, each[0]))
        return _answer(changes, remarks)

    show(run_interruptibly(with_kube(kubeconfig, work)), output)


def _run(work: "Callable[[Kube], Awaitable[T]]", kubeconfig: Path | None, ended: str) -> T:
    from kopt.cli.cluster.process import AUDIT_URL, recorded

    # The audit log of a cluster is told where there is one; nobody reads its lines on a terminal.
    with recorded("sharing") if os.environ.get(AUDIT_URL) else contextlib.nullcontext():
        return run_interruptibly(with_kube(kubeconfig, work), ended)


async def applied(
    kube: "Kube",
    name: str,
    config_map: tuple[str, str],
    wanted: "ReplicaSetting | Measured",
    settings: "ApplySettings",
    *,
    dry_run: bool,
) -> Answer | SharingChange:
    """The change as it ended, or its steps. ``wanted``: what was named, or what a plan is made of. Raises Refused, and
    ApiError."""
    from kopt.cli.sharing.apply import Application
    from kopt.cli.sharing.node import SharedNode, unfinished
    from kopt.formats.sharing_terms import ReplicaSetting

    node = SharedNode(kube, name)
    left = unfinished(await node.changes())
    application = Application(kube, node, settings, print_status, is_recorded=left is not None)
    if left is not None:
        _check(name, left, config_map)
        if left.outcome is ChangeOutcome.UNDOING:
            raise Refused(f"a change is being taken back: `kopt fractions sharing undo --node {name}` goes on")
        if isinstance(wanted, ReplicaSetting) and wanted != ReplicaSetting(left.after.mode, left.after.replicas):
            raise Refused(f"a change to {left.after} was left open: go on with it, or `undo` it first")
        if dry_run:
            return _steps(await node.read(left), left)
        print_status(f"going on with the change to {left.after} that was left open")
        return await application.apply(left)
    change = await _change(kube, node, config_map, wanted)
    state = await application.prepared(change)
    return _steps(state, change) if dry_run else await application.apply(change)


async def _change(
    kube: "Kube", node: "SharedNode", config_map: tuple[str, str], wanted: "ReplicaSetting | Measured"
) -> SharingChange:
    from kopt.cli.sharing.planning import unsettled
    from kopt.cluster.workloads.sharing.nodes import read_sharing_cluster
    from kopt.formats.sharing_terms import ReplicaSetting, configuration_name

    cluster = await read_sharing_cluster(kube, config_map)
    read = next((each for each in cluster.nodes if each.name == node.name), None)
    if read is None:
        raise Refused(f"{node.name} offers no GPUs; `kopt fractions sharing plan` lists the nodes that do")
    if read.executor is SharingExecutor.NONE:
        raise Refused(f"{node.name} has AMD's GPUs, for which nothing sets a mode: processes take turns")
    if read.executor is SharingExecutor.DRA:
        raise Refused(f"GPUs of {node.name} are shared by claims, which are yours: `plan --manifests` prints them")
    if (left := unsettled(read, cluster.configurations or {})) is not None:
        raise Refused(
            f"how {node.name} shares its GPUs now is not known: {left.reason.message} Where nothing labels it with its "
            "sharing strategy (GPU feature discovery), `undo` what it has first"
        )
    setting = wanted if isinstance(wanted, ReplicaSetting) else _planned(cluster, read, wanted)
    _check_settable(read, setting)
    if read.gpus < 1:
        raise Refused(f"{node.name} does not say how many GPUs it has: its label nvidia.com/gpu.count is missing")
    before = ReplicaState(read.configuration or None, read.in_force.mode, read.in_force.replicas)
    after = ReplicaState(configuration_name(setting), setting.mode, setting.replicas)
    return SharingChange(before, after, read.gpus, config_map, node.is_cordoned, float(int(time.time())))


def _planned(cluster: "SharingCluster", node: "SharingNode", measured: "Measured") -> "ReplicaSetting":
    from kopt.cli.sharing.manifests import is_reconfigured
    from kopt.cli.sharing.planning import planned_nodes
    from kopt.policies.fractions.sharing import SharingSettings

    (plan,) = planned_nodes(replace(cluster, nodes=(node,)), measured, SharingSettings())
    if not is_reconfigured(plan):
        raise Refused(f"no other configuration is planned for {node.name}: {plan.reason.message}")
    return plan.wanted


def _check_settable(node: "SharingNode", setting: "ReplicaSetting") -> None:
    from kopt.cli.sharing.planning import hardware_of
    from kopt.policies.fractions.sharing import why_not_settable

    if setting == node.in_force:
        raise Refused(f"{node.name} shares its GPUs so already")
    if why := why_not_settable(hardware_of(node), setting.mode, setting.replicas):
        raise Refused(f"GPUs of {node.name} cannot be shared so: {why}")


def _check(name: str, change: SharingChange, config_map: tuple[str, str]) -> None:
    """A kubelet may write to its node: what it has recorded there leads to no other object than was named."""
    from kopt.formats.sharing_terms import ReplicaSetting, configuration_name

    if change.config_map != config_map:
        raise Refused(
            f"the change of {name} is of ConfigMap {'/'.join(change.config_map)}: name it by --config-map if it is "
            "the device plugin's"
        )
    if change.after.label != configuration_name(ReplicaSetting(change.after.mode, change.after.replicas)):
        raise Refused(f"what is recorded on {name} was not written by this command")


async def undone(kube: "Kube", name: str, config_map: tuple[str, str], settings: "ApplySettings") -> SharingChange:
    """The newest change that stands, as it ended. Raises Refused, and ApiError."""
    from kopt.cli.sharing.apply import Application
    from kopt.cli.sharing.node import SharedNode

    node = SharedNode(kube, name)
    change = next((each for each in await node.changes() if each.outcome is not ChangeOutcome.UNDONE), None)
    if change is None:
        raise Refused(f"no change of {name} stands; `kopt fractions sharing history` lists them")
    _check(name, change, config_map)
    application = Application(kube, node, settings, print_status, is_recorded=True)
    reason = change.reason if change.outcome is ChangeOutcome.UNDOING else "Taken back by hand."
    if change.outcome is ChangeOutcome.APPLIED:
        await application.may_be_undone(change)
    return await application.undo(change, reason)


def _steps(state: "NodeState", change: SharingChange) -> Answer:
    from kopt.cli.sharing.apply import meaning
    from kopt.policies.fractions.applying import steps

    rows = [StepRow(str(step), meaning(step, before, change)) for step, before in steps(state, change)]
    return Answer("steps", rows, remarks=[f"{change.before} becomes {change.after}; nothing was changed."])


def _answer(changes: "list[tuple[str, SharingChange]]", remarks: list[str] | None = None) -> Answer:
    rows = [
        ChangeRow(
            change.at_s,
            node,
            str(change.before),
            str(change.after),
            str(change.outcome),
            change.reason,
            change.after.label,
            change.before.label,
        )
        for node, change in changes
    ]
    return Answer("changes", rows, remarks=remarks or [], empty="no node has recorded a change")
