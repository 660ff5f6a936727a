"""The log agent as the chart installs it: where it runs, and what a real API server lets it do."""

import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from asgi_server import served
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import Server, wait_for
from logtail_endpoint import Endpoint
from replicas import KOPT

from kopt.agents.logtail import annotator as notes
from kopt.cluster.objects.progress import progress_of

ROOT = Path(__file__).resolve().parents[2]
SPACE, AGENTS, ACCOUNT, NODE = "trained", "kopt-agents", "kopt-logtail", "gpu-logtail"
CLAIM = "out"
JOB, UID_LENGTH = f"{SPACE}/llama", 8
URL = {"predictions": {"url": "http://predictions.mlops:8700"}}
WRITTEN = {text for text in vars(notes).values() if isinstance(text, str) and text.startswith("kaiwo.ai/")}
"""The annotations that the agent writes, as its code names them."""
STEPS = ("step 3/500 loss 1.1 2.00s/it", "step 4/500 loss 1.0 2.00s/it")
OPEN_TO_USERS = {
    *(notes.STATE, notes.LAST_TIME, notes.LAST_STEP),
    *(notes.PROGRESS, notes.PROGRESS_AT, notes.STEP_SECONDS),
}
Object = dict[str, Any]


def rendered(charts: Any, **logtail: Any) -> list[Object]:
    return list(charts.render({**URL, "mode": "annotate", "logtail": {"enabled": True, **logtail}}))


def named(objects: list[Object], kind: str, name: str = ACCOUNT) -> Object:
    (found,) = [one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def test_it_is_off_unless_it_is_asked_for(charts: Any) -> None:
    assert not [one for one in charts.render(URL) if "logtail" in one["metadata"]["name"]]


@pytest.mark.parametrize(("looks", "added"), [(True, {"add": ["DAC_READ_SEARCH"]}), (False, {})])
def test_on_nodes_it_reads_as_root_and_writes_only_its_own_file(charts: Any, looks: bool, added: Object) -> None:
    objects = rendered(charts, volumes={"enabled": looks})
    template = named(objects, "DaemonSet")["spec"]["template"]["spec"]
    (container,) = template["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        # Folders in volumes belong to their users, who may keep them to themselves.
        "capabilities": {"drop": ["ALL"], **added},
    }
    assert template["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    hosts = {one["name"]: one["hostPath"]["path"] for one in template["volumes"] if "hostPath" in one}
    written = {
        hosts[one["name"]] for one in container["volumeMounts"] if one["name"] in hosts and not one.get("readOnly")
    }
    assert written == {"/var/lib/kopt-logtail"}
    assert (
        named(objects, "Namespace", AGENTS)["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    )
    assert {one["metadata"]["namespace"] for one in objects if one["kind"] == "DaemonSet"} == {AGENTS}


def test_it_looks_at_the_volumes_of_pods_where_the_kubelet_keeps_them_unless_that_is_off(charts: Any) -> None:
    def mounted(**logtail: Any) -> tuple[list[Object], list[str]]:
        template = named(rendered(charts, **logtail), "DaemonSet")["spec"]["template"]["spec"]
        (container,) = template["containers"]
        paths = {one["name"]: one["hostPath"]["path"] for one in template["volumes"] if "hostPath" in one}
        mounts = [one for one in container["volumeMounts"] if "kubelet" in paths.get(one["name"], "")]
        assert all(one["mountPath"] == paths[one["name"]] for one in mounts)
        return mounts, [one for one in container["args"] if one.startswith("--volumes=")]

    path = "/var/lib/kubelet/pods"
    mount = {"name": "volumes", "mountPath": path, "readOnly": True, "mountPropagation": "HostToContainer"}
    assert mounted() == ([mount], [f"--volumes={path}"])
    path = "/var/lib/k0s/kubelet/pods"
    assert mounted(volumes={"path": path}) == ([mount | {"mountPath": path}], [f"--volumes={path}"])
    assert mounted(volumes={"enabled": False}) == ([], ["--volumes="])


def test_it_may_read_claims_only_while_it_looks_into_volumes(charts: Any) -> None:
    def rights(**logtail: Any) -> list[Object]:
        rules = named(rendered(charts, **logtail), "ClusterRole", ACCOUNT)["rules"]
        return [rule for rule in rules if "persistentvolumeclaims" in rule["resources"]]

    assert rights() == [{"apiGroups": [""], "resources": ["persistentvolumeclaims"], "verbs": ["get"]}]
    assert rights(volumes={"enabled": False}) == []
    assert rights(form="cluster") == []


@pytest.mark.parametrize("form", ["node", "cluster"])
def test_it_keeps_to_the_policys_rule_on_lowered_modes(charts: Any, form: str) -> None:
    values = {**URL, "policy": {"spec": {"workloadMode": "NotLower"}}, "logtail": {"enabled": True, "form": form}}
    found = named(list(charts.render(values)), "DaemonSet" if form == "node" else "Deployment")
    assert "--workload-mode=NotLower" in found["spec"]["template"]["spec"]["containers"][0]["args"]


def test_through_the_api_server_it_keeps_to_the_restricted_standard(charts: Any) -> None:
    objects = rendered(charts, form="cluster")
    spec = named(objects, "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not [one for one in spec["volumes"] if "hostPath" in one]
    assert named(objects, "Deployment")["metadata"]["namespace"] == "kopt-system"
    rules = named(objects, "ClusterRole")["rules"]
    assert {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]} in rules
    assert not any("pods/log" in rule["resources"] for rule in named(rendered(charts), "ClusterRole")["rules"])


def test_the_snippet_for_users_pods_is_a_sidecar_that_keeps_to_the_restricted_standard(charts: Any) -> None:
    found = named(rendered(charts), "ConfigMap", "kopt-logtail-sidecar")["data"]
    (sidecar,) = yaml.safe_load(found["sidecar.yaml"])["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["securityContext"]["runAsNonRoot"] is True
    assert sidecar["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    role = yaml.safe_load(found["role.yaml"])
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "patch"]},
        # No verb of the API server's: with it the admission policy on our annotations lets the agent's words through.
        {"apiGroups": ["kaiwo.ai"], "resources": ["evictions"], "verbs": ["annotate"]},
    ]


@pytest.mark.parametrize(
    ("logtail", "words"),
    [
        ({"form": "nodes"}, "logtail/form"),
        ({"statePath": "relative"}, "logtail/statePath"),
        ({"linesPerSecond": 0}, "logtail/linesPerSecond"),
        ({"volumes": {"path": "pods"}}, "logtail/volumes/path"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(charts: Any, logtail: Object, words: str) -> None:
    values = {**URL, "logtail": {"enabled": True, **logtail}}
    done = charts.run("template", "kopt", ROOT / "deploy" / "chart", values=values)
    assert done.returncode != 0
    assert words in done.stderr
    done = charts.run("template", "kopt", ROOT / "deploy" / "chart", values={"logtail": {"enabled": True}})
    assert "logtail needs predictions" in done.stderr


def variable(objects: list[Object], policy: str, name: str) -> str:
    """The expression of a variable of an admission policy; empty where it has none."""
    spec = named(objects, "ValidatingAdmissionPolicy", policy)["spec"]
    return next((str(one["expression"]) for one in spec["variables"] if one["name"] == name), "")


@pytest.mark.parametrize("form", ["node", "cluster"])
def test_the_fence_lets_the_agent_write_what_it_writes_and_nothing_more(charts: Any, form: str) -> None:
    assert notes.FIRST_STEP in WRITTEN
    own = variable(rendered(charts, form=form), "kopt-logtail-fence", "own")
    assert set(re.findall("'([^']+)'", own)) == WRITTEN


def test_the_guard_keeps_to_our_accounts_what_the_agent_alone_may_say(charts: Any) -> None:
    ours = variable(rendered(charts), "kopt-annotations", "ours").partition(".map(")[0]
    guarded = {f"kaiwo.ai/{name}" for name in re.findall("'([^']+)'", ours)}
    assert guarded >= WRITTEN - OPEN_TO_USERS
    assert not OPEN_TO_USERS & guarded


class Cluster:
    """A pod that trains on a node, its log as the kubelet keeps it, and the agent with its own account's token."""

    def __init__(self, plane: ControlPlane, endpoint: Endpoint, url: str, folder: Path, charts: Any) -> None:
        self.plane, self.api, self.endpoint, self.url, self.folder = plane, plane.api, endpoint, url, folder
        self._charts = charts
        self._servers: list[Server] = []

    def pod(self, name: str, namespace: str = SPACE, **annotations: str) -> Object:
        resources = {"limits": {"nvidia.com/gpu": "8"}}
        metadata = {"name": name, "namespace": namespace, "annotations": {"kaiwo.ai/job": "llama", **annotations}}
        spec = {"nodeName": NODE, "containers": [{"name": "trainer", "image": "train", "resources": resources}]}
        spec["volumes"] = [{"name": "out", "persistentVolumeClaim": {"claimName": CLAIM}}]
        made = self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
        state = {
            "name": "trainer",
            "restartCount": 0,
            "ready": True,
            "image": "train",
            "imageID": "",
            "state": {"running": {"startedAt": None}},
        }
        status = {"status": {"phase": "Running", "containerStatuses": [state]}}
        self.api.patch("v1", "Pod", name, status, namespace=namespace, subresource="status")
        return made

    def claim(self, volume: str) -> None:
        """A claim of one pod, which is bound to the volume."""
        spec = {"accessModes": ["ReadWriteOncePod"], "storageClassName": "", "volumeName": volume}
        spec["resources"] = {"requests": {"storage": "1Gi"}}
        metadata = {"name": CLAIM, "namespace": SPACE}
        self.api.create({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})

    def save(self, pod: Object, volume: str, name: str) -> None:
        """A checkpoint in the volume, as the kubelet mounts it."""
        mounted = self.folder / "kubelet" / pod["metadata"]["uid"] / "volumes" / "kubernetes.io~csi" / volume / "mount"
        mounted.mkdir(parents=True)
        (mounted / name).write_bytes(b"weights")

    def listed(self) -> list[Object]:
        """The files that the endpoint was sent."""
        listings = [item for request in self.endpoint.requests for item in request.get("listings", ())]
        return [file for listing in listings for file in listing.get("files") or ()]

    def log(self, pod: Object, *lines: str) -> None:
        metadata = pod["metadata"]
        folder = self.folder / "pods" / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}" / "trainer"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "0.log").open("a") as file:
            for line in lines:
                file.write(f"{datetime.now(UTC).strftime('%Y-%m-%dT%H:%M:%S.%f')}000Z stdout F {line}\n")

    def start(self) -> Server:
        template = named(rendered(self._charts), "DaemonSet")["spec"]["template"]["spec"]
        others = ("--predictions", "--state", "--host", "--port", "--volumes")
        arguments = [one for one in template["containers"][0]["args"] if not one.startswith(others)]
        arguments += [
            f"--predictions={self.url}",
            f"--root={self.folder / 'pods'}",
            f"--state={self.folder / 'state.json'}",
            f"--volumes={self.folder / 'kubelet'}",
        ]
        env = {"KUBECONFIG": str(self.plane.kubeconfig_for(ACCOUNT, AGENTS)), "NODE_NAME": NODE}
        self._servers.append(self.plane.start_server("logtail", [*KOPT, *arguments], env))
        return self._servers[-1]

    def annotations(self, pod: Object) -> Object:
        found = self.api.get("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
        return {name: text for name, text in found["metadata"].get("annotations", {}).items() if name != "kaiwo.ai/job"}

    def source(self, pod: Object) -> str:
        return f"{pod['metadata']['name']}@{pod['metadata']['uid'][:UID_LENGTH]}/trainer"

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
    install({**URL, "mode": "annotate", "logtail": {"enabled": True}, "webhook": {"enabled": False}})
    api = control_plane.api
    api.namespace(SPACE, {"kaiwo.ai/managed": "true"})
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "", "lastHeartbeatTime": None}
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "64"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    api.patch("v1", "Node", NODE, {"status": status}, namespace="", subresource="status")
    folder = tmp_path_factory.mktemp("node")
    (folder / "pods").mkdir()
    (folder / "kubelet").mkdir()
    endpoint = Endpoint()
    with served(endpoint) as url:
        found = Cluster(control_plane, endpoint, url, folder, charts)
        yield found
        found.end()
    uninstall()
    api.delete("v1", "Node", NODE, "")
    # Without its node a pod runs on for minutes, in which other tests would count it.
    for pod in api.list("v1", "Pod", fields=f"spec.nodeName={NODE}"):
        api.delete("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["namespace"], gracePeriodSeconds=0)


@pytest.fixture(scope="module")
def worked(cluster: Cluster) -> Object:
    """A pod that was followed, from before the agent started until it was killed, and deleted at the end."""
    cluster.endpoint.says = {
        "state": "TRAIN",
        "safe": True,
        "last_durable_step": 400,
        "reason": "SAVED",
        "work_at_risk_gpu_seconds": 80.0,
        "last_durable_at": 1_772_359_200.0,
    }
    cluster.claim("pv-out")
    pod, watched = cluster.pod("llama-0"), cluster.pod("seen-0", **{"kaiwo.ai/mode": "observe"})
    cluster.save(pod, "pv-out", "model.pt")
    cluster.log(pod, "step 1", "step 2")
    cluster.log(watched, "step 1")
    first = cluster.start()
    wait_for(lambda: cluster.endpoint.lines(JOB, cluster.source(pod)) == ["step 1", "step 2"], what="two lines")
    wait_for(lambda: cluster.endpoint.lines(JOB, cluster.source(watched)), what="the other pod's line")
    written = wait_for(lambda: cluster.annotations(pod), what="annotations")
    wait_for(cluster.listed, what="the checkpoint")
    first.kill()
    cluster.log(pod, *STEPS)
    cluster.endpoint.says = {"state": "CKPT_WRITING", "safe": False}
    cluster.start()
    wait_for(lambda: cluster.annotations(pod).get("kaiwo.ai/checkpoint-safe") == "false", what="it is not safe")
    return {"pod": pod, "watched": watched, "written": written}


def test_a_pod_is_annotated_with_what_the_endpoint_says(cluster: Cluster, worked: Object) -> None:
    written = dict(worked["written"])
    observed = datetime.fromisoformat(written.pop("kaiwo.ai/checkpoint-observed-at"))
    assert abs(observed.timestamp() - time.time()) < 600
    assert written == {
        "kaiwo.ai/checkpoint-state": "TRAIN",
        "kaiwo.ai/checkpoint-safe": "true",
        "kaiwo.ai/checkpoint-reason": "SAVED",
        "kaiwo.ai/checkpoint-model": "checkpoint/3",
        "kaiwo.ai/work-at-risk": "80",
        "kaiwo.ai/last-checkpoint-step": "400",
        "kaiwo.ai/last-checkpoint-time": "2026-03-01T10:00:00Z",
    }
    later = cluster.annotations(worked["pod"])
    assert later["kaiwo.ai/checkpoint-state"] == "CKPT_WRITING"
    assert "kaiwo.ai/last-checkpoint-step" not in later
    progress = progress_of([cluster.api.get("v1", "Pod", "llama-0", SPACE)])
    assert progress is not None
    assert (progress.step, progress.steps, set(progress.step_seconds)) == (4, 500, {2.0})
    assert abs(progress.at_s - time.time()) < 600
    assert cluster.endpoint.lines(JOB, cluster.source(worked["pod"])) == ["step 1", "step 2", *STEPS]
    assert cluster.endpoint.conflicting == 0


def test_in_mode_observe_nothing_is_written_on_the_object(cluster: Cluster, worked: Object) -> None:
    assert cluster.annotations(worked["watched"]) == {"kaiwo.ai/mode": "observe"}


def test_files_in_a_volume_of_its_own_are_marked(cluster: Cluster, worked: Object) -> None:
    assert {(file["folder"], file["path"], file.get("exclusive")) for file in cluster.listed()} == {
        ("pv-out", "model.pt", True)
    }


def test_it_was_refused_nothing_and_used_every_right(cluster: Cluster, worked: Object) -> None:
    asked = [
        one
        for one in cluster.plane.audit_entries(ACCOUNT)
        if one["user"]["username"].endswith(f":{ACCOUNT}") and "objectRef" in one
    ]
    assert [one for one in asked if one.get("responseStatus", {}).get("code") == 403] == []
    used = {(one["verb"], one["objectRef"]["resource"]) for one in asked}
    assert used == {
        ("list", "pods"),
        ("watch", "pods"),
        ("list", "namespaces"),
        ("watch", "namespaces"),
        ("patch", "pods"),
        ("get", "persistentvolumeclaims"),
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"spec": {"activeDeadlineSeconds": 1}},
        {"metadata": {"labels": {"app": "evil"}}},
        {"metadata": {"annotations": {"kaiwo.ai/mode": "enforce"}}},
        {"metadata": {"annotations": {"kaiwo.ai/job": None}}},
        {"metadata": {"finalizers": ["evil/forever"]}},
    ],
)
def test_its_account_cannot_change_anything_else_of_a_pod(cluster: Cluster, worked: Object, changes: Object) -> None:
    stolen = Api(Path(cluster.plane.kubeconfig_for(ACCOUNT, AGENTS)))
    with pytest.raises(Refused, match="only annotations"):
        stolen.patch("v1", "Pod", "llama-0", changes, namespace=SPACE)


def test_its_account_writes_and_takes_away_every_annotation_of_the_agent(cluster: Cluster, worked: Object) -> None:
    cluster.pod("plain-0", **{"kaiwo.ai/mode": "observe"})
    own = Api(Path(cluster.plane.kubeconfig_for(ACCOUNT, AGENTS)))
    for text in ("1", None):
        changes = {"metadata": {"annotations": dict.fromkeys(sorted(WRITTEN), text)}}
        found = own.patch("v1", "Pod", "plain-0", changes, namespace=SPACE)["metadata"]["annotations"]
        assert WRITTEN & set(found) == (WRITTEN if text else set())


def test_a_deleted_pod_is_left_and_another_under_its_name_counts_anew(cluster: Cluster, worked: Object) -> None:
    cluster.api.delete("v1", "Pod", "llama-0", SPACE, gracePeriodSeconds=0)
    wait_for(lambda: cluster.api.find("v1", "Pod", "llama-0", SPACE) is None, what="the pod is gone")
    again = cluster.pod("llama-0")
    cluster.log(again, "a new run")
    wait_for(lambda: cluster.endpoint.lines(JOB, cluster.source(again)) == ["a new run"], what="the new pod's line")
    wait_for(lambda: cluster.annotations(again), what="its annotations")


def test_a_namespace_that_opts_out_is_left(cluster: Cluster, worked: Object) -> None:
    cluster.api.namespace("others")
    other = cluster.pod("other-0", "others")
    cluster.log(other, "private")
    mine = cluster.pod("late-0")
    cluster.log(mine, "step 1")
    wait_for(lambda: cluster.endpoint.lines(JOB, cluster.source(mine)), what="the pod of the namespace that opted in")
    assert not [job for job, _ in cluster.endpoint.taken if job.startswith("others/")]
