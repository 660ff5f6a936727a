"""Stolen accounts: what a component may do to objects of others, and what the API server refuses it.

The first test derives from the rules which rights need a fence, so that a new right without one is noticed; the others
are tried before a real API server with each account's own token.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chart import REGISTRY, Helm
from cluster.holdable import SPECS
from controlplane import build
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import wait_for

from kopt.cluster.client.resources import CRON_JOBS, JOBS, KUEUE_CLUSTER_QUEUES, KUEUE_WORKLOADS
from kopt.cluster.holds.device_taint import DeviceName, rule_of
from kopt.cluster.holds.hold import HOLDABLE, hold, hold_metadata, release
from kopt.controllers.lending.views import HOLDER as LENDING
from kopt.core.staging.staged_data import ClaimFolder, DataSpec, NodeCache, StagedData
from kopt.policies.sizing.profiling_pod import DryRunSettings, profiling_job
from kopt.policies.staging.copies import Step, Verb
from kopt.policies.staging.decide import Order
from kopt.policies.staging.pod import PodSettings, staging_job

from .api_in_memory import merged
from .chart_rendered import NAMESPACE, Object, Right, everything, is_fenced, rights_of

CHART = Path(__file__).resolve().parents[2] / "deploy" / "chart"
OFF = {"enabled": False}
# Agents run in a namespace of their own, and that of telemetry has no rights.
VALUES = everything(predictions={}, training={}, logtail=OFF, telemetry=OFF, sizing={"hostPaths": ["/data"]})
KINDS = {
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}
RULES = ("resource.k8s.io/v1beta2", "DeviceTaintRule")
RUNNING, OPEN, CLOSED = "batch/v1", "attacked", "not-ours"
CHANGES = {"create", "update", "patch"}
OURS = {"kaiwo.ai", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io"}
"""Groups whose objects are our own, or that change nothing of others'; but for StagedData, which people write."""
NEED_NONE = {
    ("coordination.k8s.io", "leases"): "in our own namespace",
    ("apps", "deployments/scale"): "in our own namespace: how many replicas",
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"): "by name; no policy may look at these",
    ("admissionregistration.k8s.io", "validatingwebhookconfigurations"): "by name; no policy may look at these",
    ("kgwe.nvidia.io", "gpuworkloads/status"): "a status that is ours to write, of our own kind",
    ("kgwe.nvidia.io", "migstrategies/status"): "a status that is ours to write, of our own kind",
    ("", "secrets"): "in our own namespace: the certificate by name",
}


@pytest.fixture(scope="module")
def charts(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(helm, tmp_path_factory.mktemp("fences"))


@pytest.fixture(scope="module")
def rendered(charts: Helm) -> list[Object]:
    return charts.render(VALUES)


@pytest.mark.parametrize(
    "values",
    [everything(), VALUES, everything(logtail={"enabled": True, "form": "node"}), {}],
    ids=["everything", "attacked", "on nodes", "default"],
)
def test_every_right_to_change_objects_of_others_has_a_fence(charts: Helm, values: Object) -> None:
    objects = charts.render(values)
    rights = [one for one in rights_of(objects) if one.verb in CHANGES]
    assert rights
    bare = [one for one in rights if _needs_a_fence(one) and not is_fenced(one, objects)]
    assert bare == []


def _needs_a_fence(right: Right) -> bool:
    if right.group == "kaiwo.ai" and right.resource == "stageddata":
        return True
    if right.group in OURS or (right.group, right.resource) in NEED_NONE:
        ours = right.namespace == NAMESPACE or right.name.startswith("00-kaiwo-optimizer")
        assert right.group in OURS or right.resource.endswith("/status") or ours, right
        return False
    return True


def test_logs_of_others_are_read_only_where_somebody_said_so(charts: Helm) -> None:
    def readers(**values: Any) -> set[tuple[str, str]]:
        objects = charts.render({"staging": {"enabled": True}, **values})
        return {
            (one.account.rpartition(":")[2], one.namespace) for one in rights_of(objects) if one.resource == "pods/log"
        }

    assert readers() == set()
    assert readers(logs={"namespaces": ["a"]}) == {("kopt-sizing", "a"), ("kopt-staging", "a")}
    assert readers(logs={"everywhere": True}) == {("kopt-sizing", ""), ("kopt-staging", "")}


class Attacked:
    """A control plane with the chart's accounts and fences, a namespace that has opted in and one that has not."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.api = plane, plane.api
        self._stolen: dict[str, Api] = {}

    def stolen(self, account: str) -> Api:
        if account not in self._stolen:
            self._stolen[account] = Api(Path(self.plane.kubeconfig_for(account, NAMESPACE)))
        return self._stolen[account]

    def refusal(self, attack: Callable[[], Any]) -> str:
        """Why it was refused; empty where it was let through."""
        try:
            attack()
        except Refused as refused:
            return refused.message
        return ""

    def patch(
        self,
        account: str,
        kind: tuple[str, str],
        name: str,
        change: Object,
        space: str = OPEN,
        part: str = "",
        **params: str,
    ) -> str:
        stolen = self.stolen(account)
        path = stolen.path(*kind, space, name) + (f"/{part}" if part else "")
        headers = {"Content-Type": "application/merge-patch+json"}
        return self.refusal(lambda: stolen.request("PATCH", path, json=change, headers=headers, params=params))

    def written(self, account: str, kind: tuple[str, str], change: Callable[[Object], Object]) -> str:
        """What the account writes onto ``theirs`` as it stands: its own controller may have been quicker."""
        while True:
            seen = self.api.get(*kind, "theirs", OPEN)
            told = self.patch(account, kind, "theirs", change(seen))
            if "Operation cannot be fulfilled" not in told:
                return told

    def create(self, account: str, body: Object) -> str:
        return self.refusal(lambda: self.stolen(account).create(body, dryRun="All"))


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane without Kueue, whose webhook refuses TrainJobs whose runtime it does not know."""
    plane = ControlPlane(tmp_path_factory.mktemp("fenced-control-plane"))
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def attacked(control_plane: ControlPlane, rendered: list[Object]) -> Attacked:
    control_plane.install_crds("jobset", "kuberay", "training-operator", "trainer")
    bases = build.manifests("kueue") / "config" / "components" / "crd" / "bases"
    control_plane.apply_crds([bases / f"kueue.x-k8s.io_{name}.yaml" for name in ("clusterqueues", "workloads")])
    control_plane.apply_crds([CHART / "crds" / "stageddata.yaml"])
    api = control_plane.api
    for name in (NAMESPACE, CLOSED, "kopt-benchmarks", "kopt-node-executor"):
        api.namespace(name)
    api.namespace(OPEN, {"kaiwo.ai/managed": "true"})
    api.wait("v1", "ServiceAccount", "default", namespace=OPEN)
    given = [
        one
        for one in rendered
        if one["kind"] in KINDS
        or (one["kind"] in ("Role", "RoleBinding") and one["metadata"]["namespace"] == "kopt-benchmarks")
    ]
    # The API server reads them in this order: the one that is waited for comes last.
    api.apply(*sorted(given, key=lambda one: one["metadata"]["name"] == "kopt-off-pods"))
    found = Attacked(control_plane)
    fences = [one for one in given if one["kind"] == "ValidatingAdmissionPolicy"]
    # The fences are in force when the last of them is: until then only what harms nothing is tried.
    found.api.create(pod("probe"))
    # Dry, as it would be the pod's own label once it is there.
    tried = lambda: found.patch("kopt-off", ("v1", "Pod"), "probe", FOREIGN_LABEL, dryRun="All")  # noqa: E731
    wait_for(lambda: "kopt-off-pods" in tried(), what="the fences are in force")
    for name in ("kopt-reallocation-held", "kopt-sizing-fence", "kopt-preemption-status"):
        assert name in {one["metadata"]["name"] for one in fences}
    return found


FOREIGN_LABEL: Object = {"metadata": {"labels": {"app": "evil"}}}


def pod(name: str, space: str = OPEN, **spec: Any) -> Object:
    body = {"automountServiceAccountToken": False, "containers": [{"name": "main", "image": "theirs"}], **spec}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": body,
        "metadata": {"name": name, "namespace": space, "labels": {"theirs": "kept"}},
    }


def job(name: str, **spec: Any) -> Object:
    container = {
        "name": "main",
        "image": "theirs",
        "command": ["train"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    return {
        "apiVersion": RUNNING,
        "kind": "Job",
        "metadata": {"name": name, "namespace": OPEN},
        "spec": {"suspend": True, "template": template, **spec},
    }


MARKS = hold_metadata("tests", {"suspend": False})
HOLDERS = ["kopt-sizing", "kopt-staging", "kopt-reallocation", "kopt-off"]
SELLS_OUT: dict[str, Object] = {
    "foreign label": {"metadata": {"labels": {"app": "evil"}}},
    "foreign label gone": {"metadata": {"labels": {"theirs": None}}},
    "foreign annotation": {"metadata": {"annotations": {"evil": "1"}}},
    "finalizer": {"metadata": {"finalizers": ["evil/forever"]}},
    "another queue": {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "evil"}}},
    "owner": {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "probe", "uid": "x"}]}},
}


@pytest.mark.parametrize("account", HOLDERS)
@pytest.mark.parametrize("attack", [*SELLS_OUT, "replicas", "deadline", "retries without a mark", "suspended unmarked"])
def test_of_a_job_only_what_a_hold_changes(attacked: Attacked, account: str, attack: str) -> None:
    attacks = SELLS_OUT | {
        "replicas": {"spec": {"parallelism": 99}},
        "deadline": {"spec": {"activeDeadlineSeconds": 1}},
        "retries without a mark": {"spec": {"backoffLimit": 0}},
        "suspended unmarked": {"spec": {"suspend": False}},
    }
    body = job("theirs")
    body["metadata"]["labels"] = {"theirs": "kept"} | (MARKS["labels"] if account == "kopt-off" else {})
    attacked.api.apply(body)
    try:
        change = attacks[attack]
        if account == "kopt-off" and attack in ("retries without a mark", "suspended unmarked"):
            attacked.api.patch(RUNNING, "Job", "theirs", {"metadata": {"labels": {"kaiwo.ai/held": None}}}, OPEN)
        assert f"{account}-held" in attacked.patch(account, (RUNNING, "Job"), "theirs", change, dryRun="All")
    finally:
        attacked.api.delete(RUNNING, "Job", "theirs", OPEN, propagationPolicy="Background")


def held_kinds() -> list[Any]:
    return [pytest.param(one, id=one.kind) for one in HOLDABLE if one.kind in SPECS]


@pytest.mark.parametrize("resource", held_kinds())
def test_of_every_kind_that_can_be_held_the_pods_stay_the_users(attacked: Attacked, resource: Any) -> None:
    """Image, host and account in templates that the API server itself would let anybody change."""
    version = f"{resource.group}/{'v1' if resource.kind == 'MPIJob' else resource.version}"
    body = {
        "apiVersion": version,
        "kind": resource.kind,
        "spec": SPECS[resource.kind],
        "metadata": {"name": "theirs", "namespace": OPEN, "labels": MARKS["labels"]},
    }
    made = attacked.api.create(body)
    kind = (version, resource.kind)
    try:
        accounts = ["kopt-off"] + (["kopt-staging"] if resource != CRON_JOBS else [])
        for account in accounts:
            for change in _template_attacks(made["spec"]):
                told = attacked.patch(account, kind, "theirs", {"spec": change}, dryRun="All")
                assert told, (account, change)
                assert f"{account}-held" in told or "immutable" in told or "Required" in told, told
            if account != "kopt-off":
                assert attacked.written(account, kind, lambda seen: hold(resource, seen, "tests")) == ""
            assert attacked.written(account, kind, lambda seen: release(resource, seen)) == ""
            attacked.api.patch(*kind, "theirs", {"metadata": {"labels": MARKS["labels"]}}, OPEN)
    finally:
        attacked.api.delete(*kind, "theirs", OPEN, propagationPolicy="Background")


def _template_attacks(spec: Object) -> Iterator[Object]:
    """The spec with each of its pod templates changed for the worse."""
    for evil in ({"hostPID": True}, {"serviceAccountName": "admin"}, {"hostNetwork": True}):
        yield _with_pods(spec, evil)


def _with_pods(part: Any, evil: Object) -> Any:
    if isinstance(part, list):
        return [_with_pods(one, evil) for one in part]
    if not isinstance(part, dict):
        return part
    found = {key: _with_pods(value, evil) for key, value in part.items()}
    if "containers" in part:
        found |= evil | {"containers": [one | {"image": "evil"} for one in part["containers"]]}
    return (
        found
        | ({"entrypoint": "evil"} if "entrypoint" in part else {})
        | ({"runtimeRef": {"name": "evil"}} if "runtimeRef" in part else {})
    )


def test_what_the_controllers_do_to_a_job_is_let_through(attacked: Attacked) -> None:
    attacked.api.create(job("theirs"))
    kind = (RUNNING, "Job")
    try:
        for account, by in (("kopt-sizing", "profiling"), ("kopt-staging", "staging"), ("kopt-reallocation", LENDING)):
            attacked.api.patch(*kind, "theirs", {"spec": {"suspend": False}}, OPEN)
            assert attacked.written(account, kind, lambda seen, by=by: hold(JOBS, seen, by)) == ""
            assert attacked.written(account, kind, lambda seen: release(JOBS, seen)) == ""
    finally:
        attacked.api.delete(*kind, "theirs", OPEN, propagationPolicy="Background")


def test_of_pods_only_ours_and_of_their_status_only_the_promise(attacked: Attacked) -> None:
    attacked.api.create(pod("waits", nodeSelector={"no": "node"}))
    attacked.api.create(pod("foreign", CLOSED, nodeSelector={"no": "node"}))
    attacked.api.create(pod("bound", nodeName="somewhere"))
    kind, account = ("v1", "Pod"), "kopt-preemption"

    def status(name: str, change: Object, space: str = OPEN) -> str:
        return attacked.patch(account, kind, name, {"status": change}, space, part="status")

    fence = f"{account}-status"
    try:
        for change in (
            {"phase": "Failed"},
            {"message": "evil"},
            {"podIP": "10.0.0.1"},
            {"conditions": [{"type": "Ready", "status": "True"}]},
        ):
            assert fence in status("waits", change)
        assert "opted in" in status("foreign", {"nominatedNodeName": "node-a"}, CLOSED), "another tenant's"
        assert fence in status("bound", {"phase": "Succeeded"})
        assert status("waits", {"nominatedNodeName": "node-a"}) == ""
        for account in ("kopt-preemption", "kopt-off", "kopt-extender", "kopt-reallocation"):
            for change in (
                {"metadata": {"labels": {"app": "evil"}}},
                {"spec": {"activeDeadlineSeconds": 1}},
                {"spec": {"containers": [{"name": "main", "image": "evil"}]}},
            ):
                assert f"{account}-pods" in attacked.patch(account, kind, "waits", change)
    finally:
        for name, space in (("waits", OPEN), ("foreign", CLOSED), ("bound", OPEN)):
            attacked.api.delete(*kind, name, space, gracePeriodSeconds=0)


def test_only_who_was_looked_at_is_evicted_and_bound(attacked: Attacked) -> None:
    attacked.api.create(pod("goes"))
    attacked.api.create(pod("stays", CLOSED))
    uid = {
        name: attacked.api.get("v1", "Pod", name, space)["metadata"]["uid"]
        for name, space in (("goes", OPEN), ("stays", CLOSED))
    }

    def post(account: str, part: str, name: str, space: str, body: Object) -> str:
        path = f"/api/v1/namespaces/{space}/pods/{name}/{part}?dryRun=All"
        body = body | {"metadata": {"name": name, "namespace": space, **body.get("metadata", {})}}
        return attacked.refusal(lambda: attacked.stolen(account).request("POST", path, json=body))

    def evict(name: str, space: str, **options: Any) -> str:
        return post(
            "kopt-preemption",
            "eviction",
            name,
            space,
            {"apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options},
        )

    def bind(**metadata: Any) -> str:
        return post(
            "kopt-extender",
            "binding",
            "goes",
            OPEN,
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": metadata,
                "target": {"apiVersion": "v1", "kind": "Node", "name": "anywhere"},
            },
        )

    term = {"kaiwo.ai/term": f"{NAMESPACE}/kopt-extender/7"}
    try:
        assert "opted in" in evict("stays", CLOSED, preconditions={"uid": uid["stays"]})
        assert "looked at" in evict("goes", OPEN)
        assert evict("goes", OPEN, preconditions={"uid": uid["goes"]}) == ""
        assert "leader's term" in bind(uid=uid["goes"])
        assert "its term and its GPUs" in bind(uid=uid["goes"], annotations=term | {"evil": "1"})
        assert "its term and its GPUs" in bind(uid=uid["goes"], annotations=term, labels={"app": "evil"})
        assert "looked at" in bind(annotations=term)
        assert bind(uid=uid["goes"], annotations=term | {"kaiwo.ai/gpu-indices": "0,1"}) == ""
    finally:
        attacked.api.delete("v1", "Pod", "goes", OPEN, gracePeriodSeconds=0)
        attacked.api.delete("v1", "Pod", "stays", CLOSED, gracePeriodSeconds=0)


CONTAINER_ATTACKS: dict[str, Object] = {
    "privileged": {"securityContext": {"privileged": True}},
    "capability": {"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}},
    "unconfined": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "port of the host": {"ports": [{"containerPort": 1, "hostPort": 1}]},
    "hook": {"lifecycle": {"postStart": {"exec": {"command": ["evil"]}}}},
}
POD_ATTACKS: dict[str, Object] = {
    "host's processes": {"hostPID": True},
    "host's network": {"hostNetwork": True},
    "host's memory": {"hostIPC": True},
    "another account": {"serviceAccountName": "admin"},
    "a token": {"automountServiceAccountToken": True},
    "a projected token": {
        "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]
    },
    "a folder of the node": {"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]},
    "a folder beside": {"volumes": [{"name": "v", "hostPath": {"path": "/data-of-others"}}]},
    "a node by name": {"nodeName": "control-plane"},
    "a priority": {"priorityClassName": "system-node-critical"},
    "a kernel setting": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
}
SECRET_ATTACKS: dict[str, Object] = {
    "env": {"env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "login", "key": "k"}}}]},
    "env from": {"envFrom": [{"secretRef": {"name": "login"}}]},
}


def profiling(**changes: Any) -> Object:
    """As the sizing controller makes one, of a Job that has everything that is bad."""
    theirs = job("theirs")
    theirs["metadata"] |= {"uid": "u", "annotations": {"kaiwo.ai/profiling-allow": "secrets,writes"}}
    theirs["spec"]["template"]["spec"] |= {
        "serviceAccountName": "admin",
        "hostPID": True,
        "hostNetwork": True,
        "securityContext": {"fsGroup": 1, "sysctls": [{"name": "kernel.msgmax", "value": "1"}]},
        "volumes": [
            {"name": "host", "hostPath": {"path": "/etc"}},
            {"name": "data", "hostPath": {"path": "/data/a"}},
            {"name": "login", "secret": {"secretName": "login"}},
            {"name": "claim", "persistentVolumeClaim": {"claimName": "c"}},
            {
                "name": "tokens",
                "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "c"}}]},
            },
        ],
    }
    container = theirs["spec"]["template"]["spec"]["containers"][0]
    container |= (
        SECRET_ATTACKS["env"]
        | SECRET_ATTACKS["env from"]
        | {
            "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}},
            "volumeMounts": [{"name": name, "mountPath": f"/{name}"} for name in ("host", "data", "login", "tokens")],
        }
    )
    theirs["spec"]["template"]["spec"]["initContainers"] = [container | {"name": "setup"}]
    settings = DryRunSettings("agents:1", "kopt-profiling", allow_secrets=False, host_paths=("/data",))
    body = profiling_job(theirs, 0, name="kopt-profile-x", digest="x", settings=settings, labels={})
    return {"apiVersion": RUNNING, "kind": "Job", **body} | changes


def download(place: str = "") -> Object:
    where = NodeCache() if place else ClaimFolder("c", "p")
    data = StagedData(OPEN, "d", "u", 1, DataSpec("s3://b/c", where, secret="login"))
    images = f"{REGISTRY}/kopt-staging:0.2.0"
    body = staging_job(data, Order(place, Step.BEGIN, Verb.STAGE, 1), PodSettings(images))
    return {"apiVersion": RUNNING, "kind": "Job", **body}


def changed(body: Object, where: Object, *, container: bool) -> Object:
    """The Job with its pod, or its first container, changed."""
    spec = body["spec"]["template"]["spec"]
    after = spec | ({"containers": [spec["containers"][0] | where]} if container else where)
    if "volumes" in where:
        after["volumes"] = spec.get("volumes", []) + where["volumes"]
    if "securityContext" in where and not container:
        after["securityContext"] = spec.get("securityContext", {}) | where["securityContext"]
    return body | {"spec": body["spec"] | {"template": body["spec"]["template"] | {"spec": after}}}


@pytest.mark.parametrize("account", ["kopt-sizing", "kopt-staging"])
def test_the_jobs_that_we_make_are_let_through_and_none_that_is_worse(attacked: Attacked, account: str) -> None:
    bodies = [profiling()] if account == "kopt-sizing" else [download(), download("node-a")]
    fence = f"{account}-fence"
    for body in bodies:
        assert attacked.create(account, body) == ""
        for name, attack in CONTAINER_ATTACKS.items():
            assert fence in attacked.create(account, changed(body, attack, container=True)), name
        for name, attack in POD_ATTACKS.items():
            assert fence in attacked.create(account, changed(body, attack, container=False)), name
        elsewhere = body | {"metadata": body["metadata"] | {"namespace": CLOSED}}
        assert fence in attacked.create(account, elsewhere)
    body = bodies[0]
    if account == "kopt-sizing":
        for name, attack in SECRET_ATTACKS.items():
            assert fence in attacked.create(account, changed(body, attack, container=True)), name
        secret = {"volumes": [{"name": "v", "secret": {"secretName": "login"}}]}
        assert fence in attacked.create(account, changed(body, secret, container=False))
        assert fence in attacked.create(account, body | {"metadata": body["metadata"] | {"ownerReferences": []}})
    else:
        for attack in ({"image": "evil"}, {"command": ["sh", "-c", "env"]}, {"args": ["doctor"]}):
            assert fence in attacked.create(account, changed(body, attack, container=True)), attack
        other = {"volumes": [{"name": "v", "hostPath": {"path": f"/var/lib/kopt-cache/{CLOSED}/d"}}]}
        assert fence in attacked.create(account, changed(body, other, container=False)), "another tenant's copies"


def test_benchmarks_have_no_token_and_their_services_lead_nobody_astray(attacked: Attacked) -> None:
    pod_spec = {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}
    body = {
        "apiVersion": RUNNING,
        "kind": "Job",
        "metadata": {"name": "x", "namespace": "kopt-benchmarks"},
        "spec": {"template": {"spec": pod_spec}},
    }
    assert attacked.create("kopt-pairs", body) == ""
    for attack in (
        {"serviceAccountName": "admin"},
        {"automountServiceAccountToken": True},
        {"hostPID": True},
        {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    ):
        assert "kopt-pairs-fence" in attacked.create("kopt-pairs", changed(body, attack, container=False))
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "namespace": "kopt-benchmarks"}}
    assert attacked.create("kopt-pairs", service | {"spec": {"clusterIP": "None", "selector": {"a": "b"}}}) == ""
    for spec in ({"ports": [{"port": 1}], "externalIPs": ["10.0.0.1"]}, {"ports": [{"port": 1}], "type": "NodePort"}):
        assert "kopt-pairs-services" in attacked.create("kopt-pairs", service | {"spec": spec})


def test_of_queues_only_their_quotas_and_of_workloads_only_what_a_hold_changes(attacked: Attacked) -> None:
    flavor = {"name": "default", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 4}]}
    queue = ("kueue.x-k8s.io/v1beta1", "ClusterQueue")
    spec = {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}], "namespaceSelector": {}}
    spec["cohort"] = "all"
    attacked.api.apply({"apiVersion": queue[0], "kind": queue[1], "metadata": {"name": "fenced"}, "spec": spec})
    document, mark = attacked.api.get(*queue, "fenced", ""), {"metadata": hold_metadata(LENDING, {})}
    more = {"name": "default", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": 9}]}

    def groups(**changes: Any) -> Object:
        flavors = [more | changes]
        return mark | {"spec": {"resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": flavors}]}}

    account, fence = "kopt-reallocation", "kopt-reallocation-held"
    try:
        assert KUEUE_CLUSTER_QUEUES.kind == document["kind"]
        for change in (
            groups(name="other"),
            groups(resources=[more["resources"][0] | {"borrowingLimit": 3}]),
            mark | {"spec": {"stopPolicy": "Hold"}},
            mark | {"spec": {"cohort": "evil"}},
            mark | {"spec": {"namespaceSelector": None}},
        ):
            assert fence in attacked.patch(account, queue, "fenced", change, "", dryRun="All"), change
        kept = groups(resources=[more["resources"][0] | {"lendingLimit": 4}])
        for change in (groups(), kept):
            assert attacked.patch(account, queue, "fenced", change, "", dryRun="All") == ""
        workload = ("kueue.x-k8s.io/v1beta1", "Workload")
        pods = [{"name": "main", "count": 1, "template": {"spec": job("x")["spec"]["template"]["spec"]}}]
        attacked.api.create(
            {
                "apiVersion": workload[0],
                "kind": workload[1],
                "spec": {"podSets": pods},
                "metadata": {"name": "theirs", "namespace": OPEN},
            }
        )
        for account in ("kopt-preemption", "kopt-sizing", "kopt-staging", "kopt-reallocation"):
            fence = f"{account}-held"
            for spec in ({"queueName": "evil"}, {"active": False}):
                assert fence in attacked.patch(account, workload, "theirs", {"spec": spec}, dryRun="All"), spec
            held = hold(KUEUE_WORKLOADS, attacked.api.get(*workload, "theirs", OPEN), "tests")
            assert attacked.patch(account, workload, "theirs", held, dryRun="All") == ""
            raised = {"metadata": hold_metadata("tests", {}), "spec": {"priority": 7}}
            assert (attacked.patch(account, workload, "theirs", raised, dryRun="All") == "") is (
                account == "kopt-preemption"
            )
    finally:
        attacked.api.delete(*queue, "fenced", "")
        attacked.api.delete("kueue.x-k8s.io/v1beta1", "Workload", "theirs", OPEN)


def test_of_staged_data_only_our_finalizer(attacked: Attacked) -> None:
    kind = ("kaiwo.ai/v1alpha1", "StagedData")
    spec = {"source": "s3://a/b", "destination": {"claim": "c", "path": "p"}}
    body = {"apiVersion": kind[0], "kind": kind[1], "metadata": {"name": "theirs", "namespace": OPEN}, "spec": spec}
    attacked.api.create(body)
    try:
        for account in ("kopt-staging", "kopt-off"):
            fence = f"{account}-data"
            for change in (
                {"spec": {"sizeBytes": 1}},
                {"metadata": {"labels": {"app": "evil"}}},
                {"metadata": {"finalizers": ["evil/forever"]}},
            ):
                assert fence in attacked.patch(account, kind, "theirs", change, dryRun="All")
            ours = {"metadata": {"finalizers": ["kaiwo.ai/staged-copies"]}}
            assert attacked.patch(account, kind, "theirs", ours, dryRun="All") == ""
        elsewhere = body | {"metadata": {"name": "x", "namespace": CLOSED}}
        assert "opted in" in attacked.create("kopt-staging", elsewhere)
        assert attacked.create("kopt-staging", body | {"metadata": {"name": "x", "namespace": OPEN}}) == ""
    finally:
        attacked.api.delete(*kind, "theirs", OPEN)


def claim_template(name: str, **labels: str) -> Object:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": OPEN, "labels": labels},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def test_of_claim_templates_only_those_of_shares(attacked: Attacked) -> None:
    account, kind = "kopt-webhook", ("resource.k8s.io/v1", "ResourceClaimTemplate")
    ours = {"kaiwo.ai/gpu-share": "abc", "app.kubernetes.io/part-of": "kaiwo-optimizer"}
    attacked.api.create(claim_template("theirs-claim"))
    attacked.api.create(claim_template("ours-claim", **ours))
    assert attacked.create(account, claim_template("more", **ours)) == ""
    for labels in ({}, {"kaiwo.ai/gpu-share": "abc"}):
        assert "only claim templates of shares" in attacked.create(account, claim_template("more", **labels))
    adopted = {"metadata": {"labels": ours}}
    assert "only claim templates of shares" in attacked.patch(account, kind, "theirs-claim", adopted)
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "probe", "uid": "4711"}
    assert attacked.patch(account, kind, "ours-claim", {"metadata": {"ownerReferences": [owner]}}, dryRun="All") == ""
    relabelled = {"metadata": {"labels": {"kaiwo.ai/gpu-share": "other"}}}
    assert "only whose it is" in attacked.patch(account, kind, "ours-claim", relabelled)
    stolen = attacked.stolen(account)
    assert "only claim templates of shares" in attacked.refusal(lambda: stolen.delete(*kind, "theirs-claim", OPEN))
    assert attacked.refusal(lambda: stolen.delete(*kind, "ours-claim", OPEN)) == ""


def device_rule(change: Object, device: str = "gpu-3") -> Object:
    """As the health controller writes one, changed."""
    body = rule_of(DeviceName("gpu.nvidia.com", "gpu-7", device), "gpu-7", "3", "XID_79")
    return {"apiVersion": RULES[0], "kind": RULES[1]} | merged(body, change)


@pytest.mark.long
def test_of_device_taints_only_ours_of_one_device_and_without_eviction(attacked: Attacked) -> None:
    labels = dict.fromkeys(("kaiwo.ai/gpu-unhealthy", "app.kubernetes.io/part-of"))
    attacks = {
        "evicts": {"spec": {"taint": {"effect": "NoExecute"}}},
        "another's taint": {"spec": {"taint": {"key": "gpu.nvidia.com/xid"}}},
        "every device": {"spec": {"deviceSelector": {"driver": None, "pool": None, "device": None}}},
        "a whole node": {"spec": {"deviceSelector": {"device": None}}},
        "one that nobody takes away": {"metadata": {"labels": labels}},
        "one that stays": {"metadata": {"finalizers": ["evil/forever"]}},
        "a name of others": {"metadata": {"name": "theirs"}},
    }
    account, fence = "kopt-health", "kopt-health-device-taints"
    assert attacked.create(account, device_rule({})) == ""
    for name, attack in attacks.items():
        assert fence in attacked.create(account, device_rule(attack)), name
    theirs = attacked.api.create(device_rule({"metadata": {"name": "theirs", "labels": labels}}))
    ours = attacked.api.create(device_rule({}, "gpu-4"))
    try:
        for thief in (account, "kopt-off"):
            refusals = [_delete_rule(attacked, thief, rule["metadata"]["name"]) for rule in (theirs, ours)]
            assert f"{thief}-device-taints" in refusals[0]
            assert refusals[1] == ""
        assert attacked.create("kopt-off", device_rule({}))
    finally:
        for rule in (theirs, ours):
            attacked.api.delete(*RULES, rule["metadata"]["name"])


def _delete_rule(attacked: Attacked, account: str, name: str) -> str:
    stolen = attacked.stolen(account)
    return attacked.refusal(lambda: stolen.request("DELETE", stolen.path(*RULES, "", name), params={"dryRun": "All"}))
