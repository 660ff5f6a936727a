"""What would be changed of each node: the policy's plan, for pods as they were measured."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.cluster.workloads.sharing.nodes import GpuPod, SharingCluster, SharingNode
from kopt.core.reason import Reason
from kopt.core.sharing.modes import SharingExecutor, SharingMode
from kopt.core.sharing.pressure import Pressure, SmUse
from kopt.core.units import MIB, counted, format_span
from kopt.core.workload.measured import MeasuredUse
from kopt.formats.sharing_terms import ReplicaSetting, read_plugin_configuration
from kopt.policies.fractions.ladder import LadderSettings, LadderState, observe, rungs
from kopt.policies.fractions.sharing import (
    ClientShare,
    Sharer,
    SharingHardware,
    SharingPlan,
    SharingSettings,
    in_replicas,
    plan_claim,
    plan_node,
)

Pod = tuple[str, str]


@dataclass(frozen=True)
class Measured:
    """Of pods, by namespace and name; of nodes, over time."""

    memory: Mapping[Pod, MeasuredUse] = field(default_factory=dict)
    sms: Mapping[Pod, SmUse] = field(default_factory=dict)
    pressures: Mapping[str, Sequence[tuple[float, Pressure]]] = field(default_factory=dict)
    slowdowns: Mapping[Pod, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True)
class NodePlan:
    """``plans``: what is to be, for a device plugin one plan of the node, for claims one of each GPU; empty where the
    node stays as it is. ``reason``: why."""

    node: SharingNode
    plans: tuple[SharingPlan, ...]
    reason: Reason
    further: tuple[Reason, ...] = ()

    @property
    def wanted(self) -> ReplicaSetting:
        """Of a device plugin's node."""
        return ReplicaSetting(self.plans[0].mode, self.plans[0].replicas) if self.plans else self.node.in_force


def planned_nodes(cluster: SharingCluster, measured: Measured, settings: SharingSettings) -> list[NodePlan]:
    """Of all nodes with GPUs, by name."""
    return [
        unsettled(node, cluster.configurations or {}) or planned_node(node, measured, settings)
        for node in cluster.nodes
    ]


def unsettled(node: SharingNode, configurations: Mapping[str, object]) -> NodePlan | None:
    """A node whose label names what is not in force: nothing is planned until it is."""
    if not node.configuration or not configurations:
        return None
    if node.configuration not in configurations:
        message = f"Its label names {node.configuration}, which the ConfigMap does not have: the plugin does not start."
        return NodePlan(node, (), Reason("SHARING_NOT_IN_FORCE", message))
    setting = read_plugin_configuration(configurations[node.configuration])
    if setting is None or setting == node.in_force:
        return None
    if SharingMode.MPS in (setting.mode, node.in_force.mode) and hardware_of(node).mps_problem:
        # Nothing is offered so, and another mode is the way out.
        return None
    message = f"The plugin has not taken {node.configuration} over yet ({setting.mode}, {setting.replicas} to a GPU)."
    return NodePlan(node, (), Reason("SHARING_NOT_IN_FORCE", message))


def planned_node(node: SharingNode, measured: Measured, settings: SharingSettings) -> NodePlan:
    """As pods are now: those that come later are not known."""
    if node.executor is SharingExecutor.NONE or node.has_partitions:
        return _as_policy_says(node, (), settings)
    if node.in_force.mode is not SharingMode.EXCLUSIVE:
        return _shared(node, measured, settings)
    several = [pod for pod in node.pods if pod.gpus > 1]
    if several:
        message = f"{counted(len(several), 'pod')} on it with several GPUs: a replica is no whole GPU."
        return NodePlan(node, (), Reason("SHARING_EXCLUSIVE", message, {"pods": len(several)}))
    sharers = [_sharer(pod, measured) for pod in node.pods]
    unmeasured = [
        f"{pod.namespace}/{pod.name}" for pod, sharer in zip(node.pods, sharers, strict=True) if sharer is None
    ]
    if unmeasured:
        message = f"SMs or memory of {', '.join(unmeasured[:3])} are not measured, so nothing is planned for the node."
        return NodePlan(node, (), Reason("SHARING_NOT_MEASURED", message, {"pods": len(unmeasured)}))
    return _as_policy_says(node, [sharer for sharer in sharers if sharer is not None], settings)


def hardware_of(node: SharingNode) -> SharingHardware:
    """As the policy needs it: MPS needs a daemon, which the DRA driver starts for each claim by itself."""
    problem = ""
    if node.in_force.mode is SharingMode.MPS and not node.mps_ready:
        problem = "its daemon on the node is not ready"
    elif node.executor is SharingExecutor.DEVICE_PLUGIN and node.has_mps is False:
        problem = "the cluster has no DaemonSet of its daemon (mps-control-daemon)"
    return SharingHardware(node.executor, node.gpu_mib, node.capability, node.has_partitions, problem)


def _as_policy_says(node: SharingNode, sharers: Sequence[Sharer], settings: SharingSettings) -> NodePlan:
    hardware = hardware_of(node)
    if node.executor is SharingExecutor.DRA and len(sharers) > 1:
        plans = by_gpu(hardware, sharers, settings)
        reasons = plans[0].reasons
        return NodePlan(node, plans if len(plans) < len(sharers) else (), reasons[0], reasons[1:])
    plan = plan_node(hardware, sharers, settings)
    stays = plan.mode is SharingMode.EXCLUSIVE
    return NodePlan(node, () if stays else (plan,), plan.reasons[0], plan.reasons[1:])


def by_gpu(hardware: SharingHardware, sharers: Sequence[Sharer], settings: SharingSettings) -> tuple[SharingPlan, ...]:
    """The largest pods first, each on the first GPU that all of its pods can share. A claim is of one namespace."""
    groups: list[tuple[list[Sharer], SharingPlan]] = []
    for sharer in sorted(sharers, key=lambda each: (-each.planned_percent, -each.mib, each.name)):
        for at, (group, _) in enumerate(groups):
            if group[0].owner != sharer.owner:
                continue
            plan = plan_claim(hardware, [*group, sharer], settings)
            if plan.mode is not SharingMode.EXCLUSIVE:
                groups[at] = ([*group, sharer], plan)
                break
        else:
            groups.append(([sharer], plan_claim(hardware, [sharer], settings)))
    return tuple(sorted((plan for _, plan in groups), key=lambda plan: -len(plan.shares)))


def _sharer(pod: GpuPod, measured: Measured) -> Sharer | None:
    """None where its SMs or its memory are not measured, or not its own."""
    key = (pod.namespace, pod.name)
    use, memory = measured.sms.get(key), measured.memory.get(key)
    if use is None or memory is None or memory.shared or memory.peak_bytes <= 0:
        return None
    width, percent = (min(100, math.ceil(100 * share)) for share in (use.width, use.use))
    mib = max(pod.mib, math.ceil(memory.peak_bytes / MIB))
    name = f"{pod.namespace}/{pod.name}"
    return Sharer(name, pod.workload_class, width, percent, mib, pod.guarantee_percent, pod.namespace)


def _shared(node: SharingNode, measured: Measured, settings: SharingSettings) -> NodePlan:
    """A node that shares already: what a replica is, is what its pods count on."""
    part, mib = 100 // node.in_force.replicas, max(1, node.gpu_mib // node.in_force.replicas)
    sharers = [
        Sharer(f"{pod.namespace}/{pod.name}", pod.workload_class, part, part, mib, min(part, pod.guarantee_percent))
        for pod in node.pods
    ]
    hardware = hardware_of(node)
    if hardware.mps_problem:
        return _without_mps(node, hardware, sharers)
    shares = tuple(
        ClientShare(sharer.name, min(part, pod.threads_percent or part), mib)
        for sharer, pod in zip(sharers, node.pods, strict=True)
    )
    plan = SharingPlan(node.in_force.mode, node.in_force.replicas, shares)
    lower = rungs(plan, hardware, sharers, settings)
    return _by_pressure(node, plan, lower[1:], _history(node, measured))


def _without_mps(node: SharingNode, hardware: SharingHardware, sharers: Sequence[Sharer]) -> NodePlan:
    """While the daemon is away the plugin offers nothing: pods that are there may go on, none comes."""
    reason = Reason(
        "SHARING_WITHOUT_MPS", f"MPS is not used: {hardware.mps_problem}; the plugin offers no GPU meanwhile."
    )
    # The pods are where they are: as many to a GPU as now, or none together.
    turns = in_replicas(SharingMode.TIME_SLICING, hardware, sharers, SharingSettings(headroom=0.0)) if sharers else None
    if turns is not None:
        turns = replace(turns, replicas=node.in_force.replicas)
    plan = turns or SharingPlan(SharingMode.EXCLUSIVE, 1, ())
    return NodePlan(node, (plan,), reason)


def _history(node: SharingNode, measured: Measured) -> list[tuple[float, Pressure]]:
    """With the worst slow-down of its pods at each time."""
    worst: dict[float, float] = {}
    for pod in node.pods:
        for at_s, value in measured.slowdowns.get((pod.namespace, pod.name), ()):
            worst[at_s] = max(value, worst.get(at_s, 0.0))
    pressures = dict(measured.pressures.get(node.name, ()))
    times = sorted(pressures.keys() | worst.keys())
    return [(at_s, replace(pressures.get(at_s, Pressure()), slowdown=worst.get(at_s))) for at_s in times]


def _by_pressure(
    node: SharingNode,
    plan: SharingPlan,
    lower: Sequence[SharingPlan],
    history: Sequence[tuple[float, Pressure]],
    settings: LadderSettings = LadderSettings(),  # noqa: B008 - frozen
) -> NodePlan:
    """One rung down after contention, the parts of before after a calm, else as it is."""
    if not history:
        return NodePlan(node, (), Reason("SHARING_NOT_MEASURED", "The pressure on its GPUs is not measured: it stays."))
    state = LadderState()
    for at_s, pressure in history:
        state = observe(state, pressure, at_s, settings)
    now_s, pressure = history[-1]
    contended_s = 0.0 if state.contended_since_s is None else now_s - state.contended_since_s
    if lower and state.contended_since_s is not None and contended_s >= settings.contended_s:
        step = lower[0]
        message = f"Contended for {format_span(contended_s)} ({_figures(pressure)}). {step.reasons[0].message}"
        return NodePlan(node, (step,), Reason("SHARING_CONTENDED", message, {"contended_s": contended_s}))
    calm_s = 0.0 if state.calm_since_s is None else now_s - state.calm_since_s
    part = 100 // node.in_force.replicas
    is_lowered = plan.mode is SharingMode.MPS and any(share.percent < part for share in plan.shares)
    if is_lowered and calm_s >= settings.calm_s:
        raised = replace(plan, shares=tuple(replace(share, percent=part) for share in plan.shares))
        message = f"Calm for {format_span(calm_s)} ({_figures(pressure)}): pods could have their whole parts again."
        return NodePlan(node, (raised,), Reason("SHARING_CALM", message, {"calm_s": calm_s}))
    return NodePlan(node, (), Reason("SHARING_AS_IS", f"Neither contended nor calm for long ({_figures(pressure)})."))


def _figures(pressure: Pressure) -> str:
    values = (("slow-down", pressure.slowdown), ("SMs", pressure.sm_active), ("memory", pressure.memory))
    return ", ".join(f"{name} {value:.2f}" for name, value in values if value is not None)
