"""The health controller with its own account's token: it taints a node, gives it back, and is refused nothing; whoever
has its token can do nothing else to a node, and `kopt off` only takes back what is held."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.api import Api, Refused
from controlplane.kwok import Kwok
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for
from health.conftest import H100, Exporter, condition, taints
from prometheus_server import RunningPrometheus

from kopt.cluster.holds.node_taint import given_back, without_condition
from kopt.cluster.objects.device_slices import DevicePool, whole_gpus

from .rights import assert_refused_nothing, assert_uses_its_rights, audited, roles_of, start_controller

ACCOUNT, TAINT = "kopt-health", "kaiwo.ai/gpu-unhealthy"
RULES = ("resource.k8s.io/v1beta2", "DeviceTaintRule")
VALUES = {
    "health": {"enabled": True, "mode": "enforce"},
    "webhook": {"enabled": False},
    "sizing": {"enabled": False},
    "extender": {"enabled": False},
}
SELDOM = {("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute"}
OTHERS = {"type": "GpuXidError", "status": "True", "reason": "Xid79", "message": "GPU 1 has fallen off the bus"}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert not [document for document in charts.render() if document["metadata"]["name"].startswith(ACCOUNT)]
    kinds = {document["kind"] for document in charts.render(VALUES) if document["metadata"]["name"] == ACCOUNT}
    assert {"Deployment", "ServiceAccount", "ClusterRole", "Role", "NetworkPolicy"} <= kinds


def test_it_reads_prometheus_where_the_values_say(charts: Any) -> None:
    prometheus = {"url": "https://metrics.example.com", "tokenSecret": "token", "caSecret": "ca"}
    documents = charts.render({"health": {"enabled": True, "prometheus": prometheus}})
    (deployment,) = (item for item in documents if (item["kind"], item["metadata"]["name"]) == ("Deployment", ACCOUNT))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "--prometheus=https://metrics.example.com" in container["args"]
    assert "--token-file=/etc/kopt/prometheus/token" in container["args"]
    (policy,) = (item for item in documents if (item["kind"], item["metadata"]["name"]) == ("NetworkPolicy", ACCOUNT))
    assert {"ports": [{"port": 443}]} in policy["spec"]["egress"]


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    running = Exporter()
    yield running
    running.stop()


@pytest.fixture
def prometheus(exporter: Exporter, tmp_path: Path) -> Iterator[str]:
    configuration = (
        "global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: dcgm\n  static_configs:\n"
        f"  - {{targets: ['{exporter.address}']}}\n"
    )
    running = RunningPrometheus(tmp_path, configuration=configuration)
    yield running.url
    running.stop()


@pytest.fixture
def here(control_plane: ControlPlane) -> Iterator[Kwok]:
    """Of this folder's control plane: the shared fixture is of the other."""
    kwok = Kwok(control_plane)
    yield kwok
    kwok.stop()


@pytest.mark.cluster
@pytest.mark.long
def test_it_is_refused_nothing_and_uses_its_rights(
    control_plane: ControlPlane,
    charts: Any,
    install: Callable[..., None],
    here: Kwok,
    exporter: Exporter,
    prometheus: str,
) -> None:
    install(VALUES)
    started, api = datetime.now(UTC), control_plane.api
    with here.nodes(2, gpus=8, labels=H100) as nodes, here.nodes(1, gpus=0, labels=H100) as (of_claims,):
        ill = nodes[0]
        options = ["--look=1s", "--most-share=0.5", f"--prometheus={prometheus}"]
        server, metrics = start_controller(control_plane, charts, VALUES, ACCOUNT, options=options)
        server.wait_until(lambda: "kopt_health_leading 1.0" in httpx.get(metrics, trust_env=False).text)
        # Links that are worse, and another system's verdict: together they condemn.
        api.create(
            {
                "apiVersion": "kaiwo.ai/v1alpha1",
                "kind": "NodeTopology",
                "metadata": {"name": ill},
                "spec": {"tool": "nvidia-smi", "vendor": "nvidia", "gpus": [], "links": []},
                "status": {
                    "degraded": [{"part": "nic mlx5_0", "was": 400, "now": 100, "since": "2026-11-22T10:00:00Z"}]
                },
            }
        )
        conditions = api.get("v1", "Node", ill)["status"]["conditions"]
        api.patch("v1", "Node", ill, {"status": {"conditions": [*conditions, OTHERS]}}, subresource="status")
        server.wait_until(lambda: TAINT in taints(api, ill), what="its taint")
        server.wait_until(lambda: condition(api, ill), what="its condition")
        _closes_one_gpu(control_plane, of_claims, exporter)
        _does_nothing_else(control_plane, ill, nodes[1])
        conditions = [
            item for item in api.get("v1", "Node", ill)["status"]["conditions"] if item["type"] != OTHERS["type"]
        ]
        api.delete("kaiwo.ai/v1alpha1", "NodeTopology", ill)
        api.patch("v1", "Node", ill, {"status": {"conditions": conditions}}, subresource="status")
        api.patch("v1", "Node", ill, {"metadata": {"annotations": {"kaiwo.ai/repaired-at": "2026-11-28T00:00:00Z"}}})
        # Of the second in which something was seen, nobody knows which came first.
        time.sleep(1.1)
        repaired = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        api.patch("v1", "Node", ill, {"metadata": {"annotations": {"kaiwo.ai/repaired-at": repaired}}})
        server.wait_until(lambda: not condition(api, ill) and TAINT not in taints(api, ill), what="it is given back")
        server.stop()
        seen = audited(control_plane, ACCOUNT, started)
        _is_given_back_by_off(control_plane, nodes[1])
    assert_refused_nothing(seen)
    assert_uses_its_rights(roles_of(charts, VALUES, ACCOUNT), seen, SELDOM)


def _closes_one_gpu(plane: ControlPlane, node: str, exporter: Exporter) -> None:
    """Of a node whose GPUs are allocated by claims, until it is repaired."""
    api = plane.api
    for document in DevicePool("gpu.nvidia.com", node, whole_gpus(2, "H100", 80)).slices():
        api.create(document)
    exporter.set("DCGM_FI_DEV_XID_ERRORS", node, 1, 79.0)
    wait_for(lambda: [rule["spec"]["deviceSelector"]["device"] for rule in api.list(*RULES)] == ["gpu-1"])
    assert TAINT not in taints(api, node)
    exporter.set("DCGM_FI_DEV_XID_ERRORS", node, 1, 0.0)
    # Of the second in which something was seen, nobody knows which came first.
    time.sleep(1.1)
    repaired = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    api.patch("v1", "Node", node, {"metadata": {"annotations": {"kaiwo.ai/repaired-at": repaired}}})
    wait_for(lambda: not api.list(*RULES))


def _does_nothing_else(plane: ControlPlane, ill: str, other: str) -> None:
    """Whoever has its token."""
    stolen = Api(Path(plane.kubeconfig_for(ACCOUNT, "kopt-system")))
    evicting = {"key": TAINT, "value": "x", "effect": "NoExecute"}
    foreign = {"key": "example.com/mine", "value": "x", "effect": "NoSchedule"}
    ours = {"key": TAINT, "value": "x", "effect": "NoSchedule"}
    for changes, message in (
        ({"spec": {"unschedulable": True}}, "only taints"),
        ({"spec": {"taints": [evicting]}}, "no eviction"),
        ({"spec": {"taints": [foreign]}}, "only the taint of unhealthy GPUs"),
        ({"spec": {"taints": [ours]}}, "only with the mark"),
        ({"metadata": {"labels": {"pool": "mine"}}}, "only labels and annotations of ours"),
    ):
        with pytest.raises(Refused, match=message):
            stolen.patch("v1", "Node", other, changes)
    with pytest.raises(Refused, match="only the condition GPUHealthy"):
        stolen.patch("v1", "Node", ill, {"status": {"conditions": []}}, subresource="status")
    with pytest.raises(Refused, match="of its status only conditions"):
        stolen.patch("v1", "Node", ill, {"status": {"capacity": {"nvidia.com/gpu": "0"}}}, subresource="status")
    stolen.http.close()


def _is_given_back_by_off(plane: ControlPlane, node: str) -> None:
    """`kopt off` with its own account: the chart's fences let it give back what is held, with no other right."""
    off, api = Api(Path(plane.kubeconfig_for("kopt-off", "kopt-system"))), plane.api
    taint = {"spec": {"taints": [{"key": TAINT, "value": "XID_79", "effect": "NoSchedule"}]}}
    with pytest.raises(Refused, match="only what is held"):
        off.patch("v1", "Node", node, {"metadata": {"annotations": {"kaiwo.ai/x": "y"}}})
    with pytest.raises(Refused, match="only taints, and whether it takes pods"):
        off.patch("v1", "Node", node, {"spec": {"providerID": "example://elsewhere"}})
    api.patch("v1", "Node", node, {"metadata": {"labels": {TAINT: "true"}}} | taint)
    conditions = api.get("v1", "Node", node)["status"]["conditions"]
    ours = {"type": "GPUHealthy", "status": "False", "reason": "KoptHealthCondemned", "message": "x"}
    api.patch("v1", "Node", node, {"status": {"conditions": [*conditions, ours]}}, subresource="status")
    changes = without_condition(api.get("v1", "Node", node))
    assert changes is not None
    off.patch("v1", "Node", node, changes, subresource="status")
    off.patch("v1", "Node", node, given_back(api.get("v1", "Node", node)))
    off.http.close()
    assert not taints(api, node)
    assert not condition(api, node)
    assert TAINT not in api.get("v1", "Node", node)["metadata"]["labels"]
