"""The pages with their own account's token: they show what controllers say and who waits, are refused nothing, use
every right that they have, and can change nothing."""

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from controlplane.api import Api, Refused
from controlplane.plane import ControlPlane
from controlplane.processes import free_port, wait_for

from dashboard import cluster_objects as objects

from .rights import Object, audited, granted, used

SELDOM = {
    ("watch", "scheduling.run.ai", "podgroups"): "only where there is KAI",
    ("watch", "scheduling.volcano.sh", "podgroups"): "only where there is Volcano",
} | {
    ("watch", "kueue.x-k8s.io", kind): "only where there is Kueue"
    for kind in ("workloads", "localqueues", "clusterqueues")
}
NAMESPACE, ACCOUNT, SPACE = "kopt-system", "kopt-pages", "research"
VERSION = "kaiwo.ai/v1alpha1"
VALUES = {
    "pages": {"account": True},
    "webhook": {"enabled": False},
    "sizing": {"enabled": False},
    "extender": {"enabled": False},
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
        ("batch", "jobs"),
        ("kueue.x-k8s.io", "workloads"),
        ("kueue.x-k8s.io", "localqueues"),
        ("kueue.x-k8s.io", "clusterqueues"),
        ("scheduling.run.ai", "podgroups"),
        ("scheduling.volcano.sh", "podgroups"),
        *(("kaiwo.ai", kind) for kind in ("evictions", "lendingpools", "nodetopologies", "stageddata")),
    }


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


@pytest.fixture(scope="module")
def served(control_plane: ControlPlane, install: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The pages as a process with their account's token; the audit log of what they did."""
    install(VALUES)
    api, started = control_plane.api, datetime.now(UTC)
    api.namespace(SPACE)
    port = free_port()
    home = tmp_path_factory.mktemp("home")
    code = f"from kopt.cli.local.pages import *; serve(load_settings(), {port}, cluster=cluster_of(os.environ))"
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
    assert entries
    assert [one for one in entries if one.get("responseStatus", {}).get("code") == 403] == []
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
