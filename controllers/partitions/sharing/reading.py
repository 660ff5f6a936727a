"""What is read of a node whose device plugin shares its GPUs, of the plugin's configurations, and of Prometheus."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kopt.cluster.client.prometheus import Prometheus, PrometheusError, series_of
from kopt.cluster.client.resources import Object
from kopt.cluster.holds.hold import holder_of, undo_of
from kopt.cluster.holds.node_sharing import PROPOSAL, SHARING, SharingHold, read_sharing
from kopt.cluster.objects.conditions import condition, is_true
from kopt.cluster.objects.fields import at, mapping, text
from kopt.cluster.workloads.sharing.nodes import (
    MPS_DAEMON,
    SHARED_GPU_RESOURCE,
    gpu_amount,
    gpu_pod,
    setting_in_force,
)
from kopt.core.sharing.modes import sharing_table
from kopt.core.sharing.pressure import Pressure
from kopt.formats.gpu_pressure import PRESSURE_QUERIES, pressures_by_node, series_points
from kopt.formats.gpu_shares import WHOLE_GPU_RESOURCE
from kopt.formats.share_terms import STRATEGY_LABEL
from kopt.formats.sharing_terms import CONFIGURATION_LABEL, ReplicaSetting, read_plugin_configuration
from kopt.formats.yaml_text import YamlError, load_yaml
from kopt.policies.fractions.applying import NodeState

_STEP_S = 30
_LARGEST_BYTES = 64 << 20
"""Five hours of 10,000 nodes are less in two answers."""
Measure = Callable[[float, float], Awaitable["Measured"]]
"""Of the seconds before a Unix time: ``measure(now_s, window_s)``. Raises PrometheusError."""


@dataclass(frozen=True)
class Measured:
    """``pressures``: by node. ``slowdowns``: by namespace and name of pods."""

    pressures: Mapping[str, Sequence[tuple[float, Pressure]]] = field(default_factory=dict)
    slowdowns: Mapping[tuple[str, str], Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class PluginNode:
    """``state``: what the plugin offers now. ``gpus``: physical ones, 0 where that is not known. ``pods``: with GPUs,
    as the API server has them. ``keeps_latency``: one of them is of a class that answers somebody. ``proposal``: as it
    is annotated."""

    document: Object = field(compare=False, repr=False)
    name: str
    holder: str
    hold: SharingHold | None
    state: NodeState
    gpus: int
    is_ready: bool
    is_amd: bool
    has_partitions: bool
    keeps_latency: bool
    pods: Sequence[Object] = field(compare=False, repr=False)
    proposal: str = ""


def read_plugin_node(node: Object, pods: Sequence[Object], offered: Mapping[str, ReplicaSetting]) -> PluginNode:
    """``pods``: all that have not ended on the node."""
    labels, allocatable = mapping(node, "metadata", "labels"), mapping(node, "status", "allocatable")
    daemons = [is_true(condition(pod, "Ready")) for pod in pods if MPS_DAEMON in text(pod, "metadata", "name")]
    with_gpus = [(pod, each) for pod in pods if (each := gpu_pod(pod)) is not None]
    setting = setting_in_force(labels)
    label = labels.get(CONFIGURATION_LABEL)
    state = NodeState(
        None if label is None else str(label),
        at(node, "spec", "unschedulable") is True,
        gpu_amount(allocatable, WHOLE_GPU_RESOURCE, SHARED_GPU_RESOURCE),
        (setting.mode, setting.replicas) if STRATEGY_LABEL in labels else None,
        any(daemons) if daemons else None,
        tuple(sorted(f"{each.namespace}/{each.name}" for _, each in with_gpus)),
    )
    named = offered.get(str(label))
    counted = gpu_amount(labels, "nvidia.com/gpu.count")
    classes = sharing_table().classes
    holder = holder_of(node)
    return PluginNode(
        node,
        text(node, "metadata", "name"),
        holder,
        read_sharing(undo_of(node)) if holder == SHARING else None,
        state,
        counted or (0 if named is None else state.offered // named.replicas),
        is_true(condition(node, "Ready")),
        bool(gpu_amount(allocatable, "amd.com/gpu")),
        "-MIG-" in text(labels, "nvidia.com/gpu.product")
        or any(str(key).startswith("nvidia.com/mig-") and gpu_amount(allocatable, str(key)) for key in allocatable),
        any(classes[each.workload_class].latency_critical for _, each in with_gpus),
        [pod for pod, _ in with_gpus],
        text(node, "metadata", "annotations", PROPOSAL),
    )


def read_offered(config_map: Object | None) -> dict[str, ReplicaSetting]:
    """What the plugin's configurations make of whole GPUs, by name; those that cannot be read are left out."""
    result = {}
    for name, written in mapping(config_map, "data").items():
        try:
            setting = read_plugin_configuration(load_yaml(str(written)))
        except YamlError:
            continue
        if setting is not None:
            result[str(name)] = setting
    return result


async def read_measured(server: Prometheus, slowdown: str, now_s: float, window_s: float) -> Measured:
    """``slowdown``: a query with labels ``namespace`` and ``pod``; empty for none. Raises PrometheusError."""
    queries = PRESSURE_QUERIES | ({"slowdown": slowdown} if slowdown else {})
    answers = {}
    for name, query in queries.items():
        document = await server.over(query, int(now_s - window_s), int(now_s), _STEP_S, _LARGEST_BYTES)
        try:
            answers[name] = list(series_points(series_of(document)))
        except ValueError as error:
            raise PrometheusError("BadAnswer", str(error)) from error
    slowdowns = {(labels.get("namespace", ""), labels.get("pod", "")): at for labels, at in answers.pop("slowdown", [])}
    return Measured(pressures_by_node(answers), slowdowns)
