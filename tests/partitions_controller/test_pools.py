"""What is planned, over objects as the API server has them: who asks, who may cut, and what is left undone and why."""

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kopt.cluster.client.resources import NODES
from kopt.cluster.holds.hold import hold_metadata, release
from kopt.cluster.objects.custom.mig_strategy import StrategyError, read_strategy
from kopt.cluster.objects.mig_configurations import ConfigurationError, read_configurations
from kopt.controllers.partitions.pools import Managers, read_partitions
from kopt.controllers.partitions.reports import Observed, StrategyReport
from kopt.controllers.partitions.status import status_of
from kopt.controllers.partitions.views import (
    read_config_map,
    read_node,
    read_observed_strategy,
    read_partitioning_plan,
    read_pod,
    read_reported_modes,
)

from .conftest import FILE, LABEL, NODE_LABELS

Object = dict[str, Any]
NOW_S = 1_900_000_000.0
SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def node(name: str, amounts: dict[str, str] | None = None, **more: Any) -> Object:
    labels = {**NODE_LABELS, "kubernetes.io/hostname": name, **more.pop("labels", {})}
    status = {"allocatable": amounts or {"nvidia.com/gpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "uid": name, "resourceVersion": "1", "labels": labels, **more.pop("metadata", {})}
    return {"metadata": metadata, "spec": more.pop("spec", {}), "status": status}


def pod(name: str, limits: dict[str, str], on: str = "", notes: dict[str, str] | None = None) -> Object:
    waits = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}
    spec: Object = {"containers": [{"name": "main", "resources": {"limits": limits}}], "nodeName": on}
    metadata = {"name": name, "namespace": "team", "uid": f"pod-{name}", "annotations": notes or {}}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running"} if on else waits}


def strategy(name: str = "infer", shares: dict[str, Any] | None = None, **partition: Any) -> Object:
    profiles = [{profile: share} for profile, share in (shares or {"1g.10gb": "100%"}).items()]
    spec = {"partitionStrategy": {"preferredProfiles": profiles, **partition}}
    return {"metadata": {"name": name, "generation": 1}, "spec": spec}


def planned(
    nodes: list[Object],
    pods: list[Object],
    strategies: list[Object] | None = None,
    plans: list[Object] | None = None,
    file: str = FILE,
    signed: list[Object] | None = None,
) -> list[StrategyReport]:
    config_map = {"metadata": {"name": "a", "namespace": "b"}, "data": {"config.yaml": file}}
    observed = Observed(
        NOW_S,
        [read_observed_strategy(item) for item in strategies or [strategy()]],
        [read_node(item) for item in nodes],
        [item for document in pods if (item := read_pod(document)) is not None],
        [],
        {},
        [],
        [read_partitioning_plan(item) for item in plans or []],
        read_config_map(config_map),
        reported=[read_reported_modes(item) for item in signed or []],
    )
    return read_partitions(observed, Managers())


def wanted(report: StrategyReport) -> dict[str, str]:
    return {each.node.name: each.wanted.name for each in report.nodes if each.wanted is not None}


def test_memory_that_sizing_recommends_counts_as_the_smallest_instance_that_has_it() -> None:
    notes = {"kaiwo.ai/gpu-isolation": "mig", "kaiwo.ai/recommended-memory": "30000", "kaiwo.ai/gpu-memory": "1000"}
    (report,) = planned([node("a")], [pod("sized", {}, notes=notes)])
    assert report.pending == {"3g.40gb": 1}
    assert wanted(report) in ({"a": "all-3g.40gb"}, {"a": "all-balanced"})
    (other,) = planned([node("a")], [pod("shared", {}, notes=notes | {"kaiwo.ai/gpu-isolation": "mps"})])
    assert not other.pending


def test_a_request_is_counted_once_although_two_strategies_have_nodes_for_it() -> None:
    nodes = [node(name, labels={"pool": name}) for name in "ab"]
    strategies = [strategy(name) | {"metadata": {"name": name, "generation": 1}} for name in "ab"]
    for each in strategies:
        each["spec"]["nodeSelector"] = {"pool": each["metadata"]["name"]}
    reports = planned(nodes, [pod("one", {SMALL: "1"})], strategies)
    assert sum(sum(report.pending.values()) for report in reports) == 1
    assert sum(len(wanted(report)) for report in reports) == 1


def test_others_who_cut_a_node_are_named() -> None:
    rule = {"selector": {"matchLabels": {"kubernetes.io/hostname": "a"}}}
    plan = {"metadata": {"name": "amd"}, "spec": {"rules": [rule]}}
    (report,) = planned([node("a"), node("b")], [pod("one", {SMALL: "1"})], plans=[plan])
    rows = {each.node.name: each for each in report.nodes}
    assert rows["a"].reason == "TwoAuthorities"
    assert "PartitioningPlan amd" in rows["a"].message
    assert wanted(report).keys() == {"b"}
    condition = status_of(report, True, NOW_S)["conditions"][0]
    assert (condition["status"], condition["reason"]) == ("False", "TwoAuthorities")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"labels": {"nvidia.com/mig.strategy": "single"}}, "NotMixed"),
        ({"labels": {"nvidia.com/gpu.product": "NVIDIA-L4"}}, "UnknownGpus"),
        ({"labels": {"nvidia.com/gpu.count": "many"}}, "UnknownGpus"),
        ({"spec": {"unschedulable": True}}, "TakesNoPods"),
        ({"labels": {"kaiwo.ai/held": "somebody"}}, "HeldByOthers"),
    ],
)
def test_nodes_that_are_not_ours_to_cut_say_why(changes: Object, reason: str) -> None:
    (report,) = planned([node("a", **changes)], [pod("one", {SMALL: "1"})])
    assert [each.reason for each in report.nodes] == [reason]
    assert not wanted(report)


@pytest.mark.parametrize(
    ("rules", "layouts"),
    [
        ('[{devices: all, mig-enabled: true, mig-devices: {"1g.10gb": 7}}]', "--layout all=7x1g.10gb"),
        (
            "[{devices: [0], mig-enabled: false}, "
            '{devices: [1], mig-enabled: true, mig-devices: {"1g.10gb": 4, "3g.40gb": 1}}]',
            "--layout 0=off --layout 1=4x1g.10gb,1x3g.40gb",
        ),
    ],
)
def test_a_node_of_our_executor_names_the_plan_and_waits_for_a_signature(rules: str, layouts: str) -> None:
    ours = node("a")
    ours["metadata"]["labels"] = {
        name: text for name, text in ours["metadata"]["labels"].items() if "manager" not in name and "state" not in name
    }
    gpus = [{"uuid": f"GPU-{at}", "model": "H100", "mig": False, "migPending": False, "instances": []} for at in "01"]
    signed = {"metadata": {"name": "a"}, "status": {"state": {"vendor": "nvidia", "gpus": gpus}}}
    waits, file = [pod("small", {SMALL: "3"})], f"mig-configs: {{wanted: {rules}}}"
    (report,) = planned([ours], waits, file=file, signed=[signed])
    (row,) = report.nodes
    assert (row.reason, wanted(report)) == ("AwaitsSignature", {"a": "wanted"})
    assert f"`kopt nodes plan a {layouts}`" in row.message
    assert row.executor is not None
    assert not row.executor.cuts
    assert status_of(report, True, NOW_S)["conditions"][0]["reason"] == "AwaitsSignature"
    (other,) = planned([ours], waits, file=file)
    assert other.nodes[0].reason == "NoExecutor"


def test_what_cannot_be_done_is_said() -> None:
    medium = "nvidia.com/mig-2g.20gb"
    pods = [pod("wide", {SMALL: "40"}), pod("other", {medium: "1"}), pod("runs", {SMALL: "1"}, on="a")]
    (report,) = planned([node("a", {SMALL: "14"})], pods, [strategy(shares={"4g.40gb": 100})])
    reasons = {(each.subject, each.reason) for each in report.undone}
    assert reasons == {
        ("configuration too-many", "Infeasible"),
        ("4g.40gb", "NotOffered"),
        ("team/wide", "NotOffered"),
        ("2g.20gb", "NoIdleNode"),
    }
    (missing,) = planned([node("a")], [], file="")
    assert "has no config.yaml" in missing.undone[0].message


def test_a_share_of_another_model_is_said() -> None:
    (report,) = planned([node("a")], [], [strategy(shares={"1g.5gb": 100})])
    assert ("1g.5gb", "OtherModel") in {(each.subject, each.reason) for each in report.undone}


@pytest.mark.parametrize(
    ("partition", "message"),
    [
        ({"rebalanceInterval": "soon"}, "5m or 1h30m"),
        ({"minUtilizationThreshold": "300%"}, "0.3 or 30%"),
        ({"minUtilizationThreshold": True}, "0.3 or 30%"),
    ],
)
def test_hysteresis_that_cannot_be_read_is_refused(partition: Object, message: str) -> None:
    with pytest.raises(StrategyError, match=message):
        read_strategy(strategy(**partition))
    (report,) = planned([node("a")], [], [strategy(**partition)])
    assert status_of(report, True, NOW_S)["conditions"][0]["reason"] == "Refused"


def test_hysteresis_as_manifests_write_it() -> None:
    read = read_strategy(strategy(rebalanceInterval="1h30m", minUtilizationThreshold=0.3))
    assert (read.rebalance_s, read.min_utilization) == (5400.0, 0.3)
    assert read_strategy(strategy(minUtilizationThreshold="30%")).min_utilization == 0.3
    assert read_strategy(strategy()).min_utilization is None


def test_shares_that_do_not_sum_to_all_are_refused_with_the_sum() -> None:
    (report,) = planned([node("a")], [], [strategy(shares={"1g.10gb": "70%", "3g.40gb": "20%"})])
    condition = status_of(report, True, NOW_S)["conditions"][0]
    assert "90 %" in condition["message"]


LABELS = st.one_of(st.none(), st.sampled_from(["", "all-1g.10gb", "all-3g.40gb", "all-disabled"]))


@given(
    own=LABELS,
    ours=LABELS,
    now=LABELS,
    phase=st.sampled_from(["cordoned", "cutting", "cut", "failed", "?"]),
    cordoned=st.sampled_from([True, False, None, "yes"]),
    unschedulable=st.booleans(),
)
def test_a_node_gets_its_own_label_back_where_ours_still_stands(
    own: str | None, ours: str | None, now: str | None, phase: str, cordoned: Any, unschedulable: bool
) -> None:
    undo = {"migConfig": own, "set": ours, "wanted": "x", "phase": phase, "since": "never", "cordoned": cordoned}
    metadata = hold_metadata("partitions", undo)
    document = node("a", metadata={"annotations": metadata["annotations"]}, spec={"unschedulable": unschedulable})
    document["metadata"]["labels"] |= metadata["labels"] | ({LABEL: now} if now is not None else {})
    changes = release(NODES, document)
    labels = changes["metadata"]["labels"]
    assert labels["kaiwo.ai/held"] is None
    is_ours = phase != "?" and ours is not None and now == ours != own
    assert (LABEL in labels) == is_ours
    if is_ours:
        assert labels[LABEL] == own
    assert ("spec" in changes) == (phase != "?" and cordoned is True and unschedulable)
    assert read_node(document).holder == "partitions"


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=12,
)


@given(JSON)
def test_any_file_of_configurations_is_read_or_refused(content: Any) -> None:
    for shape in (content, {"mig-configs": content}, {"mig-configs": {"a": [content]}}):
        with contextlib.suppress(ConfigurationError):
            read_configurations({"metadata": {}, "data": {"config.yaml": yaml.safe_dump(shape)}})
