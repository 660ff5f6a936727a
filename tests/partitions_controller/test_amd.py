"""Nodes with AMD's GPUs: what is planned for them, and each step until they are divided or as before."""

import json
from typing import Any

import pytest

from kopt.cluster.client.resources import NODES
from kopt.cluster.holds.hold import release
from kopt.cluster.objects.custom.mig_strategy import StrategyError, read_strategy
from kopt.cluster.objects.dcm_profiles import ProfileError, read_profiles
from kopt.cluster.workloads.requests.devices import read_slice
from kopt.controllers.partitions.amd_pools import AmdSettings
from kopt.controllers.partitions.dcm import DeviceConfigManager, NodeOrder
from kopt.controllers.partitions.executors import MigManager, Step
from kopt.controllers.partitions.pools import Managers, read_partitions
from kopt.controllers.partitions.reports import NodeReport, Observed, StrategyReport
from kopt.controllers.partitions.views import (
    ObservedConfigurations,
    read_node,
    read_observed_strategy,
    read_partitioning_plan,
    read_pod,
    read_profile_map,
    read_reported_modes,
)
from kopt.core.times import stamp

from .test_pools import NOW_S, Object, pod

LABEL, STATE = "dcm.amd.com/gpu-config-profile", "dcm.amd.com/gpu-config-profile-state"
MODE = "amd.com/gpu.compute-memory-partition"
WHOLE, SMALL = "amd.com/spx_nps1", "amd.com/cpx_nps4"
LABELS = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.driver-version": "30.20.1"}
PROFILES = {
    "spx": [{"computePartition": "SPX", "memoryPartition": "NPS1"}],
    "cpx": [{"computePartition": "CPX", "memoryPartition": "NPS4", "numGPUsAssigned": 8}],
    "dpx": [{"computePartition": "DPX", "memoryPartition": "NPS2", "numGPUsAssigned": 8}],
    "old": [{"computePartition": "CPX", "memoryPartition": "NPS1"}],
}
DCM, SETTINGS = DeviceConfigManager(1.0, 600.0, 60.0, 120.0), {"cpx_nps4": "70%", "spx_nps1": "30%"}


def node(name: str, amounts: dict[str, str] | None = None, **more: Any) -> Object:
    labels = {**LABELS, "kubernetes.io/hostname": name, **more.pop("labels", {})}
    status = {"allocatable": amounts or {WHOLE: "8"}, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": labels, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": more.pop("spec", {}), "status": status}


def strategy(name: str = "infer", interval: str = "4h", **spec: Any) -> Object:
    profiles = [{mode: share} for mode, share in SETTINGS.items()]
    partition = {"preferredProfiles": profiles, "rebalanceInterval": interval}
    return {"metadata": {"name": name, "generation": 1}, "spec": {"partitionStrategy": partition, **spec}}


def observed(
    nodes: list[Object],
    pods: list[Object],
    *,
    strategies: list[Object] | None = None,
    profiles: dict[str, Any] | None = None,
    plans: list[Object] | None = None,
    signed: list[Object] | None = None,
    slices: list[Object] | None = None,
    now_s: float = NOW_S,
) -> Observed:
    written = {name: {"profiles": parts} for name, parts in (PROFILES if profiles is None else profiles).items()}
    config_map = {
        "metadata": {"name": "dcm", "namespace": "amd"},
        "data": {"config.json": json.dumps({"gpu-config-profiles": written})},
    }
    return Observed(
        now_s,
        [read_observed_strategy(item) for item in strategies or [strategy()]],
        [read_node(item) for item in nodes],
        [item for document in pods if (item := read_pod(document)) is not None],
        [],
        {},
        [item for document in slices or [] if (item := read_slice(document)) is not None],
        [read_partitioning_plan(item) for item in plans or []],
        ObservedConfigurations(),
        read_profile_map(config_map),
        [read_reported_modes(item) for item in signed or []],
    )


def planned(nodes: list[Object], pods: list[Object], *, drains: bool = False, **more: Any) -> StrategyReport:
    managers = Managers(MigManager(), DCM, AmdSettings(drains))
    return read_partitions(observed(nodes, pods, **more), managers)[0]


def rows(report: StrategyReport) -> dict[str, NodeReport]:
    return {each.node.name: each for each in report.nodes}


def reasons(report: StrategyReport) -> dict[str, str]:
    return {each.node.name: each.reason for each in report.nodes}


def waits(count: int = 1, resource: str = SMALL, **notes: str) -> list[Object]:
    return [pod(f"p{at}", {resource: "1"} if resource else {}, notes=notes) for at in range(count)]


def test_a_new_mode_is_tried_on_one_node_before_the_others() -> None:
    nodes = [node(name) for name in "abc"]
    assert reasons(planned(nodes, waits(100))) == {"a": "ToCut", "b": "AwaitsCanary", "c": "Stays"}
    has_it = [node("z", {SMALL: "64"}), *nodes]
    assert reasons(planned(has_it, waits(150))) == {"z": "Stays", "a": "ToCut", "b": "ToCut", "c": "Stays"}
    # What another driver's nodes have proves nothing.
    older = node("z", {SMALL: "64"}, labels={"amd.com/gpu.driver-version": "6.12.12"})
    assert reasons(planned([older, *nodes], waits(170)))["b"] == "AwaitsCanary"


def test_what_pods_ask_for_is_counted_by_mode() -> None:
    partition = {"kaiwo.ai/gpu-isolation": "partition"}
    memory = {"kaiwo.ai/gpu-memory": "90000"}
    by_memory = waits(1, "", **partition, **memory, **{"kaiwo.ai/recommended-memory": "20000"})
    by_share = [pod("s", {}, notes={**partition, "kaiwo.ai/gpu-fraction": "0.4"})]
    report = planned([node("a")], [*by_memory, *by_share])
    assert report.pending == {"cpx_nps4": 1, "dpx_nps2": 1}
    too_much = waits(1, "", **partition, **memory, **{"kaiwo.ai/recommended-memory": "200000"})
    assert [each.reason for each in planned([node("a")], too_much).undone if "/" in each.subject] == ["NotOffered"]
    selects = pod("m", {"amd.com/gpu": "2"})
    selects["spec"]["nodeSelector"] = {MODE: "cpx_nps4"}
    single = node("a", {"amd.com/gpu": "8"}, labels={MODE: "spx_nps1"})
    assert planned([single], [selects]).pending == {"cpx_nps4": 2}
    assert planned([single], waits(1)).undone[-1].message.startswith("it asks for 1 x cpx_nps4, and the device plugin")
    assert reasons(planned([node("a", {"amd.com/gpu": "8"})], [])) == {"a": "UnknownModes"}


def test_a_profile_that_the_driver_or_the_model_does_not_have_is_refused_with_what_would_do() -> None:
    report = planned([node("a", labels={"amd.com/gpu.driver-version": "6.10.5"})], waits())
    said = {each.subject: each.message for each in report.undone}
    assert "needs amdgpu 6.12.12 (ROCm 6.4), not 6.10.5" in said["profile cpx"]
    assert "AMD has not validated it" in said["profile old"]
    assert rows(report)["a"].wanted is None
    assert "no profile gives 1 x cpx_nps4" in said["team/p0"]
    other = node("a", labels={"amd.com/gpu.product-name": "AMD_Instinct_MI325X"})
    assert "validated: SPX/NPS1" in next(e.message for e in planned([other], []).undone if e.subject == "profile cpx")


def test_without_a_way_back_nothing_is_divided() -> None:
    report = planned([node("a")], waits(), profiles={"cpx": PROFILES["cpx"]})
    assert reasons(report) == {"a": "NoWayBack"}
    assert rows(report)["a"].wanted is None


@pytest.mark.parametrize("by", ["plan", "strategy", "label", "driver"])
def test_two_authorities_are_refused(by: str) -> None:
    held, more = node("a"), dict[str, Any]()
    if by == "plan":
        more["plans"] = [
            {
                "metadata": {"name": "amd"},
                "spec": {"rules": [{"selector": {"matchLabels": LABELS}, "profile": {"dcmProfileName": "spx"}}]},
            }
        ]
    elif by == "strategy":
        more["strategies"] = [strategy("a"), strategy("b")]
    else:
        held["metadata"]["labels"][LABEL] = "spx"
        fields = {"f:metadata": {"f:labels": {f"f:{LABEL}": {}}}}
        held["metadata"]["managedFields"] = [{"manager": "argocd", "fieldsV1": fields}]
    if by == "driver":
        devices = [
            {"name": mode, "attributes": {"mode": {"string": mode}, "index": {"int": 0}}} for mode in ("spx", "cpx")
        ]
        spec = {"driver": "gpu.amd.com", "nodeName": "a", "pool": {"name": "a"}, "devices": devices}
        more["slices"] = [{"metadata": {"name": "s"}, "spec": spec}]
    report = planned([held], waits(), **more)
    assert reasons(report) == {"a": "TwoAuthorities"}
    named = {"plan": "PartitioningPlan amd", "strategy": "a, b", "label": "argocd", "driver": "cuts on demand"}
    assert named[by] in rows(report)["a"].message
    if by == "plan":
        held["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
        assert reasons(planned([held], waits(), **more)) == {"a": "ToCut"}


def test_nodes_of_our_executor_show_the_plan_and_wait_for_a_signature() -> None:
    gpus = [{"uuid": f"g{at}", "model": "MI300X", "compute": "SPX", "memory": "NPS1"} for at in range(8)]
    signed = {"metadata": {"name": "a"}, "status": {"state": {"vendor": "amd", "gpus": gpus}}}
    report = planned([node("a")], waits(), profiles={}, signed=[signed])
    assert rows(report)["a"].executor is not None
    assert "kopt nodes plan a --layout all=CPX/NPS4" in rows(report)["a"].message
    assert rows(report)["a"].reason == "AwaitsSignature"
    assert reasons(planned([node("a")], waits(), profiles={})) == {"a": "NoExecutor"}


def test_a_strategy_of_modes_is_read_as_one_of_profiles_is() -> None:
    assert read_strategy(strategy()).shares == {"cpx_nps4": 70, "spx_nps1": 30}
    for shares, says in (
        ({"cpx_nps8": "100%"}, "no GPU has a MIG profile or mode 'cpx_nps8'; nearest: cpx_nps2"),
        ({"cpx_nps4": "50%", "cpx_nps2": "50%"}, "cpx_nps4 of MI300X; cpx_nps2 of MI350X, MI355X"),
        ({"cpx_nps4": "50%", "1g.10gb": "50%"}, "no GPU model has all of these"),
    ):
        profiles = [{mode: share} for mode, share in shares.items()]
        document = {"metadata": {"name": "a"}, "spec": {"partitionStrategy": {"preferredProfiles": profiles}}}
        with pytest.raises(StrategyError, match=says):
            read_strategy(document)


def test_profiles_that_cannot_be_read_are_left_out() -> None:
    def read(text: str) -> set[str]:
        return set(read_profiles({"metadata": {"name": "a", "namespace": "b"}, "data": {"config.json": text}}))

    for text in ("", "[]", "{"):
        with pytest.raises(ProfileError, match="ConfigMap b/a"):
            read(text)
    bad: dict[str, Any] = {
        "good": {"profiles": PROFILES["cpx"]},
        "mode": {"profiles": [{"computePartition": "TPX", "memoryPartition": "NPS1"}]},
        "count": {"profiles": [{**PROFILES["cpx"][0], "numGPUsAssigned": 3543}]},
        "none": {"profiles": []},
        "list": [],
    }
    assert read(json.dumps({"gpu-config-profiles": bad})) == {"good"}


def busy(name: str = "job", gpus: int = 2, risk: float | None = 60.0, safe: str = "true", **more: Any) -> Object:
    notes = {
        "kaiwo.ai/checkpoint-state": "TRAIN",
        "kaiwo.ai/checkpoint-safe": safe,
        "kaiwo.ai/checkpoint-observed-at": stamp(NOW_S - 5),
        "kaiwo.ai/last-checkpoint-step": "100",
        "kaiwo.ai/checkpoint-model": "m",
    }
    if risk is not None:
        notes |= {"kaiwo.ai/work-at-risk": str(risk), "kaiwo.ai/work-at-risk-interval": f"{risk}-{risk}"}
    document = pod(name, {WHOLE: str(gpus)}, "a", notes)
    document["spec"] |= more
    document["status"]["startTime"] = stamp(NOW_S - 600)
    return document


def test_a_node_with_pods_is_emptied_only_where_that_is_allowed_and_worth_it() -> None:
    wanted = waits(48)
    assert rows(planned([node("a")], [busy(), *wanted]))["a"].wanted is None
    report = planned([node("a")], [busy(), *wanted], drains=True)
    each = rows(report)["a"]
    assert each.reason == "ToDrain"
    assert each.order == NodeOrder("spx", 8, True, 600.0)
    assert report.served == {"cpx_nps4": 48}
    for costly in (busy(risk=60_000.0), busy(risk=None), busy(safe="false")):
        report = planned([node("a")], [costly, *wanted], drains=True)
        assert reasons(report) == {"a": "Stays"}
        assert "a is not emptied" in next(item.message for item in report.undone if item.reason == "NotWorthIt")
    # It ends by itself in ten minutes: that costs less than its work.
    waited = rows(planned([node("a")], [busy(risk=None, activeDeadlineSeconds=1200), *wanted], drains=True))["a"]
    assert waited.order == NodeOrder("spx", 8, False, 1.2 * 600 + 60)
    # A short interval leaves nothing to win.
    short = planned([node("a")], [busy(), *wanted], drains=True, strategies=[strategy(interval="5m")])
    assert reasons(short) == {"a": "Stays"}


class Played:
    """A node that the controller's steps and the manager's answers change, as the API server would."""

    def __init__(self, **labels: str) -> None:
        self.node, self.now_s = node("a", labels=labels), NOW_S
        self.said: list[str] = []
        self.signed: list[Object] = []

    def write(self, changes: Object) -> None:
        def merged(old: Any, new: Any) -> Any:
            if not isinstance(new, dict):
                return new
            base = dict(old) if isinstance(old, dict) else {}
            for key, value in new.items():
                if value is None:
                    base.pop(key, None)
                else:
                    base[key] = merged(base.get(key), value)
            return base

        self.node = merged(self.node, changes)

    def look(self, pods: list[Object], strategies: list[Object] | None = None) -> NodeReport:
        managers = Managers(MigManager(), DCM, AmdSettings(True))
        what = observed([self.node], pods, now_s=self.now_s, strategies=strategies, signed=self.signed)
        return read_partitions(what, managers)[0].nodes[0]

    def step(self, pods: list[Object], after_s: float = 2.0) -> Step | None:
        """What the reconciler does."""
        self.now_s += after_s
        each = self.look(pods)
        assert each.executor is not None, each.message
        running = any(document["spec"]["nodeName"] for document in pods)
        if each.node.layout is not None and each.node.layout.phase in ("cordoned", "cutting", "verifying", "restoring"):
            step = each.executor.proceed(each.node, each.wanted, not running, self.now_s)
        elif each.wanted is not None and each.order is not None:
            step = DCM.start_order(each.node, each.wanted, each.order, self.now_s)
        else:
            step = None
        if step is not None:
            self.said.append(step.reason)
            self.write(step.changes)
        return step

    def manager(self, state: str, amounts: dict[str, str] | None = None) -> None:
        self.write({"metadata": {"labels": {STATE: state}}})
        if amounts is not None:
            self.node["status"]["allocatable"] = amounts

    @property
    def tainted(self) -> bool:
        return any(taint["key"] == "amd-dcm" for taint in self.node["spec"].get("taints", ()))

    @property
    def closed(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))


def divided(played: Played) -> None:
    """Up to where the manager is at it."""
    assert played.step(waits()) is not None
    assert played.closed
    assert not played.tainted
    assert played.step(waits()) is not None
    assert played.tainted
    assert played.node["metadata"]["labels"][LABEL] == "cpx"
    assert STATE not in played.node["metadata"]["labels"]
    played.node["status"]["allocatable"] = {}
    assert played.step(waits()) is None


@pytest.mark.parametrize("offered", ["64", "63"])
def test_a_node_takes_pods_once_its_plugin_offers_what_was_wanted(offered: str) -> None:
    played = Played(**{STATE: "success"})
    divided(played)
    played.manager("success")
    assert played.step(waits()) is not None
    assert not played.tainted
    assert played.closed
    assert played.step(waits()) is None
    played.node["status"]["allocatable"] = {SMALL: offered}
    assert played.step(waits()) is not None
    assert not played.closed
    assert played.said == ["PartitionsCordon", "PartitionsCut", "PartitionsVerify", "PartitionsReady"]
    assert played.step([]) is None


def test_what_amd_smi_shows_has_to_agree() -> None:
    played = Played()
    divided(played)
    played.manager("success", {SMALL: "64"})
    played.step(waits())
    gpus = [{"uuid": f"g{at}", "model": "MI300X", "compute": "CPX", "memory": "NPS1"} for at in range(8)]
    played.signed = [{"metadata": {"name": "a"}, "status": {"state": {"vendor": "amd", "gpus": gpus}}}]
    assert played.step(waits()) is None
    step = played.step(waits(), 130.0)
    assert step is not None
    assert step.reason == "PartitionsFailed"
    assert "amd-smi shows 64 x cpx_nps1, not 64 x cpx_nps4" in step.sentence


@pytest.mark.parametrize("fault", ["refused", "silent", "wrong"])
def test_a_node_that_does_not_come_out_as_planned_is_made_as_before(fault: str) -> None:
    played = Played(**{LABEL: "spx"})
    divided(played)
    if fault == "refused":
        played.manager("failure")
        assert played.step(waits()) is None, "the manager tries again for itself"
        assert played.step(waits(), 60.0) is not None
    elif fault == "silent":
        assert played.step(waits(), 601.0) is not None
    else:
        played.manager("success", {WHOLE: "8"})
        assert played.step(waits()) is not None
        assert played.step(waits(), 125.0) is not None
    assert played.said[-1] == "PartitionsFailed"
    assert played.tainted
    assert played.node["metadata"]["labels"][LABEL] == "spx"
    assert STATE not in played.node["metadata"]["labels"]
    played.manager("success", {WHOLE: "8"})
    assert played.step(waits()) is not None
    assert not played.tainted
    assert not played.closed
    assert played.look(waits()).reason == "FailedLately"
    # Nor is it tried on another node of its kind before the interval is over.
    other = planned([played.node, node("b")], waits())
    assert reasons(other) == {"a": "FailedLately", "b": "CanaryFailed"}


def test_a_node_that_can_be_made_neither_stays_closed_until_somebody_has_looked() -> None:
    played = Played()
    divided(played)
    played.step(waits(), 601.0)
    step = played.step(waits(), 601.0)
    assert step is not None
    assert step.reason == "PartitionsStuck"
    assert played.closed
    assert not played.tainted
    assert played.step(waits()) is None
    played.node["status"]["allocatable"] = {WHOLE: "8"}
    assert played.look(waits()).reason == "Stuck"


def test_pods_that_do_not_end_in_time_keep_their_node() -> None:
    played, pods = Played(), [busy(), *waits(48)]
    assert played.step(pods) is not None
    assert played.node["metadata"]["labels"]["kaiwo.ai/held"] == "partitions"
    assert played.step(pods) is None
    step = played.step(pods, 601.0)
    assert step is not None
    assert "its pods have not ended in time" in step.sentence
    assert not played.closed
    assert "kaiwo.ai/held" not in played.node["metadata"]["labels"]


@pytest.mark.parametrize("after", [1, 2, 3])
def test_off_opens_the_node_and_leaves_its_label_as_its_modes(after: int) -> None:
    played = Played()
    for _ in range(after):
        played.manager("success")
        assert played.step(waits()) is not None
    label = played.node["metadata"]["labels"].get(LABEL)
    played.write(release(NODES, played.node))
    assert not played.closed
    assert not played.tainted
    assert played.node["metadata"]["labels"].get(LABEL) == label
    assert "kaiwo.ai/held" not in played.node["metadata"]["labels"]
