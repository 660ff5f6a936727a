"""The controller of partitions with its own account's token: it cuts an idle node, gives it back, uses all of its
rights and is refused nothing; of nodes it changes nothing else, and `kopt off` with its own account gives them back."""

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
from partitions_controller.conftest import LABEL, NODE_LABELS, Bench, MigManager

from kopt.cluster.client.resources import NODES
from kopt.cluster.holds.hold import hold_metadata, release

from .rights import assert_refused_nothing, assert_uses_its_rights, audited, roles_of, start_controller

ACCOUNT = "kopt-partitions"
VALUES = {
    "partitions": {"enabled": True, "mode": "enforce", "settle": "1s", "configurations": {"name": "mig-parted"}},
    "webhook": {"enabled": False},
    "sizing": {"enabled": False},
    "extender": {"enabled": False},
}
SELDOM = {
    ("patch", "events.k8s.io", "events"): "only for an event that is repeated for a minute",
    ("watch", "infrastructure.silogen.ai", "partitioningplans"): "only in a cluster with Kaiwo's",
}


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert not [document for document in charts.render() if document["metadata"]["name"].startswith(ACCOUNT)]
    kinds = {document["kind"] for document in charts.render(VALUES) if document["metadata"]["name"] == ACCOUNT}
    assert {"Deployment", "ServiceAccount", "ClusterRole", "Role", "NetworkPolicy"} <= kinds


@pytest.mark.parametrize("sharing", [{}, {"enabled": True}, {"enabled": True, "drain": True, "slowdown": "a > 1"}])
def test_sharing_is_watched_and_nodes_drained_only_where_that_is_asked_for(
    charts: Any, sharing: dict[str, Any]
) -> None:
    documents = charts.render({"partitions": {"enabled": True, "sharing": sharing}})
    ours = {item["kind"]: item for item in documents if item["metadata"]["name"] == ACCOUNT}
    (container,) = ours["Deployment"]["spec"]["template"]["spec"]["containers"]
    watched = "enabled" in sharing
    assert ("--share" in container["args"]) is watched
    assert ("--prometheus=http://prometheus-operated.monitoring:9090" in container["args"]) is watched
    assert ("--share-slowdown=a > 1" in container["args"]) is ("slowdown" in sharing)
    assert ("--share-drain" in container["args"]) is ("drain" in sharing)
    rules = ours["ClusterRole"]["rules"]
    assert any("pods/eviction" in rule["resources"] for rule in rules) is ("drain" in sharing)
    (maps,) = (rule["resourceNames"] for rule in rules if "configmaps" in rule["resources"])
    assert ("device-plugin-config" in maps) is watched
    fences = {item["metadata"]["name"] for item in documents if item["kind"] == "ValidatingAdmissionPolicy"}
    assert ("kopt-partitions-evictions" in fences) is ("drain" in sharing)
    ports = [port["port"] for rule in ours["NetworkPolicy"]["spec"]["egress"] for port in rule.get("ports", ())]
    assert (9090 in ports) is watched


@pytest.fixture
def kwok(control_plane: ControlPlane) -> Iterator[Kwok]:
    """Of this folder's control plane: the shared fixtures are of the other."""
    result = Kwok(control_plane)
    yield result
    result.stop()


@pytest.mark.cluster
def test_it_is_refused_nothing_and_uses_its_rights(
    control_plane: ControlPlane, charts: Any, install: Callable[..., None], kwok: Kwok
) -> None:
    install(VALUES)
    started = datetime.now(UTC)
    with kwok.nodes(1, gpus=2, labels=NODE_LABELS, prefix="mig") as nodes:
        bench = Bench(control_plane, nodes)
        manager = MigManager(control_plane, nodes)
        try:
            options = [f"--configurations={bench.space}/mig-parted"]
            server, metrics = start_controller(control_plane, charts, VALUES, ACCOUNT, options=options)
            server.wait_until(lambda: "kopt_partitions_leading 1.0" in httpx.get(metrics, trust_env=False).text)
            strategy = bench.strategy("rights")
            bench.pod("small", "nvidia.com/mig-1g.10gb", 14)
            server.wait_until(lambda: bench.where("small") == nodes[0], what="it is bound")
            wait_for(lambda: bench.row(strategy, nodes[0]).get("configuration") == "all-1g.10gb", what="its status")
            bench.ends("small")
            bench.close()
            wait_for(lambda: set(bench.held()) == {""}, what="the node is given back")
            server.stop()
        finally:
            manager.stop()
        seen = audited(control_plane, ACCOUNT, started)
        _cuts_and_nothing_else(control_plane, nodes[0])
        _is_given_back_by_off(control_plane, nodes[0])
    assert_refused_nothing(seen)
    assert_uses_its_rights(roles_of(charts, VALUES, ACCOUNT), seen, SELDOM)


def _cuts_and_nothing_else(plane: ControlPlane, node: str) -> None:
    """Whoever has its token: of nodes nothing else changes."""
    stolen = Api(Path(plane.kubeconfig_for(ACCOUNT, "kopt-system")))
    taint = {"key": "theirs", "effect": "NoExecute"}
    for change, message in (
        ({"spec": {"taints": [taint]}}, "only with the mark of a hold"),
        (
            {"spec": {"taints": [taint]}, "metadata": hold_metadata("partitions", {})},
            "of its taints only that of AMD's",
        ),
        ({"spec": {"unschedulable": True}}, "only with the mark of a hold"),
        (
            {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
            "only labels and annotations of ours",
        ),
    ):
        with pytest.raises(Refused, match=message):
            stolen.patch("v1", "Node", node, change, "")
    stolen.http.close()


def _is_given_back_by_off(plane: ControlPlane, node: str) -> None:
    """With the rights and the fence of `kopt off`."""
    undo = {"migConfig": None, "set": "all-1g.10gb", "wanted": "all-1g.10gb", "phase": "cutting", "cordoned": True}
    held = {"metadata": hold_metadata("partitions", undo), "spec": {"unschedulable": True}}
    held["metadata"]["labels"][LABEL] = "all-1g.10gb"
    changes = release(NODES, plane.api.patch("v1", "Node", node, held, ""))
    del changes["metadata"]["resourceVersion"]
    off = Api(Path(plane.kubeconfig_for("kopt-off", "kopt-system")))
    after = off.patch("v1", "Node", node, changes, "")
    off.http.close()
    assert not {LABEL, "kaiwo.ai/held"} & after["metadata"]["labels"].keys()
    assert not after["spec"].get("unschedulable")
