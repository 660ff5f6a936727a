"""Who asks for what, which nodes could give it, and what is left undone. Pure, so that `kopt partitions` shares it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from kopt.cluster.holds.node_layout import IN_PROGRESS, LayoutPhase
from kopt.cluster.objects.custom.mig_strategy import MigStrategy
from kopt.cluster.workloads.node_selection import runs_on
from kopt.controllers.partitions.amd_nodes import AmdNode, amd_executor, dividing_drivers, is_for_modes, read_amd_node
from kopt.controllers.partitions.amd_pools import AmdSettings, ModePlanning
from kopt.controllers.partitions.dcm import DeviceConfigManager
from kopt.controllers.partitions.demand import dynamic_drivers, dynamic_instances, profile_of
from kopt.controllers.partitions.executors import (
    DynamicDriver,
    MigManager,
    Refused,
    SignedPlans,
    executor_of,
    since_s,
)
from kopt.controllers.partitions.reports import NodeReport, Observed, StrategyReport, Undone
from kopt.controllers.partitions.views import (
    AMD_GPU,
    ObservedNode,
    ObservedPod,
    ReportedModes,
)
from kopt.core.gpu import GpuModel
from kopt.core.gpu_catalogue import UnknownGpuError, find_gpu
from kopt.core.hardware.mig import MigError, mig_geometry
from kopt.core.times import stamp
from kopt.policies.partitions.configurations import (
    InfeasibleError,
    NodeOption,
    Rules,
    model_rules,
    node_option,
    smallest_profile,
)
from kopt.policies.partitions.plan import PartitionPlan, PartitionPool, PlanNode, plan_partitions

PRODUCT_LABEL, COUNT_LABEL = "nvidia.com/gpu.product", "nvidia.com/gpu.count"


@dataclass(frozen=True)
class Managers:
    """What the managers of nodes are given to do their work, and how far nodes with AMD's GPUs may be emptied."""

    mig: MigManager = field(default_factory=MigManager)
    dcm: DeviceConfigManager = field(default_factory=DeviceConfigManager)
    amd: AmdSettings = field(default_factory=AmdSettings)


def read_partitions(observed: Observed, managers: Managers) -> list[StrategyReport]:
    """What is planned for each MIGStrategy, in the order of their names."""
    return _Reading(observed, managers).reports()


class _Reading:
    """One look at the cluster. A pod is counted once, for the first strategy whose nodes it may run on."""

    def __init__(self, observed: Observed, managers: Managers) -> None:
        self._observed, self._managers = observed, managers
        self._divides = dividing_drivers(observed.slices)
        self._reported = {each.node: each for each in observed.reported if each.gpus}
        self._signs = {each.node for each in observed.reported if each.has_mig}
        self._amd: dict[str, AmdNode] = {}
        self._dynamic = dynamic_drivers(observed.slices)
        self._instances = dynamic_instances(observed.slices, observed.claims)
        self._on: dict[str, list[ObservedPod]] = {}
        for pod in observed.pods:
            if pod.node:
                self._on.setdefault(pod.node, []).append(pod)
        self._unplaced = [pod for pod in observed.pods if pod.waits]
        self._counted: set[str] = set()

    def reports(self) -> list[StrategyReport]:
        strategies = sorted(self._observed.strategies, key=lambda each: each.name)
        specs = {each.name: each.spec for each in strategies if each.spec is not None}
        selecting = {
            node.name: [name for name, spec in specs.items() if spec.selects(node.labels)]
            for node in self._observed.nodes
        }
        result = []
        for strategy in strategies:
            report = StrategyReport(strategy)
            if strategy.spec is not None:
                for node in sorted(self._observed.nodes, key=lambda each: each.name):
                    if strategy.name in selecting[node.name]:
                        of = self._amd_node if is_for_modes(strategy.spec.shares) else self._node
                        report.nodes.append(of(node, selecting[node.name]))
                if is_for_modes(strategy.spec.shares):
                    self._plan_modes(strategy.spec, report)
                else:
                    self._plan(strategy.spec, report)
            result.append(report)
        return result

    def _node(self, node: ObservedNode, strategies: Sequence[str]) -> NodeReport:
        try:
            is_dynamic = node.name in self._dynamic
            signs = node.name in self._signs
            executor = executor_of(node, strategies, self._observed.plans, is_dynamic, self._managers.mig, signs=signs)
        except Refused as refused:
            report = NodeReport(node, None, node.instances, refused.reason, str(refused))
        else:
            actual = self._instances.get(node.name, {}) if isinstance(executor, DynamicDriver) else node.instances
            report = NodeReport(node, executor, actual, "Stays", executor.remark)
        report.is_idle = not self._on.get(node.name)
        return report

    def _amd_node(self, node: ObservedNode, strategies: Sequence[str]) -> NodeReport:
        reported = self._reported.get(node.name)
        try:
            amd = read_amd_node(node, reported)
            executor = amd_executor(
                node,
                strategies,
                self._observed.plans,
                node.name in self._divides,
                self._observed.profiles,
                reported,
                self._dcm(node, amd, reported),
            )
        except Refused as refused:
            return NodeReport(node, None, node.instances, refused.reason, str(refused))
        self._amd[node.name] = amd
        report = NodeReport(node, executor, amd.partitions, "Stays", executor.remark)
        report.is_idle = not self._on.get(node.name)
        return report

    def _dcm(self, node: ObservedNode, amd: AmdNode, reported: ReportedModes | None) -> DeviceConfigManager:
        """With what its node has now."""
        tool = {} if reported is None else {node.name: reported.partitions}
        return replace(self._managers.dcm, actual={node.name: amd.partitions}, reported=tool)

    def _plan_modes(self, spec: MigStrategy, report: StrategyReport) -> None:
        pools: dict[tuple[str, int, str], list[tuple[NodeReport, AmdNode]]] = {}
        for each in report.nodes:
            amd = self._amd.get(each.node.name)
            if amd is not None and amd.gpus and not isinstance(each.executor, DynamicDriver):
                pools.setdefault((amd.model.name, amd.gpus, amd.driver), []).append((each, amd))
            elif amd is not None and not amd.gpus:
                each.executor, each.reason = None, "UnknownGpus"
                each.message = f"{each.node.name} offers no GPUs: is its device plugin running?"
        for _, members in sorted(pools.items()):
            ModePlanning(self._observed, spec, report, members, self._managers.amd).plan(
                self._unplaced, self._on, self._counted
            )

    def _plan(self, spec: MigStrategy, report: StrategyReport) -> None:
        pools: dict[tuple[str, int], list[NodeReport]] = {}
        for each in report.nodes:
            if each.executor is None or isinstance(each.executor, DynamicDriver):
                continue
            model, gpus = _model(each.node), each.node.labels.get(COUNT_LABEL, "")
            if model is None or not gpus.isdecimal() or not 0 < int(gpus) <= 64:
                each.executor, each.reason = None, "UnknownGpus"
                each.message = f"{each.node.name} needs the labels {PRODUCT_LABEL} of a GPU with MIG, and {COUNT_LABEL}"
            else:
                pools.setdefault((model.name, int(gpus)), []).append(each)
        for (name, count), members in sorted(pools.items()):
            _PoolPlanning(self._observed, spec, report, members, find_gpu(name), count).plan(
                self._unplaced, self._on, self._counted
            )
        self._count_claims(report)

    def _count_claims(self, report: StrategyReport) -> None:
        """Claims are served by drivers that cut on demand."""
        nodes = [each.node for each in report.nodes if isinstance(each.executor, DynamicDriver)]
        pods = {pod.uid: pod for pod in self._observed.pods if not pod.node}
        for claim in self._observed.claims:
            pod = pods.get(claim.pod)
            driver, profile = profile_of(claim, self._observed.classes)
            able = [] if pod is None else [each for each in nodes if runs_on(pod.spec, each.labels, each.taints)]
            if claim.is_allocated or not profile or claim.observed.made_for in self._counted:
                continue
            if any(self._dynamic[each.name] == driver for each in able):
                self._counted.add(claim.observed.made_for)
                report.pending[profile] += 1


class _PoolPlanning:
    """Nodes of one model and size, which mig-manager cuts."""

    def __init__(
        self,
        observed: Observed,
        spec: MigStrategy,
        report: StrategyReport,
        members: Sequence[NodeReport],
        model: GpuModel,
        gpus: int,
    ) -> None:
        self._observed, self._spec, self._report, self._members = observed, spec, report, members
        self._model, self._gpus, self._geometry = model, gpus, mig_geometry(model)
        self._rules: dict[str, Rules] = {}
        self._options = self._read_options()
        self._by_name = {option.name: option for option in self._options}

    def plan(
        self, unplaced: Sequence[ObservedPod], on: Mapping[str, Sequence[ObservedPod]], counted: set[str]
    ) -> PartitionPlan:
        """The wanted option of each member, and the account of what waits."""
        pending = self._pending(unplaced, counted)
        # Nodes that more of what waits may run on are cut first; those that are alike keep their order.
        able = {each.node.name: sum(_may_run_on(pod, each) for pod in unplaced) for each in self._members}
        self._members = sorted(self._members, key=lambda each: -able[each.node.name])
        nodes = [node for each in self._members if (node := self._plan_node(each, on)) is not None]
        shares = {profile: share for profile, share in self._spec.shares.items() if profile in self._names}
        pool = PartitionPool(
            self._geometry, nodes, self._options, pending, shares, self._spec.min_utilization if shares else None
        )
        plan = plan_partitions(pool)
        for each in self._members:
            option = plan.changes.get(each.node.name)
            if option is not None:
                each.wanted, each.reason = option, "ToCut"
                each.message = f"It is idle, and would be cut as {option.name}."
                if isinstance(each.executor, SignedPlans):
                    each.reason, each.message = "AwaitsSignature", self._order(each, option)
        self._report.pending.update(pending)
        self._report.served.update(plan.served)
        self._explain(pending, plan)
        return plan

    def _order(self, each: NodeReport, option: NodeOption) -> str:
        """What a person runs to have the node cut so."""
        return (
            f"It is idle; a person may sign it: `kopt nodes plan {each.node.name} "
            f"{' '.join(f'--layout {words}' for words in self._layouts(option.name))}`."
        )

    def _layouts(self, name: str) -> list[str]:
        """Of each GPU by its number, or of all of them, as `kopt nodes plan` takes it."""
        layouts = ["off"] * self._gpus
        for gpus, instances in self._rules[name]:
            for at in range(self._gpus):
                if gpus is None or at in gpus:
                    layouts[at] = _layout(instances)
        if len(set(layouts)) == 1:
            return [f"all={layouts[0]}"]
        return [f"{at}={layout}" for at, layout in enumerate(layouts)]

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(profile.name for profile in self._geometry.profiles)

    def _read_options(self) -> list[NodeOption]:
        result, names = [], frozenset(profile.name for profile in self._geometry.profiles)
        for name, rules in sorted(self._observed.configurations.by_name.items()):
            own = model_rules(self._geometry, [(rule.gpus, rule.instances, rule.is_filtered) for rule in rules])
            if own is None or any(not set(instances or ()) <= names for _, instances in own):
                continue
            try:
                result.append(node_option(self._geometry, self._gpus, name, own))
                self._rules[name] = own
            except InfeasibleError as error:
                self._leave(f"configuration {name}", "Infeasible", str(error))
        if self._observed.configurations.error:
            self._leave("configurations", "NoConfigurations", self._observed.configurations.error)
        offered = {profile for option in result for profile in option.instances}
        for profile, share in self._spec.shares.items():
            if profile not in names:
                self._leave(
                    profile, "OtherModel", f"a {self._model.name} has no {profile}, of which {share} % are wanted"
                )
            elif share and profile not in offered and result:
                self._leave(profile, "NotOffered", f"no configuration of mig-manager gives {profile}")
        return result

    def _plan_node(self, each: NodeReport, on: Mapping[str, Sequence[ObservedPod]]) -> PlanNode | None:
        """None for one that takes no pods."""
        node, layout, pods = each.node, each.node.layout, on.get(each.node.name, ())
        if layout is not None and layout.phase in IN_PROGRESS:
            option = self._by_name.get(layout.wanted)
            each.wanted, each.reason = option, layout.phase.value.capitalize()
            each.message = f"It is {layout.phase.value} for {layout.wanted}."
            return PlanNode(node.name, node.instances if option is None else option.instances)
        if not node.is_ready or node.is_cordoned:
            each.reason, each.message = "TakesNoPods", "It is cordoned by others, or not ready."
            return None
        used: Counter[str] = Counter()
        for pod in pods:
            used.update(pod.requests)
        age_s = self._spec.rebalance_s + 1 if layout is None else self._observed.now_s - since_s(layout)
        may_change = each.is_idle and age_s >= self._spec.rebalance_s
        if not each.is_idle:
            each.message = f"{len(pods)} pods with GPUs run on it."
        elif not may_change:
            each.reason = "CutLately" if layout is not None and layout.phase is LayoutPhase.CUT else "FailedLately"
            # A time, not a span: what does not change is not written again.
            until = stamp((0.0 if layout is None else since_s(layout)) + self._spec.rebalance_s)
            each.message = f"It is left as it is until {until} (rebalanceInterval)."
        return PlanNode(node.name, node.instances, dict(used), may_change)

    def _pending(self, unplaced: Sequence[ObservedPod], counted: set[str]) -> Counter[str]:
        memory = {profile.name: int(profile.memory_bytes) for profile in self._model.partitions}
        shapes = [*(option.instances for option in self._options), *(each.node.instances for each in self._members)]
        result: Counter[str] = Counter()
        for pod in unplaced:
            if pod.uid in counted or not self._may_run(pod):
                continue
            requests = dict(pod.requests)
            if pod.memory_bytes and AMD_GPU not in requests:
                profile = smallest_profile(self._geometry, memory, pod.memory_bytes)
                requests = {} if profile is None else {profile: 1}
            if not requests or not requests.keys() <= {*self._names, "gpu"}:
                continue
            counted.add(pod.uid)
            if not any(all(shape.get(name, 0) >= count for name, count in requests.items()) for shape in shapes):
                words = ", ".join(f"{count} x {name}" for name, count in sorted(requests.items()))
                self._leave("/".join(pod.key), "NotOffered", f"no configuration gives {words} on one node")
                continue
            result.update(requests)
        return result

    def _may_run(self, pod: ObservedPod) -> bool:
        return any(_may_run_on(pod, each) for each in self._members)

    def _explain(self, pending: Counter[str], plan: PartitionPlan) -> None:
        for profile, count in sorted(pending.items()):
            lacking = count - plan.served.get(profile, 0)
            if lacking > 0:
                self._leave(
                    profile,
                    "NoIdleNode",
                    f"{lacking} of {count} requests for {profile} wait: every other node has pods with GPUs, takes no "
                    "pods, or was cut less than rebalanceInterval ago",
                )

    def _leave(self, subject: str, reason: str, message: str) -> None:
        self._report.undone.append(Undone(subject, reason, message))


def _layout(instances: Mapping[str, int] | None) -> str:
    """As `kopt nodes plan` writes it."""
    if instances is None:
        return "off"
    return ",".join(f"{count}x{profile}" for profile, count in sorted(instances.items())) or "empty"


def _may_run_on(pod: ObservedPod, each: NodeReport) -> bool:
    return runs_on(pod.spec, each.node.labels, each.node.taints)


def _model(node: ObservedNode) -> GpuModel | None:
    """Of a GPU with MIG; None where nothing says which."""
    product = node.labels.get(PRODUCT_LABEL, "").partition("-MIG-")[0]
    try:
        model = find_gpu(product)
        mig_geometry(model)
    except (UnknownGpuError, MigError):
        return None
    return model
