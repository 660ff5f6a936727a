"""The topology agent as the chart installs it: where it runs, and what a real API server lets it do."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import node_outputs as outputs
import pytest
from controlplane.api import Api, Refused, kubeconfig
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for
from replicas import KOPT

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT, AGENTS, SPACE = "kopt-topology", "kopt-agents", "kopt-system"
NODE, OTHER = "gpu-topology", "gpu-other"
KIND = ("kaiwo.ai/v1alpha1", "NodeTopology")
Object = dict[str, Any]


def rendered(charts: Any, **topology: Any) -> list[Object]:
    return list(charts.render({"topology": {"enabled": True, **topology}}))


def named(objects: list[Object], kind: str, name: str = ACCOUNT) -> Object:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert not [one for one in charts.render() if "topology" in one["metadata"]["name"] or one["kind"] == "DaemonSet"]


def test_it_keeps_to_the_restricted_standard_unless_the_driver_wants_more(charts: Any) -> None:
    objects = rendered(charts, runtimeClassName="nvidia")
    daemons = named(objects, "DaemonSet")
    assert daemons["metadata"]["namespace"] == SPACE
    spec = daemons["spec"]["template"]["spec"]
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert not [one for one in spec["volumes"] if "hostPath" in one]
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {one["name"]: one.get("value") for one in container["env"]}["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_for_amd_it_is_privileged_in_a_namespace_of_its_own_and_mounts_nothing_to_write_to(charts: Any) -> None:
    objects = rendered(charts, privileged=True, rocmPath="/opt/rocm")
    daemons = named(objects, "DaemonSet")
    assert daemons["metadata"]["namespace"] == AGENTS
    (container,) = daemons["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    assert [one["readOnly"] for one in container["volumeMounts"] if one["name"] == "rocm"] == [True]
    assert "--tools=/opt/rocm/bin" in container["args"]
    labels = named(objects, "Namespace", AGENTS)["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "privileged"


def test_to_ask_the_kubelet_it_is_root_without_capabilities_and_sees_the_sockets_folder(charts: Any) -> None:
    objects = rendered(charts, podResources=True)
    daemons = named(objects, "DaemonSet")
    assert daemons["metadata"]["namespace"] == AGENTS
    spec = daemons["spec"]["template"]["spec"]
    assert spec["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = spec["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "pod-resources"]
    assert mount["readOnly"] is True
    assert f"--pod-resources={mount['mountPath']}/kubelet.sock" in container["args"]
    assert [one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one] == [
        "/var/lib/kubelet/pod-resources"
    ]
    rules = named(objects, "ClusterRole")["rules"]
    assert [one["verbs"] for one in rules if one["resources"] == ["nodeallocations"]] == [["create", "patch"]]
    without = named(rendered(charts), "ClusterRole")["rules"]
    assert not [one for one in without if "nodeallocations" in one["resources"]]


def test_two_agents_in_one_namespace_make_it_once_and_are_switched_off_once(charts: Any) -> None:
    objects = list(
        charts.render(
            {
                "predictions": {"url": "http://predictions.mlops:8700"},
                "logtail": {"enabled": True},
                "topology": {"enabled": True, "privileged": True},
            }
        )
    )
    named(objects, "Namespace", AGENTS)
    roles = [one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Role", "kopt-off")]
    assert sorted(one["metadata"]["namespace"] for one in roles) == [AGENTS, SPACE]
    button = named(objects, "CronJob", "kopt-off")["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert [one["name"] for one in button] == ["off", "agents"]


@pytest.mark.parametrize(
    ("topology", "words"),
    [
        ({"levels": {"block": "example.com/spine"}}, "topology/levels"),
        ({"intervalSeconds": 1}, "topology/intervalSeconds"),
        ({"rocmPath": "/opt/rocm"}, "rocmPath needs topology.privileged"),
        ({"rocmPath": "opt"}, "topology/rocmPath"),
        ({"podResourcesPath": "run"}, "topology/podResourcesPath"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(charts: Any, topology: Object, words: str) -> None:
    values = {"topology": {"enabled": True, **topology}}
    done = charts.run("template", "kopt", ROOT / "deploy" / "chart", values=values)
    assert done.returncode != 0
    assert words in done.stderr


def test_every_argument_is_an_option_of_the_command(charts: Any) -> None:
    from typer.testing import CliRunner

    from kopt.cli.main import app

    objects = rendered(
        charts,
        privileged=True,
        rocmPath="/opt/rocm",
        labels=False,
        fabricConfigMap="fabric",
        levels={"block": "a/b", "rack": "a/c"},
        podResources=True,
    )
    (container,) = named(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    told = CliRunner().invoke(app, ["agent", "topology", "--help"], env={"COLUMNS": "200"}).output
    assert [one for one in container["args"][2:] if one.partition("=")[0] not in told] == []
    assert len(container["args"]) > 8


class Cluster:
    """Two nodes, and the agent of one of them with the token that its pod would have."""

    def __init__(self, plane: ControlPlane, folder: Path, charts: Any) -> None:
        self.plane, self.api, self.folder, self._charts = plane, plane.api, folder, charts
        self._servers: list[Server] = []

    def node(self, name: str) -> None:
        self.api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"team": "nlp"}}})

    def token_of_a_pod_on(self, node: str) -> Path:
        """A kubeconfig with a token that the kubelet of ``node`` would give the agent's pod."""
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"agent-{node}", "namespace": SPACE},
            "spec": {
                "nodeName": node,
                "serviceAccountName": ACCOUNT,
                "automountServiceAccountToken": False,
                "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "topology",
                        "image": "agent",
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        }
        made = self.api.create(pod)["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": made["name"], "uid": made["uid"]}
        path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{ACCOUNT}/token"
        spec = {"spec": {"expirationSeconds": 3600, "boundObjectRef": bound}}
        token = self.api.request("POST", path, json=spec).json()["status"]["token"]
        return kubeconfig(self.folder / f"{node}.kubeconfig", self.plane.url, self.plane.ca, {"token": token})

    def start(self, credentials: Path) -> Server:
        template = named(rendered(self._charts), "DaemonSet")["spec"]["template"]["spec"]
        arguments = [one for one in template["containers"][0]["args"] if not one.startswith(("--host", "--port"))]
        env = {"KUBECONFIG": str(credentials), "NODE_NAME": NODE}
        self._servers.append(self.plane.start_server("topology", [*KOPT, *arguments, f"--replay={self.folder}"], env))
        return self._servers[-1]

    def labels(self, node: str = NODE) -> Object:
        return dict(self.api.get("v1", "Node", node, "")["metadata"].get("labels") or {})

    def end(self) -> None:
        for server in self._servers:
            server.stop()


@pytest.fixture(scope="module")
def cluster(
    control_plane: ControlPlane,
    charts: Any,
    install: Callable[..., None],
    uninstall: Callable[[], None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    install({"topology": {"enabled": True}, "webhook": {"enabled": False}})
    found = Cluster(control_plane, outputs.cube_mesh(tmp_path_factory.mktemp("recorded")), charts)
    for node in (NODE, OTHER):
        found.node(node)
    yield found
    found.end()
    uninstall()
    for node in (NODE, OTHER):
        control_plane.api.delete("v1", "Pod", f"agent-{node}", SPACE, gracePeriodSeconds=0)
        control_plane.api.delete("v1", "Node", node, "")


@pytest.fixture(scope="module")
def credentials(cluster: Cluster) -> Path:
    return cluster.token_of_a_pod_on(NODE)


@pytest.fixture(scope="module")
def published(cluster: Cluster, credentials: Path) -> Object:
    """The object of an agent that has looked twice."""
    server = cluster.start(credentials)
    found = cluster.api.wait(*KIND, NODE, namespace="")
    wait_for(lambda: "kaiwo.ai/gpu-link" in cluster.labels(), what="labels")
    outputs.cube_mesh(cluster.folder, {**outputs.CUBE_MESH, (0, 3): 1})
    server.signal(signal.SIGHUP)
    cluster.api.wait(*KIND, NODE, lambda one: one["status"].get("degraded"), "")
    return found


def test_it_publishes_with_its_own_account(cluster: Cluster, published: Object) -> None:
    assert len(published["spec"]["links"]) == 28
    assert cluster.labels() == {"team": "nlp", "kaiwo.ai/gpu-link": "nvlink", "kaiwo.ai/gpu-link-shape": "partial"}
    assert cluster.labels(OTHER) == {"team": "nlp"}


def test_it_was_refused_nothing_and_used_every_right(cluster: Cluster, published: Object) -> None:
    user = f"system:serviceaccount:{SPACE}:{ACCOUNT}"
    asked = [
        one
        for one in cluster.plane.audit_entries(ACCOUNT)
        if one["user"]["username"] == user and one.get("userAgent") == "kopt-topology"
    ]
    assert [one for one in asked if one.get("responseStatus", {}).get("code") == 403] == []
    used = {(one["verb"], one["objectRef"]["resource"]) for one in asked}
    # A first apply is a patch that needs the right to create.
    assert used == {(verb, kind) for verb in ("list", "watch", "patch") for kind in ("nodes", "nodetopologies")}


@pytest.mark.parametrize(
    ("node", "changes", "words"),
    [
        (NODE, {"spec": {"unschedulable": True}}, "only labels"),
        (NODE, {"spec": {"taints": None, "podCIDR": "10.9.0.0/24"}}, "only labels"),
        (NODE, {"metadata": {"annotations": {"evil": "yes"}}}, "only labels"),
        (NODE, {"metadata": {"labels": {"team": "mine"}}}, "only labels that tell of links"),
        (NODE, {"metadata": {"labels": {"team": None}}}, "only labels that tell of links"),
        (NODE, {"metadata": {"labels": {"kaiwo.ai/anything": "else"}}}, "only labels that tell of links"),
        (OTHER, {"metadata": {"labels": {"kaiwo.ai/gpu-link": "nvlink"}}}, "only its own node"),
    ],
)
def test_its_token_cannot_change_anything_else_of_a_node(
    cluster: Cluster, credentials: Path, published: Object, node: str, changes: Object, words: str
) -> None:
    with pytest.raises(Refused, match=words):
        Api(credentials).patch("v1", "Node", node, changes, "")


def test_its_token_cannot_speak_for_another_node(cluster: Cluster, credentials: Path, published: Object) -> None:
    stolen = Api(credentials)
    spec = {"gpus": [{"index": 0}]}
    with pytest.raises(Refused, match="only its own node"):
        stolen.create({"apiVersion": KIND[0], "kind": KIND[1], "metadata": {"name": OTHER}, "spec": spec})
    with pytest.raises(Refused, match="forbidden"):
        stolen.request("DELETE", f"/apis/kaiwo.ai/v1alpha1/nodetopologies/{NODE}")
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "00000000-0000-4000-8000-000000000000"}
    with pytest.raises(Refused, match="owned by its node"):
        stolen.patch(*KIND, NODE, {"metadata": {"ownerReferences": [owner]}}, "")


def test_its_pod_is_let_into_a_restricted_namespace(cluster: Cluster, charts: Any) -> None:
    template = named(rendered(charts), "DaemonSet")["spec"]["template"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "let-in", "namespace": SPACE},
        "spec": template["spec"],
    }
    assert cluster.api.create(pod, dryRun="All")["metadata"]["name"] == "let-in"
    privileged = named(rendered(charts, privileged=True), "DaemonSet")["spec"]["template"]["spec"]
    with pytest.raises(Refused, match="restricted"):
        cluster.api.create({**pod, "spec": privileged}, dryRun="All")
