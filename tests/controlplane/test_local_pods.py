"""Pods on a node of local processes truly run: what they see, say, and how they end."""

import base64
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from controlplane.api import Api, Object, Refused
from controlplane.kubelet import Kubelet
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for


@pytest.fixture
def space(control_plane: ControlPlane) -> str:
    return control_plane.api.space("local-pods")


@pytest.fixture
def run(control_plane: ControlPlane, kubelet: Kubelet, space: str) -> Callable[..., Object]:
    """Creates a pod on the local node: the script, what else the container and the pod have."""
    numbers = iter(range(100))

    def create(script: str, container: Object | None = None, name: str = "", **spec: Any) -> Object:
        main = {"name": "main", "image": "none", "command": ["python", "-u", "-c", script], **(container or {})}
        body = {"nodeSelector": kubelet.selector, "restartPolicy": "Never", "containers": [main], **spec}
        meta = {"name": name or f"pod-{os.getpid()}-{time.monotonic_ns()}-{next(numbers)}", "namespace": space}
        return control_plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": body})

    return create


@pytest.fixture
def until(control_plane: ControlPlane, space: str) -> Callable[..., Object]:
    """Waits for a pod's phase."""

    def wait(pod: Object, *phases: str) -> Object:
        api = control_plane.api
        return api.wait("v1", "Pod", pod["metadata"]["name"], lambda one: one["status"]["phase"] in phases, space)

    return wait


def logs(plane: ControlPlane, pod: Object, **params: str) -> str:
    path = plane.api.path("v1", "Pod", pod["metadata"]["namespace"], pod["metadata"]["name"]) + "/log"
    return plane.api.request("GET", path, params=params).text


def ended(pod: Object) -> Object:
    return dict(pod["status"]["containerStatuses"][0]["state"]["terminated"])


def test_a_pod_sees_its_environment_and_its_log_is_read_through_the_api_server(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str
) -> None:
    secret = {"password": base64.b64encode(b"geheim").decode(), "user": base64.b64encode(b"ada").decode()}
    control_plane.api.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login", "namespace": space}, "data": secret},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm", "namespace": space}, "data": {"a": "1"}},
    )
    env = [
        {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "login", "key": "password"}}},
        {"name": "MAYBE", "valueFrom": {"secretKeyRef": {"name": "no", "key": "no", "optional": True}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "URL", "value": "user:$(PASSWORD)@$(UNKNOWN) $$(NODE)"},
    ]
    sources = [{"prefix": "LOGIN_", "secretRef": {"name": "login"}}, {"configMapRef": {"name": "cm"}}]
    script = (
        "import os, sys; names = ('PASSWORD', 'MAYBE', 'NODE', 'URL', 'LOGIN_user', 'a', 'KOPT_SECRET_OF_TESTS');"
        "[print(name, os.environ.get(name)) for name in names]; print(*sys.argv[1:], file=sys.stderr)"
    )
    os.environ["KOPT_SECRET_OF_TESTS"] = "must not be seen"
    pod = until(run(script, {"env": env, "envFrom": sources, "args": ["$(LOGIN_user)"]}), "Succeeded", "Failed")
    assert ended(pod)["exitCode"] == 0
    assert logs(control_plane, pod).splitlines() == [
        "PASSWORD geheim",
        "MAYBE None",
        f"NODE {pod['spec']['nodeName']}",
        "URL user:geheim@$(UNKNOWN) $(NODE)",
        "LOGIN_user ada",
        "a 1",
        "KOPT_SECRET_OF_TESTS None",
        "ada",
    ]
    assert logs(control_plane, pod, tailLines="1") == "ada\n"


@pytest.mark.long
def test_annotations_are_shown_as_they_change(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str
) -> None:
    item = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}
    mount = {"name": "podinfo", "mountPath": "/etc/podinfo"}
    # Torn files would be seen: it is read all the time.
    script = (
        "import sys, pathlib; file = pathlib.Path(sys.argv[1]); seen = {file.read_text()}; print('--', flush=True)\n"
        "while not any('last' in text for text in seen): seen.add(file.read_text())\n"
        "print(*sorted(seen, key=len), sep='--', end='')"
    )
    pod = run(
        script,
        {"args": ["/etc/podinfo/annotations"], "volumeMounts": [mount]},
        volumes=[{"name": "podinfo", "downwardAPI": {"items": [item]}}],
    )
    name = pod["metadata"]["name"]
    until(pod, "Running")
    wait_for(lambda: "--" in logs(control_plane, pod), what="the file has been read")
    for notes in ({"example.com/json": '{"a": "b"}'}, {"example.com/last": "x\ny"}):
        control_plane.api.patch("v1", "Pod", name, {"metadata": {"annotations": notes}}, space)
    done = until(pod, "Succeeded", "Failed")
    assert ended(done)["exitCode"] == 0
    _, first, *_, last = logs(control_plane, pod).split("--")
    assert first.strip() == ""
    assert last == 'example.com/json="{\\"a\\": \\"b\\"}"\nexample.com/last="x\\ny"\n'


@pytest.mark.long
def test_a_missing_secret_keeps_the_pod_waiting_and_says_so(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str
) -> None:
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "later", "key": "a"}}}]
    pod = run("print('ran')", {"env": env})
    name = pod["metadata"]["name"]

    def waiting(one: Object) -> bool:
        statuses = one["status"].get("containerStatuses") or [{}]
        reason = statuses[0].get("state", {}).get("waiting", {})
        return reason.get("reason") == "CreateContainerConfigError" and '"later" not found' in reason["message"]

    control_plane.api.wait("v1", "Pod", name, waiting, space)
    meta = {"name": "later", "namespace": space}
    control_plane.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"a": "x"}})
    until(pod, "Succeeded")


@pytest.mark.long
def test_exit_codes_and_signals_are_reported(run: Callable[..., Object], until: Callable[..., Object]) -> None:
    codes = {"import sys; sys.exit(3)": 3, "import os; os.kill(os.getpid(), 9)": 137}
    for pod, code in [(run(script), code) for script, code in codes.items()]:
        done = until(pod, "Failed")
        assert (ended(done)["exitCode"], ended(done)["reason"]) == (code, "Error")
    missing = until(run("", {"command": ["/no/such/program"]}), "Failed")
    assert ended(missing)["reason"] == "StartError"


@pytest.mark.long
def test_deletion_sends_sigterm_and_waits_for_the_grace_period(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str, tmp_path: Path
) -> None:
    script = (
        "import signal, sys, time; from pathlib import Path\n"
        "def stop(*_): time.sleep(0.5); Path(sys.argv[1]).write_text('saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop); print('ready'); time.sleep(600)"
    )
    pod = until(run(script, {"args": [str(tmp_path / "checkpoint")]}), "Running")
    wait_for(lambda: "ready" in logs(control_plane, pod))
    name = pod["metadata"]["name"]
    control_plane.api.delete("v1", "Pod", name, space)
    assert control_plane.api.get("v1", "Pod", name, space)["metadata"]["deletionTimestamp"]
    wait_for(lambda: control_plane.api.find("v1", "Pod", name, space) is None)
    assert (tmp_path / "checkpoint").read_text() == "saved"


@pytest.mark.long
def test_what_ignores_sigterm_is_killed_with_its_children_after_the_grace_period(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str
) -> None:
    script = (
        "import signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '600']).pid); time.sleep(600)"
    )
    pod = until(run(script, terminationGracePeriodSeconds=1), "Running")
    child = int(wait_for(lambda: logs(control_plane, pod)))
    began = time.monotonic()
    control_plane.api.delete("v1", "Pod", pod["metadata"]["name"], space)
    wait_for(lambda: control_plane.api.find("v1", "Pod", pod["metadata"]["name"], space) is None)
    assert time.monotonic() - began > 0.9
    wait_for(lambda: not Path(f"/proc/{child}").exists() or "(zombie)" in Path(f"/proc/{child}/status").read_text())


@pytest.mark.long
def test_volumes_are_folders_shared_by_the_containers(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str, tmp_path: Path
) -> None:
    api = control_plane.api
    (tmp_path / "host").mkdir()
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": ""}
    volume = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "hostPath": {"path": str(tmp_path / "claimed")},
        "claimRef": {"name": "claim", "namespace": space},
    }
    meta = {"name": "claim", "namespace": space}
    api.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": space}, "spec": volume},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": meta, "spec": claim},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, "name": "files"}, "data": {"f": "text"}},
    )
    mounts = [
        {"name": "scratch", "mountPath": "/scratch"},
        {"name": "host", "mountPath": "/data"},
        {"name": "claim", "mountPath": "/data/claimed"},
        {"name": "files", "mountPath": "/etc/files", "readOnly": True},
    ]
    volumes = [
        {"name": "scratch", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(tmp_path / "host")}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
        {"name": "files", "configMap": {"name": "files"}},
    ]
    command = "cat /etc/files/f > /scratch/passed"
    first = {"name": "first", "image": "none", "command": ["sh", "-c", command], "volumeMounts": mounts}
    script = (
        "import os, shutil; shutil.copy('/scratch/passed', '/data/seen');"
        "open(os.environ['OUT'] + '/x', 'w').write('y');"
        "print(os.getcwd())"
    )
    main = {"env": [{"name": "OUT", "value": "/data/claimed"}], "volumeMounts": mounts, "workingDir": "/data"}
    pod = until(run(script, main, initContainers=[first], volumes=volumes), "Succeeded", "Failed")
    assert logs(control_plane, pod).strip() == str(tmp_path / "host")
    assert (tmp_path / "host" / "seen").read_text() == "text"
    assert (tmp_path / "claimed" / "x").read_text() == "y"
    assert (tmp_path / "host" / "claimed" / "x").read_text() == "y", "a mount is also in the folder of the outer one"


def test_a_pod_speaks_to_the_api_server_as_its_service_account(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str
) -> None:
    script = (
        "import os, yaml, httpx, pathlib, ssl; c = yaml.safe_load(open(os.environ['KUBECONFIG']));"
        "cluster = c['clusters'][0]['cluster']; token = pathlib.Path(c['users'][0]['user']['tokenFile']).read_text();"
        "review = {'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'};"
        "trust = ssl.create_default_context(cafile=cluster['certificate-authority']);"
        "answer = httpx.post(cluster['server'] + '/apis/authentication.k8s.io/v1/selfsubjectreviews', json=review,"
        " verify=trust, headers={'Authorization': 'Bearer ' + token}, trust_env=False);"
        "print(answer.json()['status']['userInfo']['username'])"
    )
    pod = until(run(script), "Succeeded", "Failed")
    assert logs(control_plane, pod).strip() == f"system:serviceaccount:{space}:default"


@pytest.mark.long
def test_readiness_follows_the_probe_and_failing_liveness_restarts(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object], space: str, tmp_path: Path
) -> None:
    probe = {"exec": {"command": ["test", "-e", str(tmp_path / "ready")]}, "periodSeconds": 1}
    dead = {"exec": {"command": ["test", "!", "-e", str(tmp_path / "dead")]}}
    alive = {**dead, "periodSeconds": 1, "failureThreshold": 1}
    script = "import sys, time; print('started'); time.sleep(600)"
    pod = until(run(script, {"readinessProbe": probe, "livenessProbe": alive}, restartPolicy="Always"), "Running")
    name = pod["metadata"]["name"]
    assert not control_plane.api.get("v1", "Pod", name, space)["status"]["containerStatuses"][0]["ready"]
    (tmp_path / "ready").touch()
    control_plane.api.wait("v1", "Pod", name, lambda one: one["status"]["containerStatuses"][0]["ready"], space)
    (tmp_path / "dead").touch()
    status = control_plane.api.wait(
        "v1", "Pod", name, lambda one: one["status"]["containerStatuses"][0]["restartCount"], space
    )["status"]["containerStatuses"][0]
    assert status["lastState"]["terminated"]["exitCode"] == 128 + signal.SIGKILL
    assert logs(control_plane, pod, previous="true") == "started\n"


@pytest.mark.long
def test_a_followed_log_ends_with_its_container(
    control_plane: ControlPlane, run: Callable[..., Object], until: Callable[..., Object]
) -> None:
    pod = until(run("import time\nfor n in range(5): print(n); time.sleep(0.2)"), "Running")
    assert logs(control_plane, pod, follow="true").split() == ["0", "1", "2", "3", "4"]


@pytest.mark.long
@pytest.mark.slow
def test_pods_outlive_a_restart_of_the_api_server(fresh_control_plane: Callable[..., ControlPlane]) -> None:
    plane = fresh_control_plane()
    with Kubelet(plane) as kubelet:
        main: Object = {
            "name": "main",
            "image": "none",
            "command": ["sh", "-c", "while [ ! -e /flag/go ]; do sleep 0.1; done"],
        }
        folder = plane.folder / "flag"
        folder.mkdir()
        main["volumeMounts"] = [{"name": "flag", "mountPath": "/flag"}]
        volumes = [{"name": "flag", "hostPath": {"path": str(folder)}}]
        spec = {"nodeSelector": kubelet.selector, "restartPolicy": "Never", "containers": [main], "volumes": volumes}
        meta = {"name": "patient", "namespace": "default"}
        plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        plane.api.wait("v1", "Pod", "patient", lambda pod: pod["status"]["phase"] == "Running")
        plane.restart_api_server(compact=True)
        (folder / "go").touch()
        done = plane.api.wait("v1", "Pod", "patient", lambda pod: pod["status"]["phase"] in {"Succeeded", "Failed"})
        assert done["status"]["phase"] == "Succeeded"
        assert done["status"]["containerStatuses"][0]["restartCount"] == 0


def test_commands_stand_for_images_and_a_mounted_tmp_is_the_pods_own(control_plane: ControlPlane, space: str) -> None:
    with Kubelet(control_plane, entrypoints={"tool": ["sh", "-c"]}) as kubelet:
        mounts = [{"name": "tmp", "mountPath": "/tmp"}, {"name": "out", "mountPath": "/out"}]
        main = {"name": "main", "image": "registry.example/team/tool:1", "args": ["ls -d /out $(mktemp)"]}
        volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "out", "emptyDir": {}}]
        containers = [{**main, "volumeMounts": mounts}, {"name": "unknown", "image": "other"}]
        spec = {
            "nodeSelector": kubelet.selector,
            "containers": containers,
            "volumes": volumes,
            "restartPolicy": "Never",
        }
        meta = {"name": "images", "namespace": space}
        pod = control_plane.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

        def seen(one: Object) -> bool:
            states = [status["state"] for status in one["status"].get("containerStatuses") or ()]
            return len(states) == 2 and "terminated" in states[0] and "no images" in str(states[1])

        control_plane.api.wait("v1", "Pod", "images", seen, space)
        lines = logs(control_plane, pod, container="main").split()
        (volume,) = [Path(line) for line in lines if line.endswith("/out")]
        (temporary,) = [Path(line) for line in lines if not line.endswith("/out")]
        assert temporary.resolve().parent == (volume.parent / "tmp").resolve()
        assert len(str(temporary.parent)) < 20, "sockets below it would have no room"


@pytest.mark.long
@pytest.mark.slow
def test_a_node_that_dies_is_noticed(fresh_control_plane: Callable[..., ControlPlane]) -> None:
    plane = fresh_control_plane(node_monitor_grace_period_s=6)
    kubelet = Kubelet(plane)
    kubelet.crash()

    def unreachable(node: Object) -> bool:
        return any(taint["key"] == "node.kubernetes.io/unreachable" for taint in node["spec"].get("taints") or ())

    plane.api.wait("v1", "Node", kubelet.name, unreachable)


def test_a_node_may_read_only_the_secrets_of_its_own_pods(
    control_plane: ControlPlane, kubelet: Kubelet, space: str
) -> None:
    meta = {"name": "foreign", "namespace": space}
    control_plane.api.create({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "stringData": {"a": "x"}})
    node = Api(kubelet.api.kubeconfig)
    with pytest.raises(Refused, match="no relationship found between node"):
        node.get("v1", "Secret", "foreign", space)
