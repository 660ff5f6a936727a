"""The pages with their own account's token: they show what controllers say and who waits, are refused nothing, use
every right that they have, and can change nothing."""

import base64
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from chart import WITHOUT_DEFAULTS
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import free_port, wait_for

from dashboard import cluster_objects as objects

from .rights import Object, assert_refused_nothing, audited, granted, used

SELDOM = {
    ("watch", group, kind): f"only where there is {name}"
    for group, name, kinds in (
        ("scheduling.run.ai", "KAI", ("podgroups", "queues")),
        ("scheduling.volcano.sh", "Volcano", ("podgroups", "queues")),
        ("kueue.x-k8s.io", "Kueue", ("workloads", "localqueues", "clusterqueues", "cohorts", "resourceflavors")),
        ("jobset.x-k8s.io", "JobSet", ("jobsets",)),
        ("ray.io", "KubeRay", ("rayjobs", "rayclusters")),
    )
    for kind in kinds
}
NAMESPACE, ACCOUNT, SPACE = "kopt-system", "kopt-pages", "research"
VERSION = "kaiwo.ai/v1alpha1"
VALUES = {
    "pages": {"account": True},
    **WITHOUT_DEFAULTS,
}


def test_there_is_no_account_unless_it_is_asked_for(charts: Any) -> None:
    assert not [one for one in charts.render() if one["metadata"]["name"] == ACCOUNT]
    kinds = [one["kind"] for one in charts.render(VALUES) if one["metadata"]["name"] == ACCOUNT]
    assert sorted(kinds) == ["ClusterRole", "ClusterRoleBinding", "ServiceAccount"]


def test_its_account_lists_and_watches_what_the_pages_show_and_no_more(charts: Any) -> None:
    named = [one for one in charts.render(VALUES) if one["metadata"]["name"] == ACCOUNT]
    (role,) = [one for one in named if one["kind"] == "ClusterRole"]
    rights = granted([role])
    assert {verb for verb, _, _ in rights} == {"list", "watch"}
    assert {(group, kind) for _, group, kind in rights} == {
        ("", "pods"),
        ("", "nodes"),
        ("", "namespaces"),
        ("resource.k8s.io", "devicetaintrules"),
        ("resource.k8s.io", "resourceclaims"),
        ("resource.k8s.io", "resourceslices"),
        ("batch", "jobs"),
        ("jobset.x-k8s.io", "jobsets"),
        ("ray.io", "rayjobs"),
        ("ray.io", "rayclusters"),
        *(
            ("kueue.x-k8s.io", kind)
            for kind in ("workloads", "localqueues", "clusterqueues", "cohorts", "resourceflavors")
        ),
        ("scheduling.run.ai", "podgroups"),
        ("scheduling.run.ai", "queues"),
        ("scheduling.volcano.sh", "podgroups"),
        ("scheduling.volcano.sh", "queues"),
        *(
            ("kaiwo.ai", kind)
            for kind in (
                "evictions",
                "featurerollouts",
                "kaiwobudgets",
                "kaiworeservations",
                "lendingpools",
                "nodehealths",
                "nodetopologies",
                "stageddata",
            )
        ),
    }


@pytest.mark.parametrize("told", [False, True])
def test_it_may_write_events_where_diagnoses_are_told(charts: Any, told: bool) -> None:
    rendered = charts.render({"pages": {"enabled": True, "diagnoses": told}})
    (role,) = [one for one in rendered if one["metadata"]["name"] == ACCOUNT and one["kind"] == "ClusterRole"]
    before, asking = {"list", "watch"}, {("create", "tokenreviews"), ("create", "subjectaccessreviews")}
    writes = {(verb, kind) for verb, _, kind in granted([role]) if verb not in before}
    assert writes - asking == ({("create", "events"), ("patch", "events")} if told else set())
    (pages,) = [one for one in rendered if one["metadata"]["name"] == ACCOUNT and one["kind"] == "Deployment"]
    environment = {
        item["name"]: item.get("value") for item in pages["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert environment.get("KOPT_PAGES_DIAGNOSES") == ("true" if told else None)


@pytest.mark.parametrize("name", ["reallocation", "staging"])
def test_viewers_may_read_pools_and_staged_data_where_there_are_any(charts: Any, name: str) -> None:
    assert not [one for one in charts.render() if one["metadata"]["name"] == "kopt-view"]
    (role,) = [one for one in charts.render({name: {"enabled": True}}) if one["metadata"]["name"] == "kopt-view"]
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert granted([role]) == {
        (verb, "kaiwo.ai", kind) for verb in ("get", "list", "watch") for kind in ("lendingpools", "stageddata")
    }


def put(api: Api, kind: str, document: Object, namespace: str = "") -> None:
    """An object with its status, as its controller would write it."""
    meta = {key: value for key, value in document["metadata"].items() if key != "uid"}
    name = meta["name"]
    wanted = {"apiVersion": VERSION, "kind": kind, **document, "metadata": {**meta, "namespace": namespace}}
    api.create({key: value for key, value in wanted.items() if key != "status"})
    path = api.path(VERSION, kind, namespace, name)
    api.request(
        "PATCH",
        f"{path}/status",
        content=json.dumps({"status": document["status"]}),
        headers={"Content-Type": "application/merge-patch+json"},
    )


LOGIN = {**VALUES, "pages": {"enabled": True, "url": "http://127.0.0.1"}}
AUDIENCE = "kopt-pages"
REVIEWS = {
    ("create", "authentication.k8s.io", "tokenreviews"),
    ("create", "authorization.k8s.io", "subjectaccessreviews"),
}


def test_where_readers_log_in_the_account_may_ask_who_they_are_and_nothing_else(charts: Any) -> None:
    alone, deployed = (
        granted([one for one in charts.render(values) if one["kind"] == "ClusterRole" and ACCOUNT in str(one)])
        for values in (VALUES, LOGIN)
    )
    assert deployed - alone == REVIEWS


def test_every_reader_sees_what_their_own_rights_let_them_list(
    control_plane: ControlPlane, install: Callable[..., None], charts: Any, tmp_path: Path
) -> None:
    """The process of the chart's Deployment with its account's token, real tokens and real RBAC."""
    install(LOGIN)
    api = control_plane.api
    for space in ("team-a", "team-b"):
        api.namespace(space)
        api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "reader", "namespace": space}})
        subject = {"kind": "ServiceAccount", "name": "reader", "namespace": space}
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
        meta = {"metadata": {"name": "reader", "namespace": space}, "roleRef": role, "subjects": [subject]}
        api.create({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", **meta})
        pods = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any"}]}
        pods["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "64"}}
        job = {"metadata": {"name": f"job-of-{space}", "namespace": space}, "spec": {"template": {"spec": pods}}}
        api.create({"apiVersion": "batch/v1", "kind": "Job", **job})
        for node in ("gpu-shared", f"gpu-{space}"):
            _on_node(api, node, f"pod-of-{space}-on-{node}", space)
    wanted = ("Deployment", ACCOUNT)
    (deployment,) = (one for one in charts.render(LOGIN) if (one["kind"], one["metadata"]["name"]) == wanted)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (secret,) = (one for one in charts.render(LOGIN) if one["metadata"]["name"] == "kopt-pages-session")
    (tmp_path / "key").write_bytes(base64.b64decode(secret["data"]["key"]))
    port = free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("KOPT_")}
    env |= {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("KOPT_")}
    env |= {
        "KUBECONFIG": str(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)),
        "KOPT_HOME": str(tmp_path / "home"),
        "KOPT_PAGES_PORT": str(port),
        "KOPT_PAGES_SESSION_KEY_FILE": str(tmp_path / "key"),
    }
    server = control_plane.start_server("pages-login", [sys.executable, "-P", *container["command"][1:]], env)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _answers(f"{address}/healthz"), what="the pages answer")
        texts, maps = dict[str, str](), dict[str, Any]()
        for space in ("team-a", "team-b"):
            with httpx.Client(base_url=address, trust_env=False, timeout=30) as browser:
                assert browser.get("/queue").status_code == 303
                for audience in ("https://kubernetes.default.svc", "kopt-predictions"):
                    wrong = browser.post("/login", data={"token": _token(api, space, audience)})
                    assert wrong.status_code == 401
                entered = browser.post("/login", data={"token": _token(api, space, AUDIENCE), "next": "/queue"})
                assert (entered.status_code, entered.headers["location"]) == (303, "/queue")
                wait_for(lambda b=browser, s=space: f"job-of-{s}" in b.get("/queue").text, what=f"{space} sees its job")
                texts[space] = browser.get("/queue").text + browser.get("/queue?job=team-a/job-of-team-a").text
                assert f"system:serviceaccount:{space}:reader" in browser.get("/cluster").text
                wait_for(lambda b=browser, s=space: f"pod-of-{s}" in b.get("/gpus/map.json").text, what="the map")
                maps[space] = browser.get("/gpus/map.json").json()
                assert "pod-of-" not in browser.get("/gpus?node=node+1").text
        for space, status in (("", 401), ("team-a", 200), ("team-b", 404)):
            headers = {"authorization": f"Bearer {_token(api, space, AUDIENCE)}"} if space else {}
            asked = f"{address}/v1/why/team-a/job/job-of-team-a"
            reply = httpx.get(asked, headers=headers, trust_env=False, timeout=30)
            assert reply.status_code == status, reply.text
            if status == 200:
                diagnosis = reply.json()["diagnosis"]
                assert diagnosis["scheduler"] == "kube-scheduler"
        # She reads why her job waits, and what to ask for so that it starts.
        fewer = next(change for change in diagnosis["changes"] if change["kind"] != "wait")
        assert fewer["verified"], diagnosis
        for words in (diagnosis["causes"][0]["message"], fewer["message"]):
            assert words in unescape(texts["team-a"]), words
        assert "job-of-team-b" not in texts["team-a"]
        assert "Job team-a/job-of-team-a" in texts["team-a"]
        assert "Job team-a/job-of-team-a" not in texts["team-b"]
        for space, other in (("team-a", "team-b"), ("team-b", "team-a")):
            assert other not in json.dumps(maps[space])
            # They may not list nodes: those are named on which a pod of theirs is.
            named = {name for _, name, _, _, _ in maps[space]["nodes"] if not name.startswith("node ")}
            assert named == {"gpu-shared", f"gpu-{space}"}
            held = sum(bool(gpu[4]) for _, _, _, gpus, _ in maps[space]["nodes"] for gpu in gpus)
            assert held == 4, "amounts are everybody's"
        log = server.log.read_text()
        assert not any(_token(api, "team-a", AUDIENCE)[:20] in line for line in log.splitlines())
    finally:
        server.stop()
        for node in ("gpu-shared", "gpu-team-a", "gpu-team-b"):
            api.delete("v1", "Node", node)


def _on_node(api: Api, node: str, pod: str, namespace: str) -> None:
    """A pod with a GPU of a node with four, which is made where it is not there."""
    with contextlib.suppress(Refused):
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
    offers = {"nvidia.com/gpu": "4", "cpu": "8", "memory": "64Gi", "pods": "110"}
    status = {"capacity": offers, "allocatable": offers, "conditions": [{"type": "Ready", "status": "True"}]}
    api.patch("v1", "Node", node, {"status": status}, subresource="status")
    container = {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod, "namespace": namespace}, "spec": spec})


def _answers(address: str) -> bool:
    try:
        return httpx.get(address, trust_env=False, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _token(api: Api, namespace: str, audience: str) -> str:
    path = f"{api.path('v1', 'ServiceAccount', namespace, 'reader')}/token"
    spec = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [audience]}}
    return str(api.request("POST", path, json=spec).json()["status"]["token"])


@pytest.fixture(scope="module")
def served(control_plane: ControlPlane, install: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The pages as a process with their account's token; the audit log of what they did."""
    install(VALUES)
    api, started = control_plane.api, datetime.now(UTC)
    api.namespace(SPACE)
    port = free_port()
    home = tmp_path_factory.mktemp("home")
    code = (
        "import os; from kopt.cli.local.pages.serve import *; "
        f"serve(load_settings(), {port}, cluster=cluster_of(os.environ))"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith("KOPT_")}
    env |= {"KUBECONFIG": str(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)), "KOPT_HOME": str(home)}
    server = control_plane.start_server("pages", [sys.executable, "-P", "-c", code], env)

    def page(path: str = "/cluster") -> str:
        try:
            return httpx.get(f"http://127.0.0.1:{port}{path}", trust_env=False, timeout=30).text
        except httpx.HTTPError:
            return ""

    wait_for(lambda: "There is no LendingPool" in page(), what="the cluster was read")
    now_s = time.time()
    put(api, "LendingPool", objects.pool("chat", now_s, reclaiming=True, moments=20))
    put(api, "Eviction", objects.eviction("pretrain", now_s - 60, objects.Phase.WAITING), SPACE)
    put(api, "StagedData", objects.staged("corpus", now_s), SPACE)
    words = ("research/pretrain, team/sweep-3", "waits for", "s3://corpora/corpus", "37.0")
    wait_for(lambda: all(one in (html := page()) for one in words) and html, what="it shows what was written")
    container = {"name": "main", "image": "any", "resources": {"limits": {"nvidia.com/gpu": "64"}}}
    pods = {"restartPolicy": "Never", "containers": [container]}
    job = {"metadata": {"name": "large", "namespace": SPACE}, "spec": {"template": {"spec": pods}}}
    api.create({"apiVersion": "batch/v1", "kind": "Job", **job})
    wait_for(lambda: "kopt why research/large" in page("/queue"), what="it shows what waits")
    html = page() + page("/queue?job=research/large")
    server.stop()
    api.delete("batch/v1", "Job", "large", SPACE, propagationPolicy="Background")
    return html, audited(control_plane, ACCOUNT, started)


def test_it_shows_what_controllers_write_as_they_write_it(served: Any) -> None:
    html, _ = served
    assert "8 GPUs are being taken back" in html
    assert html.count('<th scope="row" dir="auto">research/pretrain') == 1
    assert "lending0-figure" in html


def test_it_says_why_a_job_waits(served: Any) -> None:
    html, _ = served
    assert "Job research/large" in html
    assert "default-scheduler" in html


def test_it_is_refused_nothing_and_uses_every_right(served: Any, charts: Any) -> None:
    _, entries = served
    assert_refused_nothing(entries)
    roles = [
        one for one in charts.render(VALUES) if one["kind"] == "ClusterRole" and one["metadata"]["name"] == ACCOUNT
    ]
    assert granted(roles) - used(entries) <= set(SELDOM)
    assert used(entries) <= granted(roles)


def test_it_lists_once_and_watches(served: Any) -> None:
    _, entries = served
    lists = [one["objectRef"]["resource"] for one in entries if one["verb"] == "list"]
    for name in ("lendingpools", "evictions", "stageddata", "pods", "jobs"):
        assert lists.count(name) == 1, lists


def test_its_account_can_read_no_secret_and_write_nothing(served: Any, control_plane: ControlPlane) -> None:
    stolen = Api(Path(control_plane.kubeconfig_for(ACCOUNT, NAMESPACE)))
    for kind in (("v1", "Secret"), ("v1", "ConfigMap"), ("apps/v1", "Deployment"), ("events.k8s.io/v1", "Event")):
        with pytest.raises(Refused, match="forbidden"):
            stolen.list(*kind, SPACE)
    assert isinstance(stolen.list("v1", "Pod", SPACE), list)
    for kind, name in (((VERSION, "LendingPool"), "chat"), (("batch/v1", "Job"), "large")):
        with pytest.raises(Refused, match="forbidden"):
            stolen.delete(*kind, name, "" if name == "chat" else SPACE)


def test_an_ingress_needs_an_address_and_a_controller_that_may_come_in(charts: Any) -> None:
    nginx = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ingress-nginx"}}}
    whole = {"enabled": True, "ingress": {"enabled": True}, "url": "https://gpus.example", "allowedFrom": [nginx]}
    rendered = charts.render({"pages": whole})
    (ingress,) = (one for one in rendered if one["kind"] == "Ingress")
    assert [rule["host"] for rule in ingress["spec"]["rules"]] == ["gpus.example"]
    (policy,) = (one for one in rendered if (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", ACCOUNT))
    assert nginx in policy["spec"]["ingress"][0]["from"]
    for absent, words in (
        ("url", "pages.ingress needs pages.url"),
        ("allowedFrom", "pages.ingress needs pages.allowedFrom"),
    ):
        with pytest.raises(AssertionError, match=words):
            charts.render({"pages": {key: value for key, value in whole.items() if key != absent}})


def test_a_provider_needs_its_client_and_secret(charts: Any) -> None:
    whole = {"issuer": "https://login.example", "clientId": "kopt", "clientSecret": "oidc"}
    rendered = charts.render({"pages": {"enabled": True, "url": "https://gpus.example", "oidc": whole}})
    (deployment,) = (one for one in rendered if (one["kind"], one["metadata"]["name"]) == ("Deployment", ACCOUNT))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert (given["KOPT_PAGES_LOGIN"], given["KOPT_PAGES_OIDC_ISSUER"]) == ("oidc", "https://login.example")
    for absent in ("clientId", "clientSecret"):
        with pytest.raises(AssertionError, match=f"pages.oidc.{absent}"):
            charts.render({"pages": {"enabled": True, "oidc": {k: v for k, v in whole.items() if k != absent}}})


def test_it_asks_the_prometheus_that_the_values_name(charts: Any) -> None:
    prometheus = {"url": "https://metrics.example:9443", "tokenSecret": "reader", "caSecret": "authority"}
    rendered = charts.render({"pages": {"enabled": True, "prometheus": prometheus}})
    (deployment,) = (one for one in rendered if (one["kind"], one["metadata"]["name"]) == ("Deployment", ACCOUNT))
    pod = deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {variable["name"]: variable.get("value", "") for variable in container["env"]}
    assert given["KOPT_PAGES_PROMETHEUS"] == "https://metrics.example:9443"
    mounted = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert mounted["prometheus-token"] / "token" == Path(given["KOPT_PAGES_PROMETHEUS_TOKEN_FILE"])
    assert mounted["prometheus-ca"] / "ca.crt" == Path(given["KOPT_PAGES_PROMETHEUS_CA_FILE"])
    secrets = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert (secrets["prometheus-token"], secrets["prometheus-ca"]) == ("reader", "authority")
    (policy,) = (one for one in rendered if (one["kind"], one["metadata"]["name"]) == ("NetworkPolicy", ACCOUNT))
    assert {"ports": [{"port": 9443}]} in policy["spec"]["egress"]
