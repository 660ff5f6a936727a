"""``kopt fractions sharing``: what nodes show, what is planned for them, and the manifests."""

import json
from typing import Any

import pytest
import yaml

from kopt.cli.output import FORMATTERS, Format
from kopt.cli.sharing.commands import planned
from kopt.cli.sharing.manifests import environments, manifests
from kopt.cli.sharing.planning import Measured, NodePlan, planned_nodes
from kopt.cluster.workloads.sharing.nodes import SharingCluster, sharing_cluster
from kopt.core.sharing.modes import SharingMode
from kopt.core.sharing.pressure import Pressure, SmUse
from kopt.core.units import GIB, Bytes
from kopt.core.workload.measured import MeasuredUse
from kopt.formats.sharing_terms import ReplicaSetting, plugin_configuration, read_plugin_configuration
from kopt.policies.fractions.sharing import SharingSettings

KEY = ("gpu-operator", "device-plugin-config")
Object = dict[str, Any]


def node(name: str, *, gpus: int = 4, replicas: int = 1, mode: str = "none", **labels: str) -> Object:
    own = {
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.replicas": str(replicas),
        "nvidia.com/gpu.sharing-strategy": mode,
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
    }
    metadata = {"name": name, "labels": own | {key.replace("__", "/"): value for key, value in labels.items()}}
    return {"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": str(gpus * replicas)}}}


def pod(name: str, on: str, kind: str = "inference", gpus: int = 1, threads: int = 0, namespace: str = "lab") -> Object:
    container: Object = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    if threads:
        container["env"] = [{"name": "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "value": str(threads)}]
    metadata = {"namespace": namespace, "name": name, "labels": {"kaiwo.ai/class": kind}}
    return {"metadata": metadata, "spec": {"nodeName": on, "containers": [container]}}


def daemon(on: str, *, ready: bool) -> Object:
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    metadata = {"namespace": "gpu-operator", "name": "nvidia-device-plugin-mps-control-daemon-x7k2p"}
    return {"metadata": metadata, "spec": {"nodeName": on}, "status": status}


def measured(*names: str, use: float = 0.05, width: float = 0.3, gib: int = 8) -> Measured:
    pods = [("lab", name) for name in names]
    memory = {key: MeasuredUse(Bytes(gib * GIB), 3600.0) for key in pods}
    return Measured(memory, {key: SmUse(use, width) for key in pods})


def plan(cluster: SharingCluster, of: Measured) -> NodePlan:
    (result,) = planned_nodes(cluster, of, SharingSettings())
    return result


def services(count: int = 4) -> list[Object]:
    return [pod(f"chat-{number}", "gpu-1") for number in range(count)]


NAMES = [f"chat-{number}" for number in range(4)]


def test_services_with_a_gpu_each_are_put_together_by_mps() -> None:
    cluster = sharing_cluster([node("gpu-1"), {"metadata": {"name": "cpu"}}], services(), [], None)
    result = plan(cluster, measured(*NAMES))
    assert (result.wanted, result.reason.code) == (ReplicaSetting(SharingMode.MPS, 2), "SHARING_BY_MPS")
    answer = planned([result], cluster)
    (row,) = json.loads(FORMATTERS[Format.JSON](answer))["nodes"]
    assert (row["in_force"], row["wanted"], row["frees"]) == ("exclusive", "mps x 2", 2)
    assert row["shares"][0] == {"pod": "lab/chat-0", "percent": 50, "mib": 40779, "mode": "mps"}
    assert answer.remarks[0] == "1 of 1 nodes would change; 2 GPUs would no longer be needed."


def test_manifests_keep_the_flags_that_the_node_has() -> None:
    own = {"version": "v1", "flags": {"migStrategy": "mixed", "failOnInitError": False}}
    config_map = {"data": {"default": yaml.safe_dump(own), "broken": "a: ["}}
    cluster = sharing_cluster([node("gpu-1")], services(), [], config_map)
    written, label = manifests([plan(cluster, measured(*NAMES))], KEY, cluster.configurations)
    assert written["metadata"] == {"namespace": KEY[0], "name": KEY[1]}
    assert list(written["data"]) == ["kopt-mps-2"]
    configuration = yaml.safe_load(written["data"]["kopt-mps-2"])
    # The plugin refuses MPS beside mixed.
    assert configuration["flags"] == {"migStrategy": "none", "failOnInitError": False}
    assert read_plugin_configuration(configuration) == ReplicaSetting(SharingMode.MPS, 2)
    assert label["metadata"] == {"name": "gpu-1", "labels": {"nvidia.com/device-plugin.config": "kopt-mps-2"}}


@pytest.mark.parametrize(
    ("pods", "uses", "code"),
    [
        (services(), measured("chat-0"), "SHARING_NOT_MEASURED"),
        ([*services(1), pod("train", "gpu-1", gpus=2)], measured(*NAMES), "SHARING_EXCLUSIVE"),
        (services(1), measured(*NAMES), "SHARING_EXCLUSIVE"),
        (services(), measured(*NAMES, width=0.9), "SHARING_EXCLUSIVE"),
        (services(), measured(*NAMES, gib=60), "SHARING_EXCLUSIVE"),
    ],
)
def test_a_node_stays_as_it_is_and_says_why(pods: list[Object], uses: Measured, code: str) -> None:
    cluster = sharing_cluster([node("gpu-1")], pods, [], None)
    result = plan(cluster, uses)
    assert (result.plans, result.reason.code) == ((), code)
    assert manifests([result], KEY, None) == []


def test_what_another_pod_used_on_the_same_gpu_is_no_measurement_of_a_pod() -> None:
    cluster = sharing_cluster([node("gpu-1")], services(2), [], None)
    shared = {key: MeasuredUse(Bytes(GIB), 3600.0, shared=True) for key in (("lab", "chat-0"), ("lab", "chat-1"))}
    assert plan(cluster, Measured(shared, measured(*NAMES).sms)).reason.code == "SHARING_NOT_MEASURED"


def mps_node(*, ready: bool = True) -> tuple[list[Object], list[Object]]:
    return [node("gpu-1", replicas=2, mode="mps")], [daemon("gpu-1", ready=ready)]


def pressed(slowdown: float, minutes: int) -> Measured:
    points = [(60.0 * number, slowdown) for number in range(minutes + 1)]
    return Measured(slowdowns={("lab", "chat-0"): points}, pressures={"gpu-1": [(0.0, Pressure(memory=0.5))]})


def test_contention_halves_the_part_of_batch_and_a_calm_gives_it_back() -> None:
    nodes, daemons = mps_node()
    pods = [pod("chat-0", "gpu-1"), pod("eval", "gpu-1", kind="batch")]
    cluster = sharing_cluster(nodes, [*pods, *daemons], [], None)
    result = plan(cluster, pressed(1.3, 5))
    assert result.reason.code == "SHARING_CONTENDED"
    assert result.reason.message == ("Contended for 5 min (slow-down 1.30). The parts of lab/eval would be halved.")
    assert environments(result.plans[0])["lab/eval"]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    assert manifests([result], KEY, None) == [], "the node's configuration stays as it is"
    assert plan(cluster, pressed(0.8, 5)).reason.code == "SHARING_AS_IS"
    lowered = sharing_cluster(nodes, [pods[0], pod("eval", "gpu-1", "batch", threads=25), *daemons], [], None)
    assert plan(lowered, pressed(0.3, 5)).plans == ()
    raised = plan(lowered, pressed(0.3, 20))
    assert (raised.reason.code, {share.percent for share in raised.plans[0].shares}) == ("SHARING_CALM", {50})


def test_without_its_daemon_a_node_goes_back_to_turns() -> None:
    nodes, daemons = mps_node(ready=False)
    cluster = sharing_cluster(nodes, [*services(), *daemons], [], None)
    result = plan(cluster, Measured())
    assert (result.wanted, result.reason.code) == (ReplicaSetting(SharingMode.TIME_SLICING, 2), "SHARING_WITHOUT_MPS")
    # No pod of the daemon at all is no better.
    assert plan(sharing_cluster(nodes, services(), [], None), Measured()).reason.code == "SHARING_WITHOUT_MPS"


def test_where_nothing_would_start_the_daemon_pods_take_turns() -> None:
    daemon_set = {"metadata": {"name": "nvidia-device-plugin-mps-control-daemon"}}
    for listed, mode in (([], SharingMode.TIME_SLICING), ([daemon_set], SharingMode.MPS), (None, SharingMode.MPS)):
        cluster = sharing_cluster([node("gpu-1")], services(), [], None, listed)
        assert plan(cluster, measured(*NAMES)).wanted.mode is mode


def test_a_label_that_is_not_in_force_is_waited_for() -> None:
    config_map = {"data": {"kopt-mps-2": yaml.safe_dump(plugin_configuration(ReplicaSetting(SharingMode.MPS, 2)))}}
    labels = {"nvidia.com__device-plugin.config": "kopt-mps-2"}
    waiting = sharing_cluster([node("gpu-1", **labels)], services(), [], config_map)
    assert plan(waiting, measured(*NAMES)).reason.code == "SHARING_NOT_IN_FORCE"
    turns = plugin_configuration(ReplicaSetting(SharingMode.TIME_SLICING, 2))
    without_daemons = sharing_cluster(
        [node("gpu-1", **labels)], services(), [], {"data": {"kopt-mps-2": yaml.safe_dump(turns)}}, []
    )
    assert plan(without_daemons, measured(*NAMES)).reason.code == "SHARING_NOT_IN_FORCE"
    missing = sharing_cluster([node("gpu-1", **labels)], services(), [], {"data": {"default": "version: v1"}})
    assert "does not start" in plan(missing, measured(*NAMES)).reason.message


def test_claims_of_one_namespace_share_a_gpu_with_parts_of_their_own() -> None:
    item = {"spec": {"driver": "gpu.nvidia.com", "nodeName": "gpu-1"}}
    pods = [pod("chat-0", "gpu-1"), pod("eval", "gpu-1", kind="batch")]
    cluster = sharing_cluster([node("gpu-1")], pods, [item], None)
    result = plan(cluster, measured("chat-0", "eval", use=0.4, width=0.5))
    (claim,) = manifests([result], KEY, None)
    assert claim["metadata"] == {"namespace": "lab", "name": "kopt-shared-gpu-1-0"}
    parameters = claim["spec"]["devices"]["config"][0]["opaque"]["parameters"]
    assert parameters["kind"] == "GpuConfig"
    assert parameters["sharing"]["mpsConfig"]["defaultActiveThreadPercentage"] == 60
    (lower,) = environments(result.plans[0]).items()
    assert lower[0] == "lab/eval"
    assert int(lower[1]["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) <= 40


def test_pods_of_two_namespaces_share_no_claim() -> None:
    item = {"spec": {"driver": "gpu.nvidia.com", "nodeName": "gpu-1"}}
    pods = [pod("chat-0", "gpu-1"), pod("chat-0", "gpu-1", namespace="other")]
    keys = [("lab", "chat-0"), ("other", "chat-0")]
    uses = Measured(dict.fromkeys(keys, MeasuredUse(Bytes(GIB), 3600.0)), dict.fromkeys(keys, SmUse(0.05, 0.3)))
    assert plan(sharing_cluster([node("gpu-1")], pods, [item], None), uses).plans == ()


def test_amds_gpus_are_shared_in_turns_alone_and_that_is_said() -> None:
    amd = {"metadata": {"name": "gpu-1"}, "status": {"allocatable": {"amd.com/gpu": "8"}}}
    result = plan(sharing_cluster([amd], [], [], None), Measured())
    assert (result.plans, result.reason.code) == ((), "SHARING_NOT_SETTABLE")
    assert "take turns" in result.reason.message


@pytest.mark.parametrize(
    "broken",
    [None, [], "v1", {"version": "v2"}, {"sharing": []}, {"sharing": {"mps": {"resources": [{"replicas": True}]}}}],
)
def test_configurations_of_any_shape_are_read(broken: object) -> None:
    assert read_plugin_configuration(broken) in (None, ReplicaSetting(SharingMode.EXCLUSIVE))
