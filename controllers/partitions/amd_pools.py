"""Which nodes with AMD's GPUs are divided anew, and which of them first. Pure.

Pools are nodes with as many GPUs of one model and one driver. A mode that no node of a pool has yet is tried on one,
the canary; the others wait until that one has it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kopt.cluster.holds.node_layout import IN_PROGRESS, LayoutPhase
from kopt.cluster.objects.custom.mig_strategy import MigStrategy
from kopt.cluster.objects.dcm_profiles import TAINT_KEY, Profile
from kopt.cluster.objects.fields import at, text
from kopt.cluster.workloads.node_selection import runs_on
from kopt.controllers.partitions.amd_nodes import MODE_LABELS, AmdNode, used_partitions
from kopt.controllers.partitions.dcm import DeviceConfigManager, NodeOrder
from kopt.controllers.partitions.executors import SignedPlans, since_s
from kopt.controllers.partitions.reports import NodeReport, Observed, StrategyReport, Undone
from kopt.controllers.partitions.views import AMD_GPU, ObservedPod
from kopt.core.hardware.amd_modes import WHOLE_MODE, ModeError, amd_mode, modes_of
from kopt.core.times import stamp
from kopt.policies.partitions.configurations import InfeasibleError, NodeOption
from kopt.policies.partitions.drain import DrainSettings, RunningPod, best_drain
from kopt.policies.partitions.modes import mode_geometry, mode_option, smallest_mode
from kopt.policies.partitions.plan import PartitionPool, PlanNode, plan_partitions

Member = tuple[NodeReport, AmdNode]
_STALE_S = 600.0
"""A status of a checkpoint that is older says nothing of what a pod costs now."""


@dataclass(frozen=True)
class AmdSettings:
    """``drains``: nodes with pods may be emptied. ``drain_s``: evicted pods have so long to end."""

    drains: bool = False
    drain_s: float = 600.0
    outage_s: float = 600.0
    least_ratio: float = 2.0


class ModePlanning:
    """Nodes of one model, size and driver."""

    def __init__(
        self,
        observed: Observed,
        spec: MigStrategy,
        report: StrategyReport,
        members: Sequence[Member],
        settings: AmdSettings,
    ) -> None:
        self._observed, self._spec, self._report, self._settings = observed, spec, report, settings
        self._members, first = list(members), members[0][1]
        self._modes, self._geometry = modes_of(first.model), mode_geometry(first.model)
        self._gpus, self._driver = first.gpus, first.driver
        self._by_hand = any(isinstance(each.executor, SignedPlans) for each, _ in members)
        self._names_modes = all(node.names_modes for _, node in members if node.partitions)
        self._options = self._read_options()
        self._by_name = {option.name: option for option in self._options}

    def plan(self, unplaced: Sequence[ObservedPod], on: Mapping[str, Sequence[ObservedPod]], counted: set[str]) -> None:
        """The wanted option of each member, and the account of what waits."""
        pending = self._pending(unplaced, counted)
        able = {each.node.name: sum(_may_run_on(pod, each) for pod in unplaced) for each, _ in self._members}
        self._members.sort(key=lambda member: -able[member[0].node.name])
        nodes = [node for member in self._members if (node := self._plan_node(member, on)) is not None]
        shares = {mode: share for mode, share in self._spec.shares.items() if mode in self._names}
        threshold = self._spec.min_utilization if shares else None
        pool = PartitionPool(self._geometry, nodes, self._options, pending, shares, threshold)
        plan = plan_partitions(pool)
        self._report.pending.update(pending)
        self._report.served.update(plan.served)
        self._stagger(plan.changes)
        lacking = pending - Counter(plan.served)
        if lacking and self._settings.drains and not plan.changes:
            lacking -= Counter(self._drain(pool, on))
        self._explain(pending, lacking)

    @property
    def _names(self) -> frozenset[str]:
        return frozenset(profile.name for profile in self._geometry.profiles)

    @property
    def _profiles(self) -> Mapping[str, Profile]:
        """Of the manager; where a person signs plans, every mode that AMD has validated."""
        if not self._by_hand:
            return self._observed.profiles.by_name
        return {str(each.mode): Profile(((each.mode, None),)) for each in self._modes.validated}

    def _read_options(self) -> list[NodeOption]:
        result = []
        for name, profile in sorted(self._profiles.items()):
            try:
                option = mode_option(self._modes, self._gpus, name, profile.parts, self._driver, skips=profile.skips)
            except ModeError as error:
                self._leave(f"profile {name}", "Unsupported", str(error))
            except InfeasibleError as error:
                self._leave(f"profile {name}", "Infeasible", str(error))
            else:
                if len(option.instances) > 1 and not self._names_modes:
                    self._leave(f"profile {name}", "NotMixed", f"{name} has several modes: {_SINGLE}")
                else:
                    result.append(option)
        offered = {mode for option in result for mode in option.instances}
        for mode, share in self._spec.shares.items():
            try:
                self._modes.require(amd_mode(mode), self._driver)
            except ModeError as error:
                self._leave(mode, "Unsupported", str(error))
            else:
                if share and mode not in offered and result:
                    self._leave(mode, "NotOffered", f"no profile of the device config manager gives {mode}")
        return result

    def _plan_node(self, member: Member, on: Mapping[str, Sequence[ObservedPod]]) -> PlanNode | None:
        """None for one that takes no pods."""
        each, amd = member
        node, layout, pods = each.node, each.node.layout, on.get(each.node.name, ())
        if layout is not None and layout.phase in IN_PROGRESS:
            option = self._by_name.get(layout.wanted)
            each.wanted, each.reason = option, layout.phase.value.capitalize()
            each.message = f"It is {layout.phase.value} for {layout.wanted}."
            # Pods that are still on it have gone as soon as it has its new partitions.
            return PlanNode(node.name, amd.partitions if option is None else option.instances)
        if layout is not None and layout.phase is LayoutPhase.STUCK:
            each.reason = "Stuck"
            each.message = f"Neither {layout.wanted} nor {layout.back} could be made: repair it, then uncordon it."
            return None
        if not node.is_ready or node.is_cordoned:
            each.reason, each.message = "TakesNoPods", "It is cordoned by others, or not ready."
            return None
        used = used_partitions(amd, (pod.requests for pod in pods))
        rests = self._rests(each)
        if not each.is_idle:
            each.message = f"{len(pods)} pods with GPUs run on it."
        if not rests and self._back(amd) is None and isinstance(each.executor, DeviceConfigManager):
            each.reason = "NoWayBack"
            each.message = "No profile has the modes that it has now, by which a change could be undone: write one."
            rests = True
        return PlanNode(node.name, amd.partitions, dict(used), each.is_idle and not rests)

    def _rests(self, each: NodeReport) -> bool:
        layout = each.node.layout
        if layout is None or self._observed.now_s - since_s(layout) >= self._spec.rebalance_s:
            return False
        each.reason = "CutLately" if layout.phase is LayoutPhase.CUT else "FailedLately"
        until = stamp(since_s(layout) + self._spec.rebalance_s)
        each.message = f"It is left as it is until {until} (rebalanceInterval)."
        return True

    def _back(self, amd: AmdNode) -> NodeOption | None:
        """The profile of what a node is now."""
        whole = {name: -(-count // amd_mode(name).partitions) for name, count in amd.partitions.items()}
        full = {name: count * amd_mode(name).partitions for name, count in whole.items()}
        return next((option for option in self._options if dict(option.instances) == full), None)

    def _stagger(self, changes: Mapping[str, NodeOption]) -> None:
        """Of the nodes that are to get an option that none has yet, only the first."""
        begun = {option.name: self._state(option) for option in changes.values()}
        for each, amd in self._members:
            option = changes.get(each.node.name)
            if option is None:
                continue
            state, back = begun[option.name], self._back(amd)
            if self._by_hand:
                each.wanted, each.reason = option, "AwaitsSignature"
                each.message = (
                    f"It is idle; a person may sign it: `kopt nodes plan {each.node.name} --layout all={option.name}`."
                )
                continue
            if state == "proven" or state == "":
                assert back is not None, "only nodes with a way back may change"
                each.wanted, each.reason = option, "ToCut"
                each.order = NodeOrder(back.name, self._gpus)
                first = "" if state else " first, as the canary"
                each.message = f"It is idle, and would be divided as {option.name}{first}."
                begun[option.name] = "proven" if state == "proven" else "tried"
            elif state == "failed":
                each.reason, each.message = "CanaryFailed", f"{option.name} failed on another node of its kind lately."
            else:
                each.reason, each.message = "AwaitsCanary", f"{option.name} is being tried on another node of its kind."

    def _state(self, option: NodeOption) -> str:
        """proven: a node of the pool has it; tried: one is about to; failed: on one, lately; else empty."""
        states = set()
        for each, amd in self._members:
            layout = each.node.layout
            if layout is not None and layout.phase in IN_PROGRESS and layout.wanted == option.name:
                states.add("failed" if layout.phase is LayoutPhase.RESTORING else "tried")
            elif layout is not None and layout.phase in (LayoutPhase.FAILED, LayoutPhase.STUCK):
                lately = self._observed.now_s - since_s(layout) < self._spec.rebalance_s
                if layout.wanted == option.name and (lately or layout.phase is LayoutPhase.STUCK):
                    states.add("failed")
            elif dict(amd.partitions) == dict(option.instances):
                states.add("proven")
        return next((state for state in ("failed", "proven", "tried") if state in states), "")

    def _drain(self, pool: PartitionPool, on: Mapping[str, Sequence[ObservedPod]]) -> Mapping[str, int]:
        """What would be served by emptying one node; nothing while another one is being divided."""
        if any(each.node.layout is not None and each.node.layout.phase in IN_PROGRESS for each, _ in self._members):
            return {}
        untried = [option for option in pool.options if self._state(option) not in ("failed", "tried")]
        able = {
            each.node.name: _running(on.get(each.node.name, ()), self._observed.now_s)
            for each, amd in self._members
            if not each.is_idle
            and isinstance(each.executor, DeviceConfigManager)
            and each.reason == "Stays"
            and self._back(amd) is not None
        }
        settings = DrainSettings(self._spec.rebalance_s, self._settings.outage_s, self._settings.least_ratio)
        drain, refusals = best_drain(replace(pool, options=untried), able, settings)
        for refusal in refusals:
            self._leave(refusal.node, "NotWorthIt", f"{refusal.node} is not emptied: {refusal.message}")
        if drain is None:
            return {}
        each, amd = next(member for member in self._members if member[0].node.name == drain.node)
        back = self._back(amd)
        assert back is not None, "only nodes with a way back are emptied"
        within_s = self._settings.drain_s if drain.evicts else 1.2 * drain.until_s + 60.0
        each.wanted, each.reason = drain.option, "ToDrain"
        each.order = NodeOrder(back.name, self._gpus, drain.evicts, within_s)
        how = "evicted" if drain.evicts else f"waited for ({drain.until_s:.0f} s)"
        each.message = (
            f"Its pods would be {how} and it would be divided as {drain.option.name}: that wins {drain.won_gpu_s:.0f} "
            f"GPU seconds and costs {drain.lost_gpu_s:.0f}."
        )
        self._report.served.update(drain.served)
        return drain.served

    def _pending(self, unplaced: Sequence[ObservedPod], counted: set[str]) -> Counter[str]:
        offered = {mode for option in self._options for mode in option.instances}
        offered |= {mode for _, amd in self._members for mode in amd.partitions}
        shapes = [*(option.instances for option in self._options), *(amd.partitions for _, amd in self._members)]
        result: Counter[str] = Counter()
        for pod in unplaced:
            if pod.uid in counted or not any(_may_run_on(pod, each) for each, _ in self._members):
                continue
            requests = self._requests(pod, offered)
            if requests is None:
                continue
            counted.add(pod.uid)
            words = ", ".join(f"{count} x {name}" for name, count in sorted(requests.items()))
            if not requests:
                self._leave("/".join(pod.key), "NotOffered", "no mode on offer has so much memory on one partition")
            elif pod.requests.keys() - {AMD_GPU} and not self._names_modes:
                self._leave("/".join(pod.key), "NotOffered", f"it asks for {words}, and {_SINGLE}")
            elif not any(all(shape.get(name, 0) >= count for name, count in requests.items()) for shape in shapes):
                self._leave("/".join(pod.key), "NotOffered", f"no profile gives {words} on one node")
            else:
                result.update(requests)
        return result

    def _requests(self, pod: ObservedPod, offered: set[str]) -> dict[str, int] | None:
        """Partitions by mode; empty where none is large enough, None where it is about other GPUs."""
        named = {name: count for name, count in pod.requests.items() if name != AMD_GPU}
        anonymous = pod.requests.get(AMD_GPU, 0)
        if named.keys() - self._names:
            return None
        wants_partition = pod.isolation == "partition" and bool(pod.memory_bytes or 0 < pod.gpus < WHOLE_MODE.share)
        if not anonymous:
            if named:
                return named
            if not wants_partition:
                return None
        mode = _selected_mode(pod)
        if not mode and wants_partition:
            share = int(pod.gpus) if 0 < pod.gpus < WHOLE_MODE.share else 0
            mode = smallest_mode(self._modes, offered, pod.memory_bytes, share) or ""
            if not mode:
                return {}
        mode = mode or WHOLE_MODE.name
        return None if mode not in self._names else {**named, mode: named.get(mode, 0) + max(1, anonymous)}

    def _explain(self, pending: Counter[str], lacking: Counter[str]) -> None:
        for mode, count in sorted(lacking.items()):
            self._leave(
                mode,
                "NoIdleNode",
                f"{count} of {pending[mode]} requests for {mode} wait: every other node has pods with GPUs, takes no "
                "pods, or was divided less than rebalanceInterval ago",
            )

    def _leave(self, subject: str, reason: str, message: str) -> None:
        self._report.undone.append(Undone(subject, reason, message))


_SINGLE = "the device plugin names all partitions amd.com/gpu (resource_naming_strategy is single, not mixed)"


def _selected_mode(pod: ObservedPod) -> str:
    """The mode that a pod's node selector names; empty for none."""
    for label in MODE_LABELS:
        value = text(pod.spec, "nodeSelector", label)
        if value:
            return value
    return ""


def _may_run_on(pod: ObservedPod, each: NodeReport) -> bool:
    """Whatever mode the node is in now, and while it is being divided."""
    labels = dict(each.node.labels)
    for label in MODE_LABELS:
        if value := at(pod.spec, "nodeSelector", label):
            labels[label] = str(value)
    taints = [taint for taint in each.node.taints if text(taint, "key") != TAINT_KEY]
    return runs_on(pod.spec, labels, taints)


def _running(pods: Sequence[ObservedPod], now_s: float) -> list[RunningPod]:
    """What ending the pods of a node costs; what a job's pods have computed is counted for the first of them."""
    result, owners = [], set[str]()
    for pod in pods:
        lost_s: float | None = None
        reported = pod.checkpoint
        risk = None if reported is None else reported.status.work_at_risk_gpu_seconds
        if pod.owner and pod.owner in owners:
            lost_s = 0.0
        elif reported is not None and now_s - reported.at_s <= _STALE_S and reported.status.safe and risk is not None:
            lost_s = risk.high
            owners |= {pod.owner} - {""}
        remaining_s = None if pod.ends_s is None else max(0.0, pod.ends_s - now_s)
        result.append(RunningPod("/".join(pod.key), pod.gpus / 1000, lost_s, remaining_s))
    return result
